"""Controlled backends: a :class:`Toy` determines what each of them finds and how it fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from devhost.backend import (
    HEALTHY,
    AllocateRequest,
    Attribute,
    Backend,
    Device,
    DeviceNode,
    Edits,
    Event,
    Health,
)

MODES = ("raise", "hang", "slow", "garbage")
"""Ways in which a call can fail; ``ok`` is success."""

BACKENDS = ("toy", "other", "prep")

JUNK: tuple[object, ...] = (
    None,
    "d1",
    Device(id=""),
    Device(id="x" * 300),
    Device(id="a::1"),
    Device(id="n", attributes={"colour": "red"}),
    Device(id="n", numa_nodes=("one",)),  # type: ignore[arg-type]
)
"""Invalid values that a backend returns with its devices; none of them may reach a kubelet."""


@dataclass(slots=True)
class Toy:
    """One backend's world: each device is found ``twice`` if so, with ``junk`` among them.

    ``held`` is what hung calls wait for: :meth:`heal` lets them go.
    """

    nodes: Path
    devices: dict[str, Device] = field(default_factory=dict)
    junk: list[object] = field(default_factory=list)
    twice: bool = False
    probed: dict[str, Health] = field(default_factory=dict)
    discover: str = "ok"
    probe: str = "ok"
    allocate: str = "ok"
    prepare: str = "ok"
    watch: str = "ok"
    held: threading.Event = field(default_factory=threading.Event)
    hung: int = 0

    @property
    def broken(self) -> bool:
        """Whether looking for devices cannot succeed now."""
        bad = ("raise", "hang", "garbage")
        return self.discover in bad or (self.probe in bad and bool(self.devices))

    def heal(self) -> None:
        """Ends all failures, and lets hanging calls return."""
        self.discover = self.probe = self.allocate = self.prepare = self.watch = "ok"
        self.held.set()
        self.held = threading.Event()

    def go_wrong(self, mode: str) -> Any:
        """The failure of a call; ``None`` if it succeeds."""
        if mode == "raise":
            raise OSError(5, "the driver is busy")
        if mode == "hang":
            self.hung += 1
            self.held.wait()
            raise OSError(110, "it came back much too late")
        if mode == "slow":
            time.sleep(0.05)
        return 42 if mode == "garbage" else None


def backend(name: str, toy: Toy) -> type[Backend]:
    """The backend class over ``toy``; ``other`` has ``watch``, ``prep`` has ``probe`` and ``prepare``."""
    extra: dict[str, Any] = {"name": name}
    if name == "other":
        extra["watch"] = _watch
    if name == "prep":
        extra |= {"probe": _probe, "prepare": _prepare}
    return type(name.title(), (ToyBackend,), extra | {"toy": toy})


class ToyBackend(Backend):
    """The common part of the three backends."""

    toy: ClassVar[Toy]
    discover_deadline = 0.3
    attributes: ClassVar = {
        "model": Attribute(str, "model", "x100"),
        "index": Attribute(int, "index", 0),
    }

    def discover(self) -> Any:
        wrong = self.toy.go_wrong(self.toy.discover)
        found = list(self.toy.devices.values())
        return wrong or [*found, *self.toy.junk, *(found if self.toy.twice else ())]

    def allocate(self, request: AllocateRequest) -> Any:
        wrong = self.toy.go_wrong(self.toy.allocate)
        nodes = tuple(DeviceNode(str(self.toy.nodes / device.id), shared=True) for device in request.devices)
        return wrong or Edits(nodes=nodes, env={"DEVICES": ",".join(device.id for device in request.devices)})


async def _watch(self: ToyBackend) -> AsyncIterator[Event]:
    while True:
        await asyncio.sleep(1.0)
        if self.toy.watch != "ok":
            raise OSError(19, "the event source broke")
        yield Event("toys", "change", "/sys/devices/virtual/toys/0")


def _probe(self: ToyBackend, devices: Sequence[Device]) -> Any:
    wrong = self.toy.go_wrong(self.toy.probe)
    verdicts: Mapping[str, Health] = {d.id: self.toy.probed.get(d.id, HEALTHY) for d in devices}
    return wrong or verdicts


def _prepare(self: ToyBackend, _request: AllocateRequest) -> None:
    self.toy.go_wrong(self.toy.prepare)
