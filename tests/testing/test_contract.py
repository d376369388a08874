"""The contract kit: a good backend keeps every promise, and each way to break one is caught by name."""

from __future__ import annotations

import inspect
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from devhost.backend import (
    AllocationError,
    Attribute,
    Backend,
    Device,
    DeviceNode,
    Edits,
    Event,
    Health,
    option,
    unhealthy,
)
from devhost.testing import mischief
from devhost.testing.contract import BackendContract
from devhost.testing.trees import Tree

PAGE = Path(__file__).parents[2] / "docs/backends/testing.md"
PROMISES = [name for name in vars(BackendContract) if name.startswith("test_")]
GOOD_SERIAL = re.compile(r"[A-Z][0-9]{1,4}")


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

    def discover(self) -> Any:
        for card in self.cards():
            if serial := self.serial(card):
                there = (self.context.root / "dev" / card.name).exists()
                attributes = {"serial": serial, "node": f"/dev/{card.name}"}
                yield Device(
                    serial,
                    attributes,
                    health=Device("x").health if there else unhealthy("its node is missing"),
                )

    def allocate(self, devices: Sequence[Device]) -> Edits:
        return Edits(nodes=tuple(DeviceNode(str(device.attributes["node"])) for device in devices))

    def probe(self, devices: Sequence[Device]) -> Any:
        return {device.id: device.health for device in devices}

    def device_info(self, device: Device) -> Any:
        address = {"pci-address": str(device.attributes["serial"])}
        return {"type": "pci", "version": "1.1.0", "pci": address}

    def labels(self, devices: Sequence[Device], offered: Any) -> Any:
        return {"example.com/mycard.count": len(devices)}

    async def watch(self) -> AsyncIterator[Event]:
        while True:
            await self.context.run_blocking(time.sleep, 0.001)
            yield Event()


class TestGood(BackendContract):
    backend: ClassVar[type[Backend]] = Good

    def tree(self, root: Path) -> None:
        tree = Tree(root)
        for number, serial in enumerate(("A1", "B2", "C3")):
            name = f"mycard{number}"
            tree.device(f"virtual/mycard/{name}", "mycard", name, f"240:{number}", {"serial": serial})
        (root / "dev/mycard2").unlink()


COUNTER = itertools.count()


class Counting(Good):
    """Ids from a counter: others after each start."""

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
    """Ids by place in the listing: the trap every backend falls into once."""

    def discover(self) -> Any:
        return [Device(f"card{n}", d.attributes, health=d.health) for n, d in enumerate(super().discover())]


class Greedy(Good):
    """Gives other health when less is wanted."""

    def discover(self) -> Any:
        for device in super().discover():
            yield device if self.context.wanted else Device(device.id, health=unhealthy("not looked at"))


class Fussy(Good):
    """Shows an attribute only to who asks for everything."""

    def discover(self) -> Any:
        for device in super().discover():
            yield device if "*" in self.context.wanted else Device(device.id, health=device.health)


class Assuming(Good):
    """Takes for granted that the directory is there."""

    def cards(self) -> Iterator[Path]:
        return (self.context.root / "sys/class/mycard").iterdir()


class Always(Good):
    """Has a device on every machine."""

    def discover(self) -> Any:
        return [*super().discover(), Device("Z9", {"node": "/dev/mycard0"})]


class Trusting(Good):
    """Believes that a file holds what it should."""

    def serial(self, card: Path) -> str:
        return (card / "serial").read_text().strip()


class Remembering(Good):
    """Never finds out that anything went away."""

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
    def allocate(self, devices: Sequence[Device]) -> Edits:
        return super().allocate(devices[:1])


class Drawing(Good):
    def allocate(self, devices: Sequence[Device]) -> Edits:
        return Edits(super().allocate(devices).nodes, env={"N": str(next(COUNTER))})


class Absent(Good):
    def allocate(self, devices: Sequence[Device]) -> Edits:
        return Edits(nodes=(DeviceNode("/dev/nowhere"),))


class Stubborn(Good):
    async def watch(self) -> AsyncIterator[Event]:
        if self.options is not None:
            raise OSError("no netlink")
        yield Event()


class Racing(Good):
    """allocate() reads what discover() has emptied for a moment."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self._nodes: dict[str, str] = {}

    def discover(self) -> Any:
        self._nodes.clear()
        time.sleep(0.001)
        found = list(super().discover())
        self._nodes.update({device.id: str(device.attributes["node"]) for device in found})
        return found

    def allocate(self, devices: Sequence[Device]) -> Edits:
        time.sleep(0.0002)
        return Edits(nodes=tuple(DeviceNode(self._nodes[device.id]) for device in devices))


class RacingProbe(Racing):
    """So does probe()."""

    allocate = Good.allocate

    def probe(self, devices: Sequence[Device]) -> dict[str, Health]:
        time.sleep(0.0002)
        return {device.id: Health(bool(self._nodes[device.id])) for device in devices}


class Forgetful(Good):
    """Tells something else each time."""

    told = 0

    def device_info(self, device: Device) -> Any:
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


GOOD_DEVICE = Device("A1", {"node": "/dev/mycard0"})
BROKEN: list[tuple[str, type[Backend], str]] = [
    ("the_class_is_a_sound_backend", with_(name="Bad Name"), "must be lower-case letters"),
    (
        "every_attribute_says_what_it_means",
        with_(attributes={"serial": Attribute(str, " ", "A1")}),
        "attribute 'serial' has no meaning",
    ),
    (
        "every_attribute_says_what_it_means",
        with_(attributes={"serial": Attribute(str, "serial number", 7)}),
        "the example of attribute 'serial' is 7, not a str",
    ),
    (
        "every_option_says_what_it_means",
        with_(Options=Undocumented),
        "options without a meaning: inner, depth",
    ),
    (
        "every_device_is_one_the_core_accepts",
        with_(discover=returning(GOOD_DEVICE, GOOD_DEVICE)),
        "two devices have one id",
    ),
    (
        "every_device_is_one_the_core_accepts",
        with_(discover=returning(Device("a b"))),
        "its id has characters",
    ),
    (
        "every_device_is_one_the_core_accepts",
        with_(discover=returning(Device("A1", {"colour": "red"}))),
        "'colour' is not declared",
    ),
    (
        "every_device_is_one_the_core_accepts",
        with_(discover=returning(Device("A1", {"serial": ""}))),
        "A1 has empty attributes, to be left out: serial",
    ),
    (
        "every_device_is_one_the_core_accepts",
        with_(discover=returning(Device("A1", numa_nodes=(-1,)))),
        "A1 has a negative NUMA node",
    ),
    (
        "every_device_is_one_the_core_accepts",
        with_(discover=returning(Device("A1", health=Health(False)))),
        "A1 must have a reason exactly when it is sick",
    ),
    ("every_device_is_one_the_core_accepts", with_(discover=returning()), "tree() has no healthy device"),
    ("looking_twice_finds_equal_devices", Clock, "a second look found other devices"),
    ("a_restart_finds_equal_devices", Counting, "a new instance found other devices"),
    ("the_order_of_directories_does_not_matter", Index, "another order of directories, other devices"),
    (
        "attributes_that_are_wanted_are_there_and_others_change_nothing",
        Greedy,
        "changes its health or claims with what is wanted",
    ),
    ("attributes_that_are_wanted_are_there_and_others_change_nothing", Fussy, "by name gives other devices"),
    ("a_machine_without_the_hardware_has_no_devices", Assuming, "FileNotFoundError"),
    ("a_machine_without_the_hardware_has_no_devices", Always, "a machine without anything has ['Z9']"),
    ("no_damaged_file_makes_it_fail", Trusting, "serial holds garbage: UnicodeDecodeError"),
    ("no_damaged_file_makes_it_fail", Trusting, "serial is a directory: IsADirectoryError"),
    ("no_damaged_file_makes_it_fail", Trusting, "serial holds an absurd number: AssertionError"),
    ("no_damaged_file_makes_it_fail", Trusting, "serial is gone: FileNotFoundError"),
    ("hardware_that_vanishes_is_no_exception", Remembering, "healthy though nothing is there: ['A1', 'B2']"),
    ("a_healthy_device_can_be_allocated_as_it_is", Absent, "is healthy, but the host has no /dev/nowhere"),
    (
        "a_healthy_device_can_be_allocated_as_it_is",
        with_(allocate=lambda self, devices: Edits(nodes=(DeviceNode("mycard0"),))),
        "a device node whose path is not absolute",
    ),
    (
        "a_healthy_device_can_be_allocated_as_it_is",
        with_(allocate=lambda self, devices: None),
        "allocate() answered NoneType, not Edits",
    ),
    ("allocating_again_gives_the_same_answer", Drawing, "the same devices, another answer"),
    ("several_devices_bring_the_nodes_of_each", Narrow, "when it is not alone"),
    ("nothing_is_written", Writing, "it wrote to dev, dev/lock"),
    (
        "probe_gives_a_verdict_with_a_reason_for_devices_that_exist",
        with_(probe=lambda self, devices: {"A1": Health(False)}),
        "A1 must have a reason exactly when it is sick",
    ),
    (
        "probe_gives_a_verdict_with_a_reason_for_devices_that_exist",
        with_(probe=lambda self, devices: {"Q7": Health(True)}),
        "probe() names devices that do not exist",
    ),
    (
        "probe_gives_a_verdict_with_a_reason_for_devices_that_exist",
        with_(probe=lambda self, devices: {"A1": True}),
        "the health of A1 is True, not a Health",
    ),
    (
        "what_network_plugins_are_told_of_a_device_is_sound_and_stays_the_same",
        with_(device_info=lambda self, device: {"type": "pci"}),
        "its version does not read like 1.1.0",
    ),
    (
        "what_network_plugins_are_told_of_a_device_is_sound_and_stays_the_same",
        Forgetful,
        "told differently the next time",
    ),
    (
        "its_labels_are_legal_and_do_not_change_with_health",
        with_(labels=lambda self, devices, offered: {"my card": "1"}),
        "'my card': its name is not made of letters",
    ),
    (
        "its_labels_are_legal_and_do_not_change_with_health",
        with_(labels=lambda self, devices, offered: {"a/well": sum(bool(d.health) for d in devices)}),
        "depends on health",
    ),
    ("its_event_source_starts_and_can_be_stopped", Stubborn, "no netlink"),
    ("its_threads_do_not_disturb_each_other", Racing, "probe() at the same time: KeyError"),
    ("its_threads_do_not_disturb_each_other", RacingProbe, "probe() at the same time: KeyError"),
]


@pytest.mark.parametrize(
    ("promise", "broken", "finding"), BROKEN, ids=[f"{one[0]}-{number}" for number, one in enumerate(BROKEN)]
)
def test_a_broken_promise_is_found_and_named(
    tmp_path: Path, promise: str, broken: type[Backend], finding: str
) -> None:
    class Contract(TestGood):
        backend = broken

    method = getattr(Contract(), f"test_{promise}")
    arguments = [tmp_path] if inspect.signature(method).parameters else []
    with pytest.raises(Exception) as caught:
        method(*arguments)
    assert finding in f"{type(caught.value).__name__}: {caught.value}"


def test_every_promise_has_a_way_to_break_it_here() -> None:
    assert {f"test_{promise}" for promise, _, _ in BROKEN} == set(PROMISES)


def test_a_backend_that_may_write_says_where(tmp_path: Path) -> None:
    class Contract(TestGood):
        backend = Writing
        may_write = ("dev", "dev/lo*")

    Contract().test_nothing_is_written(tmp_path)


def made(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_what_the_options_ask_for_by_name_may_be_shown_as_sick(tmp_path: Path) -> None:
    class Named(Good):
        def discover(self) -> Any:
            return list(super().discover()) or [Device("wanted", health=unhealthy("it is not there"))]

    class Contract(TestGood):
        backend = Named

    with pytest.raises(AssertionError, match="a machine without anything has"):
        Contract().test_a_machine_without_the_hardware_has_no_devices(made(tmp_path, "plain"))
    Contract.options = GoodOptions()
    Contract().test_a_machine_without_the_hardware_has_no_devices(made(tmp_path, "asked"))


def test_refusing_a_device_that_is_gone_is_allowed(tmp_path: Path) -> None:
    class Refusing(Good):
        def allocate(self, devices: Sequence[Device]) -> Edits:
            if not (self.context.root / "dev").is_dir():
                raise AllocationError("it is gone")
            return super().allocate(devices)

    class Contract(TestGood):
        backend = Refusing

    Contract().test_hardware_that_vanishes_is_no_exception(tmp_path)


def test_a_contract_without_a_tree_says_what_to_write(tmp_path: Path) -> None:
    class Empty(BackendContract):
        backend = Good

    with pytest.raises(NotImplementedError, match=r"Empty\.tree\(\) must build a machine with a device"):
        Empty().test_looking_twice_finds_equal_devices(tmp_path)


def texts(root: Path) -> dict[Path, str]:
    """Every file's text, and where every link leads."""
    return {
        path: str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("what", mischief.DAMAGES)
def test_a_damaged_tree_is_mended_again(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    TestGood().tree(root)
    before = texts(root)
    for path in mischief.victims(root):
        with mischief.damaged(path, what, tmp_path / "kept"):
            assert path.name != "serial" or texts(root) != before
    assert texts(root) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["root"]
