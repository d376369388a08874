"""A backend that passes the contract, and backends with one violation each."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from devhost_testing.trees import Tree

from devhost.backend import (
    AllocateRequest,
    Attribute,
    Backend,
    Device,
    DeviceNode,
    Edits,
    Event,
    Health,
    Mount,
    claim,
    option,
    unhealthy,
)

GOOD_SERIAL = re.compile(r"[A-Z][0-9]{1,4}")


def cards(root: Path) -> None:
    """A machine with three cards; one has lost its node."""
    tree = Tree(root)
    for number, serial in enumerate(("A1", "B2", "C3")):
        name = f"mycard{number}"
        tree.device(f"virtual/mycard/{name}", "mycard", name, f"240:{number}", {"serial": serial})
    (root / "dev/mycard2").unlink()


@dataclass(frozen=True)
class Inner:
    depth: int = option(0, "how deep")


@dataclass(frozen=True)
class GoodOptions:
    inner: tuple[Inner, ...] = option((), "what is in it")


class Good(Backend):
    """Cards of class ``mycard``; uses every optional method."""

    name = "good"
    subsystems = ("mycard",)
    Options = GoodOptions
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "serial": Attribute(str, "serial number", "A1"),
        "node": Attribute(str, "device node", "/dev/mycard0"),
    }

    def notice(self, event: Event) -> None:
        return

    def cards(self) -> Iterator[Path]:
        listing = self.context.root / "sys/class/mycard"
        if listing.is_dir():
            yield from listing.iterdir()

    def serial(self, card: Path) -> str:
        try:
            text = (card / "serial").read_text(errors="replace").strip()
        except OSError:
            return ""
        return text if GOOD_SERIAL.fullmatch(text) else ""

    def claimed(self, node: str) -> frozenset[str]:
        return frozenset({claim.node(node)})

    def discover(self) -> Any:
        for card in self.cards():
            if serial := self.serial(card):
                there = (self.context.root / "dev" / card.name).exists()
                attributes = {"serial": serial, "node": f"/dev/{card.name}"}
                yield Device(
                    serial,
                    attributes,
                    claims=self.claimed(f"/dev/{card.name}"),
                    health=Device("x").health if there else unhealthy("its node is missing"),
                )

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(nodes=tuple(DeviceNode(str(device.attributes["node"])) for device in request.devices))

    def probe(self, devices: Sequence[Device]) -> Any:
        return {device.id: device.health for device in devices}

    def device_info(self, device: Device, request: AllocateRequest) -> Any:
        address = {"pci-address": str(device.attributes["serial"])}
        return {"type": "pci", "version": "1.1.0", "pci": address}

    def labels(self, devices: Sequence[Device], offered: Any) -> Any:
        return {"example.com/mycard.count": len(devices)}

    async def watch(self) -> AsyncIterator[Event]:
        while True:
            await self.context.run_blocking(time.sleep, 0.001)
            yield Event()


COUNTER = itertools.count()


class Counting(Good):
    """Ids from a counter: different after each start."""

    def discover(self) -> Any:
        return [Device(f"{d.id}-{next(COUNTER)}", d.attributes) for d in super().discover()]


class Clock(Good):
    attributes: ClassVar[Mapping[str, Attribute]] = {**Good.attributes, "age": Attribute(int, "age", 1)}
    looks = 0

    def discover(self) -> Any:
        self.looks += 1
        return [
            Device(d.id, {**d.attributes, "age": self.looks}, health=d.health) for d in super().discover()
        ]


class Index(Good):
    """Ids by position in the listing, a common mistake."""

    def discover(self) -> Any:
        return [Device(f"card{n}", d.attributes, health=d.health) for n, d in enumerate(super().discover())]


class Greedy(Good):
    """Returns a different health if fewer attributes are wanted."""

    def discover(self) -> Any:
        for device in super().discover():
            yield device if self.context.wanted else Device(device.id, health=unhealthy("not looked at"))


class Fussy(Good):
    """Has an attribute only if all attributes are wanted."""

    def discover(self) -> Any:
        for device in super().discover():
            yield device if "*" in self.context.wanted else Device(device.id, health=device.health)


class Assuming(Good):
    """Assumes that the directory exists."""

    def cards(self) -> Iterator[Path]:
        return (self.context.root / "sys/class/mycard").iterdir()


class Always(Good):
    """Has a device on every machine."""

    def discover(self) -> Any:
        return [*super().discover(), Device("Z9", {"node": "/dev/mycard0"})]


class Trusting(Good):
    """Assumes that the content of a file is valid."""

    def serial(self, card: Path) -> str:
        return (card / "serial").read_text().strip()


class Probing(Good):
    """Assumes that a file still exists during a probe."""

    def serial(self, card: Path) -> str:
        return super().serial(card) or "Z9"

    def probe(self, devices: Sequence[Device]) -> dict[str, Health]:
        for card in self.cards():
            (card / "serial").read_text(errors="replace")
        return {}


class Late(Good):
    """Assumes that a file does not change after discover()."""

    def probe(self, devices: Sequence[Device]) -> dict[str, Health]:
        known = self.context.root / "sys/class/mycard"
        for device in devices:
            (known / str(device.attributes["node"]).rpartition("/")[2] / "serial").read_text(errors="replace")
        return {}


class Remembering(Good):
    """Never notices that a device is removed."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self._known: dict[str, Device] = {}

    def discover(self) -> Any:
        self._known |= {device.id: device for device in super().discover()}
        return list(self._known.values())


class Writing(Good):
    def discover(self) -> Any:
        (self.context.root / "dev/lock").touch()
        return super().discover()


class Narrow(Good):
    def allocate(self, request: AllocateRequest) -> Edits:
        return super().allocate(replace(request, devices=request.devices[:1]))


class Drawing(Good):
    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(super().allocate(request).nodes, env={"N": str(next(COUNTER))})


class Absent(Good):
    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(nodes=(DeviceNode("/dev/nowhere"),))


class Stubborn(Good):
    async def watch(self) -> AsyncIterator[Event]:
        if self.options is not None:
            raise OSError("no netlink")
        yield Event()


class Racing(Good):
    """allocate() reads a list that discover() clears for a moment."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self._nodes: dict[str, str] = {}

    def discover(self) -> Any:
        self._nodes.clear()
        time.sleep(0.001)
        found = list(super().discover())
        self._nodes.update({device.id: str(device.attributes["node"]) for device in found})
        return found

    def allocate(self, request: AllocateRequest) -> Edits:
        time.sleep(0.0002)
        return Edits(nodes=tuple(DeviceNode(self._nodes[device.id]) for device in request.devices))


class RacingProbe(Racing):
    """The same for probe()."""

    allocate = Good.allocate

    def probe(self, devices: Sequence[Device]) -> dict[str, Health]:
        time.sleep(0.0002)
        return {device.id: Health(bool(self._nodes[device.id])) for device in devices}


class Forgetful(Good):
    """Returns a different result each time."""

    told = 0

    def device_info(self, device: Device, request: AllocateRequest) -> Any:
        Forgetful.told += 1
        return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": str(Forgetful.told)}}


def with_(**changes: Any) -> type[Backend]:
    return type("Bad", (Good,), changes)


def returning(*devices: Any) -> Callable[..., Any]:
    return lambda self: list(devices)


@dataclass(frozen=True)
class Undocumented:
    inner: tuple[Inner, ...] = option(())
    depth: int = 0


@dataclass
class Loose:
    depth: int = option(0, "how deep")


@dataclass(frozen=True)
class Owing:
    depth: int = option(meaning="how deep")


@dataclass(frozen=True)
class Unsure:
    why_alone: bool = option(True, "whether alone")


@dataclass(frozen=True)
class Wordy:
    uses: str = option("lost", "a word, and no collection of words")


@dataclass(frozen=True)
class Use:
    lost: bool = option(False, "whether nothing comes of it")

    @property
    def uses(self) -> Sequence[str]:
        return ["lost"] if self.lost else []


class Used(Good):
    """Can be configured in an entry to hand out a missing path."""

    ResourceOptions = Use

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits((DeviceNode("/dev/lost"),)) if request.options.lost else super().allocate(request)

    def prepare(self, request: AllocateRequest) -> None:
        return

    def device_info(self, device: Device, request: AllocateRequest) -> Any:
        return super().device_info(device, request)


class Lame(Used):
    """Unusable for the purpose in its entry."""

    def discover(self) -> Any:
        return [
            replace(device, unusable_for={"lost": "nothing comes of it"}) for device in super().discover()
        ]


class Clueless(Used):
    """Has resource options without defaults."""

    ResourceOptions = Owing


class Unclaimed(Good):
    """Forgets the claim of its node."""

    def claimed(self, node: str) -> frozenset[str]:
        return frozenset()


class Misspelled(Good):
    """Claims a path."""

    def claimed(self, node: str) -> frozenset[str]:
        return frozenset({node})


class Mounting(Unclaimed):
    """Mounts its node."""

    def allocate(self, request: AllocateRequest) -> Edits:
        nodes = [str(device.attributes["node"]) for device in request.devices]
        return Edits(mounts=tuple(Mount(node, node) for node in nodes))
