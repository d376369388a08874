"""Cards that need only their DRM nodes, and the health checks that any DRM driver supports.

:class:`DrmVendor` is the common code for Intel cards and those of other vendors. :func:`driver_state` is the
health according to sysfs and ``/dev``; :class:`DrmHealth` asks the drivers and reads temperatures.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from devhost.backend import (
    HEALTHY,
    AllocationError,
    AttributeValue,
    Cause,
    Context,
    DeviceNode,
    Edits,
    Event,
    Health,
    claim,
    unhealthy,
)
from devhost.backend.errors import counted
from devhost.backend.frozen import frozen, mutable
from devhost.backend.purpose import DISPLAY, PURPOSE
from devhost.backend.sysfs import Sysfs
from devhost.backend.threads import start

from .attributes import GPU, VF
from .discovery import OTHER, Adapter
from .environment import STANDARD, Environment
from .options import GpuOptions
from .vendor import Card, ContainerRequest, Vendor, device, of_adapter, own_claims

KFD = "/dev/kfd"
"""The node for computing on AMD GPUs, which all of them share."""


@frozen
class DriverState:
    """Whether an adapter can be used: its health, and why it is withheld, if it is.

    ``divided`` is whether it is withheld only because its virtual functions are offered instead.
    """

    health: Health = HEALTHY
    withheld: str | None = None
    divided: bool = False


def driver_state(
    sysfs: Sysfs, adapter: Adapter, drivers: Collection[str] = (), nodes: Collection[str] | None = None
) -> DriverState:
    """The state of an adapter according to sysfs and ``/dev``.

    An adapter that is bound to another driver is withheld. One without a driver, or whose driver has failed,
    stays in its resource as Unhealthy. ``drivers`` are those with which it is a GPU; empty: any that creates
    DRM nodes. ``nodes`` are the paths of device nodes that are needed; ``None``: its own.
    """
    if adapter.num_vfs:
        parts, are = counted(adapter.num_vfs, "virtual function"), "is" if adapter.num_vfs == 1 else "are"
        text = f"it has {parts}, which {are} offered instead"
        is_gpu = not drivers or adapter.driver in drivers
        return DriverState(_health(sysfs, adapter, adapter.nodes), text, divided=is_gpu)
    if adapter.driver and drivers and adapter.driver not in drivers:
        text = f"it is bound to {adapter.driver}, which makes no GPU of it for containers"
        return DriverState(unhealthy(f"it is bound to {adapter.driver}"), text)
    return DriverState(_health(sysfs, adapter, adapter.nodes if nodes is None else nodes))


def _health(sysfs: Sysfs, adapter: Adapter, nodes: Collection[str]) -> Health:
    if not adapter.nodes:
        if not adapter.driver and adapter.address:
            return unhealthy("no driver is bound to it")
        return unhealthy(f"its driver {adapter.driver} has created no DRM device: see the kernel's log")
    for node in nodes:
        if not sysfs.exists(node):
            return unhealthy(f"{node} does not exist", Cause.MISSING)
    return HEALTHY


CONSOLES = frozenset(
    {"ast", "mgag200", "hibmc-drm", "simple-framebuffer", "efi-framebuffer", "vesa-framebuffer", "of-display"}
)
"""Drivers of the graphics of a BMC, and of frame buffers that the firmware set up. They render nothing."""

SHOWS_CONSOLE = "it shows the console of this machine and renders nothing"
"""The reason for the purpose of their cards."""


@mutable
class _Call:
    thread: threading.Thread | None = None
    answer: str | None = None


class ThreadedCalls:
    """Makes calls that may never return, each on a separate thread. Used by one thread.

    A call that has not returned is not repeated: a hanging driver gets one thread, not one per minute.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Call] = {}

    def run(self, functions: Mapping[str, Callable[[], str]], deadline: float) -> dict[str, str]:
        """The result of each function by its name, without those that did not return in time.

        ``deadline`` is seconds for all of them together. The functions do not raise.
        """
        calls = {name: self._open.get(name) or self._start(name, one) for name, one in functions.items()}
        end = time.monotonic() + deadline
        answers = {}
        for name, call in calls.items():
            if call.thread is not None:
                call.thread.join(max(0.0, end - time.monotonic()))
            if call.answer is not None:
                answers[name] = call.answer
                del self._open[name]
        return answers

    def _start(self, name: str, function: Callable[[], str]) -> _Call:
        def run() -> None:
            call.answer = function()

        call = _Call()
        call.thread = start(f"gpu-ask-{name}", run)
        self._open[name] = call
        return call


# To check whether a driver answers, it is asked for its version. That needs no rights except to open the
# node. A card that cannot work refuses it: xe blocks every request while the device is wedged
# (Documentation/gpu/xe, "Xe Device Wedging"), and the DRM core blocks those of a device that was unplugged
# (drm_ioctl.c). i915 refuses other requests; the only one of them without an effect is the throttle
# (i915_gem_throttle.c). Only render nodes are opened, because the first process that opens a card node
# becomes its master. They are closed at once, so that the driver can be unbound.

_LONGS = struct.Struct("=iii4xQQQQQQ" if struct.calcsize("P") == 8 else "=iiiIIIIII")
"""``struct drm_version`` (include/uapi/drm/drm.h): three ints, then three pairs of length and pointer."""

VERSION = 3 << 30 | _LONGS.size << 16 | ord("d") << 8
"""``DRM_IOCTL_VERSION``: ``_IOWR('d', 0x00, struct drm_version)``."""

I915_THROTTLE = ord("d") << 8 | 0x58
"""``DRM_IOCTL_I915_GEM_THROTTLE``: ``_IO('d', DRM_COMMAND_BASE + 0x18)``; it fails on a wedged GPU."""

_DEAD = {
    errno.ECANCELED: "is wedged: bind it to its driver again, or reset it",
    errno.EIO: "is wedged: bind it to its driver again, or reset it",
    errno.ENODEV: "is gone, though its node is still there",
    errno.ENXIO: "is gone, though its node is still there",
}
"""The meaning of errors. Any other error is about this process, such as a missing permission or a limit."""


class DriverCheck:
    """Checks the drivers of cards. Nodes of a recorded tree have no driver: their cards are healthy."""

    def __init__(self, root: Path, environment: Environment = STANDARD) -> None:
        self._sysfs = Sysfs(root)
        self._is_live = environment.is_live(root)
        self._ask = environment.ask_driver or refusal
        self._calls = ThreadedCalls()

    def problems(self, adapters: Mapping[str, Adapter], deadline: float) -> dict[str, str]:
        """Why adapters cannot work, without those that work or whose driver cannot be asked.

        ``adapters`` are by any name for them, ``deadline`` is seconds that all of them together have.
        """
        found = {
            name: "its PCI function no longer answers: it has failed, or lost its link"
            for name, adapter in adapters.items()
            if adapter.address and self._sysfs.is_dead(adapter.path)
        }
        if not self._is_live:
            return found
        functions = {
            name: partial(self._ask, f"{self._sysfs.prefix}{adapter.render_node}", adapter.driver)
            for name, adapter in adapters.items()
            if name not in found and adapter.render and self._is_awake(adapter)
        }
        answers = self._calls.run(functions, deadline)
        for name in functions:
            if name not in answers:
                found[name] = "its driver does not answer"
            elif answers[name]:
                found[name] = f"it {answers[name]}"
        return found

    def _is_awake(self, adapter: Adapter) -> bool:
        """Whether a request would not wake it up (sysfs-devices-power, ``runtime_status``)."""
        return self._sysfs.text(f"{adapter.path}/power/runtime_status") not in ("suspended", "suspending")


def refusal(node: str, driver: str, ioctl: Callable[..., object] = fcntl.ioctl) -> str:
    """What a driver's error means for the card; empty if it answered, or the error is not about it."""
    try:
        descriptor = os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _DEAD.get(error.errno or 0, "")
    try:
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            ioctl(descriptor, VERSION, bytearray(_LONGS.size))
            if driver == "i915":
                ioctl(descriptor, I915_THROTTLE)
    except OSError as error:
        return _DEAD.get(error.errno or 0, "")
    finally:
        os.close(descriptor)
    return ""


SENSOR = re.compile(r"(temp\d{1,3})_input")
"""The file of a temperature sensor (Documentation/hwmon/sysfs-interface.rst)."""


@frozen
class Sensor:
    """A temperature; ``label`` is the driver's name for the location, else the name of the sensor."""

    label: str
    celsius: int


def hottest(sysfs: Sysfs, path: str) -> Sensor | None:
    """The hottest sensor of the device at ``path``; ``None`` if none can be read."""
    found = []
    for hwmon in sysfs.names(f"{path}/hwmon"):
        place = f"{path}/hwmon/{hwmon}"
        for name in sysfs.names(place):
            if match := SENSOR.fullmatch(name):
                value = sysfs.integer(f"{place}/{name}")
                if value is not None:
                    label = sysfs.text(f"{place}/{match[1]}_label") or match[1]
                    found.append(Sensor(label, value // 1000))
    return max(found, key=lambda sensor: sensor.celsius, default=None)


class DrmHealth:
    """The health of cards, by checks that any DRM driver supports. Used by one thread."""

    def __init__(self, root: Path, options: GpuOptions, environment: Environment = STANDARD) -> None:
        self._sysfs = Sysfs(root)
        self._limit = options.temperature_limit
        self._drivers = DriverCheck(root, environment)
        self._deadline = environment.timings.driver_answers

    def check(self, adapters: Mapping[str, Adapter]) -> dict[str, Health]:
        """The faults of these adapters, by any name for them, without healthy ones."""
        problems = self._drivers.problems(adapters, self._deadline)
        verdicts = {name: unhealthy(reason) for name, reason in problems.items()}
        for name in adapters.keys() - verdicts.keys() if self._limit else ():
            sensor = hottest(self._sysfs, adapters[name].path)
            if sensor and sensor.celsius >= self._limit:
                text = f"{sensor.label} is at {sensor.celsius} °C, the limit is {self._limit} °C"
                verdicts[name] = unhealthy(text, Cause.THERMAL)
        return verdicts


# A driver that has reset a card, or declares it wedged, sends an event ``change`` of its DRM device
# (Documentation/gpu/drm-uapi.rst, "Device Wedging"), as it does when a display is plugged in. The properties
# of the event are not available here, so the driver is asked, and asked again at each scan while the card is
# wedged.


class WedgedCards:
    """Keeps track of cards that may be wedged, and asks their drivers. Used by one thread."""

    def __init__(self, root: Path, environment: Environment = STANDARD) -> None:
        self._drivers = DriverCheck(root, environment)
        self._deadline = environment.timings.wedged_answers
        self._paths: set[str] = set()

    def notice(self, event: Event) -> None:
        owner, _, name = event.sys_path.rpartition("/drm/")
        if event.subsystem == "drm" and event.action == "change" and owner and "/" not in name:
            self._paths.add(owner)

    def problems(self, adapters: Iterable[Adapter]) -> dict[str, str]:
        """Why adapters that may be wedged do not work, by their ids."""
        asked = {adapter.id: adapter for adapter in adapters if adapter.path in self._paths}
        found = self._drivers.problems(asked, self._deadline) if asked else {}
        self._paths = {asked[name].path for name in found}
        return found


@frozen
class DrmFacts:
    """The facts about a card that allocation needs."""

    adapter: Adapter

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.adapter.nodes

    @property
    def extra_nodes(self) -> tuple[str, ...]:
        """Paths of the other nodes that only this card has."""
        return ()


class DrmVendor(Vendor):
    """The base of the code for such cards. Subclasses name the vendor and add what is specific to it."""

    vendor: ClassVar[str]
    """The value of the attribute ``vendor``."""

    drivers: ClassVar[Collection[str]] = ()
    """The drivers with which a function is a GPU; empty: any driver that creates DRM nodes."""

    def __init__(self, options: GpuOptions, context: Context, environment: Environment = STANDARD) -> None:
        self.context = context
        self.sysfs = Sysfs(context.root)
        self._health = DrmHealth(context.root, options, environment)

    def facts(self, adapter: Adapter) -> DrmFacts:
        return DrmFacts(adapter)

    def extra_attributes(self, adapter: Adapter) -> Mapping[str, AttributeValue | None]:
        """Attributes in addition to those that every card has."""
        return {}

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        return [self._card(index, adapter) for index, adapter in enumerate(adapters)]

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Whether their driver answers, and how hot they are."""
        return self._health.check({card.id: card.facts.adapter for card in cards})

    def edits(self, cards: Sequence[Card], request: ContainerRequest) -> Edits:
        return drm_nodes((card.id, card.facts.nodes) for card in cards)

    def _card(self, index: int, adapter: Adapter) -> Card:
        state = driver_state(self.sysfs, adapter, self.drivers)
        attributes = {
            **of_adapter(adapter),
            "vendor": self.vendor,
            PURPOSE: DISPLAY if adapter.driver in CONSOLES else None,
            "kind": VF if adapter.is_virtual else GPU,
            "index": index,
            "parent": adapter.physical_function,
            **self.extra_attributes(adapter),
        }
        facts = self.facts(adapter)
        claims = own_claims(adapter) | {claim.node(node) for node in facts.extra_nodes}
        reserved = SHOWS_CONSOLE if attributes[PURPOSE] else None
        made = device(
            adapter,
            attributes,
            state.health,
            withheld=state.withheld,
            reserved=reserved,
            claims=claims,
            divided=state.divided,
        )
        return Card(made, self.vendor, facts)


class Other(DrmVendor):
    """The cards of all other vendors: GPUs of virtual machines and of SoCs, graphics of a BMC."""

    vendor = OTHER


def drm_nodes(nodes: Iterable[tuple[str, Sequence[str]]]) -> Edits:
    """The device nodes of cards, given the id of each and the paths of its nodes, without duplicates.

    Raises ``AllocationError`` if a card has no node.
    """
    found: dict[str, None] = {}
    for name, own in nodes:
        if not own:
            raise AllocationError(f"{name} has no device node")
        found.update(dict.fromkeys(own))
    return Edits(tuple(DeviceNode(path, shared=path == KFD) for path in found))
