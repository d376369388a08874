"""The public API for observers: code that hears what happens to devices and has no part in it.

An observer exports an inventory, pages somebody, keeps an audit trail. It implements any of the hooks of
:class:`ObserverHooks` and is found as backends are: by an entry point in the group ``devhost`` that names
a module or an object, or as a ``.py`` file in a directory of ``backendPaths``::

    from devhost.backend.observe import hookimpl

    @hookimpl
    def devhost_health_changed(news):
        for one in news:
            print(one.resource, one.device.id, one.health.reason or "healthy")

Each hook takes a tuple of news of one kind, at least one and at most 1000, in the order in which they
happened, and may leave out arguments it does not need. Hooks are plain functions that may block. They are
called one after another on a thread of this observer's own, after the fact: nothing waits for them, and
what they return is ignored. ``docs/observers.md`` says what becomes of one that is slow, fails or hangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pluggy

from .model import AttributeValue, Device, Health, Holder

__all__ = [
    "Allocated",
    "Appeared",
    "AttributeValue",
    "BackendChanged",
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
    "hookimpl",
]

hookspec = pluggy.HookspecMarker("devhost")
hookimpl = pluggy.HookimplMarker("devhost")
"""Marks a function as a hook's implementation; ``hookimpl(optionalhook=True)`` where older versions of
devhost may not have the hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What all news have.

    ``at`` is when devhost learned of it, in seconds since the epoch; ``generation`` counts the
    configurations that took effect since devhost started, from 1.
    """

    hook: ClassVar[str]
    """The hook that is called with news of this kind."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNews(News):
    """News of one physical device in one resource, however many tokens it is handed out as.

    ``device`` has the id, the attributes and the topology as the backend last gave them. Its ``health`` is
    the backend's first word; what counts is the news' own.
    """

    resource: str
    backend: str
    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Appeared(DeviceNews):
    """The resource has the device, with this health: plugged in, newly configured, or there at the start."""

    hook = "devhost_appeared"
    health: Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(DeviceNews):
    """The resource has the device no more. A container may still hold it: see :class:`Released`."""

    hook = "devhost_left"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChanged(DeviceNews):
    """The device fell ill or is well again; another reason for the same sickness is no news."""

    hook = "devhost_health_changed"
    health: Health
    previous: Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated(DeviceNews):
    """The kubelet was given the device for a container, by these tokens. It does not say for which one."""

    hook = "devhost_allocated"
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(DeviceNews):
    """The kubelet has named the container that holds the device; as a rule within a second of Allocate.

    Told also of what containers hold when devhost starts, without an :class:`Allocated` before.
    """

    hook = "devhost_held"
    tokens: tuple[str, ...]
    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(DeviceNews):
    """The container lets go of the device. ``holder`` is ``None`` if the kubelet never named it.

    Concluded from the kubelet's lists, so seconds to minutes late (``docs/status.md``).
    """

    hook = "devhost_released"
    tokens: tuple[str, ...]
    holder: Holder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChanged(News):
    """A backend fails or hangs, for the ``reason``, or works again; ``reason`` is then ``None``."""

    hook = "devhost_backend_changed"
    backend: str
    degraded: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRead(News):
    """A configuration took effect; or it was refused for these ``complaints``, and the old one stays."""

    hook = "devhost_configuration_read"
    file: str
    complaints: tuple[str, ...]


class ObserverHooks:
    """The hooks an observer may implement.

    ``news`` is what happened. ``missed`` counts news, of any kind the observer hears of, that were dropped
    before these because it was too slow; it is 0 unless the log says otherwise.
    """

    @hookspec
    def devhost_appeared(self, news: tuple[Appeared, ...], missed: int) -> None:
        """Devices are in a resource that were not. First of all come those there are already."""

    @hookspec
    def devhost_left(self, news: tuple[Left, ...], missed: int) -> None:
        """Devices were unplugged, taken away by the configuration, or lost to another resource."""

    @hookspec
    def devhost_health_changed(self, news: tuple[HealthChanged, ...], missed: int) -> None:
        """Devices fell ill or are well again."""

    @hookspec
    def devhost_allocated(self, news: tuple[Allocated, ...], missed: int) -> None:
        """Devices were handed out for a container."""

    @hookspec
    def devhost_held(self, news: tuple[Held, ...], missed: int) -> None:
        """It is known which containers hold devices."""

    @hookspec
    def devhost_released(self, news: tuple[Released, ...], missed: int) -> None:
        """Containers hold devices no more."""

    @hookspec
    def devhost_backend_changed(self, news: tuple[BackendChanged, ...], missed: int) -> None:
        """Backends are degraded, or back."""

    @hookspec
    def devhost_configuration_read(self, news: tuple[ConfigurationRead, ...], missed: int) -> None:
        """The configuration was read again, or refused at the start."""
