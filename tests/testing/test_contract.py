"""The contract kit: a good backend keeps every promise, and each way to break one is caught by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import pytest
from contract_backends import (
    Absent,
    Always,
    Assuming,
    Clock,
    Clueless,
    Counting,
    Drawing,
    Forgetful,
    Fussy,
    Good,
    GoodOptions,
    Greedy,
    Index,
    Lame,
    Late,
    Loose,
    Narrow,
    Probing,
    Racing,
    RacingProbe,
    Remembering,
    Stubborn,
    Trusting,
    Undocumented,
    Unsure,
    Use,
    Used,
    Wordy,
    Writing,
    cards,
    returning,
    with_,
)

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Attribute,
    Backend,
    Device,
    DeviceNode,
    Edits,
    Health,
    MissingDriver,
    unhealthy,
)
from devhost.testing.contract import BackendContract

OTHERS = 100
"""Files that make a tree too big for every damage to be in the sample."""

PROMISES = [name for name in vars(BackendContract) if name.startswith("test_")]


class TestGood(BackendContract):
    backend: ClassVar[type[Backend]] = Good

    def tree(self, root: Path) -> None:
        cards(root)


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
        "every_option_says_what_it_means",
        with_(ResourceOptions=Undocumented),
        "options without a meaning: inner, depth",
    ),
    ("the_class_is_a_sound_backend", with_(allocate=lambda self: Edits()), "takes one request"),
    ("the_class_is_a_sound_backend", with_(prob=Good.probe), "did you mean probe()?"),
    ("what_an_entry_says_to_it_is_a_value", with_(ResourceOptions=Loose), "Loose is not frozen"),
    ("what_an_entry_says_to_it_is_a_value", with_(ResourceOptions=Unsure), "why_alone of"),
    ("what_an_entry_says_to_it_is_a_value", with_(ResourceOptions=Wordy), "not a collection of str"),
    (
        "hardware_without_its_driver_is_named_with_a_reason",
        with_(missing_drivers=returning("0000:3b:00.0")),
        "missing_drivers() gave '0000:3b:00.0'",
    ),
    (
        "hardware_without_its_driver_is_named_with_a_reason",
        with_(missing_drivers=returning(MissingDriver("0000:3b:00.0", ""))),
        "lacks its subject or reason",
    ),
    (
        "hardware_without_its_driver_is_named_with_a_reason",
        with_(missing_drivers=returning(MissingDriver("0000:3b:00.0", "no driver", {"seriall": "A1"}))),
        "0000:3b:00.0: ",
    ),
    ("what_an_entry_says_to_it_is_a_value", Clueless, "give resource_options, as there is no default"),
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
    ("no_file_that_is_damaged_later_makes_probe_fail", Probing, "serial is gone: FileNotFoundError"),
    ("no_file_that_is_damaged_later_makes_probe_fail", Late, "serial is gone: FileNotFoundError"),
    ("no_other_damage_of_a_file_makes_it_fail", Trusting, "serial holds garbage: UnicodeDecodeError"),
    ("no_other_file_that_is_damaged_later_makes_probe_fail", Probing, "serial is gone: FileNotFoundError"),
    ("hardware_that_vanishes_is_no_exception", Remembering, "healthy though nothing is there: ['A1', 'B2']"),
    ("a_healthy_device_can_be_allocated_as_it_is", Absent, "is healthy, but the host has no /dev/nowhere"),
    (
        "a_healthy_device_can_be_allocated_as_it_is",
        with_(allocate=lambda self, request: Edits(nodes=(DeviceNode("mycard0"),))),
        "a device node whose path is not absolute",
    ),
    (
        "a_healthy_device_can_be_allocated_as_it_is",
        with_(allocate=lambda self, request: None),
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
        with_(device_info=lambda self, device, request: {"type": "pci"}),
        "its version does not read like 1.1.0",
    ),
    (
        "what_network_plugins_are_told_of_a_device_is_sound_and_stays_the_same",
        Forgetful,
        "another document the next time",
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

        def tree(self, root: Path) -> None:
            super().tree(root)
            for number in range(OTHERS if "no_other" in promise else 0):
                (root / f"other{number}").touch()

    method = getattr(Contract(), f"test_{promise}")
    arguments = [tmp_path] if inspect.signature(method).parameters else []
    with pytest.raises(Exception) as caught:
        method(*arguments)
    assert finding in f"{type(caught.value).__name__}: {caught.value}"


def test_every_promise_has_a_way_to_break_it_here() -> None:
    assert {f"test_{promise}" for promise, _, _ in BROKEN} == set(PROMISES)


def test_each_of_the_options_an_entry_may_have_is_tried(tmp_path: Path) -> None:
    class Contract(TestGood):
        backend = Used

    Contract().test_a_healthy_device_can_be_allocated_as_it_is(made(tmp_path, "first"))
    Contract.resource_options = (Use(), Use(lost=True))
    with pytest.raises(AssertionError, match="the host has no /dev/lost"):
        Contract().test_a_healthy_device_can_be_allocated_as_it_is(made(tmp_path, "second"))


def test_a_device_is_not_allocated_for_what_it_is_unusable_for(tmp_path: Path) -> None:
    class Contract(TestGood):
        backend = Lame
        resource_options = (Use(), Use(lost=True))

    Contract().test_a_healthy_device_can_be_allocated_as_it_is(made(tmp_path, "first"))
    Contract().test_allocating_again_gives_the_same_answer(made(tmp_path, "second"))


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
        def allocate(self, request: AllocateRequest) -> Edits:
            if not (self.context.root / "dev").is_dir():
                raise AllocationError("it is gone")
            return super().allocate(request)

    class Contract(TestGood):
        backend = Refusing

    Contract().test_hardware_that_vanishes_is_no_exception(tmp_path)


def test_a_contract_without_a_tree_says_what_to_write(tmp_path: Path) -> None:
    class Empty(BackendContract):
        backend = Good

    with pytest.raises(NotImplementedError, match=r"Empty\.tree\(\) must build a machine with a device"):
        Empty().test_looking_twice_finds_equal_devices(tmp_path)
