"""The ready configurations of accelerators: a container gets what the vendor's plugin gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sriov_others as others
from devhost_testing.node import Node
from program import devhost
from sriov_tree import SriovTree

EXAMPLES = Path(__file__).parents[3] / "config/examples/accelerators"
GENERIC, CY, DSA = "qat.intel.com/generic", "qat.intel.com/cy", "dsa.intel.com/vfio"
VGPU = "nvidia.com/GRID_T4-1Q"
FIRST_GROUP = 60


def qat(root: Path) -> None:
    """A C62x and a 4xxx with two virtual functions each (drivers/crypto/intel/qat, ``qat_c62xvf``)."""
    tree = SriovTree(root)
    devices = (("0000:3d:00.0", "37c8", "37c9", "c6xx"), ("0000:6b:00.0", "4940", "4941", "4xxx"))
    for n, (address, physical, virtual, driver) in enumerate(devices):
        path = tree.function(address, f"8086:{physical}", driver, pci_class="0x0b4000", total=16)
        for function in range(2):
            group = FIRST_GROUP + 2 * n + function
            own = f"{address[:8]}01.{function}"
            tree.vfio(tree.virtual(path, own, f"8086:{virtual}", "vfio-pci", group=group), cdev=False)
    for name, text in (("state", "up"), ("cfg_services", "asym;sym")):
        tree.file(f"/sys/devices/{path}/qat/{name}", text)


def dsa(root: Path) -> None:
    """Two accelerators bound to vfio-pci, and one with its driver (drivers/dma/idxd/init.c)."""
    tree = SriovTree(root)
    for n, address in enumerate(("0000:6a:01.0", "0000:6f:01.0")):
        function = tree.function(
            address, "8086:0b25", "vfio-pci", pci_class="0x088000", group=FIRST_GROUP + n
        )
        tree.vfio(function, cdev=False)
    tree.function("0000:74:01.0", "8086:0b25", "idxd", pci_class="0x088000", group=FIRST_GROUP + 2)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as made:
        yield made


def use(node: Node, example: str, machine: Callable[[Path], None]) -> None:
    machine(node.root)
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    node.configure(text.replace("version: 1\n", ""))


def gives(answer: Any, prefix: str) -> None:
    """The addresses are numbered from 0, and each node is given as Intel's plugins give it."""
    numbered = {name: value for name, value in answer.envs.items() if name.startswith(prefix)}
    assert list(numbered) and sorted(numbered) == [f"{prefix}{n}" for n in range(len(numbered))]
    others = {name for name in answer.envs if name not in numbered}
    assert all(name.startswith("PCIDEVICE_") for name in others)
    paths = {f"/dev/vfio/{_GROUPS[address]}" for address in numbered.values()} | {"/dev/vfio/vfio"}
    assert {(one.host_path, one.container_path, one.permissions) for one in answer.devices} == {
        (path, path, "rw") for path in paths
    }
    assert not (answer.mounts or answer.annotations or answer.cdi_devices)


_GROUPS = {
    "0000:3d:01.0": 60,
    "0000:3d:01.1": 61,
    "0000:6b:01.0": 62,
    "0000:6b:01.1": 63,
    "0000:6a:01.0": 60,
    "0000:6f:01.0": 61,
}


@pytest.mark.parametrize("count", [1, 2])
async def test_a_container_gets_the_nodes_and_variables_of_intels_qat_plugin(node: Node, count: int) -> None:
    use(node, "intel-qat.yaml", qat)
    async with node.served({GENERIC: 2, CY: 2}, only=True):
        for name in (GENERIC, CY):
            answer = await node.container({name: count})
            gives(answer, "QAT")
            assert len([one for one in answer.envs if one.startswith("QAT")]) == count


async def test_a_container_gets_the_nodes_and_variables_of_intels_dsa_plugin_by_vfio(node: Node) -> None:
    use(node, "intel-dsa-vfio.yaml", dsa)
    async with node.served({DSA: 2}, only=True):
        answer = await node.container({DSA: 2})
        gives(answer, "VFIO_BDF")
        assert (answer.envs["VFIO_BDF0"], answer.envs["VFIO_BDF1"]) == ("0000:6a:01.0", "0000:6f:01.0")


@pytest.mark.parametrize(
    ("example", "machine", "name", "count"),
    [("intel-qat.yaml", qat, GENERIC, 2), ("intel-dsa-vfio.yaml", dsa, DSA, 2)],
)
async def test_a_function_is_unhealthy_while_its_group_has_no_node(
    node: Node, example: str, machine: Callable[[Path], None], name: str, count: int
) -> None:
    use(node, example, machine)
    group = node.root / f"dev/vfio/{FIRST_GROUP}"
    async with node.served({name: count}):
        group.unlink()
        node.look()
        await node.offers({name: count - 1})
        group.touch()
        node.look()
        await node.offers({name: count})


@pytest.mark.parametrize(
    ("services", "name"),
    [
        ("sym;asym", "cy"),
        ("dc", "dc"),
        ("sym", "sym"),
        ("asym", "asym"),
        ("dc;asym", "dc-asym"),
        ("asym;dc", "asym-dc"),
        ("sym;dc", "sym-dc"),
        ("dc;sym", "dc-sym"),
        ("dcc", "dcc"),
        ("decomp", "decomp"),
        ("asym;sym;dc", "asym-sym-dc"),
    ],
)
async def test_resources_have_the_names_that_intels_qat_plugin_makes_of_services(
    node: Node, services: str, name: str
) -> None:
    use(node, "intel-qat.yaml", qat)
    (file,) = node.root.glob("sys/devices/*/0000:6b:00.0/qat/cfg_services")
    file.write_text(f"{services}\n")
    async with node.served({GENERIC: 2, f"qat.intel.com/{name}": 2}, only=True):
        if name == "dc":
            file.with_name("state").write_text("down\n")
            node.look()
            await node.offers({GENERIC: 4})


async def test_functions_are_unhealthy_while_their_accelerator_has_no_heartbeat(node: Node) -> None:
    use(node, "intel-qat.yaml", qat)
    status = node.root / "sys/kernel/debug/qat_4xxx_0000:6b:00.0/heartbeat/status"
    status.parent.mkdir(parents=True)
    status.write_text("-1\n")
    async with node.served({GENERIC: 2, CY: 0}):
        status.write_text("0\n")
        node.look()
        await node.offers({GENERIC: 2, CY: 2})


async def test_a_machine_gets_the_nodes_and_variables_of_kubevirts_plugin(node: Node) -> None:
    """``mediated_device.go``; the other promises are in ``test_sriov_mediated.py``."""
    use(node, "kubevirt-mdev.yaml", others.mediated)
    groups = {"nvidia.com/NVIDIA_A10-4Q": (others.A10, 201), "intel.com/i915-GVTg_V5_4": (others.GVT, 202)}
    async with node.served(dict.fromkeys(groups, 1) | {VGPU: 2}, only=True):
        for name, (uuid, group) in groups.items():
            answer = await node.container({name: 1})
            variable = f"MDEV_PCI_RESOURCE_{name.upper().replace('/', '_').replace('.', '_')}"
            assert dict(answer.envs) == {variable: uuid}
            assert {(one.host_path, one.container_path, one.permissions) for one in answer.devices} == {
                (path, path, "mrw") for path in ("/dev/vfio/vfio", f"/dev/vfio/{group}")
            }


@pytest.mark.parametrize(
    ("example", "name"),
    [
        ("intel-qat.yaml", GENERIC),
        ("intel-dsa-vfio.yaml", DSA),
        ("kubevirt-mdev.yaml", "nvidia.com/{mdevType}"),
    ],
)
def test_without_the_hardware_explain_gives_the_reason(tmp_path: Path, example: str, name: str) -> None:
    SriovTree(tmp_path)
    done = devhost("explain", name, "--config", EXAMPLES / example, "--root", tmp_path)
    assert done.stdout.startswith(f"{name} (resources[")
