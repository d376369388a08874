"""Models of machines with Intel GPUs; each names its source."""

from __future__ import annotations

from pathlib import Path

from gpu_tree import DISPLAY, GpuTree

ARC_A770, FLEX_170, MAX_1550, RAPTOR_LAKE = "8086:56a0", "8086:56c0", "8086:0bd5", "8086:a780"


def arc(root: Path) -> GpuTree:
    """A desktop with its processor's GPU (i915) and an Arc A770 (xe) below the switch on the card.

    drivers/gpu/drm/xe: ``tile0/gt0`` below the function, temperatures in hwmon (labels ``pkg``, ``vram``),
    and no size of the memory. The GSC is an auxiliary device with an interface of the management engine
    (drivers/gpu/drm/xe/xe_heci_gsc.c).
    """
    tree = GpuTree(root)
    path = tree.function("0000:00:02.0", RAPTOR_LAKE, "i915", numa_node=-1)
    tree.drm(path, connectors=("DP-1", "HDMI-A-1"))
    path = tree.function(
        "0000:03:00.0",
        ARC_A770,
        "xe",
        below="0000:00:01.0/0000:01:00.0/0000:02:01.0",
        numa_node=-1,
        subsystem="8086:1020",
        files={"tile0/gt0/freq0/max_freq": "2400", "power/runtime_status": "active"},
    )
    tree.drm(path, connectors=("DP-2", "DP-3"))
    tree.hwmon(path, 3, pkg=47, vram=52)
    parent = path.removeprefix("/sys/devices/")
    tree.device(f"{parent}/xe.mei-gscfi.768", "auxiliary", DRIVER="mei_gsc.mei_gsc")
    tree.device(f"{parent}/xe.mei-gscfi.768/mei/mei1", "mei", "mei1", "510:1")
    return tree


def flex(root: Path) -> GpuTree:
    """Two Flex 170 with Intel's i915 for data centers: one whole, one with four virtual functions.

    Of those, two have i915 on the host, one is bound for a virtual machine and one to nothing. Virtual
    functions have the ids of their physical one (Documentation/ABI/testing/sysfs-bus-pci, ``physfn``).
    """
    tree = GpuTree(root)
    path = tree.function(
        "0000:4d:00.0",
        FLEX_170,
        "i915",
        below="0000:4a:02.0/0000:4b:00.0/0000:4c:01.0",
        pci_class=DISPLAY,
        files={"sriov_totalvfs": "31", "sriov_numvfs": "0", "sriov_drivers_autoprobe": "1"},
    )
    drm = tree.drm(path)
    tree.file(f"{path}/drm/{drm.card}/lmem_total_bytes", "14193524736")
    physical = tree.function(
        "0000:b4:00.0",
        FLEX_170,
        "i915",
        below="0000:b1:02.0/0000:b2:00.0/0000:b3:01.0",
        pci_class=DISPLAY,
        numa_node=1,
    )
    tree.drm(physical)
    virtual = []
    for number, driver in enumerate(("i915", "i915", "vfio-pci", ""), 1):
        one = tree.function(
            f"0000:b4:00.{number}",
            FLEX_170,
            driver,
            below="0000:b1:02.0/0000:b2:00.0/0000:b3:01.0",
            pci_class=DISPLAY,
            numa_node=1,
            group=60 + number,
        )
        virtual.append(one)
        if driver == "i915":
            tree.drm(one)
    tree.virtual_functions(physical, *virtual, total=31)
    return tree


def max1550(root: Path) -> GpuTree:
    """Four Max 1550 with two tiles each. xe until Linux 6.8 and Intel drivers report memory of tiles."""
    tree = GpuTree(root)
    for index in range(4):
        bus = 0x1C + index * 0x20
        path = tree.function(
            f"0000:{bus + 1:02x}:00.0",
            MAX_1550,
            "xe",
            below=f"0000:{bus - 2:02x}:01.0",
            pci_class=DISPLAY,
            numa_node=index // 2,
            files={f"tile{tile}/physical_vram_size_bytes": "68719476736" for tile in range(2)},
        )
        tree.drm(path)
    return tree
