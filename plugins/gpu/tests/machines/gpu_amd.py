"""Models of machines with AMD cards; each names its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from gpu_tree import ACCELERATOR, DISPLAY, PCIE, VGA, GpuTree

MI210, MI300X, RX7900, PHOENIX = "1002:740f", "1002:74a1", "1002:744c", "1002:15bf"

MI210_MEMORY = 68702699520
MI300X_MEMORY = 206141652992

INTRA_SOCKET = 13
"""``KFD_CRAT_INTRA_SOCKET_WEIGHT``: a link between two partitions of one GPU."""

ACROSS = 41
"""Weight of a link between partitions of two GPUs: one hop, and the way to it inside of either."""

MODES = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
"""Compute partition modes of an MI300X, and how many partitions there are then."""

MOST_PARTITIONS = 8
"""``MAX_XCP``: the driver creates this many devices in every mode."""

RAS_BLOCKS = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")


def ras(**uncorrectable: int) -> dict[str, str]:
    """Counts of errors, as amdgpu_ras.c writes them."""
    files = {"ras/features": "feature mask: 0x3fff"}
    for block in RAS_BLOCKS:
        files[f"ras/{block}_err_count"] = f"ue: {uncorrectable.get(block, 0)}\nce: 0"
    return files


def mi210(root: Path) -> GpuTree:
    """Four MI210, two and two joined by a bridge of XGMI; each below a switch of its NUMA node.

    The topology follows a recording of such a server in the tests of ROCm's device plugin: location 25344 is
    63:00.0, version 90010 is gfx90a, a bridge has weight 15, PCIe has 20 or more. Files of the function:
    Documentation/gpu/amdgpu/driver-misc.rst and ras.rst. They have no partition modes.
    """
    tree = GpuTree(root)
    tree.kfd()
    numbers = []
    for index, (address, below) in enumerate(
        (
            ("0000:63:00.0", "0000:60:03.1/0000:61:00.0/0000:62:00.0"),
            ("0000:43:00.0", "0000:40:01.1/0000:41:00.0/0000:42:00.0"),
            ("0000:e3:00.0", "0000:e0:03.1/0000:e1:00.0/0000:e2:00.0"),
            ("0000:c3:00.0", "0000:c0:01.1/0000:c1:00.0/0000:c2:00.0"),
        )
    ):
        files = {
            "mem_info_vram_total": str(MI210_MEMORY),
            "product_name": "Instinct MI210",
            "product_number": "102-D67301-00",
            "serial_number": f"69222900{index:04}",
            "unique_id": f"{0x1901F3D2B2A40000 + index:016x}",
            "vbios_version": "113-D67301-063",
        }
        path = tree.function(
            address,
            MI210,
            "amdgpu",
            below=below,
            pci_class=DISPLAY,
            numa_node=index // 2,
            subsystem="1002:0c34",
            files=files | ras(),
        )
        drm = tree.drm(path)
        tree.hwmon(path, index, edge=41, junction=44, mem=52)
        hive = 12609507387757274807 + index // 2
        numbers.append(tree.kfd_gpu(address, drm.render, version=90010, memory=MI210_MEMORY, hive=hive))
    for a, b in combinations(numbers, 2):
        if (a - numbers[0]) // 2 == (b - numbers[0]) // 2:
            tree.kfd_link(a, b)
        else:
            tree.kfd_link(a, b, PCIE, 40, below="p2p_links")
    return tree


def mi300x(
    root: Path,
    compute: str = "SPX",
    memory: str = "NPS1",
    count: int = 8,
    *,
    is_early: bool = False,
    separator: str = "_",
) -> GpuTree:
    """MI300X, all joined with each other, in a compute and a memory partition mode.

    drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c: the nodes of a GPU are followed by those of its partitions, of
    which only as many as the mode has are in the topology. Documentation/gpu/amdgpu/gc, "Spatial
    Partitioning": partitions of one GPU differ in the upper four bits of ``location_id``. In a recording of
    MI308X in the tests of ROCm's device plugin, by an early driver, they differ in the number of the
    function: 2561 is 0a:00.1, though there is only 0a:00.0. Links within a GPU have weight 13, those between
    partitions of two GPUs 41 and no bandwidth. The first drivers put a dot before a partition's number, as
    listings in reports of such machines show (``separator``).
    """
    tree = GpuTree(root)
    tree.kfd()
    for index in range(count):
        address = f"0000:{0x0C + index * 0x10:02x}:00.0"
        files = {
            "mem_info_vram_total": str(MI300X_MEMORY),
            "product_name": "AMD Instinct MI300X OAM",
            "unique_id": f"{0x7B2F6D1A00C30000 + index:016x}",
            "vbios_version": "113-M3000100-102",
            "available_compute_partition": "SPX, DPX, QPX, CPX",
            "available_memory_partition": "NPS1, NPS4",
            "current_memory_partition": memory,
        }
        path = tree.function(
            address,
            MI300X,
            "amdgpu",
            below=f"0000:{0x0A + index * 0x10:02x}:01.1",
            pci_class=ACCELERATOR,
            numa_node=index // 4,
            subsystem="1002:74a1",
            files=files | ras(),
        )
        tree.drm(path)
        for number in range(MOST_PARTITIONS - 1):
            tree.drm(tree.platform(f"amdgpu_xcp{separator}{index * (MOST_PARTITIONS - 1) + number}"))
    partition(tree, compute, count, is_early=is_early)
    return tree


def partition(tree: GpuTree, compute: str | Sequence[str], count: int = 8, *, is_early: bool = False) -> None:
    """Sets the compute partition mode of every MI300X, or of each, as writing it to the file does."""
    tree.kfd_forget()
    numbers: list[tuple[int, int]] = []
    modes = [compute] * count if isinstance(compute, str) else compute
    for index, mode in enumerate(modes):
        address = f"0000:{0x0C + index * 0x10:02x}:00.0"
        tree.file(f"/sys/bus/pci/devices/{address}/current_compute_partition", mode)
        for number in range(MODES[mode]):
            render = f"renderD{128 + index * MOST_PARTITIONS + number}"
            share = MI300X_MEMORY // MODES[mode]
            node = tree.kfd_gpu(
                address,
                render,
                version=90402,
                memory=share,
                partition=number,
                is_early=is_early,
                hive=9091311337413371,
            )
            numbers.append((index, node))
    for (gpu, a), (other, b) in combinations(numbers, 2) if len(numbers) <= 16 else ():
        across = 15 if set(modes) == {"SPX"} else ACROSS
        tree.kfd_link(a, b, weight=INTRA_SOCKET if gpu == other else across)
    tree.kfd_changes()


def mi250x(root: Path) -> GpuTree:
    """Two MI250X, each of two GPUs: four links of XGMI within a card, one or none between the cards.

    The pattern is that of a node of Frontier (its user guide, "Node Diagram"), two of its four cards;
    bandwidths in MB/s as amdgpu_xgmi.c counts them: 50000 for each link.
    """
    tree = GpuTree(root)
    tree.kfd()
    numbers = []
    for index, address in enumerate(("0000:c1:00.0", "0000:c6:00.0", "0000:c9:00.0", "0000:ce:00.0")):
        path = tree.function(address, "1002:7408", "amdgpu", below=f"0000:c0:0{index + 1}.1")
        drm = tree.drm(path)
        numbers.append(tree.kfd_gpu(address, drm.render, version=90010, memory=MI210_MEMORY))
    first, second, third, fourth = numbers
    for a, b, count in ((first, second, 4), (third, fourth, 4), (first, third, 1), (second, fourth, 1)):
        tree.kfd_link(a, b, links=count)
    return tree


def radeon(root: Path, files: Mapping[str, str] | None = None) -> GpuTree:
    """A workstation: an RX 7900 XTX below the two ports of its own switch, and the GPU of the processor.

    Consumer cards have neither ``product_name`` nor ``unique_id``; ports and ids as
    ``lspci -nn`` prints them.
    """
    tree = GpuTree(root)
    tree.kfd()
    path = tree.function(
        "0000:03:00.0",
        RX7900,
        "amdgpu",
        below="0000:00:01.1/0000:01:00.0/0000:02:00.0",
        numa_node=-1,
        subsystem="1eae:7901",
        files={"mem_info_vram_total": "25753026560", "vbios_version": "113-31XFSHBS1-L02"}
        | dict(files or {}),
    )
    drm = tree.drm(path, connectors=("DP-1", "HDMI-A-1"))
    tree.hwmon(path, 0, edge=48, junction=55, mem=60)
    tree.kfd_gpu("0000:03:00.0", drm.render, version=110000, memory=25753026560)
    path = tree.function(
        "0000:0e:00.0",
        PHOENIX,
        "amdgpu",
        below="0000:00:08.1",
        pci_class=VGA,
        numa_node=-1,
        files={"mem_info_vram_total": "536870912"},
    )
    drm = tree.drm(path, connectors=("eDP-1",))
    tree.kfd_gpu("0000:0e:00.0", drm.render, version=110003, memory=536870912)
    return tree
