"""Cards that need only their DRM nodes, and the health checks that any DRM driver answers.

:class:`Plain` is what Intel cards and those of other vendors have in common. :func:`standing` is health as
sysfs and ``/dev`` show it; :class:`Conditions` asks the drivers and reads temperatures.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from devhost.backend import (
    HEALTHY,
    AllocationError,
    AttributeValue,
    Context,
    DeviceNode,
    Edits,
    Event,
    Health,
    unhealthy,
)
from devhost.backend.sysfs import Sysfs, is_live

from .discovery import OTHER, Adapter
from .options import GpuOptions
from .vendor import GPU, VF, Card, ContainerRequest, device, of_adapter


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether an adapter can be used: its health, and why it is not offered at all (else empty)."""

    health: Health = HEALTHY
    withheld: str = ""


def standing(
    sysfs: Sysfs, adapter: Adapter, drivers: Collection[str] = (), nodes: Collection[str] | None = None
) -> Standing:
    """How an adapter stands.

    One that another program than its driver has is withheld; one without a driver, or whose driver has given
    up, stays in its resource as Unhealthy.

    Args:
        sysfs: the machine.
        adapter: the adapter.
        drivers: the drivers that make a GPU of it; empty: any that makes DRM nodes.
        nodes: the paths of device nodes that are needed; ``None``: its own.
    """
    if adapter.num_vfs:
        are = "is" if adapter.num_vfs == 1 else "are"
        plural = "s" * (adapter.num_vfs > 1)
        text = f"it has {adapter.num_vfs} virtual function{plural}, which {are} offered instead"
        return Standing(_health(sysfs, adapter, adapter.nodes), text)
    if adapter.driver and drivers and adapter.driver not in drivers:
        text = f"it is bound to {adapter.driver}, which makes no GPU of it for containers"
        return Standing(unhealthy(f"it is bound to {adapter.driver}"), text)
    return Standing(_health(sysfs, adapter, adapter.nodes if nodes is None else nodes))


def _health(sysfs: Sysfs, adapter: Adapter, nodes: Collection[str]) -> Health:
    if not adapter.nodes:
        if not adapter.driver and adapter.address:
            return unhealthy("no driver is bound to it")
        return unhealthy(f"its driver {adapter.driver} has made no DRM device: see the kernel's log")
    for node in nodes:
        if not sysfs.exists(node):
            return unhealthy(f"{node} does not exist")
    return HEALTHY


DEADLINE = 4.0
"""Seconds all cards together have to answer."""


@dataclass(slots=True)
class _Question:
    thread: threading.Thread
    answer: str | None = None


class Asking:
    """Asks questions that may never be answered. Used by one thread.

    A card that has not answered is not asked again before it has: a hung driver gets one thread, not one a
    minute.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Question] = {}

    def ask(self, questions: Mapping[str, Callable[[], str]], deadline: float = DEADLINE) -> dict[str, str]:
        """What each question was answered with, by name; who gave no answer in time is missing.

        Args:
            questions: calls by the name of what they ask; they do not raise.
            deadline: seconds for all of them.
        """
        asked = {name: self._open.get(name) or self._begin(name, call) for name, call in questions.items()}
        end = time.monotonic() + deadline
        answers = {}
        for name, question in asked.items():
            question.thread.join(max(0.0, end - time.monotonic()))
            if question.answer is not None:
                answers[name] = question.answer
                del self._open[name]
        return answers

    def _begin(self, name: str, call: Callable[[], str]) -> _Question:
        def run() -> None:
            question.answer = call()

        question = _Question(threading.Thread(target=run, name=f"gpu-ask-{name}", daemon=True))
        self._open[name] = question
        question.thread.start()
        return question


# Whether a driver answers is found out by asking for its version: the plainest request, which needs no rights
# but to open the node. A card that cannot work refuses it: xe blocks every request while the device is wedged
# (Documentation/gpu/xe, "Xe Device Wedging"), and the DRM core those of a device that was unplugged
# (drm_ioctl.c). i915 refuses others; the one among them that has no effect is the throttle
# (i915_gem_throttle.c). Only render nodes are asked, because the first process that opens a card node becomes
# its master, and they are closed at once, so that the driver can be unbound.

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
"""What refusals mean. Any other one is about us: a permission, a limit."""


class Answers:
    """Asks the cards of one machine. A recorded tree has nodes that nobody stands behind: they are well."""

    def __init__(self, root: Path) -> None:
        self._sysfs = Sysfs(root)
        self._is_live = is_live(root)
        self._asking = Asking()

    def lacking(self, adapters: Mapping[str, Adapter], deadline: float = DEADLINE) -> dict[str, str]:
        """Why each of these adapters cannot work, as far as that can be asked; who can is not named.

        Args:
            adapters: by any name for them.
            deadline: seconds that all of them together have to answer.
        """
        lacks = {
            name: "its PCI function answers no more: it has failed, or lost its link"
            for name, adapter in adapters.items()
            if adapter.address and self._sysfs.is_dead(adapter.path)
        }
        if not self._is_live:
            return lacks
        questions = {
            name: partial(refusal, f"{self._sysfs.prefix}{adapter.render_node}", adapter.driver)
            for name, adapter in adapters.items()
            if name not in lacks and adapter.render and self._is_awake(adapter)
        }
        answers = self._asking.ask(questions, deadline)
        for name in questions:
            if name not in answers:
                lacks[name] = "its driver does not answer"
            elif answers[name]:
                lacks[name] = f"it {answers[name]}"
        return lacks

    def _is_awake(self, adapter: Adapter) -> bool:
        """Whether asking wakes nothing up (sysfs-devices-power, ``runtime_status``)."""
        return self._sysfs.text(f"{adapter.path}/power/runtime_status") not in ("suspended", "suspending")


def refusal(node: str, driver: str) -> str:
    """What a driver's refusal to answer means; empty if it answered, or that means nothing."""
    try:
        descriptor = os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _DEAD.get(error.errno or 0, "")
    try:
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            fcntl.ioctl(descriptor, VERSION, bytearray(_LONGS.size))
            if driver == "i915":
                fcntl.ioctl(descriptor, I915_THROTTLE)
    except OSError as error:
        return _DEAD.get(error.errno or 0, "")
    finally:
        os.close(descriptor)
    return ""


_INPUT = re.compile(r"(temp\d{1,3})_input")


@dataclass(frozen=True, slots=True)
class Sensor:
    """What one sensor says; ``label`` is the driver's word for its place, else the sensor's own name."""

    label: str
    celsius: int


def hottest(sysfs: Sysfs, path: str) -> Sensor | None:
    """The hottest sensor of the device at ``path``; ``None`` where none can be read."""
    found = []
    for hwmon in sysfs.names(f"{path}/hwmon"):
        place = f"{path}/hwmon/{hwmon}"
        for name in sysfs.names(place):
            if match := _INPUT.fullmatch(name):
                value = sysfs.integer(f"{place}/{name}")
                if value is not None:
                    label = sysfs.text(f"{place}/{match[1]}_label") or match[1]
                    found.append(Sensor(label, value // 1000))
    return max(found, key=lambda sensor: sensor.celsius, default=None)


class Conditions:
    """Asks cards how they are. Used by one thread."""

    def __init__(self, root: Path, options: GpuOptions) -> None:
        self._sysfs = Sysfs(root)
        self._limit = options.temperature_limit
        self._answers = Answers(root)

    def of(self, adapters: Mapping[str, Adapter]) -> dict[str, Health]:
        """What is wrong with each of these adapters, by any name for them; who is well is not named."""
        verdicts = {name: unhealthy(reason) for name, reason in self._answers.lacking(adapters).items()}
        for name in adapters.keys() - verdicts.keys() if self._limit else ():
            sensor = hottest(self._sysfs, adapters[name].path)
            if sensor and sensor.celsius >= self._limit:
                text = f"{sensor.label} is at {sensor.celsius} °C, the limit is {self._limit} °C"
                verdicts[name] = unhealthy(text)
        return verdicts


# A driver that has reset a card or has given it up sends an event ``change`` of its DRM device
# (Documentation/gpu/drm-uapi.rst, "Device Wedging"), as it does when a display is plugged in. The event's
# text does not reach us, so the driver is asked, and again at each scan for as long as it is wedged.

SUSPECTS_DEADLINE = 1.0
"""Seconds that suspects have to answer: a look waits for them, a probe has more."""


class Suspects:
    """Remembers who is suspected. Used by one thread."""

    def __init__(self, root: Path) -> None:
        self._answers = Answers(root)
        self._paths: set[str] = set()

    def notice(self, event: Event) -> None:
        """Hears an event."""
        owner, _, name = event.sys_path.rpartition("/drm/")
        if event.subsystem == "drm" and event.action == "change" and owner and "/" not in name:
            self._paths.add(owner)

    def lacking(self, adapters: Iterable[Adapter]) -> dict[str, str]:
        """Why each of these adapters that are suspected does not work, by its id."""
        asked = {adapter.id: adapter for adapter in adapters if adapter.path in self._paths}
        lacks = self._answers.lacking(asked, SUSPECTS_DEADLINE) if asked else {}
        self._paths = {asked[name].path for name in lacks}
        return lacks


@dataclass(frozen=True, slots=True)
class PlainFacts:
    """What allocation needs of a card."""

    adapter: Adapter

    @property
    def nodes(self) -> tuple[str, ...]:
        """Paths of its DRM nodes."""
        return self.adapter.nodes


class Plain:
    """A family of such cards. Subclass it, name the vendor, and say what there is beyond that."""

    vendor: ClassVar[str]
    """The word for it in the attribute ``vendor``."""

    drivers: ClassVar[Collection[str]] = ()
    """What makes a GPU of a function; empty: any driver that makes DRM nodes."""

    def __init__(self, options: GpuOptions, context: Context) -> None:
        self.sysfs = Sysfs(context.root)
        self._conditions = Conditions(context.root, options)

    def facts(self, adapter: Adapter) -> PlainFacts:
        """What allocation needs of it."""
        return PlainFacts(adapter)

    def more(self, adapter: Adapter) -> Mapping[str, AttributeValue | None]:
        """Attributes beyond those that every card has."""
        return {}

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """One card for each adapter."""
        return [self._card(index, adapter) for index, adapter in enumerate(adapters)]

    def notice(self, event: Event) -> None:
        """Nothing is remembered that an event could change."""

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Whether their driver answers, and how hot they are."""
        adapters = {card.id: card.facts.adapter for card in cards if isinstance(card.facts, PlainFacts)}
        return self._conditions.of(adapters)

    def edits(self, cards: Sequence[Card], request: ContainerRequest) -> Edits:
        """Its DRM nodes."""
        return drm_nodes((card.id, card.facts.nodes) for card in cards if isinstance(card.facts, PlainFacts))

    def close(self) -> None:
        """Nothing is held."""

    def _card(self, index: int, adapter: Adapter) -> Card:
        state = standing(self.sysfs, adapter, self.drivers)
        attributes = {
            **of_adapter(adapter),
            "vendor": self.vendor,
            "kind": VF if adapter.is_virtual else GPU,
            "index": index,
            "parent": adapter.physical_function,
            **self.more(adapter),
        }
        made = device(adapter, attributes, state.health, withheld=state.withheld)
        return Card(made, self.vendor, self.facts(adapter))


class Other(Plain):
    """The cards of no vendor that has code of its own."""

    vendor = OTHER


def drm_nodes(nodes: Iterable[tuple[str, Sequence[str]]]) -> Edits:
    """The device nodes of cards, each once.

    Args:
        nodes: the id of each card and the paths of its nodes.

    Raises:
        AllocationError: a card has no node.
    """
    found: dict[str, None] = {}
    for name, own in nodes:
        if not own:
            raise AllocationError(f"{name} has no device node")
        found.update(dict.fromkeys(own))
    return Edits(tuple(map(DeviceNode, found)))
