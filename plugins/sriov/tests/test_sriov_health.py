"""Health, both ways: every reason is a sentence for a user, and ends when its cause does."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import sriov_network as network
import sriov_others as others
from devhost_sriov import Sriov
from devhost_sriov.health import Readiness, verdict
from devhost_sriov.model import Function, FunctionKind, Interface, Snapshot
from devhost_sriov.options import SriovOptions
from devhost_sriov.scan import Scan
from devhost_testing.fixtures import by_id
from devhost_testing.node import Node
from sriov_tree import SriovTree

from devhost.backend import HEALTHY, Event, unhealthy
from devhost.backend.sysfs import Sysfs

UP = Interface("ens1", state="up", is_set_up=True)
DOWN = replace(UP, state="down")
PF = Function(
    "0000:3b:00.0",
    FunctionKind.PHYSICAL,
    "/p",
    "0000:3b:00.0",
    pci_class="020000",
    driver="ice",
    interfaces=(UP,),
)
VF = replace(PF, id="0000:3b:01.0", kind=FunctionKind.VIRTUAL, parent=PF.id, interfaces=(), driver="iavf")
IGB = "sys/devices/pci0000:00/0000:00:05.0"


def reason(function: Function, whole: Function | None = None, lack: str = "", **more: bool) -> str:
    return verdict(function, whole, lack, ignore_ports=more.get("ignore_ports", False)).reason or ""


def test_a_virtual_function_has_the_health_of_its_port() -> None:
    assert reason(VF, PF) == ""
    dark = replace(PF, interfaces=(DOWN,))
    assert reason(VF, dark) == "ens1 of its physical function has no carrier"
    assert reason(dark) == "ens1 has no carrier"
    assert reason(VF, dark, ignore_ports=True) == ""


def test_one_port_with_a_carrier_is_enough() -> None:
    other = replace(DOWN, name="ens2")
    assert reason(replace(PF, interfaces=(DOWN, UP))) == ""
    assert reason(replace(PF, interfaces=(DOWN, other))) == "ens1 and ens2 have no carrier"


@pytest.mark.parametrize("state", ["unknown", "dormant", "", "testing"])
def test_a_port_of_unknown_state_counts_as_up(state: str) -> None:
    assert reason(replace(PF, interfaces=(replace(UP, state=state),))) == ""


def test_a_disabled_port_does_not_count_as_without_carrier() -> None:
    assert reason(replace(PF, interfaces=(replace(DOWN, is_set_up=False),))) == ""


def test_a_function_of_another_class_needs_no_carrier() -> None:
    assert reason(replace(PF, pci_class="010802", interfaces=(DOWN,))) == ""


def test_a_function_whose_interface_is_in_a_pod_is_healthy() -> None:
    assert verdict(replace(VF, interfaces=(), away=(UP,)), PF, "", ignore_ports=False) is HEALTHY


def test_a_function_without_driver_or_physical_function_is_unhealthy() -> None:
    assert reason(replace(VF, driver=""), PF) == "no driver is bound to it"
    assert reason(VF, None) == "its physical function 0000:3b:00.0 is gone"


def test_a_function_that_cannot_be_allocated_is_unhealthy() -> None:
    assert reason(VF, PF, "/dev/vfio/7 does not exist") == "/dev/vfio/7 does not exist"


# --- the backend


def test_a_bound_function_is_unhealthy_while_its_nodes_are_missing(looking, tmp_path):
    tree = network.i40e_with_vfio(tmp_path)
    backend = looking(tree)
    bound = {name: one for name, one in by_id(backend).items() if one.attributes.get("driver") == "vfio-pci"}
    assert bound and all(one.health.healthy for one in bound.values())
    nodes = tree.root / "dev/vfio"
    nodes.rename(tree.root / "dev/kept")
    found = by_id(backend)
    assert {found[name].health.reason for name in bound} == {
        "/dev/vfio/vfio does not exist (is module vfio loaded?)"
    }
    (tree.root / "dev/kept").rename(nodes)
    assert all(by_id(backend)[name].health == HEALTHY for name in bound)


def test_unbinding_and_binding_change_the_health(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    driver = tree.root / IGB / "0000:02:10.0/driver"
    target = driver.readlink()
    changed = Event("pci", "unbind", f"/{IGB}/0000:02:10.0")
    assert by_id(backend)["0000:02:10.0"].health == HEALTHY
    driver.unlink()
    backend.notice(changed)
    assert by_id(backend)["0000:02:10.0"].health == unhealthy("no driver is bound to it")
    driver.symlink_to(target)
    backend.notice(changed)
    assert by_id(backend)["0000:02:10.0"].health == HEALTHY


def test_an_unplugged_cable_makes_all_virtual_functions_unhealthy(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    by_id(backend)
    state = tree.root / IGB / "0000:02:00.0/net/enp2s0/operstate"
    for word, healthy in (("down", False), ("up", True)):
        state.write_text(f"{word}\n")
        backend.notice(Event("net", "change", "/sys/class/net/enp2s0"))
        found = by_id(backend)
        assert {found[name].health.healthy for name in found if name != "0000:02:00.0"} == {healthy}


def test_a_function_stays_healthy_when_its_interface_moves_into_a_pod(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    before = by_id(backend)["0000:02:10.0"]
    shutil.rmtree(tree.root / IGB / "0000:02:10.0/net")
    backend.notice(Event("net", "remove", f"/{IGB}/0000:02:10.0/net/enp2s0v0"))
    after = by_id(backend)["0000:02:10.0"]
    assert after.health == HEALTHY
    assert after.attributes["netDevs"] == before.attributes["netDevs"]


def test_a_function_that_reads_as_ones_is_dead_and_a_suspended_one_stays_suspended(looking, tmp_path):
    tree = network.igb(tmp_path)
    backend = looking(tree)
    devices = backend.discover()
    for address, header in (("0000:02:00.0", b"\x86\x80" * 32), ("0000:02:10.0", b"\xff" * 64)):
        (tree.root / IGB / address / "config").write_bytes(header)
    # the first bytes of a virtual function are ones in any case
    (tree.root / IGB / "0000:02:10.2/config").write_bytes(b"\xff\xff\xff\xff" + bytes(60))
    (tree.root / IGB / "0000:02:10.4/config").write_bytes(b"\xff" * 64)
    (tree.root / IGB / "0000:02:10.4/power_state").write_text("D3cold\n")
    assert set(backend.probe(devices)) == {"0000:02:10.0"}


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
def test_functions_of_an_accelerator_without_heartbeat_are_unhealthy_until_it_is_back(
    looking, tmp_path, readable
):
    tree = SriovTree(tmp_path)
    for bus in ("3d", "6b"):
        path = tree.function(f"0000:{bus}:00.0", "8086:4940", "4xxx", pci_class="0x0b4000", total=16)
        tree.virtual(path, f"0000:{bus}:01.0", "8086:4941", "vfio-pci", group=60)
        if readable:
            tree.file(f"/sys/kernel/debug/qat_4xxx_0000:{bus}:00.0/heartbeat/status", "0")
    tree.file("/sys/kernel/debug/qat_other/heartbeat/status", "-1")
    backend = looking(tmp_path)
    devices = backend.discover()
    assert backend.probe(devices) == {}
    if readable:
        tree.file("/sys/kernel/debug/qat_4xxx_0000:6b:00.0/heartbeat/status", "-1")
        found = backend.probe(devices)
        assert {name: one.reason for name, one in found.items()} == {
            "0000:6b:00.0": "it does not respond: its heartbeat is -1",
            "0000:6b:01.0": "its physical function 0000:6b:00.0 does not respond: its heartbeat is -1",
        }
        tree.file("/sys/kernel/debug/qat_4xxx_0000:6b:00.0/heartbeat/status", "0")
        assert backend.probe(devices) == {}


def test_a_removed_function_is_not_probed(looking, tmp_path):
    backend = looking(network.igb(tmp_path))
    devices = backend.discover()
    assert looking(network.igb(tmp_path / "other", 0)).probe(devices) == {}


def test_carriers_can_be_ignored(looking, tmp_path):
    tree = network.igb(tmp_path)
    (tree.root / IGB / "0000:02:00.0/net/enp2s0/operstate").write_text("down\n")
    found = by_id(looking(tree, SriovOptions(ignore_port_state=True)))
    assert all(device.health.healthy for device in found.values())


def test_an_event_of_another_group_member_updates_the_health(looking, tmp_path):
    """Not only at the next full scan: for example, the audio function of a card gets or loses its driver."""
    tree = network.i40e_with_vfio(tmp_path)
    audio = tree.function("0000:5e:1f.0", "8086:a171", "snd_hda_intel", pci_class="0x040300", group=62)
    backend = looking(tree)
    by_id(backend)
    backend.notice(Event("net", "change", "/sys/class/net/lo"))
    health = by_id(backend)["0000:5e:02.2"].health
    assert "0000:5e:1f.0 in the same IOMMU group 62 is bound to snd_hda_intel" in health.reason
    (tmp_path / "sys/devices" / audio / "driver").unlink()
    backend.notice(Event("pci", "unbind", f"/sys/devices/{audio}"))
    assert "0000:5e:1f.0" not in (by_id(backend)["0000:5e:02.2"].health.reason or "")


def test_a_function_that_just_left_vfio_does_not_block_itself(tmp_path):
    sysfs = Sysfs(network.i40e_with_vfio(tmp_path).root)
    function = Scan(sysfs).scan().functions["0000:5e:02.2"]
    driver = tmp_path / function.path.lstrip("/") / "driver"
    driver.unlink()
    driver.symlink_to("../../bus/pci/drivers/iavf")
    reasons = Readiness(sysfs).lacks(Snapshot({function.id: function}))
    assert "0000:5e:02.2, which is in" not in reasons[function.id].itself


MLX5 = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2"
NO_NODE = (
    "permissions is set, and a function with driver mlx5_core gives containers no device node (remove it)"
)
WITHOUT_RDMA_PROBLEM = {
    "permissions": NO_NODE,
    "vhostNet": "/dev/vhost-net does not exist (is module vhost_net loaded?)",
    "kubevirt": "kubevirt: true needs vfio, and it is bound to mlx5_core (bind it to vfio-pci)",
}


def test_a_function_without_its_uverbs_node_is_unusable_for_rdma_only(looking, tmp_path):
    tree = network.mlx5_switchdev(tmp_path)
    (uverbs,) = [one.name for one in (tree.root / MLX5 / "infiniband_verbs").iterdir()]
    node = tree.root / "dev/infiniband" / uverbs
    backend = looking(tree)
    assert by_id(backend)["0000:3b:00.2"].unusable_for == WITHOUT_RDMA_PROBLEM
    node.rename(tree.root / "kept")
    device = by_id(backend)["0000:3b:00.2"]
    assert device.health == HEALTHY
    assert device.unusable_for["rdma"] == f"/dev/infiniband/{uverbs} does not exist"
    (tree.root / "kept").rename(node)
    assert "rdma" not in by_id(backend)["0000:3b:00.2"].unusable_for


def test_the_event_of_a_uverbs_node_updates_the_health(looking, tmp_path):
    """Not only at the next full look, once a minute: nothing else of the function changes with it."""
    tree = network.mlx5_switchdev(tmp_path)
    verbs = tree.root / MLX5 / "infiniband_verbs"
    (uverbs,) = [one.name for one in verbs.iterdir()]
    backend = looking(tree)
    before = by_id(backend)
    changed = Event("infiniband_verbs", "remove", f"/{MLX5}/infiniband_verbs/{uverbs}")
    for _ in range(2):
        hidden = verbs.rename(tree.root / "hidden")
        found = by_id(backend, changed)
        assert found["0000:3b:00.2"].unusable_for["rdma"] == (
            "0000:3b:00.2 has no uverbs node (is module ib_uverbs loaded?)"
        )
        assert {name for name, one in found.items() if one is not before[name]} == {"0000:3b:00.2"}
        hidden.rename(verbs)
        assert by_id(backend, changed)["0000:3b:00.2"] == before["0000:3b:00.2"]


def test_an_rdma_device_in_a_pod_leaves_a_function_usable_for_rdma(looking, tmp_path):
    tree = network.mlx5_switchdev(tmp_path)
    shutil.rmtree(tree.root / MLX5 / "infiniband")
    assert "rdma" not in by_id(looking(tree))["0000:3b:00.2"].unusable_for


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("vhostNet", "vhostNet: true is for network adapters, PCI class 02"),
        ("rdma", "0000:6b:00.1 has no RDMA device, which rdma: true needs"),
        ("kubevirt", "kubevirt: true needs vfio, and it is bound to 4xxxvf (bind it to vfio-pci)"),
        (
            "permissions",
            "permissions is set, and a function with driver 4xxxvf gives containers no device node "
            "(remove it)",
        ),
    ],
)
def test_an_option_that_cannot_work_for_a_function_is_a_reason(looking, tmp_path, use, reason):
    device = by_id(looking(others.qat(tmp_path)))["0000:6b:00.1"]
    assert device.health == HEALTHY
    assert device.unusable_for[use] == reason


def test_a_function_that_uses_vfio_is_usable_for_kubevirt_and_with_permissions(looking, tmp_path):
    device = by_id(looking(others.qat(tmp_path)))["0000:6b:00.4"]
    assert {"kubevirt", "permissions"}.isdisjoint(device.unusable_for)


@pytest.mark.parametrize(
    ("keys", "healthy"),
    [("", 1), (", permissions: rw", 0), (", permissions: rw, rdma: true", 1)],
)
async def test_permissions_count_only_if_nothing_else_gives_nodes(tmp_path, keys, healthy):
    async with Node(tmp_path, Sriov, root=network.mlx5_switchdev(tmp_path / "tree").root) as node:
        entry = f"{{name: example.com/vf, backend: sriov, where: {{pciBusID: 0000:3b:00.2}}{keys}}}"
        node.configure(f"resources: [{entry}]")
        async with node.served():
            await node.offers({"example.com/vf": healthy})
