"""The public API for observers: code that is notified of what happens to devices, without influencing it.

An observer may export an inventory, send alerts or keep an audit trail. It implements any of the hooks of
:class:`ObserverHooks` and is found like a backend: by an entry point in the group ``devhost`` that names
a module or an object, or as a ``.py`` file in a directory of ``backendPaths``::

    from devhost.backend.observe import hookimpl

    @hookimpl
    def devhost_health_changed(news):
        for one in news:
            print(one.resource, one.device.id, one.health.reason or "healthy")

Each hook takes a tuple of news of one kind, at least one and at most 1000, in the order in which they
happened, and may omit arguments that it does not need. Hooks are plain functions that may block. They are
called one after another on a thread of this observer, after the fact: nothing waits for them, and
what they return is ignored. ``docs/observers.md`` describes what happens if a hook is slow, fails or hangs.
"""

from __future__ import annotations

from typing import ClassVar

import pluggy

from .frozen import frozen
from .model import AttributeValue, ClaimHolder, Device, Health, Holder

__all__ = [
    "Allocated",
    "Appeared",
    "AttributeValue",
    "BackendChanged",
    "ClaimHolder",
    "ClaimPrepared",
    "ClaimUnprepared",
    "ConfigurationRead",
    "Device",
    "DeviceNews",
    "Health",
    "HealthChanged",
    "Held",
    "Holder",
    "Left",
    "News",
    "Released",
    "VerdictChanged",
    "hookimpl",
]

hookspec = pluggy.HookspecMarker("devhost")
hookimpl = pluggy.HookimplMarker("devhost")
"""Marks a function as the implementation of a hook. Use ``hookimpl(optionalhook=True)`` for a hook that older
versions of devhost do not have."""


@frozen(kw_only=True)
class News:
    """The fields of all news.

    ``at`` is when devhost noticed it, in seconds since the epoch; ``generation`` counts the
    configurations that took effect since devhost started, from 1.
    """

    hook: ClassVar[str]
    """The hook that is called with news of this kind."""

    at: float
    generation: int


@frozen(kw_only=True)
class DeviceNews(News):
    """News of one physical device in one resource, regardless of its number of tokens.

    ``device`` has the id, the attributes and the topology that the backend last reported. Its ``health`` is
    only what ``discover`` reported; use that of the news.
    """

    resource: str
    backend: str
    device: Device


@frozen(kw_only=True)
class Appeared(DeviceNews):
    """The resource has a new device, with this health: plugged in, configured, or present at the start."""

    hook = "devhost_appeared"
    health: Health


@frozen(kw_only=True)
class Left(DeviceNews):
    """The resource no longer has the device. A container may still hold it: see :class:`Released`."""

    hook = "devhost_left"
    reason: str


@frozen(kw_only=True)
class HealthChanged(DeviceNews):
    """The device became unhealthy, or healthy again; another reason while it is unhealthy is not reported."""

    hook = "devhost_health_changed"
    health: Health
    previous: Health


@frozen(kw_only=True)
class Allocated(DeviceNews):
    """The device was allocated to a container, by these tokens. The kubelet does not name the container."""

    hook = "devhost_allocated"
    tokens: tuple[str, ...]


@frozen(kw_only=True)
class Held(DeviceNews):
    """The kubelet has named the container that holds the device, usually within a second of Allocate.

    Also reported for what containers hold when devhost starts, without an :class:`Allocated` before.
    """

    hook = "devhost_held"
    tokens: tuple[str, ...]
    holder: Holder


@frozen(kw_only=True)
class Released(DeviceNews):
    """The container no longer holds the device. ``holder`` is ``None`` if the kubelet never named it.

    devhost concludes this from the kubelet's lists, so it is seconds to minutes late (``docs/status.md``).
    """

    hook = "devhost_released"
    tokens: tuple[str, ...]
    holder: Holder | None


@frozen(kw_only=True)
class ClaimPrepared(DeviceNews):
    """A ResourceClaim got the device (DRA), or ``shares`` of it, if several claims may use it.

    ``pods`` are those that are known to use the claim; they are in its namespace. Sent again when others
    become known. Also sent for what claims hold when devhost starts. Admin access is not reported.
    """

    hook = "devhost_claim_prepared"
    claim: ClaimHolder
    pods: tuple[str, ...]
    shares: int


@frozen(kw_only=True)
class ClaimUnprepared(DeviceNews):
    """The ResourceClaim no longer has the device. ``pods`` are those that were last known to use it."""

    hook = "devhost_claim_unprepared"
    claim: ClaimHolder
    pods: tuple[str, ...]
    shares: int


@frozen(kw_only=True)
class BackendChanged(News):
    """A backend fails or hangs, for the ``reason``, or works again: then ``reason`` is ``None``."""

    hook = "devhost_backend_changed"
    backend: str
    degraded: bool
    reason: str | None


@frozen(kw_only=True)
class ConfigurationRead(News):
    """A configuration took effect; or it was refused for these ``complaints``, and the old one stays."""

    hook = "devhost_configuration_read"
    file: str
    complaints: tuple[str, ...]


@frozen(kw_only=True)
class VerdictChanged(News):
    """A verdict took effect, or ended: a file by which a person or a program takes devices out of service.

    ``file`` is its name, and ``devices`` are the names in it. ``kind`` is ``cordon`` or ``unhealthy``. It
    was written at ``since`` and ends at ``until``, in seconds since the epoch. A file with another content is
    the end of one verdict and the begin of another.
    """

    hook = "devhost_verdict_changed"
    in_force: bool
    file: str
    kind: str
    devices: tuple[str, ...]
    reason: str
    by: str
    since: float
    until: float | None


class ObserverHooks:
    """The hooks that an observer may implement.

    ``news`` is what happened. ``missed`` is the number of news, of any kind with a hook of this observer,
    that were dropped before these because it was too slow. It is 0 unless the log reports dropped news.
    """

    @hookspec
    def devhost_appeared(self, news: tuple[Appeared, ...], missed: int) -> None:
        """Resources have new devices. The first calls are about devices that exist already."""

    @hookspec
    def devhost_left(self, news: tuple[Left, ...], missed: int) -> None:
        """Resources no longer have devices: unplugged, no longer configured, or in another resource."""

    @hookspec
    def devhost_health_changed(self, news: tuple[HealthChanged, ...], missed: int) -> None:
        """Devices became unhealthy, or healthy again."""

    @hookspec
    def devhost_allocated(self, news: tuple[Allocated, ...], missed: int) -> None:
        """Devices were allocated to a container."""

    @hookspec
    def devhost_held(self, news: tuple[Held, ...], missed: int) -> None:
        """The kubelet has named the containers that hold devices."""

    @hookspec
    def devhost_released(self, news: tuple[Released, ...], missed: int) -> None:
        """Containers no longer hold devices."""

    @hookspec
    def devhost_claim_prepared(self, news: tuple[ClaimPrepared, ...], missed: int) -> None:
        """ResourceClaims got devices, or other pods are known to use them."""

    @hookspec
    def devhost_claim_unprepared(self, news: tuple[ClaimUnprepared, ...], missed: int) -> None:
        """ResourceClaims no longer have devices."""

    @hookspec
    def devhost_backend_changed(self, news: tuple[BackendChanged, ...], missed: int) -> None:
        """Backends are degraded, or back."""

    @hookspec
    def devhost_configuration_read(self, news: tuple[ConfigurationRead, ...], missed: int) -> None:
        """The configuration was read again, or refused at the start."""

    @hookspec
    def devhost_verdict_changed(self, news: tuple[VerdictChanged, ...], missed: int) -> None:
        """Verdicts took effect, or ended."""
