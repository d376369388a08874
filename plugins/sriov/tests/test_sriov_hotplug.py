"""Functions that come, go and change: what is read again, and what is seen in the moments between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sriov_network as network
from devhost_sriov.bursts import ROUNDS, BurstWait
from devhost_sriov.scan import MAX_PLACES, NETWORK, Scan
from devhost_testing.fixtures import by_id
from sriov_backend import Reader, reading

from devhost.backend import Event
from devhost.backend.sysfs import Sysfs

PF = "pci0000:00/0000:00:05.0/0000:02:00.0"
VF = "pci0000:00/0000:00:05.0/0000:02:10.2"


@pytest.fixture
def sysfs(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def test_only_what_an_event_touches_is_read_again(looking, tmp_path, sysfs):
    tree = network.igb(tmp_path)
    backend = looking(tree, kind=reading(sysfs))
    backend.discover()
    sysfs.functions()
    for path, read in (
        (f"/sys/devices/{VF}/net/enp2s0v1", ["0000:02:10.2"]),
        (f"/sys/devices/{VF}", ["0000:02:10.2"]),
        (f"/sys/devices/{PF}", ["0000:02:00.0"]),
        ("/sys/devices/virtual/net/veth0", []),
        (f"{NETWORK}/enp2s0v1", ["0000:02:10.2"]),
        (f"{NETWORK}/unknown0", []),
        ("/sys/devices/pci0000:00/0000:00:05.0", [f"0000:02:{n}" for n in ("00.0", *_VFS)]),
        (NETWORK, [f"0000:02:{n}" for n in ("00.0", *_VFS)]),
    ):
        backend.notice(Event("net", "change", path))
        backend.discover()
        taken = [name for name in sysfs.functions() if name != "0000:00:05.0"]
        assert taken == read, path


_VFS = ("10.0", "10.2", "10.4", "10.6")


def test_without_a_specific_event_everything_is_read(looking, tmp_path, sysfs):
    backend = looking(network.igb(tmp_path), kind=reading(sysfs))
    backend.discover()
    assert len(sysfs.functions()) == 6
    backend.discover()
    assert len(sysfs.functions()) == 6
    backend.notice(Event())
    backend.discover()
    assert len(sysfs.functions()) == 6


def test_a_very_long_burst_causes_a_full_scan(tmp_path, sysfs):
    network.igb(tmp_path)
    scan = Scan(sysfs)
    scan.scan()
    sysfs.functions()
    for number in range(MAX_PLACES + 1):
        scan.notice(Event("pci", "add", f"/sys/devices/pci0000:00/{number:04x}:00:00.0"))
    assert scan.scan().everything
    assert len(sysfs.functions()) == 6


def test_scalable_functions_are_read_again_one_by_one(looking, tmp_path, sysfs):
    tree = network.mlx5_switchdev(tmp_path)
    backend = looking(tree, kind=reading(sysfs))
    backend.discover()
    sysfs.functions()
    physical = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    path = tree.scalable(physical, "mlx5_core.sf.10", 90)
    backend.notice(Event("auxiliary", "add", f"/sys/devices/{path}"))
    tree.netdev(path, "eth9")
    backend.notice(Event("net", "add", f"/sys/devices/{path}/net/eth9"))
    found = by_id(backend)
    assert sysfs.functions() == ["mlx5_core.sf.10"]
    assert [name for name in found if ".sf." in name] == [f"mlx5_core.sf.{number}" for number in (2, 3, 10)]
    assert found["mlx5_core.sf.10"].attributes["netDevs"] == ("eth9",)


def test_unchanged_devices_are_the_same_objects(looking, tmp_path):
    tree = network.mlx5_switchdev(tmp_path)
    backend = looking(tree)
    before = by_id(backend)
    backend.notice(Event("net", "change", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/net/ens3f0v0"))
    after = by_id(backend)
    assert all(after[name] is device for name, device in before.items())
    assert all(device is before[device.id] for device in backend.discover())


def test_a_renamed_uplink_is_renamed_for_every_function(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    backend.discover()
    tree.remove(f"/sys/devices/{PF}/net/enp2s0")
    tree.netdev(PF, "lan0")
    backend.notice(Event("net", "move", f"/sys/devices/{PF}/net/lan0"))
    names = {device.attributes.get("pfName") for device in backend.discover()}
    assert names == {None, "lan0"}


def test_functions_appear_and_disappear_with_the_count(looking, tmp_path):
    tree = network.igb(tmp_path, 0)
    backend = looking(tree)
    assert list(by_id(backend)) == ["0000:02:00.0"]
    path = tree.virtual(PF, "0000:02:10.0", "8086:10ca", "igbvf")
    backend.notice(Event("pci", "add", f"/sys/devices/{path}"))
    found = by_id(backend)
    assert list(found) == ["0000:02:00.0", "0000:02:10.0"]
    assert found["0000:02:00.0"].attributes["numVfs"] == 1
    assert found["0000:02:00.0"].withheld
    backend.notice(tree.remove(f"/sys/devices/{path}"))
    found = by_id(backend)
    assert list(found) == ["0000:02:00.0"]
    assert not found["0000:02:00.0"].withheld


def test_an_unplugged_physical_function_removes_all_its_functions(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    backend.discover()
    for path in [f"/sys/devices/pci0000:00/0000:00:05.0/0000:02:{name}" for name in (*_VFS, "00.0")]:
        backend.notice(tree.remove(path))
    assert backend.discover() == []


def test_rebinding_moves_a_function_to_its_new_driver(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    backend.discover()
    tree.remove(f"/sys/devices/{VF}/net/enp2s0v1")
    (tmp_path / "sys/devices" / VF / "driver").unlink()
    backend.notice(Event("pci", "unbind", f"/sys/devices/{VF}"))
    assert "driver" not in by_id(backend)["0000:02:10.2"].attributes
    tree.link(f"/sys/devices/{VF}/driver", "/sys/bus/pci/drivers/vfio-pci")
    backend.notice(Event("pci", "bind", f"/sys/devices/{VF}"))
    bound = by_id(backend)["0000:02:10.2"]
    assert bound.attributes["driver"] == "vfio-pci"
    assert not {"netDevs", "mac", "mtu"} & bound.attributes.keys()
    assert "iommu:13" in bound.claims


def test_an_interface_in_a_pod_keeps_its_name_but_has_no_state(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    before = by_id(backend)["0000:02:10.2"].attributes
    backend.notice(tree.remove(f"/sys/devices/{VF}/net/enp2s0v1"))
    away = by_id(backend)["0000:02:10.2"].attributes
    assert away == {name: value for name, value in before.items() if name != "linkState"}
    assert by_id(backend)["0000:02:10.2"].attributes == away, "and for as long as it stays there"
    tree.netdev(VF, "enp2s0v1")
    backend.notice(Event("net", "add", f"/sys/devices/{VF}/net/enp2s0v1"))
    assert by_id(backend)["0000:02:10.2"].attributes["linkState"] == "up"


def test_rdma_devices_in_a_pod_are_known_by_their_nodes(looking, tmp_path):
    tree = network.mlx5_switchdev(tmp_path)
    shutil.rmtree(tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband")
    attributes = by_id(looking(tree))["0000:3b:00.2"].attributes
    assert (attributes["isRdma"], attributes["rdmaDevices"]) == (True, ("mlx5_2",))


def test_a_virtual_function_is_listed_once_its_physical_function_is_known(looking, tmp_path):
    tree = network.igb(tmp_path)
    link = tmp_path / "sys/devices" / VF / "physfn"
    link.unlink()
    backend = looking(tree)
    found = by_id(backend)
    assert "0000:02:10.2" not in found
    assert found["0000:02:00.0"].attributes["numVfs"] == 3
    tree.link(f"/sys/devices/{VF}/physfn", f"/sys/devices/{PF}")
    backend.notice(Event("pci", "change", f"/sys/devices/{VF}"))
    assert by_id(backend)["0000:02:10.2"].attributes["vfIndex"] == 1


def test_a_virtual_function_being_removed_never_counts_as_physical(looking, tmp_path):
    tree = network.igb(tmp_path)
    (tmp_path / "sys/devices" / VF / "sriov_vf_msix_count").unlink()  # kernels before 5.13
    backend = looking(tree)
    backend.discover()
    (tmp_path / "sys/devices" / VF / "physfn").unlink()
    for _ in range(2):
        backend.notice(Event("pci", "change", f"/sys/devices/{VF}"))
        assert "0000:02:10.2" not in by_id(backend)


def test_a_function_that_returned_under_its_address_is_read_again(looking, tmp_path, sysfs):
    tree = network.igb(tmp_path)
    backend = looking(tree, kind=reading(sysfs))
    backend.discover()
    # sysfs never gives an inode again; another file system may, unless the old link still has it
    (tmp_path / "sys/bus/pci/devices/0000:02:10.2").rename(tmp_path / "kept")
    tree.remove(f"/sys/devices/{VF}")
    tree.virtual(PF, "0000:02:10.2", "8086:10ca", "vfio-pci", group=77)
    sysfs.functions()
    backend.notice(Event("net", "add", "/sys/devices/virtual/net/veth0"))
    assert by_id(backend)["0000:02:10.2"].attributes["driver"] == "vfio-pci"
    assert "0000:02:10.2" in sysfs.functions()


def test_files_that_wait_for_the_lock_of_the_device_are_never_read(looking, tmp_path, sysfs):
    tree = network.mlx5_switchdev(tmp_path)
    assert looking(tree, kind=reading(sysfs)).discover()
    assert not {"sriov_numvfs", "uevent", "driver_override", "carrier", "speed", "config"} & sysfs.files
    assert "sriov_totalvfs" in sysfs.files


def test_a_bus_that_cannot_be_listed_is_an_error_and_not_an_empty_list(looking, tmp_path, sysfs):
    backend = looking(network.igb(tmp_path), kind=reading(sysfs))
    sysfs.refused = "/devices"
    with pytest.raises(PermissionError):
        backend.discover()


class Vanishing(Sysfs):
    """Removes the directory of a function when its interfaces are listed."""

    gone = ""

    def names(self, path: str) -> list[str]:
        if path.endswith("00.2/net") and not self.gone:
            self.gone = path.removesuffix("/net")
            shutil.rmtree(self.prefix + self.gone)
        return super().names(path)


def test_a_function_that_vanishes_during_a_scan_does_no_harm(looking, tmp_path):
    sysfs = Vanishing(tmp_path)
    backend = looking(network.mlx5_switchdev(tmp_path), kind=reading(sysfs))
    assert len(backend.discover()) >= 7
    assert sysfs.gone
    assert "0000:3b:00.2" not in by_id(backend)


def test_a_burst_is_scanned_when_it_is_over(tmp_path):
    tree = network.igb(tmp_path, 0)
    steps = [
        lambda: tree.virtual(PF, "0000:02:10.0", "8086:10ca"),
        lambda: tree.virtual(PF, "0000:02:10.2", "8086:10ca"),
        lambda: tree.link(f"/sys/devices/{VF}/driver", "/sys/bus/pci/drivers/igbvf"),
    ]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if steps:
            steps.pop(0)()

    settling = BurstWait(Sysfs(tmp_path), ignore_ports=False, sleep=sleep)
    settling.wait(())
    assert not waited, "nothing happened"
    settling.notice(Event("pci", "add", f"/sys/devices/{VF}"))
    settling.wait(())
    assert (len(waited), steps) == (4, [])
    settling.wait(())
    assert len(waited) == 4


class Port:
    """The port of a card with four virtual functions, as those who wait see it: its states, one by one."""

    def __init__(self, root: Path, *states: str) -> None:
        self._tree = network.igb(root)
        self._states = list(states)
        self.waited = 0
        self._next()

    def sleep(self, seconds: float) -> None:
        self.waited += 1
        self._next()

    def _next(self) -> None:
        if self._states:
            self._tree.file(f"/sys/devices/{PF}/net/enp2s0/operstate", self._states.pop(0))


@pytest.mark.parametrize(
    ("states", "known", "ignored", "waited"),
    [
        (("down", "down", "down", "up"), (), False, 3),
        (("down", "up"), (), False, 1),
        (("down",), (), False, ROUNDS),  # as it stays without a cable
        (("down",), (), True, 1),
        (("down",), ("10.0", "10.2", "10.4", "10.6"), False, 1),
        (("down",), ("10.0", "10.2", "10.4"), False, ROUNDS),
    ],
)
def test_new_functions_are_listed_once_their_port_has_its_carrier(tmp_path, states, known, ignored, waited):
    """Adapters restart their port to create virtual functions, which takes longer than the creation."""
    port = Port(tmp_path, *states)
    settling = BurstWait(Sysfs(tmp_path), ignore_ports=ignored, sleep=port.sleep)
    settling.wait(())
    settling.notice(Event("pci", "bind", f"/sys/devices/{VF}"))
    settling.wait({f"0000:02:{number}" for number in known})
    assert port.waited == waited


def test_the_wait_for_a_burst_is_limited(tmp_path):
    tree = network.igb(tmp_path, 0)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        tree.function(f"0000:03:{len(waited):02x}.0", "8086:10c9", "igb")

    settling = BurstWait(Sysfs(tmp_path), ignore_ports=False, sleep=sleep)
    settling.notice(Event("pci", "bind", f"/sys/devices/{PF}"))
    settling.wait(())
    assert len(waited) == ROUNDS


def test_events_of_interfaces_cause_no_wait(tmp_path):
    settling = BurstWait(Sysfs(network.igb(tmp_path).root), ignore_ports=False, sleep=pytest.fail)
    settling.notice(Event("net", "add", f"/sys/devices/{VF}/net/enp2s0v1"))
    settling.notice(Event("pci", "change", f"/sys/devices/{PF}"))
    settling.wait(())


def test_at_the_start_a_port_without_a_cable_causes_no_wait(tmp_path):
    port = Port(tmp_path, "down")
    settling = BurstWait(Sysfs(tmp_path), ignore_ports=False, sleep=port.sleep)
    settling.notice(Event("pci", "bind", f"/sys/devices/{VF}"))
    settling.wait(())
    assert port.waited == 1


def test_a_burst_is_waited_for_before_its_first_event(tmp_path):
    """A change of a link is reported at once, but udev reports functions only after its rules."""
    tree, waited = network.igb(tmp_path), []
    settling = BurstWait(Sysfs(tmp_path), ignore_ports=False, sleep=waited.append)
    for _ in range(2):
        settling.notice(Event("net", "change", f"{NETWORK}/enp2s0"))
        settling.wait(())
    assert not waited, "nothing has changed"
    tree.virtual(PF, "0000:02:12.0", "8086:10ca", "igbvf")
    settling.notice(Event("net", "change", f"{NETWORK}/enp2s0"))
    settling.wait(())
    assert len(waited) == 1


@pytest.mark.parametrize(
    ("subsystem", "place", "begins"),
    [
        ("net", f"{PF}/net/enp2s0", True),
        ("infiniband", f"{VF}/infiniband/mlx5_2", True),
        ("net", "virtual/net/cali1", False),
    ],
)
def test_the_removal_of_an_interface_may_begin_that_of_its_function(tmp_path, subsystem, place, begins):
    """Its interface goes first: a look in between would show it without."""
    waited: list[float] = []
    settling = BurstWait(Sysfs(network.igb(tmp_path).root), ignore_ports=False, sleep=waited.append)
    settling.notice(Event(subsystem, "remove", f"/sys/devices/{place}"))
    settling.wait(())
    assert bool(waited) is begins
