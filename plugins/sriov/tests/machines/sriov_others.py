"""Models of machines with functions other than network adapters, and unusual ones, each with its source."""

from __future__ import annotations

from pathlib import Path

from sriov_tree import SriovTree


def qat(root: Path) -> SriovTree:
    """A 4xxx (QuickAssist) with virtual functions, half of them for virtual machines.

    drivers/crypto/intel/qat/qat_4xxx/adf_drv.c (8086:4940, 4941 its virtual functions), class 0b40;
    Documentation/ABI/testing/sysfs-driver-qat. Below a separate root complex, as usual for such accelerators.
    """
    tree = SriovTree(root)
    physical = tree.function("0000:6b:00.0", "8086:4940", "4xxx", pci_class="0x0b4000", group=70, total=16)
    for number in range(4):
        driver = "vfio-pci" if number > 1 else "4xxxvf"
        address = f"0000:6b:00.{number + 1}"
        path = tree.virtual(physical, address, "8086:4941", driver, group=80 + number)
        if number > 1:
            tree.vfio(path, cdev=number > 2)
    return tree


def nvme(root: Path) -> SriovTree:
    """An NVMe controller with two virtual functions, the second one not online and so without its driver.

    A recording of Linux 6.12 on QEMU 10 (``nvme``, ``sriov_max_vfs``): same ids as the physical function.
    """
    tree = SriovTree(root)
    physical = tree.function(
        "0000:04:00.0",
        "1b36:0010",
        "nvme",
        below="0000:00:07.0",
        pci_class="0x010802",
        subsystem="1af4:1100",
        numa_node=-1,
        group=11,
        total=4,
    )
    for number in range(2):
        tree.virtual(
            physical, f"0000:04:00.{number + 1}", "1b36:0010", "" if number else "nvme", group=12 + number
        )
    tree.function("0000:05:00.0", "144d:a80a", "nvme", below="0000:00:08.0", pci_class="0x010802")
    return tree


def gpu(root: Path) -> SriovTree:
    """A Flex 170 split for virtual machines, and a graphics adapter that is only passed through.

    drivers/gpu/drm/xe/xe_pci_sriov.c (8086:56c0); drivers/vfio/pci/nvgrace-gpu (a variant of vfio-pci). The
    second has its audio function in the same IOMMU group, and both are bound.
    """
    tree = SriovTree(root)
    physical = tree.function(
        "0000:4d:00.0", "8086:56c0", "xe", below="0000:4a:01.0", pci_class="0x038000", group=90, total=31
    )
    for number in range(2):
        path = tree.virtual(
            physical, f"0000:4d:00.{number + 1}", "8086:56c0", "xe-vfio-pci", group=91 + number
        )
        tree.vfio(path)
    for function, pci_class in enumerate(("0x030000", "0x040300")):
        path = tree.function(
            f"0000:17:00.{function}",
            "10de:2331",
            "vfio-pci",
            below="0000:16:00.0",
            pci_class=pci_class,
            group=95,
        )
        tree.vfio(path)
    tree.function("0000:18:00.0", "10de:2331", "nvidia", below="0000:16:01.0", pci_class="0x030200")
    return tree


def vgpu(root: Path) -> SriovTree:
    """An L40S with two virtual functions of NVIDIA's driver, of which the first is a vGPU.

    Since Linux 6.8 they stay bound to ``nvidia``, which makes a vfio device of each (NVIDIA Virtual GPU
    Software User Guide, "vendor-specific VFIO framework"; KubeVirt reads ``nvidia/current_vgpu_type`` too).
    """
    tree = SriovTree(root)
    physical = tree.function(
        "0000:41:00.0", "10de:26b9", "nvidia", below="0000:40:01.0", pci_class="0x030200", group=60, total=32
    )
    for number in range(2):
        path = tree.virtual(physical, f"0000:41:00.{number + 4}", "10de:26b9", "nvidia", group=64 + number)
        tree.vfio(path)
        tree.file(f"/sys/devices/{path}/nvidia/current_vgpu_type", "0" if number else "1145")
    return tree


T4, T4_SECOND, A10, GVT, MTTY = (f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{n}" for n in range(1, 6))
"""The UUIDs of :func:`mediated`."""


def mediated(root: Path) -> SriovTree:
    """Mediated devices of four drivers: two on a Tesla T4, one on a VF of an A10, one of GVT-g, and a sample.

    NVIDIA Virtual GPU Software User Guide, "Creating an NVIDIA vGPU": before Linux 6.8 the VFs of an Ampere
    card are the parents. drivers/gpu/drm/i915/gvt: types have no names before Linux 6.1.
    samples/vfio-mdev/mtty.c: the parent is on no bus.
    """
    tree = SriovTree(root)
    tesla = tree.function("0000:3b:00.0", "10de:1eb8", "nvidia", below="0000:3a:00.0", pci_class="0x030200")
    for group, uuid in ((200, T4), (204, T4_SECOND)):
        tree.mediated(tesla, uuid, "nvidia-222", "GRID T4-1Q", driver="nvidia-vgpu-vfio", group=group)
    whole = tree.function(
        "0000:41:00.0",
        "10de:2236",
        "nvidia",
        below="0000:40:01.0",
        pci_class="0x030200",
        numa_node=1,
        group=60,
        total=32,
    )
    part = tree.virtual(whole, "0000:41:00.4", "10de:2236", "nvidia", group=64)
    tree.mediated(part, A10, "nvidia-592", "NVIDIA A10-4Q", driver="nvidia-vgpu-vfio", group=201)
    display = tree.function("0000:00:02.0", "8086:5912", "i915", pci_class="0x030000", numa_node=-1)
    tree.mediated(display, GVT, "i915-GVTg_V5_4", driver="vfio_mdev", group=202)
    tree.device("virtual/mtty/mtty", "mtty")
    tree.mediated("virtual/mtty/mtty", MTTY, "mtty-2", "Dual port serial", driver="mtty", group=203)
    return tree


def without_interface(root: Path) -> SriovTree:
    """A physical function bound to vfio-pci with virtual ones (drivers/vfio/pci/vfio_pci_core.c, since 5.7).

    Nothing has an interface, so there is no name of the physical function either.
    """
    tree = SriovTree(root)
    physical = tree.function("0000:3b:00.0", "8086:1592", "vfio-pci", below="0000:3a:00.0", group=5, total=4)
    tree.vfio(physical)
    for number in range(2):
        path = tree.virtual(physical, f"0000:3b:01.{number}", "8086:1889", "vfio-pci", group=6 + number)
        tree.vfio(path)
    return tree


def chipset(root: Path) -> SriovTree:
    """Functions of every machine that are never offered: Linux 6.12 on QEMU's q35, as lspci lists it."""
    tree = SriovTree(root)
    for address, ids, pci_class, driver in (
        ("0000:00:00.0", "8086:29c0", "0x060000", ""),
        ("0000:00:02.0", "1af4:1001", "0x010000", "virtio-pci"),
        ("0000:00:04.0", "1b36:000c", "0x060400", "pcieport"),
        ("0000:00:1f.0", "8086:2918", "0x060100", "lpc_ich"),
        ("0000:00:1f.2", "8086:2922", "0x010601", "ahci"),
        ("0000:00:1f.3", "8086:2930", "0x0c0500", "i801_smbus"),
        ("0000:01:00.0", "1af4:1050", "0x038000", "virtio-pci"),
    ):
        tree.function(address, ids, driver, pci_class=pci_class)
    return tree


def virtio_nic(root: Path) -> SriovTree:
    """A paravirtual adapter: its interface hangs on a device of the virtio bus below the PCI function.

    drivers/virtio/virtio_pci_common.c; what a cloud's machine shows.
    """
    tree = SriovTree(root)
    path = tree.function("0000:00:03.0", "1af4:1041", "virtio-pci", numa_node=-1)
    tree.device(f"{path}/virtio0", "virtio", DRIVER="virtio_net")
    tree.netdev(f"{path}/virtio0", "ens3")
    return tree


def odd(root: Path) -> SriovTree:
    """Functions with what broken firmware, drivers and moments between two states leave behind.

    A dead link reads as ones everywhere (PCI Express Base Specification, 2.3.2); ``-1`` is the node of a
    machine without NUMA; a file is empty when the driver went while it was read.
    """
    tree = SriovTree(root)
    tree.function("0000:01:00.0", "ffff:ffff", numa_node=-1, pci_class="0xffffff", total=65535)
    tree.function(
        "0000:02:00.0",
        "8086:1572",
        pci_class="0x020000",
        numa_node=-1,
        files={"device": "", "subsystem_vendor": "none", "acpi_index": "-1", "sriov_totalvfs": "many"},
    )
    physical = tree.function("0000:03:00.0", "8086:1572", "i40e", files={"vendor": "0x8086 "}, total=4)
    tree.netdev(physical, "eth0")
    for name, text in (("mtu", ""), ("address", "not a mac"), ("operstate", "sideways"), ("type", "ether")):
        tree.file(f"/sys/devices/{physical}/net/eth0/{name}", text)
    gone = tree.virtual(physical, "0000:03:02.0", "8086:154c", "iavf")
    (root / "sys/devices" / gone / "physfn").unlink()
    tree.link(f"/sys/devices/{gone}/physfn", "/sys/devices/pci0000:03/0000:03:00.7")
    return tree
