"""Virtual functions are made, bound and removed as the options say, and never under somebody's hands."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devhost_sriov import Sriov
from devhost_sriov.options import SriovOptions, VirtualFunctions
from devhost_sriov.pci_bus import Bus, write
from devhost_sriov.provisioning import FILE, Made, Ownership, Provisioner
from sriov_kernel import BOOT, PATH, PHYSICAL, Kernel

from devhost.backend import NotYet
from devhost.backend.errors import BackendError, ConfigError
from devhost.config import loads
from devhost.discovery import catalog
from devhost.discovery.runner import ServiceContext

FIRST, SECOND, THIRD, FOURTH = (f"0000:02:10.{number}" for number in (0, 2, 4, 6))


class Machine:
    """devhost on a card: what it was told, and what pods have and see."""

    def __init__(self, root: Path) -> None:
        self.kernel = Kernel(root)
        self.held: frozenset[str] | None = frozenset()
        self.held_first: list[frozenset[str]] = []
        """What is answered before that, one for each question."""
        self.listed: set[str] = set()
        self._running: tuple[tuple[VirtualFunctions, ...], Provisioner] | None = None

    def restart(self) -> None:
        """What devhost knew in memory is gone."""
        self._running = None

    def hold(self, *addresses: str) -> None:
        """Pods have these."""
        self.held = held_with(*addresses)

    def once(self, *entries: VirtualFunctions) -> None:
        """One call, and a look after it."""
        if self._running is None or self._running[0] != entries:
            root = self.kernel.root
            provisioner = Provisioner(
                Bus(root, self.kernel.write),
                Ownership(root),
                entries,
                self._ask_held,
                self._is_listed,
                logging.getLogger("devhost.backend.sriov"),
            )
            self._running = entries, provisioner
        try:
            self._running[1].run()
        finally:
            self.listed = set(self.kernel.virtual) - self._running[1].leaving

    def bring(self, *entries: VirtualFunctions) -> None:
        """Calls until it has nothing to wait for but pods."""
        for _ in range(4):
            try:
                self.once(*entries)
            except NotYet as error:
                if "leave the list" not in str(error):
                    raise
            else:
                return
        raise AssertionError("it never ends")

    def _is_listed(self, address: str) -> bool:
        return address in self.listed

    def _ask_held(self) -> frozenset[str] | None:
        return self.held_first.pop(0) if self.held_first else self.held


def held_with(*addresses: str) -> frozenset[str]:
    """What containers hold that have these functions."""
    return frozenset(
        claim for one in addresses for claim in (f"pci:{one}", f"device:sriov/{one}", f"pci:{PHYSICAL}")
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def some(count: int, driver: str = "", pf: str = "ens1") -> VirtualFunctions:
    return VirtualFunctions(pf=pf, count=count, driver=driver)


def autoprobe(machine: Machine) -> str:
    return (machine.kernel.whole / "sriov_drivers_autoprobe").read_text().strip()


@pytest.mark.parametrize("pf", ["ens1", PHYSICAL])
def test_functions_are_made_for_an_interface_and_for_an_address(machine: Machine, pf: str) -> None:
    machine.bring(some(4, pf=pf))
    assert machine.kernel.virtual == dict.fromkeys((FIRST, SECOND, THIRD, FOURTH), "igbvf")
    assert machine.kernel.changes() == [("sriov_numvfs", "4")]


def test_a_second_call_writes_nothing(machine: Machine) -> None:
    machine.bring(some(4, "vfio-pci"))
    machine.kernel.changes()
    machine.bring(some(4, "vfio-pci"))
    machine.restart()
    machine.bring(some(4, "vfio-pci"))
    assert machine.kernel.changes() == []


def test_a_wanted_driver_gets_them_before_any_other_and_the_kernels_habit_is_restored(
    machine: Machine,
) -> None:
    machine.bring(some(2, "vfio-pci"))
    assert machine.kernel.virtual == {FIRST: "vfio-pci", SECOND: "vfio-pci"}
    assert machine.kernel.changes() == [
        ("sriov_drivers_autoprobe", "0"),
        ("sriov_numvfs", "2"),
        ("sriov_drivers_autoprobe", "1"),
        ("driver_override", "vfio-pci"),
        ("drivers_probe", FIRST),
        ("driver_override", "vfio-pci"),
        ("drivers_probe", SECOND),
    ]


def test_the_note_goes_with_the_last_of_what_it_tells(machine: Machine) -> None:
    note = machine.kernel.root / FILE.lstrip("/")
    machine.bring(some(2))
    assert note.exists()
    machine.bring(some(0))
    assert not note.exists() and list(note.parent.iterdir()) == []


def test_each_change_of_hardware_is_one_line_of_the_log(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devhost.backend.sriov")
    label = f"ens1 ({PHYSICAL})"
    for entry, lines in (
        (some(4, "vfio-pci"), ["made 4 virtual functions", "bound 4 virtual functions"]),
        (some(4, "vfio-pci"), []),
        (some(4), ["bound 4 virtual functions"]),
        (some(1), ["removed 4 virtual functions", "made 1 virtual function"]),
        (some(0), ["removed 1 virtual function"]),
    ):
        machine.bring(entry)
        assert [line.partition(f" of {label}")[0] for line in caplog.messages] == lines
        caplog.clear()


def test_another_count_removes_them_all_first_and_only_once_nobody_can_get_them(machine: Machine) -> None:
    machine.bring(some(2))
    machine.once(some(2))
    with pytest.raises(NotYet, match=r"2 virtual functions of ens1 .* must leave the list first"):
        machine.once(some(5))
    assert machine.listed == set() and len(machine.kernel.virtual) == 2
    machine.once(some(5))
    assert len(machine.kernel.virtual) == 5 == len(machine.listed)
    assert machine.kernel.changes() == [("sriov_numvfs", text) for text in "205"]


def test_a_pod_that_gets_one_meanwhile_keeps_it_and_the_others_are_offered_again(machine: Machine) -> None:
    machine.bring(some(2))
    machine.once(some(2))
    with pytest.raises(NotYet, match="leave the list"):
        machine.once(some(5))
    machine.hold(FIRST)
    with pytest.raises(NotYet, match=f"keeps its 2 virtual functions instead of 5 while pods have {FIRST}"):
        machine.once(some(5))
    assert machine.listed == set(machine.kernel.virtual) == {FIRST, SECOND}


@pytest.mark.parametrize("count", [0, 1, 7])
def test_nothing_is_removed_while_a_pod_has_any_of_them(machine: Machine, count: int) -> None:
    machine.bring(some(4))
    machine.hold(SECOND)
    with pytest.raises(NotYet, match=SECOND):
        machine.bring(some(count))
    assert len(machine.kernel.virtual) == 4
    machine.hold()
    machine.bring(some(count))
    assert len(machine.kernel.virtual) == count


def test_a_pod_that_gets_one_just_before_the_removal_keeps_it(machine: Machine) -> None:
    machine.bring(some(4))
    with pytest.raises(NotYet, match="must leave the list first"):
        machine.once(some(2))
    machine.kernel.changes()
    machine.hold(SECOND)
    machine.held_first = [frozenset()]  # it was free when that was first asked
    with pytest.raises(NotYet, match=f"while pods have {SECOND}"):
        machine.once(some(2))
    assert machine.kernel.changes() == []
    assert len(machine.kernel.virtual) == 4


def test_a_pod_that_gets_one_just_before_another_driver_does_keeps_it(machine: Machine) -> None:
    machine.bring(some(4))
    with pytest.raises(NotYet, match="must leave the list first"):
        machine.once(some(4, "vfio-pci"))
    machine.hold(SECOND)
    machine.held_first = [frozenset()]
    with pytest.raises(NotYet, match=f"{SECOND} of .* cannot leave igbvf for vfio-pci: a pod has it"):
        machine.once(some(4, "vfio-pci"))
    assert machine.kernel.virtual[SECOND] == "igbvf"
    assert machine.kernel.virtual[FIRST] == "vfio-pci"


def test_nothing_is_removed_while_it_is_not_known_who_has_what(machine: Machine) -> None:
    machine.held = None
    machine.bring(some(4))  # nobody can have what there is not yet
    with pytest.raises(NotYet, match="not known yet"):
        machine.bring(some(2))
    assert len(machine.kernel.virtual) == 4


def test_an_entry_that_left_the_configuration_takes_its_functions_with_it(machine: Machine) -> None:
    machine.bring(some(4, "vfio-pci"))
    machine.restart()
    machine.hold(FIRST)
    with pytest.raises(NotYet, match="keeps its 4 virtual functions instead of 0"):
        machine.bring()
    machine.hold()
    machine.bring()
    assert machine.kernel.virtual == {}
    machine.kernel.changes()
    machine.bring()
    assert machine.kernel.changes() == []


def test_an_interface_that_cannot_be_found_now_costs_nothing(machine: Machine) -> None:
    """It may have been moved into a container."""
    machine.bring(some(4))
    (machine.kernel.root / "sys/class/net/ens1").unlink()
    with pytest.raises(NotYet, match="there is no ens1"):
        machine.bring(some(4))
    assert len(machine.kernel.virtual) == 4


def test_functions_that_were_there_before_are_left_alone(machine: Machine) -> None:
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "3")
    machine.kernel.changes()
    machine.bring(some(3))
    machine.bring()
    for wanted, words in (
        (some(0), "3 virtual functions that devhost did not make, and so does not change to 0"),
        (some(5), "3 virtual functions that devhost did not make, and so does not change to 5"),
        (some(3, "vfio-pci"), f"did not make .* does not bind {FIRST}, {SECOND}, {THIRD} to vfio-pci"),
    ):
        with pytest.raises(BackendError, match=words):
            machine.bring(wanted)
    machine.bring(some(3, "igbvf"))
    assert machine.kernel.changes() == []


@pytest.mark.parametrize("count", [4, 2])
def test_functions_that_somebody_put_in_the_place_of_ours_are_his(machine: Machine, count: int) -> None:
    machine.bring(some(4))
    for text in ("0", str(count)):
        machine.kernel.write(machine.kernel.whole / "sriov_numvfs", text)
    machine.bring()
    assert len(machine.kernel.virtual) == count


def test_functions_that_somebody_removed_are_made_again(machine: Machine) -> None:
    machine.bring(some(4))
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "0")
    machine.bring(some(4))
    assert len(machine.kernel.virtual) == 4


def test_what_another_boot_has_noted_is_not_believed(machine: Machine) -> None:
    machine.bring(some(4))
    (machine.kernel.root / BOOT).write_text("second\n")
    machine.restart()
    with pytest.raises(BackendError, match="did not make"):
        machine.bring(some(2))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot": "first", "made": 3}', '{"boot": "first", "made": {"a": 1}}']
)
def test_a_broken_note_counts_as_none(machine: Machine, text: str) -> None:
    machine.bring(some(4))
    (machine.kernel.root / FILE[1:]).write_text(text)
    machine.restart()
    machine.bring(some(4))
    with pytest.raises(BackendError, match="did not make"):
        machine.bring(some(2))


def test_what_was_noted_before_an_abrupt_end_is_finished(machine: Machine) -> None:
    """The kernel had made them, and devhost not yet said which."""
    kernel = machine.kernel
    kernel.write(kernel.whole / "sriov_drivers_autoprobe", "0")
    kernel.write(kernel.whole / "sriov_numvfs", "2")
    Ownership(kernel.root).write({PHYSICAL: Made("ens1", 2, "vfio-pci")})
    machine.bring(some(2, "vfio-pci"))
    assert kernel.virtual == {FIRST: "vfio-pci", SECOND: "vfio-pci"}
    assert Ownership(kernel.root).read()[PHYSICAL].mark


def test_without_a_place_to_note_it_nothing_is_made(machine: Machine) -> None:
    (machine.kernel.root / "run/devhost").write_text("in the way")
    with pytest.raises(BackendError, match="makes no virtual functions it would not know again"):
        machine.bring(some(4))
    assert machine.kernel.changes() == []


def test_another_driver_takes_over_those_that_no_pod_has(machine: Machine) -> None:
    machine.bring(some(3, "vfio-pci"))
    machine.once(some(3, "vfio-pci"))
    machine.hold(SECOND)
    with pytest.raises(NotYet, match=f"{SECOND} of ens1 .* cannot leave vfio-pci for igbvf: a pod has it"):
        machine.bring(some(3, "igbvf"))
    assert machine.kernel.virtual == {FIRST: "igbvf", SECOND: "vfio-pci", THIRD: "igbvf"}
    machine.hold()
    machine.bring(some(3, "igbvf"))
    assert machine.kernel.virtual == dict.fromkeys((FIRST, SECOND, THIRD), "igbvf")
    assert machine.listed == {FIRST, SECOND, THIRD}


def test_without_a_driver_they_go_back_to_their_own(machine: Machine) -> None:
    machine.bring(some(2, "vfio-pci"))
    machine.bring(some(2))
    assert machine.kernel.virtual == {FIRST: "igbvf", SECOND: "igbvf"}
    machine.kernel.changes()
    machine.bring(some(2))
    assert machine.kernel.changes() == []


def test_a_function_that_lost_its_driver_gets_it_back(machine: Machine) -> None:
    machine.bring(some(2, "vfio-pci"))
    driver = machine.kernel.root / "sys/bus/pci/devices" / FIRST / "driver"
    driver.unlink()
    machine.held = None  # whoever has what: nobody has this one
    machine.bring(some(2, "vfio-pci"))
    assert machine.kernel.virtual[FIRST] == "vfio-pci"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((some(8),), r"ens1 \(0000:02:00.0\) can have 7 virtual functions at most, not 8"),
        ((some(1, "mlx5_core"),), "there is no driver mlx5_core: load its module, modprobe mlx5_core"),
        ((some(1), some(2, pf=PHYSICAL)), f"ens1 and {PHYSICAL} are one physical function"),
        ((some(1, pf="0000:00:05.0"),), "0000:00:05.0 cannot have virtual functions"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    machine: Machine, entries: tuple[VirtualFunctions, ...], words: str
) -> None:
    with pytest.raises(BackendError, match=words):
        machine.bring(*entries)
    assert [change for change in machine.kernel.changes() if change[0] != "sriov_numvfs"] == []


def test_a_function_whose_virtual_ones_are_switched_off_says_so(machine: Machine) -> None:
    (machine.kernel.root / "sys/bus/pci/devices" / PHYSICAL / "sriov_totalvfs").write_text("0\n")
    with pytest.raises(BackendError, match="cannot have virtual functions: its driver or its firmware has"):
        machine.bring(some(1))


def test_one_in_trouble_keeps_no_other_waiting(machine: Machine) -> None:
    with pytest.raises(BackendError, match="cannot have virtual functions; there is no ens9"):
        machine.bring(some(2, pf="ens9"), some(2, pf="0000:00:05.0"), some(4))
    assert len(machine.kernel.virtual) == 4


def test_a_physical_function_that_a_pod_has_is_not_split(machine: Machine) -> None:
    machine.held = frozenset({f"device:sriov/{PHYSICAL}", f"pci:{PHYSICAL}"})
    with pytest.raises(NotYet, match="gets no virtual functions while a pod has it"):
        machine.bring(some(4))
    assert machine.kernel.changes() == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EBUSY, "Device or resource busy .somebody uses one of them"),
        (errno.EROFS, "Read-only file system .devhost needs a writable /sys"),
        (errno.EACCES, "Permission denied .devhost needs a writable /sys"),
        (errno.ENOSYS, "its driver makes none"),
        (errno.ENOMEM, "too little address space"),
        (errno.EIO, "Input/output error$"),
    ],
)
def test_what_the_kernel_refuses_is_one_sentence_and_is_not_noted(
    machine: Machine, number: int, words: str
) -> None:
    machine.kernel.refuses["sriov_numvfs"] = number
    with pytest.raises(BackendError, match=f"the kernel refuses 4 virtual functions to ens1 .*{words}"):
        machine.bring(some(4, "vfio-pci"))
    assert autoprobe(machine) == "1"
    assert Ownership(machine.kernel.root).read() == {}


def test_a_function_that_its_driver_does_not_take_is_named(machine: Machine) -> None:
    machine.kernel.deaf.add(SECOND)
    with pytest.raises(BackendError, match=f"{SECOND} does not bind to vfio-pci: the kernel's log says why"):
        machine.bring(some(3, "vfio-pci"))
    machine.kernel.deaf.clear()
    machine.bring(some(3, "vfio-pci"))
    assert set(machine.kernel.virtual.values()) == {"vfio-pci"}


def test_a_card_that_went_and_came_back_gets_its_functions_again(machine: Machine) -> None:
    machine.bring(some(4))
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "0")
    kept = machine.kernel.root / "kept"
    address, net = machine.kernel.root / "sys/bus/pci/devices" / PHYSICAL, "sys/class/net/ens1"
    interface = (machine.kernel.root / net).readlink()
    machine.kernel.whole.rename(kept)
    target = address.readlink()
    address.unlink()
    (machine.kernel.root / net).unlink()
    with pytest.raises(NotYet, match="there is no ens1"):
        machine.bring(some(4))
    kept.rename(machine.kernel.whole)
    address.symlink_to(target)
    (machine.kernel.root / net).symlink_to(interface)
    machine.bring(some(4))
    assert len(machine.kernel.virtual) == 4


def test_a_write_is_one_system_call_to_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old text")
    write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new text"  # sysfs takes each write for the whole
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "none", "new")


def test_functions_that_are_to_go_are_withheld_with_the_reason(
    tmp_path: Path, looking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path)
    kernel.write(kernel.whole / "sriov_numvfs", "2")
    monkeypatch.setattr(ServiceContext, "held", lambda self: frozenset())
    backend: Sriov = looking(tmp_path, SriovOptions())
    Ownership(tmp_path).write({PHYSICAL: Made("ens1", 2)})
    assert [device.withheld for device in backend.discover() if device.id == FIRST] == [None]
    with pytest.raises(NotYet, match="must leave the list"):
        backend.provision()
    found = {device.id: device.withheld for device in backend.discover()}
    assert "about to have other virtual functions" in found[FIRST] and found[SECOND]


def configured(text: str) -> Iterator[str]:
    found = catalog.load()
    document = {"version": 1, "backends": {"sriov": json.loads(text)}, "resources": []}
    try:
        loads(json.dumps(document), "devhost.yaml", lambda paths, wanted: found)
    except ConfigError as error:
        yield from map(str, error.diagnostics)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ('[{"pf": "a", "count": 1}, {"pf": "a", "count": 2}]', 'virtualFunctions[1].pf: "a" stands twice'),
        ('[{"pf": "a"}]', "the key count is required"),
        ('[{"count": 3}]', "the key pf is required"),
        ('[{"pf": "", "count": 3}]', "virtualFunctions[0].pf: must be an interface or a PCI address"),
        ('[{"pf": "../x", "count": 3}]', "virtualFunctions[0].pf: must be an interface"),
        ('[{"pf": "a", "count": -1}]', "virtualFunctions[0].count: must be from 0 to 65535, not -1"),
        ('[{"pf": "a", "count": 1, "driver": "a/b"}]', 'driver: "a/b" is no driver'),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused_at_its_place(entries: str, words: str) -> None:
    (complaint,) = configured(f'{{"virtualFunctions": {entries}}}')
    assert words in complaint and complaint.startswith("devhost.yaml:1:")


def test_nothing_is_changed_unless_it_is_asked_for(machine: Machine) -> None:
    machine.bring()
    assert machine.kernel.changes() == []
    assert not (machine.kernel.root / "run/devhost").exists()
    assert (machine.kernel.root / "sys/devices" / PATH).exists()
