"""The default configuration: one text for packages, chart and Kustomize, one name for each kind of device."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fpga_cards
import fpga_xrt
import generate_default
import gpu_amd
import gpu_intel
import gpu_nvml
import gpu_others
import pytest
import rdma_connectx
import rdma_machines
import sriov_others
import yaml
from devhost_testing.trees import Tree
from gpu_nvidia import DGX, NvidiaMachine
from sriov_tree import SriovTree

from devhost.cli.scan_once import ScanResult, scan_once
from devhost.config.loader import load

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT / "config" / "devhost.yaml"

Make = Callable[[Path], object]


def network_adapters(root: Path) -> None:
    """Virtual functions of an Intel adapter, for a CNI plugin and for DPDK, and of an RDMA adapter."""
    tree = SriovTree(root)
    intel = tree.function("0000:3b:00.0", "8086:1592", "ice", total=8, pci_class="0x020000")
    tree.netdev(intel, "ens1f0")
    tree.netdev(tree.virtual(intel, "0000:3b:01.0", "8086:1889", "iavf"), "ens1f0v0")
    tree.vfio(tree.virtual(intel, "0000:3b:01.1", "8086:1889", "vfio-pci", group=17))
    mellanox = tree.function("0000:5b:00.0", "15b3:101d", "mlx5_core", total=8, pci_class="0x020000")
    tree.netdev(mellanox, "ens2f0")
    tree.rdma(mellanox, "mlx5_0")
    virtual = tree.virtual(mellanox, "0000:5b:00.2", "15b3:101e", "mlx5_core")
    tree.netdev(virtual, "ens2f0v0")
    tree.rdma(virtual, "mlx5_2")


def nodes(root: Path) -> None:
    """What hangs on no particular hardware, and what no pod gets unasked: buses, disks, a TPM."""
    tree = Tree(root)
    tree.device("virtual/misc/fuse", "misc", "fuse", "10:229")
    tree.device("virtual/misc/kvm", "misc", "kvm", "10:232")
    tree.device("virtual/misc/tun", "misc", "net/tun", "10:200")
    tree.device("virtual/misc/vhost-net", "misc", "vhost-net", "10:238")
    tree.device("virtual/misc/vhost-vsock", "misc", "vhost-vsock", "10:241")
    tree.device("pci0000:00/0000:00:1f.0/tpmrm/tpmrm0", "tpmrm", "tpmrm0", "253:65536")
    tree.device("virtual/block/loop0", "block", "loop0", "7:0", DEVTYPE="disk")
    for subsystem, node, number in (
        ("gpio", "gpiochip0", "254:0"),
        ("i2c-dev", "i2c-1", "89:1"),
        ("spidev", "spidev0.0", "153:0"),
    ):
        tree.device(f"platform/board/{subsystem}/{node}", subsystem, node, number)


SPELLED: dict[str, tuple[Make, dict[str, int]]] = {
    "Intel GPUs": (gpu_intel.arc, {"gpu.intel.com/i915": 1, "gpu.intel.com/xe": 1}),
    "Intel data center GPUs": (gpu_intel.max1550, {"gpu.intel.com/xe": 4}),
    "AMD GPUs": (gpu_amd.mi210, {"amd.com/gpu": 4}),
    "AMD GPUs with nodes for partitions that are not in use": (gpu_amd.mi300x, {"amd.com/gpu": 8}),
    "graphics of a virtual machine": (gpu_others.virtual_machine, {"devhost.dev/render": 2}),
    "graphics of a board": (gpu_others.board, {"devhost.dev/render": 1}),
    "FPGAs of Intel": (fpga_cards.mixed, {"intel.com/fpga": 3}),
    "FPGAs of Xilinx": (fpga_xrt.alveo_u250, {"amd.com/xilinx_u250_gen3x16_xdma_shell_3_1-0": 1}),
    "both FPGAs of a U30 as one card": (fpga_xrt.alveo_u30, {"amd.com/ama_u30": 1}),
    "InfiniBand": (rdma_connectx.connectx6_infiniband, {"rdma/hca": 1}),
    "RoCE": (rdma_machines.broadcom, {"rdma/hca": 1}),
    "EFA": (rdma_machines.efa, {"vpc.amazonaws.com/efa": 1}),
    "RDMA virtual functions": (
        rdma_connectx.virtual_functions,
        {"devhost.dev/sriov-rdma-mlx5_core": 4, "rdma/hca": 1},
    ),
    "scalable functions": (
        rdma_connectx.scalable_function,
        {"devhost.dev/sriov-rdma-mlx5_core.sf": 1, "rdma/hca": 1},
    ),
    "virtual functions by driver": (
        network_adapters,
        {
            "devhost.dev/sriov-iavf": 1,
            "devhost.dev/sriov-vfio-pci": 1,
            "devhost.dev/sriov-rdma-mlx5_core": 1,
            "rdma/hca": 1,
        },
    ),
    "QAT": (sriov_others.qat, {"devhost.dev/vf-vfio-pci": 2}),
    "functions of GPUs for virtual machines": (sriov_others.gpu, {"devhost.dev/vf-xe-vfio-pci": 2}),
    "disks of the node": (sriov_others.nvme, {}),
    "nodes of udev": (
        nodes,
        {f"devhost.dev/{name}": 1 for name in ("fuse", "kvm", "tun", "vhost-net", "vhost-vsock")},
    ),
    "nothing": (Tree, {}),
}


def look(root: Path) -> ScanResult:
    return asyncio.run(scan_once(load(DEFAULT), root))


def offered(seen: ScanResult) -> dict[str, int]:
    """How many devices each resource has; a node without any does not register it."""
    return {name: len(found.offers) for name, found in seen.plan.resources.items()}


def twice(seen: ScanResult) -> list[str]:
    """The physical things that more than one offered device uses up."""
    offers = (offer for found in seen.plan.resources.values() for offer in found.offers)
    claims = Counter(
        claim for offer in offers for claim in offer.device.claims if not claim.startswith("iommu:")
    )
    return [claim for claim, count in claims.items() if count > 1]


@pytest.mark.parametrize("kind", SPELLED)
def test_each_kind_of_hardware_has_one_name(kind: str, tmp_path: Path) -> None:
    make, expected = SPELLED[kind]
    make(tmp_path / "root")
    seen = look(tmp_path / "root")
    assert offered(seen) == expected
    assert twice(seen) == []


def test_nvidia_gpus_and_mig_instances_have_the_names_of_nvidias_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with migStrategy mixed: a divided GPU is its instances, a whole one is nvidia.com/gpu."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if gpu_nvml.compiler() is None:
        pytest.skip("no C compiler to build the stub NVML with")
    machine = NvidiaMachine(tmp_path / "root", gpu_nvml.build(tmp_path))
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    for address in DGX[:2]:
        machine.gpu(address)
    machine.mig(DGX[1], 7, 0)
    machine.mig(DGX[1], 8, 0, "2g.20gb")
    seen = look(machine.root)
    assert offered(seen) == {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-2g.20gb": 1}
    assert twice(seen) == []


OF_A_PROFILE = {"neuron"}
"""Backends that only files of ``config/examples/accelerators`` use: each takes memory on every node."""


def test_every_entry_is_optional_and_every_common_backend_is_used() -> None:
    entries = yaml.safe_load(DEFAULT.read_text(encoding="utf-8"))["resources"]
    assert [entry["name"] for entry in entries if entry.get("optional") is not True] == []
    assert {entry["backend"] for entry in entries} == {
        one.parent.name for one in ROOT.glob("plugins/*/pyproject.toml")
    } - OF_A_PROFILE


def test_chart_and_kustomize_base_are_copies_of_it() -> None:
    source, values = (file.read_text(encoding="utf-8") for file in (DEFAULT, generate_default.VALUES))
    assert generate_default.BASE.read_text(encoding="utf-8") == source, "run `make docs`"
    assert values == generate_default.renewed(values, source), "run `make docs`"
    assert yaml.safe_load(values)["config"] == yaml.safe_load(source)
