"""What is read when: each event costs what it concerns, and bad files cost only what they describe."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from devhost_rdma import Rdma
from devhost_rdma.backend import RdmaOptions
from devhost_rdma.netlink import LINK, PORT
from devhost_rdma.watch import PortWatch
from devhost_testing.faults import DAMAGES, damaged
from kit.machine import Recording
from rdma_tree import EDR, HDR, RdmaTree, infiniband, roce

from devhost.backend import Device, Event
from devhost.backend.netlink import NETWORK
from devhost.backend.sysfs import Sysfs
from devhost.discovery.runner import ServiceContext

CARD = "/sys/devices/pci0000:ae/0000:ae:00.0/0000:af:00.0"
TWIN = "/sys/devices/pci0000:ae/0000:ae:00.0/0000:af:00.1"
LINKS = Event("net", "change", NETWORK)

Reads = Callable[[], Any]


def start(root: Path, sysfs: Sysfs | None = None) -> Rdma:
    return Rdma(RdmaOptions(), ServiceContext("rdma", root, ("*",)), sysfs=sysfs)


def look(backend: Rdma, *events: Event) -> dict[str, Device]:
    for event in events or (Event(),):
        backend.notice(event)
    return {device.id: device for device in backend.discover()}


@pytest.fixture
def sysfs(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def reads(sysfs: Recording) -> list[str]:
    """The path of every text file that is read."""
    return sysfs.paths


def test_an_unrelated_event_reads_no_device(tmp_path, sysfs, reads):
    connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path, sysfs)
    before = look(backend)
    reads.clear()
    after = look(
        backend,
        Event("net", "add", "/sys/devices/virtual/net/veth1"),
        Event("misc", "add", "/sys/devices/virtual/misc/fuse"),
        Event("pci", "bind", "/sys/devices/pci0000:00/0000:00:1f.2"),
    )
    assert reads == []
    assert all(after[name] is before[name] for name in before)


def test_a_change_of_links_reads_the_ports_and_nothing_else(tmp_path, sysfs, reads):
    tree = connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path, sysfs)
    before = look(backend)
    reads.clear()
    tree.file(f"{CARD}/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    after = look(backend, LINKS)
    assert {path.split("/ports/")[0] for path in reads} == {
        f"{CARD}/infiniband/mlx5_0",
        f"{TWIN}/infiniband/mlx5_1",
    }
    assert not after["0000:af:00.0"].health
    assert after["0000:af:00.1"] is before["0000:af:00.1"]


def test_an_event_of_one_function_reads_that_one_again(tmp_path, sysfs, reads):
    tree = connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path, sysfs)
    before = look(backend)
    reads.clear()
    tree.netdev(CARD.removeprefix("/sys/devices/"), "rail0")
    after = look(backend, Event("net", "add", f"{CARD}/net/rail0"))
    assert after["0000:af:00.0"].attributes["netDevs"] == ("ens1f0np0", "rail0")
    assert after["0000:af:00.1"] is before["0000:af:00.1"]
    assert not any(path.startswith(TWIN) for path in reads)


def test_an_event_of_a_function_whose_name_begins_like_another_reads_only_its_own(tmp_path, sysfs, reads):
    tree = connectx.scalable_function(tmp_path)
    card = "pci0000:00/0000:00:01.0/0000:03:00.0"
    function = tree.auxiliary(card, "mlx5_core.sf.20", "mlx5_core.sf", {"sfnum": "89"})
    tree.ibdev(function, "mlx5_3", roce("en3f0pf0sf89", EDR), guid="0000:00ff:fe00:8989")
    backend = start(tmp_path, sysfs)
    look(backend)
    reads.clear()
    look(backend, Event("net", "add", f"/sys/devices/{card}/mlx5_core.sf.20/net/rail0"))
    assert any("/mlx5_core.sf.20/" in path for path in reads)
    assert not any("/mlx5_core.sf.2/" in path for path in reads)


def test_the_removal_of_a_parent_device_concerns_everything_below(tmp_path):
    tree = connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path)
    assert len(look(backend)) == 2
    port = CARD.rpartition("/")[0]
    assert look(backend, tree.remove(port)) == {}


def test_a_device_that_returned_under_its_name_is_read_again_without_an_event(tmp_path):
    tree = machines.broadcom(tmp_path)
    backend = start(tmp_path)
    look(backend)
    card = "pci0000:40/0000:40:01.0/0000:41:00.0"
    (tmp_path / "sys/class/infiniband/kept").symlink_to("nowhere")  # so that no inode is used twice
    (tmp_path / "sys/class/infiniband/bnxt_re0").rename(tmp_path / "old")
    shutil.rmtree(tmp_path / "sys/devices" / card / "infiniband/bnxt_re0")
    tree.ibdev(card, "bnxt_re0", roce("enp65s0f0np0", HDR), files={"fw_ver": "230.0.0.0"}, uverbs=False)
    (device,) = look(backend, LINKS).values()
    assert device.attributes["fwVersion"] == "230.0.0.0"


def test_nodes_that_were_numbered_again_belong_to_their_present_devices(tmp_path):
    connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path)
    look(backend)
    links = [tmp_path / "sys/class/infiniband_verbs" / name for name in ("uverbs0", "uverbs1")]
    owners = [(link / "ibdev").read_text() for link in links]
    for link, owner in zip(links, reversed(owners), strict=True):
        (link / "ibdev").write_text(owner)
        target = link.readlink()
        link.rename(tmp_path / link.name)  # so that no inode is used twice
        link.symlink_to(target)
    after = look(backend, LINKS)
    assert "node:/dev/infiniband/uverbs1" in after["0000:af:00.0"].claims
    assert "node:/dev/infiniband/uverbs0" in after["0000:af:00.1"].claims


def test_without_an_event_anything_may_have_changed(tmp_path):
    tree = connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path)
    look(backend)
    tree.file(f"{CARD}/infiniband/mlx5_0/fw_ver", "16.35.9999")
    assert {d.attributes["fwVersion"] for d in look(backend, LINKS).values()} == {"16.35.4030"}
    found = {device.id: device for device in backend.discover()}
    assert found["0000:af:00.0"].attributes["fwVersion"] == "16.35.9999"


def test_a_storm_of_events_is_one_full_scan(tmp_path, sysfs, reads):
    connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path, sysfs)
    look(backend)  # the first one also sorts out which PCI functions are no adapters
    reads.clear()
    look(backend)
    full = len(reads)
    reads.clear()
    look(backend, *(Event("pci", "add", f"/sys/devices/pci0000:00/0000:00:{n:02x}.0") for n in range(200)))
    assert len(reads) == full


def test_unchanged_rdma_devices_are_the_same_objects(tmp_path):
    backend = start(connectx.virtual_functions(tmp_path).root)
    before = look(backend)
    after = look(backend)
    assert all(after[name] is before[name] for name in before)


def test_a_software_device_follows_its_interface_to_a_new_name(tmp_path):
    tree = machines.software(tmp_path)
    backend = start(tmp_path)
    assert look(backend)["rxe0"].attributes["netDevs"] == ("dum0",)
    tree.file("/sys/class/infiniband/rxe0/parent", "fabric0")
    after = look(backend, Event("net", "move", "/sys/devices/virtual/net/fabric0"))
    assert after["rxe0"].attributes["netDevs"] == ("fabric0",)


def test_a_class_that_cannot_be_listed_is_an_error_and_no_empty_list(tmp_path, sysfs):
    connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path, sysfs)
    before = look(backend)
    sysfs.refused = "/infiniband"
    with pytest.raises(PermissionError):
        look(backend)
    sysfs.refused = ""
    assert look(backend) == before


@pytest.mark.parametrize("after", ["mlx5_0/node_type", "mlx5_0/fw_ver", "ports/1/state", "uverbs0/ibdev"])
def test_a_device_that_vanishes_during_a_scan_affects_no_other(after, tmp_path, sysfs):
    connectx.connectx5_roce(tmp_path)
    backend = start(tmp_path, sysfs)
    expected = look(backend)["0000:af:00.1"]
    for place in ("infiniband/mlx5_0", "infiniband_verbs/uverbs0"):
        sysfs.vanishing = after, f"{CARD}/{place}"
        found = look(backend)
        sysfs.vanishing = None
        assert found["0000:af:00.1"] == expected
    assert sorted(look(backend)) in (["0000:af:00.1"], ["0000:af:00.0", "0000:af:00.1"])


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_files_of_one_device_affect_no_other(what, tmp_path):
    root = tmp_path / "root"
    connectx.connectx5_roce(root)
    expected = look(start(root))["0000:af:00.1"]
    card = root / CARD.lstrip("/")
    files = [path for path in card.rglob("*") if path.is_file() or path.is_symlink()]
    assert len(files) > 30
    for path in files:
        with damaged(path, what, tmp_path / "kept"):
            found = look(start(root))
        assert found["0000:af:00.1"] == expected, path


def test_a_card_in_switchdev_mode_has_its_own_interface_and_not_those_of_its_functions(tmp_path):
    tree = connectx.virtual_functions(tmp_path)
    card = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    others = {"aaa0": "pf0vf0", "aaa1": "c1pf0sf88", "aaa2": "1", "aaa3": "c1pf0", "aaa4": "pf0"}
    for name, port in ({"ens3f0np0": "p0"} | others).items():
        tree.netdev(card, name)
        tree.file(f"/sys/devices/{card}/net/{name}/phys_port_name", port)
        tree.file(f"/sys/devices/{card}/net/{name}/phys_switch_id", "d42f7000039fb8b8")
    found = look(start(tmp_path))
    assert found["0000:3b:00.0"].attributes["netDevs"] == ("ens3f0np0",)
    assert found["0000:3b:00.2"].attributes["pfName"] == "ens3f0np0"


def test_a_software_device_of_an_unknown_driver_has_no_driver(tmp_path):
    RdmaTree(tmp_path).ibdev("virtual", "new0", roce("eth0", EDR))
    (device,) = look(start(tmp_path)).values()
    assert (device.id, device.attributes.get("driver")) == ("new0", None)


def test_a_device_without_a_pci_function_is_named_after_its_parent(tmp_path):
    tree = RdmaTree(tmp_path, "hns")
    chip = tree.device("platform/HISI00D1:00", "platform", DRIVER="hns_roce").removeprefix("/sys/devices/")
    tree.ibdev(chip, "hns_0", roce("eth0", EDR))
    (device,) = look(start(tmp_path)).values()
    assert device.id == "HISI00D1:00"
    assert device.attributes["driver"] == "hns_roce"
    assert device.claims >= {"rdma:HISI00D1:00", "ib:hns_0"}
    assert device.part_of == frozenset()
    assert not device.attributes.keys() & {"pciBusID", "vendor", "device", "numaNode", "pfName"}


class Followed(PortWatch):
    """Notes which state files are polled."""

    files: Sequence[str] = ()

    def follow(self, files: Sequence[str]) -> None:
        self.files = list(files)


def test_only_ports_without_an_interface_are_polled(tmp_path, monkeypatch):
    tree = RdmaTree(tmp_path, "mlx5_core")
    card = tree.function("0000:19:00.0", "mlx5_core", "15b3:1023")
    tree.ibdev(card, "mlx5_0", infiniband(HDR))
    other = tree.function("0000:1a:00.0", "mlx5_core", "15b3:1017")
    tree.ibdev(other, "mlx5_1", roce("eth0", EDR))
    tree.netdev(other, "eth0")
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    ports = Followed(ServiceContext("rdma", tmp_path))
    backend = Rdma(RdmaOptions(), ServiceContext("rdma", tmp_path, ("*",)), ports=ports)
    look(backend)
    assert len(ports.files) == 2, "sysfs shows no lo: this is another network namespace"
    tree.netdev("virtual", "lo")
    look(backend)
    assert ports.files == [f"/sys/devices/{card}/infiniband/mlx5_0/ports/1/state"]
    tree.remove(f"/sys/devices/{other}/net/eth0")
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])
    look(backend)
    assert len(ports.files) == 2, "a pod has the interface"


def test_a_change_of_ports_does_not_cause_a_full_scan():
    assert [event.sys_path for event in (LINK, PORT)] == ["/sys/class/net", "/sys/class/infiniband"]
    assert {LINK.subsystem, PORT.subsystem} <= set(Rdma.subsystems)


def test_a_device_whose_name_cannot_be_claimed_hides_no_other(tmp_path):
    tree = RdmaTree(tmp_path, "mlx5_core")
    for number, name in enumerate(("mlx5_0", "trailing blank ", "control\x01")):
        card = tree.function(f"0000:1{number}:00.0", "mlx5_core", "15b3:1017")
        tree.ibdev(card, name, roce(f"eth{number}", EDR))
    assert list(look(start(tmp_path))) == ["0000:10:00.0"]
