"""Mediated devices: found with types and groups, followed, and given as by KubeVirt's own plugin.

The plugin: kubevirt/kubevirt, ``pkg/virt-handler/device-manager/mediated_device.go`` and ``common.go``
(``formatVFIODeviceSpecs``), ``pkg/util/util.go`` (``ResourceNameToEnvVar``), d923fdb8.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sriov_others as others
from devhost_sriov import Sriov
from devhost_sriov.bursts import BurstWait
from devhost_sriov.options import SriovUse
from devhost_testing.contract import BackendContract
from devhost_testing.fixtures import BackendFixture, by_id, request
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.node import Node
from program import devhost
from sriov_others import A10, GVT, MTTY, T4, T4_SECOND

from devhost.backend import AllocationError, Device, Event
from devhost.backend.sysfs import Sysfs
from devhost.config import loads
from devhost.discovery import catalog
from devhost.dra.slices import Offered, Pool
from devhost.planning.plan import RefusalKind
from devhost.planning.planner import make_plan
from devhost.planning.settings import ResourceSettings, Settings

if TYPE_CHECKING:
    from sriov_tree import SriovTree

T4_PATH = f"pci0000:3a/0000:3a:00.0/0000:3b:00.0/{T4}"
VGPU = "nvidia.com/GRID_T4-1Q"


class TestMediatedContract(BackendContract):
    """Devices of four drivers, on functions of a card, of a virtual function, and on no bus."""

    backend = Sriov
    resource_options = (SriovUse(), SriovUse(kubevirt=True), SriovUse(rdma=True))

    def tree(self, root: Path) -> None:
        others.mediated(root)


def test_a_device_has_its_type_and_group_and_the_address_of_its_parent(
    looking: BackendFixture, tmp_path: Path
) -> None:
    found = by_id(looking(others.mediated(tmp_path)))
    attributes = {
        name: dict(one.attributes) for name, one in found.items() if one.attributes["kind"] == "mdev"
    }
    assert attributes == {
        uuid: {"kind": "mdev", "uuid": uuid, "mdevUUID": uuid, "mdevType": kind, "iommuGroup": group} | more
        for uuid, kind, group, more in (
            (T4, "GRID_T4-1Q", 200, {"pfPciBusID": "0000:3b:00.0", "numaNode": 0}),
            (T4_SECOND, "GRID_T4-1Q", 204, {"pfPciBusID": "0000:3b:00.0", "numaNode": 0}),
            (A10, "NVIDIA_A10-4Q", 201, {"pfPciBusID": "0000:41:00.4", "numaNode": 1}),
            (GVT, "i915-GVTg_V5_4", 202, {"pfPciBusID": "0000:00:02.0"}),
            (MTTY, "Dual_port_serial", 203, {}),
        )
    }
    assert [found[uuid].numa_nodes for uuid in (T4, A10, GVT, MTTY)] == [(0,), (1,), (), ()]
    assert found[A10].pcie_path == ("0000:40:01.0", "0000:41:00.4")
    assert all(found[uuid].health.healthy for uuid in attributes)


def test_a_device_is_part_of_its_parent_and_claims_its_group(looking: BackendFixture, tmp_path: Path) -> None:
    """The kernel names the group ``vfio-noiommu``, but the node is not ``noiommu-201``."""
    found = by_id(looking(others.mediated(tmp_path)))
    assert found[A10].claims == {"iommu:201", "node:/dev/vfio/201"}
    assert found[A10].part_of == {"pci:0000:41:00.4", "pci:0000:41:00.0"}
    assert found[T4].part_of == {"pci:0000:3b:00.0"}
    assert found[MTTY].part_of == frozenset()


def test_a_name_that_no_terminal_should_see_is_not_an_attribute(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = others.mediated(tmp_path)
    tree.file("/sys/devices/virtual/mtty/mtty/mdev_supported_types/mtty-2/name", "\x1b[2J")
    assert by_id(looking(tree))[MTTY].attributes["mdevType"] == "mtty-2"


def test_what_is_named_by_no_uuid_is_no_device(looking: BackendFixture, tmp_path: Path) -> None:
    tree = others.mediated(tmp_path)
    tree.device("virtual/mtty/mtty/..x", "mdev", DRIVER="mtty")
    tree.device(f"virtual/mtty/mtty/{MTTY}0", "mdev", DRIVER="mtty")
    assert len([one for one in looking(tree).discover() if one.attributes["kind"] == "mdev"]) == 5


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as made:
        yield made


ENTRY = f"resources: [{{name: {VGPU}, backend: sriov, where: {{kind: mdev, mdevType: GRID_T4-1Q}}}}]"


def vfio(*groups: int) -> set[tuple[str, str, str]]:
    """The nodes of KubeVirt's answer: paths on the host and in the container, and permissions."""
    return {(path, path, "mrw") for path in ("/dev/vfio/vfio", *(f"/dev/vfio/{group}" for group in groups))}


@pytest.mark.parametrize("keys", ["", ", kubevirt: true"])
async def test_a_machine_gets_what_kubevirt_gives(node: Node, keys: str) -> None:
    others.mediated(node.root)
    node.configure(ENTRY.replace("}}]", f"}}{keys}}}]"))
    async with node.served({VGPU: 2}, only=True):
        for uuids, groups in (([T4], [200]), ([T4, T4_SECOND], [200, 204])):
            answer = await node.container({VGPU: len(uuids)})
            assert dict(answer.envs) == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": ",".join(uuids)}
            given = {(one.host_path, one.container_path, one.permissions) for one in answer.devices}
            assert given == vfio(*groups)
            assert not (answer.mounts or answer.annotations or answer.cdi_devices)
        assert node.device_infos() == {}


async def test_a_machine_gets_the_same_by_cdi(node: Node) -> None:
    others.mediated(node.root)
    node.configure(ENTRY.replace("}}]", "}, inject: cdi}]"))
    async with node.served({VGPU: 2}):
        started = await node.container({VGPU: 2})
        (edits,) = node.specified([one.name for one in started.cdi_devices])
        assert edits["env"] == [f"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q={T4},{T4_SECOND}"]
        assert {(one["path"], one["permissions"]) for one in edits["deviceNodes"]} == {
            (path, "mrw") for path, _, _ in vfio(200, 204)
        }


async def test_functions_and_mediated_devices_of_one_entry_have_a_variable_each(node: Node) -> None:
    others.mediated(node.root)
    others.qat(node.root)
    where = f'[{{uuid: "{A10.upper()}"}}, {{pciBusID: "0000:6b:00.4"}}]'
    node.configure(f"resources: [{{name: e.x/any, backend: sriov, where: {where}, kubevirt: true}}]")
    async with node.served({"e.x/any": 2}):
        answer = await node.container({"e.x/any": 2})
        assert answer.envs["MDEV_PCI_RESOURCE_E_X_ANY"] == A10
        assert answer.envs["PCIDEVICE_E_X_ANY"] == answer.envs["PCI_RESOURCE_E_X_ANY"] == "0000:6b:00.4"
        assert A10 not in answer.envs["PCIDEVICE_E_X_ANY_INFO"]
        assert {"/dev/vfio/201", "/dev/vfio/83"} < {one.host_path for one in answer.devices}


async def test_a_device_is_unhealthy_while_its_group_has_no_node(node: Node) -> None:
    others.mediated(node.root)
    node.configure(ENTRY)
    group = node.root / "dev/vfio/200"
    async with node.served({VGPU: 2}):
        group.unlink()  # without an event
        with pytest.raises(UnexpectedAdmissionError, match="/dev/vfio/200 does not exist"):
            await node.container({VGPU: 2})
        node.look()
        await node.offers({VGPU: 1})
        assert node.devices("sriov")[T4].health.reason == "/dev/vfio/200 does not exist"
        group.touch()
        node.look()
        await node.offers({VGPU: 2})


def change(tree: SriovTree, link: str, target: str = "") -> Event:
    """Removes a link of the first T4, or makes it; the event after it."""
    if target:
        tree.link(f"/sys/devices/{T4_PATH}/{link}", target)
    else:
        (tree.root / "sys/devices" / T4_PATH / link).unlink()
    return Event("mdev", "bind" if target else "unbind", f"/sys/devices/{T4_PATH}")


def test_a_device_follows_its_driver(looking: BackendFixture, tmp_path: Path) -> None:
    tree = others.mediated(tmp_path)
    backend = looking(tree)
    before = by_id(backend)
    for link, reason in (
        ("iommu_group", "it has no IOMMU group (the kernel needs CONFIG_VFIO_GROUP)"),
        ("driver", "no driver is bound to it"),
    ):
        backend.notice(change(tree, link))
        assert by_id(backend)[T4].health.reason == reason
        with pytest.raises(AllocationError, match=f"^{T4}: {reason.split(' (')[0]}"):
            backend.allocate(request(backend, [before[T4]]))
    change(tree, "driver", "/sys/bus/mdev/drivers/nvidia-vgpu-vfio")
    backend.notice(change(tree, "iommu_group", "/sys/kernel/iommu_groups/200"))
    found = by_id(backend)
    assert found[T4] == before[T4]
    assert found[T4_SECOND] is before[T4_SECOND], "an unchanged device stays the same object"


def test_devices_appear_and_vanish_by_events(looking: BackendFixture, tmp_path: Path) -> None:
    tree = others.mediated(tmp_path)
    tree.remove(f"/sys/devices/{T4_PATH}")
    backend = looking(tree)
    second = by_id(backend)
    assert T4 not in second
    parent = T4_PATH.rpartition("/")[0]
    tree.mediated(parent, T4, "nvidia-222", "GRID T4-1Q", driver="nvidia-vgpu-vfio", group=210)
    kind = change(tree, "mdev_type")  # the kernel makes it last
    backend.notice(Event("mdev", "add", kind.sys_path))
    assert "mdevType" not in by_id(backend)[T4].attributes
    backend.notice(change(tree, "mdev_type", f"/sys/devices/{parent}/mdev_supported_types/nvidia-222"))
    device = by_id(backend)[T4]
    assert (device.attributes["mdevType"], device.attributes["iommuGroup"]) == ("GRID_T4-1Q", 210)
    backend.notice(tree.remove(f"/sys/devices/{T4_PATH}"))
    assert by_id(backend).keys() == second.keys()
    with pytest.raises(AllocationError, match=f"^{T4} is gone$"):
        backend.allocate(request(backend, [device]))


def test_a_scan_waits_until_new_devices_have_their_drivers(tmp_path: Path) -> None:
    """Only then have they a group, and a moment later a type."""
    tree = others.mediated(tmp_path)
    driver = tmp_path / "sys/devices" / T4_PATH / "driver"
    driver.unlink()
    steps = [lambda: tree.link(f"/sys/devices/{T4_PATH}/driver", "/sys/bus/mdev/drivers/nvidia-vgpu-vfio")]
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if steps:
            steps.pop()()

    burst = BurstWait(Sysfs(tmp_path), ignore_ports=False, sleep=sleep)
    burst.wait(())
    assert not waited, "nothing happened"
    burst.notice(Event("mdev", "add", f"/sys/devices/{T4_PATH}"))
    burst.wait(())
    assert len(waited) == 2 and driver.exists()


def test_without_an_event_of_theirs_no_device_is_read_again(looking: BackendFixture, tmp_path: Path) -> None:
    from sriov_backend import Reader, reading

    sysfs = Reader(tmp_path)
    backend = looking(others.mediated(tmp_path), kind=reading(sysfs))
    assert backend.discover()
    sysfs.paths.clear()
    backend.notice(Event("net", "change", "/sys/class/net/lo"))
    assert backend.discover()
    assert "name" not in sysfs.files
    backend.notice(Event("mdev", "bind", f"/sys/devices/{T4_PATH}"))
    assert backend.discover()
    assert "name" in sysfs.files


def test_a_device_that_was_made_again_is_read_again_without_an_event(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree = others.mediated(tmp_path)
    backend = looking(tree)
    assert by_id(backend)[T4].attributes["mdevType"] == "GRID_T4-1Q"
    link = tmp_path / "sys/bus/mdev/devices" / T4
    link.rename(tmp_path / "kept")  # so that the new one gets another inode
    tree.remove(f"/sys/devices/{T4_PATH}")
    parent = T4_PATH.rpartition("/")[0]
    tree.mediated(parent, T4, "nvidia-223", "GRID T4-2Q", driver="nvidia-vgpu-vfio", group=211)
    backend.notice(Event("net", "change", "/sys/class/net/lo"))
    assert by_id(backend)[T4].attributes["mdevType"] == "GRID_T4-2Q"


def test_only_entries_for_network_functions_cannot_have_a_mediated_device(
    looking: BackendFixture, tmp_path: Path
) -> None:
    device = by_id(looking(others.mediated(tmp_path)))[T4]
    assert device.unusable_for == {
        "rdma": "rdma: true is for functions, not for mediated devices",
        "vhostNet": "vhostNet: true is for functions, not for mediated devices",
    }


def refused(devices: dict[str, list[Device]]) -> tuple[str, RefusalKind]:
    """The backend whose device is not offered, if each backend has an entry, in this order."""
    entries = [ResourceSettings(index, f"r/{name}", name) for index, name in enumerate(devices)]
    (refusal,) = make_plan(devices, Settings(tuple(entries))).refusals
    return refusal.backend, refusal.kind


@pytest.mark.parametrize("first", [VGPU, "e.x/node"])
async def test_a_device_and_the_node_of_its_group_never_serve_two_pods(node: Node, first: str) -> None:
    others.mediated(node.root)
    entry = "{name: e.x/node, backend: udev, where: {devNode: /dev/vfio/200}}"
    node.configure(ENTRY.replace("}}]", f', uuid: "{T4}"}}}}, {entry}]'))
    async with node.served({VGPU: 1, "e.x/node": 1}):
        await node.container({first: 1}, keep=True)
        await node.offers({name: int(name == first) for name in (VGPU, "e.x/node")})


@pytest.mark.parametrize("whole", ["0000:41:00.4", "0000:41:00.0"])
def test_a_device_and_a_function_that_it_is_part_of_are_not_offered_together(
    looking: BackendFixture, tmp_path: Path, whole: str
) -> None:
    found = by_id(looking(others.mediated(tmp_path)))
    function = Device("whole", claims=frozenset({f"pci:{whole}"}))
    assert refused({"other": [function], "sriov": [found[A10]]}) == ("sriov", RefusalKind.CLAIMED)


def test_kubevirt_finds_the_uuid_among_the_attributes_of_a_claim(
    looking: BackendFixture, tmp_path: Path
) -> None:
    """``MDevUUIDAttribute`` of ``pkg/dra/metadata/types.go``; files of claims have what slices have."""
    device = by_id(looking(others.mediated(tmp_path)))[A10]
    ((one,), left_out) = Pool("d", "node", VGPU, "sriov").slices([Offered(device, device.health)])
    attributes: dict[str, Any] = one.devices[0]["attributes"]
    assert attributes["mdevUUID"] == {"string": A10}
    assert not left_out
    assert not [name for name in attributes if name.endswith("/pciBusID")]


def test_without_the_hardware_explain_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    file = tmp_path / "devhost.yaml"
    file.write_text(f"version: 1\n{ENTRY}\n")
    done = devhost("explain", VGPU, "--config", file, "--root", tmp_path)
    assert done.stdout.startswith(f"{VGPU} (resources[0]): 0 devices; ")


def test_an_unknown_kind_is_an_error_that_lists_this_one() -> None:
    from devhost.backend.errors import ConfigError

    text = f"version: 1\n{ENTRY.replace('kind: mdev', 'kind: mdevs')}"
    with pytest.raises(ConfigError, match="mdev"):
        loads(text, "f.yaml", catalog.load)


def test_a_node_without_mediated_devices_does_not_load_their_code(tmp_path: Path) -> None:
    others.qat(tmp_path)
    code = (
        "import sys; from pathlib import Path; from devhost_sriov import Sriov; "
        "from devhost_testing.fixtures import BackendFixture\n"
        "with BackendFixture(Sriov) as looking: assert looking(Path(sys.argv[1])).discover()\n"
        "assert 'devhost_sriov.mediated' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
