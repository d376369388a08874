"""The contract: a valid backend passes, and each violation is found by its test."""

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
    Misspelled,
    Mounting,
    Narrow,
    Probing,
    Racing,
    RacingProbe,
    Remembering,
    Stubborn,
    Trusting,
    Unclaimed,
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
from devhost_testing.contract import BackendContract

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

OTHERS = 100
"""Files that make a tree too big for every damage to be in the sample."""

PROMISES = [name for name in vars(BackendContract) if name.startswith("test_")]


class TestGood(BackendContract):
    backend: ClassVar[type[Backend]] = Good

    def tree(self, root: Path) -> None:
        cards(root)


def test_parts_that_exclude_each_other_may_want_more_than_there_is(tmp_path: Path) -> None:
    class Test(TestGood):
        backend = with_(
            discover=returning(WHOLE, *(part(one, {"cores": 3}, "node:/dev/x") for one in ("A2", "A3")))
        )

    Test().test_parts_take_no_more_than_their_device_has(tmp_path)


GOOD_DEVICE = Device("A1", {"node": "/dev/mycard0"})
WHOLE = Device("A1", claims=frozenset({"node:/dev/mycard0"}), counters={"cores": 4})


def part(name: str, consumes: dict[str, int], *claims: str) -> Device:
    """A part of the whole."""
    return Device(name, claims=frozenset(claims), part_of=WHOLE.claims, consumes=consumes)


BROKEN: list[tuple[str, type[Backend], str]] = [
    ("the_class_is_a_valid_backend", with_(name="Bad Name"), "must be lower-case letters"),
    (
        "every_attribute_has_a_meaning",
        with_(attributes={"serial": Attribute(str, " ", "A1")}),
        "attribute 'serial' has no meaning",
    ),
    (
        "every_attribute_has_a_meaning",
        with_(attributes={"serial": Attribute(str, "serial number", 7)}),
        "the example of attribute 'serial' is 7, not a str",
    ),
    (
        "every_option_has_a_meaning",
        with_(Options=Undocumented),
        "options without a meaning: inner, depth",
    ),
    (
        "every_option_has_a_meaning",
        with_(ResourceOptions=Undocumented),
        "options without a meaning: inner, depth",
    ),
    ("every_node_that_is_handed_out_is_claimed", Unclaimed, ", which it does not claim: add claim.node"),
    ("every_node_that_is_handed_out_is_claimed", Mounting, ", which it does not claim: add claim.node"),
    ("every_device_is_valid", Misspelled, "has no kind (write claim.node"),
    (
        "the_class_is_a_valid_backend",
        with_(claim_kinds="lane"),
        "claim_kinds is one string; write a tuple of strings",
    ),
    ("the_class_is_a_valid_backend", with_(claim_kinds=("node",)), "claim_kinds has 'node'"),
    ("the_class_is_a_valid_backend", with_(allocate=lambda self: Edits()), "takes one request"),
    ("the_class_is_a_valid_backend", with_(prob=Good.probe), "did you mean probe()?"),
    ("resource_options_are_values", with_(ResourceOptions=Loose), "Loose is not frozen"),
    ("resource_options_are_values", with_(ResourceOptions=Unsure), "why_alone of"),
    ("resource_options_are_values", with_(ResourceOptions=Wordy), "not a collection of str"),
    (
        "parts_take_no_more_than_their_device_has",
        with_(discover=returning(WHOLE, part("A2", {"cores": 3}), part("A3", {"cores": 2}))),
        "the parts of A1 take 5 of the 4 cores that it has",
    ),
    (
        "parts_take_no_more_than_their_device_has",
        with_(discover=returning(WHOLE, part("A2", {"core": 1}))),
        "A2 consumes ['core'], which A1 does not have",
    ),
    (
        "hardware_without_driver_is_named_with_a_reason",
        with_(missing_drivers=returning("0000:3b:00.0")),
        "missing_drivers() returned '0000:3b:00.0'",
    ),
    (
        "hardware_without_driver_is_named_with_a_reason",
        with_(missing_drivers=returning(MissingDriver("0000:3b:00.0", ""))),
        "lacks its subject or reason",
    ),
    (
        "hardware_without_driver_is_named_with_a_reason",
        with_(missing_drivers=returning(MissingDriver("0000:3b:00.0", "no driver", {"seriall": "A1"}))),
        "0000:3b:00.0: ",
    ),
    ("resource_options_are_values", Clueless, "set resource_options, because there are no defaults"),
    (
        "every_device_is_valid",
        with_(discover=returning(GOOD_DEVICE, GOOD_DEVICE)),
        "two devices have one id",
    ),
    (
        "every_device_is_valid",
        with_(discover=returning(Device("a b"))),
        "its id has characters",
    ),
    (
        "every_device_is_valid",
        with_(discover=returning(Device("A1", {"colour": "red"}))),
        "'colour' is not declared",
    ),
    (
        "every_device_is_valid",
        with_(discover=returning(Device("A1", {"serial": ""}))),
        "A1 has empty attributes (omit them): serial",
    ),
    (
        "every_device_is_valid",
        with_(discover=returning(Device("A1", numa_nodes=(-1,)))),
        "A1 has a negative NUMA node",
    ),
    (
        "every_device_is_valid",
        with_(discover=returning(Device("A1", health=Health(False)))),
        "A1 must have a reason if and only if it is unhealthy",
    ),
    ("every_device_is_valid", with_(discover=returning()), "tree() has no healthy device"),
    ("two_scans_find_equal_devices", Clock, "a second scan found different devices"),
    ("a_restart_finds_equal_devices", Counting, "a new instance found different devices"),
    (
        "the_order_of_directories_does_not_matter",
        Index,
        "a different order of directory entries led to different devices",
    ),
    (
        "wanted_attributes_exist_and_others_change_nothing",
        Greedy,
        "has a different health or different claims depending on context.wanted",
    ),
    ("wanted_attributes_exist_and_others_change_nothing", Fussy, "by name leads to different devices"),
    ("a_machine_without_the_hardware_has_no_devices", Assuming, "FileNotFoundError"),
    ("a_machine_without_the_hardware_has_no_devices", Always, "found on an empty machine: ['Z9']"),
    ("no_damaged_file_makes_discover_fail", Trusting, "serial holds garbage: UnicodeDecodeError"),
    ("no_damaged_file_makes_discover_fail", Trusting, "serial is a directory: IsADirectoryError"),
    ("no_damaged_file_makes_discover_fail", Trusting, "serial holds an absurd number: AssertionError"),
    ("no_damaged_file_makes_discover_fail", Trusting, "serial is gone: FileNotFoundError"),
    ("no_later_damage_makes_probe_fail", Probing, "serial is gone: FileNotFoundError"),
    ("no_later_damage_makes_probe_fail", Late, "serial is gone: FileNotFoundError"),
    ("no_other_damage_makes_discover_fail", Trusting, "serial holds garbage: UnicodeDecodeError"),
    ("no_other_later_damage_makes_probe_fail", Probing, "serial is gone: FileNotFoundError"),
    ("vanished_hardware_is_not_healthy", Remembering, "healthy although all files are removed: ['A1', 'B2']"),
    (
        "a_healthy_device_can_be_allocated",
        Absent,
        "is healthy, but these paths do not exist on the host: /dev/nowhere",
    ),
    (
        "a_healthy_device_can_be_allocated",
        with_(allocate=lambda self, request: Edits(nodes=(DeviceNode("mycard0"),))),
        "a device node whose path is not absolute",
    ),
    (
        "a_healthy_device_can_be_allocated",
        with_(allocate=lambda self, request: None),
        "allocate() returned NoneType, not Edits",
    ),
    ("allocating_again_gives_the_same_answer", Drawing, "the answer for the same devices changed"),
    ("several_devices_have_the_nodes_of_each", Narrow, "in a container with several devices"),
    ("nothing_is_written", Writing, "it wrote to dev, dev/lock"),
    (
        "probe_returns_health_with_reasons_for_existing_devices",
        with_(probe=lambda self, devices: {"A1": Health(False)}),
        "A1 must have a reason if and only if it is unhealthy",
    ),
    (
        "probe_returns_health_with_reasons_for_existing_devices",
        with_(probe=lambda self, devices: {"Q7": Health(True)}),
        "probe() names devices that do not exist",
    ),
    (
        "probe_returns_health_with_reasons_for_existing_devices",
        with_(probe=lambda self, devices: {"A1": True}),
        "the health of A1 is True, not a Health",
    ),
    (
        "device_info_is_valid_and_stable",
        with_(device_info=lambda self, device, request: {"type": "pci"}),
        "its version does not read like 1.1.0",
    ),
    (
        "device_info_is_valid_and_stable",
        Forgetful,
        "the document changed",
    ),
    (
        "labels_are_valid_and_independent_of_health",
        with_(labels=lambda self, devices, offered: {"my card": "1"}),
        "'my card': its name is not made of letters",
    ),
    (
        "labels_are_valid_and_independent_of_health",
        with_(labels=lambda self, devices, offered: {"a/well": sum(bool(d.health) for d in devices)}),
        "depends on health",
    ),
    ("watch_starts_and_can_be_cancelled", Stubborn, "no netlink"),
    ("concurrent_calls_do_not_interfere", Racing, "probe() at the same time: KeyError"),
    ("concurrent_calls_do_not_interfere", RacingProbe, "probe() at the same time: KeyError"),
]


@pytest.mark.parametrize(
    ("promise", "broken", "finding"), BROKEN, ids=[f"{one[0]}-{number}" for number, one in enumerate(BROKEN)]
)
def test_a_violation_is_found_by_its_test(
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


def test_every_contract_test_has_a_violation() -> None:
    assert {f"test_{promise}" for promise, _, _ in BROKEN} == set(PROMISES)


def test_every_given_resource_option_is_tested(tmp_path: Path) -> None:
    class Contract(TestGood):
        backend = Used

    Contract().test_a_healthy_device_can_be_allocated(made(tmp_path, "first"))
    Contract.resource_options = (Use(), Use(lost=True))
    with pytest.raises(AssertionError, match="do not exist on the host: /dev/lost"):
        Contract().test_a_healthy_device_can_be_allocated(made(tmp_path, "second"))


def test_a_device_is_not_allocated_for_an_unusable_purpose(tmp_path: Path) -> None:
    class Contract(TestGood):
        backend = Lame
        resource_options = (Use(), Use(lost=True))

    Contract().test_a_healthy_device_can_be_allocated(made(tmp_path, "first"))
    Contract().test_allocating_again_gives_the_same_answer(made(tmp_path, "second"))


def test_a_backend_that_may_write_declares_where(tmp_path: Path) -> None:
    class Contract(TestGood):
        backend = Writing
        may_write = ("dev", "dev/lo*")

    Contract().test_nothing_is_written(tmp_path)


def made(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_devices_named_in_the_options_may_be_listed_as_unhealthy(tmp_path: Path) -> None:
    class Named(Good):
        def discover(self) -> Any:
            return list(super().discover()) or [Device("wanted", health=unhealthy("it is not there"))]

    class Contract(TestGood):
        backend = Named

    with pytest.raises(AssertionError, match="found on an empty machine"):
        Contract().test_a_machine_without_the_hardware_has_no_devices(made(tmp_path, "plain"))
    Contract.options = GoodOptions()
    Contract().test_a_machine_without_the_hardware_has_no_devices(made(tmp_path, "asked"))


def test_allocate_may_refuse_a_vanished_device(tmp_path: Path) -> None:
    class Refusing(Good):
        def allocate(self, request: AllocateRequest) -> Edits:
            if not (self.context.root / "dev").is_dir():
                raise AllocationError("it is gone")
            return super().allocate(request)

    class Contract(TestGood):
        backend = Refusing

    Contract().test_vanished_hardware_is_not_healthy(tmp_path)


def test_a_contract_without_a_tree_fails_with_a_hint(tmp_path: Path) -> None:
    class Empty(BackendContract):
        backend = Good

    with pytest.raises(NotImplementedError, match=r"Empty\.tree\(\) must build a machine with a device"):
        Empty().test_two_scans_find_equal_devices(tmp_path)
