"""Virtual functions are created, bound and removed by the options, and never while in use."""

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
from devhost_sriov.pci_bus import Bus, PhysicalFunction, write
from devhost_sriov.provisioning import FILE, Made, Ownership, Provisioner
from kit.machine import Provisioned
from sriov_kernel import BOOT, PATH, PHYSICAL, Kernel
from sriov_others import A10

from devhost.backend import NotYet
from devhost.backend.errors import BackendError, ConfigError
from devhost.config import loads
from devhost.discovery import catalog

FIRST, SECOND, THIRD, FOURTH = (f"0000:02:10.{number}" for number in (0, 2, 4, 6))


class Machine(Provisioned):
    """devhost on a card: its options, and what pods hold and see."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.kernel = Kernel(root)
        self.listed: set[str] = set()

    def hold(self, *addresses: str) -> None:
        """Pods have these."""
        self.held = held_with(*addresses)

    def once(self, *entries: VirtualFunctions) -> None:
        """One call, and a look after it."""
        if self.running is None or self.running[0] != entries:
            root = self.kernel.root
            provisioner = Provisioner(
                Bus(root, self.kernel.write),
                Ownership(root),
                entries,
                self.ask_held,
                self._is_listed,
                logging.getLogger("devhost.backend.sriov"),
            )
            self.running = entries, provisioner
        try:
            self.running[1].run()
        finally:
            self.listed = set(self.kernel.virtual) - self.running[1].leaving

    def _is_listed(self, address: str) -> bool:
        return address in self.listed


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
def test_functions_are_created_for_an_interface_and_for_an_address(machine: Machine, pf: str) -> None:
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


def test_functions_are_bound_only_to_the_wanted_driver_and_autoprobe_is_restored(
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


def test_the_record_is_removed_with_its_last_functions(machine: Machine) -> None:
    note = machine.kernel.root / FILE.lstrip("/")
    machine.bring(some(2))
    assert note.exists()
    machine.bring(some(0))
    assert not note.exists() and list(note.parent.iterdir()) == []


def test_each_change_of_hardware_is_logged_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "devhost.backend.sriov")
    label = f"ens1 ({PHYSICAL})"
    for entry, lines in (
        (some(4, "vfio-pci"), ["created 4 virtual functions", "bound 4 virtual functions"]),
        (some(4, "vfio-pci"), []),
        (some(4), ["bound 4 virtual functions"]),
        (some(1), ["removed 4 virtual functions", "created 1 virtual function"]),
        (some(0), ["removed 1 virtual function"]),
    ):
        machine.bring(entry)
        assert [line.partition(f" of {label}")[0] for line in caplog.messages] == lines
        caplog.clear()


def test_a_changed_count_first_withdraws_and_removes_all_functions(machine: Machine) -> None:
    machine.bring(some(2))
    machine.once(some(2))
    with pytest.raises(NotYet, match=r"2 virtual functions of ens1 .* must be withdrawn first"):
        machine.once(some(5))
    assert machine.listed == set() and len(machine.kernel.virtual) == 2
    machine.once(some(5))
    assert len(machine.kernel.virtual) == 5 == len(machine.listed)
    assert machine.kernel.changes() == [("sriov_numvfs", text) for text in "205"]


def test_a_pod_that_gets_a_function_meanwhile_keeps_it_and_the_others_are_offered_again(
    machine: Machine,
) -> None:
    machine.bring(some(2))
    machine.once(some(2))
    with pytest.raises(NotYet, match="must be withdrawn"):
        machine.once(some(5))
    machine.hold(FIRST)
    with pytest.raises(NotYet, match=f"keeps its 2 virtual functions instead of 5 while pods hold {FIRST}"):
        machine.once(some(5))
    assert machine.listed == set(machine.kernel.virtual) == {FIRST, SECOND}


@pytest.mark.parametrize("count", [0, 1, 7])
def test_nothing_is_removed_while_a_pod_holds_a_function(machine: Machine, count: int) -> None:
    machine.bring(some(4))
    machine.hold(SECOND)
    with pytest.raises(NotYet, match=SECOND):
        machine.bring(some(count))
    assert len(machine.kernel.virtual) == 4
    machine.hold()
    machine.bring(some(count))
    assert len(machine.kernel.virtual) == count


def test_nothing_is_removed_while_a_pod_holds_the_physical_function(machine: Machine) -> None:
    machine.bring(some(2))
    machine.held = frozenset({f"device:sriov/{PHYSICAL}", f"pci:{PHYSICAL}"})
    with pytest.raises(NotYet, match=f"while pods hold {PHYSICAL}"):
        machine.bring(some(0))
    assert len(machine.kernel.virtual) == 2


def test_a_pod_that_gets_a_function_just_before_the_removal_keeps_it(machine: Machine) -> None:
    machine.bring(some(4))
    with pytest.raises(NotYet, match="must be withdrawn first"):
        machine.once(some(2))
    machine.kernel.changes()
    machine.hold(SECOND)
    machine.held_first = [frozenset()]  # it was free when that was first asked
    with pytest.raises(NotYet, match=f"while pods hold {SECOND}"):
        machine.once(some(2))
    assert machine.kernel.changes() == []
    assert len(machine.kernel.virtual) == 4


def test_a_pod_that_gets_a_function_just_before_rebinding_keeps_it(machine: Machine) -> None:
    machine.bring(some(4))
    with pytest.raises(NotYet, match="must be withdrawn first"):
        machine.once(some(4, "vfio-pci"))
    machine.hold(SECOND)
    machine.held_first = [frozenset()]
    with pytest.raises(
        NotYet, match=f"{SECOND} of .* stays bound to igbvf while a pod holds it, instead of vfio-pci"
    ):
        machine.once(some(4, "vfio-pci"))
    assert machine.kernel.virtual[SECOND] == "igbvf"
    assert machine.kernel.virtual[FIRST] == "vfio-pci"


def test_nothing_is_removed_while_the_holders_are_unknown(machine: Machine) -> None:
    machine.held = None
    machine.bring(some(4))  # functions that do not exist yet cannot be in use
    with pytest.raises(NotYet, match="not yet known"):
        machine.bring(some(2))
    assert len(machine.kernel.virtual) == 4


def test_functions_of_a_removed_entry_are_removed(machine: Machine) -> None:
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


def test_functions_of_a_missing_interface_are_kept(machine: Machine) -> None:
    """It may have been moved into a container."""
    machine.bring(some(4))
    (machine.kernel.root / "sys/class/net/ens1").unlink()
    with pytest.raises(NotYet, match="ens1 does not exist"):
        machine.bring(some(4))
    assert len(machine.kernel.virtual) == 4


def test_existing_functions_are_not_changed(machine: Machine) -> None:
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "3")
    machine.kernel.changes()
    machine.bring(some(3))
    machine.bring()
    for wanted, words in (
        (some(0), "3 virtual functions that devhost did not create; devhost does not change them to 0"),
        (some(5), "3 virtual functions that devhost did not create; devhost does not change them to 5"),
        (some(3, "vfio-pci"), f"did not create .* does not bind {FIRST}, {SECOND}, {THIRD} to vfio-pci"),
    ):
        with pytest.raises(BackendError, match=words):
            machine.bring(wanted)
    machine.bring(some(3, "igbvf"))
    assert machine.kernel.changes() == []


@pytest.mark.parametrize("count", [4, 2])
def test_functions_that_another_process_created_instead_are_not_changed(machine: Machine, count: int) -> None:
    machine.bring(some(4))
    for text in ("0", str(count)):
        machine.kernel.write(machine.kernel.whole / "sriov_numvfs", text)
    machine.bring()
    assert len(machine.kernel.virtual) == count


def test_functions_that_another_process_removed_are_created_again(machine: Machine) -> None:
    machine.bring(some(4))
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "0")
    machine.bring(some(4))
    assert len(machine.kernel.virtual) == 4


def test_the_record_of_another_boot_is_ignored(machine: Machine) -> None:
    machine.bring(some(4))
    (machine.kernel.root / BOOT).write_text("second\n")
    machine.restart()
    with pytest.raises(BackendError, match="did not create"):
        machine.bring(some(2))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot": "first", "made": 3}', '{"boot": "first", "made": {"a": 1}}']
)
def test_a_broken_record_counts_as_empty(machine: Machine, text: str) -> None:
    machine.bring(some(4))
    (machine.kernel.root / FILE[1:]).write_text(text)
    machine.restart()
    machine.bring(some(4))
    with pytest.raises(BackendError, match="did not create"):
        machine.bring(some(2))


def test_a_creation_interrupted_by_a_crash_is_finished(machine: Machine) -> None:
    """The kernel had created them, and devhost had not yet recorded their mark."""
    kernel = machine.kernel
    kernel.write(kernel.whole / "sriov_drivers_autoprobe", "0")
    kernel.write(kernel.whole / "sriov_numvfs", "2")
    Ownership(kernel.root).write({PHYSICAL: Made("ens1", 2, "vfio-pci")})
    machine.bring(some(2, "vfio-pci"))
    assert kernel.virtual == {FIRST: "vfio-pci", SECOND: "vfio-pci"}
    assert Ownership(kernel.root).read()[PHYSICAL].mark


def test_without_a_writable_record_nothing_is_created(machine: Machine) -> None:
    (machine.kernel.root / "run/devhost").write_text("in the way")
    with pytest.raises(BackendError, match="changes no virtual functions without it"):
        machine.bring(some(4))
    assert machine.kernel.changes() == []


def test_functions_that_no_pod_holds_are_rebound(machine: Machine) -> None:
    machine.bring(some(3, "vfio-pci"))
    machine.once(some(3, "vfio-pci"))
    machine.hold(SECOND)
    with pytest.raises(
        NotYet, match=f"{SECOND} of ens1 .* stays bound to vfio-pci while a pod holds it, instead of igbvf"
    ):
        machine.bring(some(3, "igbvf"))
    assert machine.kernel.virtual == {FIRST: "igbvf", SECOND: "vfio-pci", THIRD: "igbvf"}
    machine.hold()
    machine.bring(some(3, "igbvf"))
    assert machine.kernel.virtual == dict.fromkeys((FIRST, SECOND, THIRD), "igbvf")
    assert machine.listed == {FIRST, SECOND, THIRD}


def test_without_a_driver_functions_return_to_the_default_driver(machine: Machine) -> None:
    machine.bring(some(2, "vfio-pci"))
    machine.bring(some(2))
    assert machine.kernel.virtual == {FIRST: "igbvf", SECOND: "igbvf"}
    machine.kernel.changes()
    machine.bring(some(2))
    assert machine.kernel.changes() == []


def test_an_unbound_function_is_bound_again(machine: Machine) -> None:
    machine.bring(some(2, "vfio-pci"))
    driver = machine.kernel.root / "sys/bus/pci/devices" / FIRST / "driver"
    driver.unlink()
    machine.held = None  # unknown holders do not matter: this function is unbound
    machine.bring(some(2, "vfio-pci"))
    assert machine.kernel.virtual[FIRST] == "vfio-pci"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((some(8),), r"ens1 \(0000:02:00.0\) can have at most 7 virtual functions, not 8"),
        ((some(1, "mlx5_core"),), "there is no driver mlx5_core .run modprobe mlx5_core"),
        ((some(1), some(2, pf=PHYSICAL)), f"ens1 and {PHYSICAL} are the same physical function"),
        ((some(1, pf="0000:00:05.0"),), "0000:00:05.0 cannot have virtual functions"),
    ],
)
def test_impossible_entries_are_refused_before_anything_is_written(
    machine: Machine, entries: tuple[VirtualFunctions, ...], words: str
) -> None:
    with pytest.raises(BackendError, match=words):
        machine.bring(*entries)
    assert [change for change in machine.kernel.changes() if change[0] != "sriov_numvfs"] == []


def test_disabled_virtual_functions_are_reported(machine: Machine) -> None:
    (machine.kernel.root / "sys/bus/pci/devices" / PHYSICAL / "sriov_totalvfs").write_text("0\n")
    with pytest.raises(
        BackendError, match=r"cannot have virtual functions .disabled by its driver or firmware"
    ):
        machine.bring(some(1))


def test_a_failure_of_one_physical_function_does_not_block_others(machine: Machine) -> None:
    with pytest.raises(BackendError, match="cannot have virtual functions; ens9 does not exist"):
        machine.bring(some(2, pf="ens9"), some(2, pf="0000:00:05.0"), some(4))
    assert len(machine.kernel.virtual) == 4


def test_a_physical_function_that_a_pod_holds_gets_no_virtual_ones(machine: Machine) -> None:
    machine.held = frozenset({f"device:sriov/{PHYSICAL}", f"pci:{PHYSICAL}"})
    with pytest.raises(NotYet, match="gets no virtual functions while a pod holds it"):
        machine.bring(some(4))
    assert machine.kernel.changes() == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EBUSY, "Device or resource busy .one of them is in use"),
        (errno.EROFS, "Read-only file system .devhost needs a writable /sys"),
        (errno.EACCES, "Permission denied .devhost needs a writable /sys"),
        (errno.ENOSYS, "its driver does not support them"),
        (errno.ENOMEM, "too little address space"),
        (errno.EIO, "Input/output error$"),
    ],
)
def test_a_refusal_of_the_kernel_is_reported_and_not_recorded(
    machine: Machine, number: int, words: str
) -> None:
    machine.kernel.refuses["sriov_numvfs"] = number
    with pytest.raises(
        BackendError, match=f"the kernel refuses to create 4 virtual functions of ens1 .*{words}"
    ):
        machine.bring(some(4, "vfio-pci"))
    assert autoprobe(machine) == "1"
    assert Ownership(machine.kernel.root).read() == {}


def test_a_damaged_link_to_a_virtual_function_is_ignored(machine: Machine) -> None:
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "2")
    link = machine.kernel.whole / "virtfn1"
    link.unlink()
    link.symlink_to("../no address ")
    assert PhysicalFunction(Bus(machine.kernel.root), PHYSICAL, "ens1").virtual == (FIRST,)


def test_a_function_that_its_driver_rejects_is_named(machine: Machine) -> None:
    machine.kernel.deaf.add(SECOND)
    with pytest.raises(BackendError, match=f"{SECOND} did not bind to vfio-pci .see the kernel log"):
        machine.bring(some(3, "vfio-pci"))
    machine.kernel.deaf.clear()
    machine.bring(some(3, "vfio-pci"))
    assert set(machine.kernel.virtual.values()) == {"vfio-pci"}


def test_a_reinserted_card_gets_its_functions_again(machine: Machine) -> None:
    machine.bring(some(4))
    machine.kernel.write(machine.kernel.whole / "sriov_numvfs", "0")
    kept = machine.kernel.root / "kept"
    address, net = machine.kernel.root / "sys/bus/pci/devices" / PHYSICAL, "sys/class/net/ens1"
    interface = (machine.kernel.root / net).readlink()
    machine.kernel.whole.rename(kept)
    target = address.readlink()
    address.unlink()
    (machine.kernel.root / net).unlink()
    with pytest.raises(NotYet, match="ens1 does not exist"):
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


def test_functions_to_be_removed_are_withheld_with_the_reason(tmp_path: Path, looking: Any) -> None:
    kernel = Kernel(tmp_path)
    kernel.write(kernel.whole / "sriov_numvfs", "2")
    backend: Sriov = looking(tmp_path, SriovOptions())
    Ownership(tmp_path).write({PHYSICAL: Made("ens1", 2)})
    assert [device.withheld for device in backend.discover() if device.id == FIRST] == [None]
    with pytest.raises(NotYet, match="must be withdrawn"):
        backend.provision()
    found = {device.id: device for device in backend.discover()}
    assert "about to change" in (found[FIRST].withheld or "") and found[SECOND].withheld
    assert not found[PHYSICAL].divided, "a claim would get it while its functions change"


def test_a_mediated_device_of_a_function_is_withheld_until_the_function_is_removed(
    tmp_path: Path, looking: Any
) -> None:
    kernel, held = Kernel(tmp_path), set[str]()
    kernel.write(kernel.whole / "sriov_numvfs", "2")
    part = kernel.whole.parent.relative_to(tmp_path / "sys/devices") / FIRST
    kernel.tree.mediated(str(part), A10, "nvidia-592", "NVIDIA A10-4Q", driver="nvidia-vgpu-vfio", group=201)
    Ownership(tmp_path).write({PHYSICAL: Made("ens1", 2)})
    backend: Sriov = looking(tmp_path, SriovOptions(), held=lambda: frozenset(held))

    def withheld() -> dict[str, str | None]:
        return {device.id: device.withheld for device in backend.discover()}

    assert withheld()[A10] is None
    (device,) = (one for one in backend.discover() if one.id == A10)
    held |= device.part_of  # as the core reports it for a pod that has the device
    with pytest.raises(NotYet, match=f"keeps its 2 virtual functions instead of 0 while pods hold {FIRST}"):
        backend.provision()
    assert withheld()[A10] is None
    held.clear()
    with pytest.raises(NotYet, match="must be withdrawn"):
        backend.provision()
    with pytest.raises(NotYet, match="must be withdrawn"):
        backend.provision()  # until a scan has withheld it, a pod may get it
    assert "about to change" in (withheld()[A10] or "")
    held |= device.part_of  # a pod got it at the last moment
    with pytest.raises(NotYet, match="while pods hold"):
        backend.provision()
    assert withheld()[A10] is None and kernel.virtual


def test_a_function_of_which_only_mediated_devices_are_offered_is_withdrawn_too(
    tmp_path: Path, looking: Any
) -> None:
    kernel = Kernel(tmp_path)
    kernel.write(kernel.whole / "sriov_numvfs", "1")
    part = kernel.whole.parent.relative_to(tmp_path / "sys/devices") / FIRST
    kernel.tree.file(f"/sys/devices/{part}/nvidia/current_vgpu_type", "0")
    (tmp_path / "sys/devices" / part / "driver").unlink()
    kernel.tree.link(f"/sys/devices/{part}/driver", "/sys/bus/pci/drivers/nvidia")
    kernel.tree.mediated(str(part), A10, "nvidia-592", "NVIDIA A10-4Q", driver="nvidia-vgpu-vfio", group=201)
    Ownership(tmp_path).write({PHYSICAL: Made("ens1", 1)})
    backend: Sriov = looking(tmp_path, SriovOptions(), held=frozenset)
    found = {device.id: device.withheld for device in backend.discover()}
    assert found[FIRST] and found[A10] is None
    for _ in range(2):
        with pytest.raises(NotYet, match="must be withdrawn"):
            backend.provision()
    assert kernel.virtual
    assert all(device.withheld for device in backend.discover() if device.id in (FIRST, A10))


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
        ('[{"pf": "a", "count": 1}, {"pf": "a", "count": 2}]', 'virtualFunctions[1].pf: "a" appears twice'),
        ('[{"pf": "a"}]', "the key count is required"),
        ('[{"count": 3}]', "the key pf is required"),
        ('[{"pf": "", "count": 3}]', "virtualFunctions[0].pf: must be an interface or a PCI address"),
        ('[{"pf": "../x", "count": 3}]', "virtualFunctions[0].pf: must be an interface"),
        ('[{"pf": "a", "count": -1}]', "virtualFunctions[0].count: must be from 0 to 65535, not -1"),
        ('[{"pf": "a", "count": 1, "driver": "a/b"}]', 'driver: "a/b" is not the name of a driver'),
    ],
)
def test_an_invalid_entry_is_refused_with_its_place(entries: str, words: str) -> None:
    (complaint,) = configured(f'{{"virtualFunctions": {entries}}}')
    assert words in complaint and complaint.startswith("devhost.yaml:1:")


def test_without_entries_nothing_is_changed(machine: Machine) -> None:
    machine.bring()
    assert machine.kernel.changes() == []
    assert not (machine.kernel.root / "run/devhost").exists()
    assert (machine.kernel.root / "sys/devices" / PATH).exists()
