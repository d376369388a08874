"""Modelled machines with DRM devices of other vendors, and with cards that cannot be used."""

from __future__ import annotations

from pathlib import Path

from gpu_amd import MI210, MI210_MEMORY, ras
from gpu_intel import ARC_A770
from gpu_tree import DISPLAY, GpuTree

NVIDIA_H100 = "10de:2330"


def virtual_machine(root: Path) -> GpuTree:
    """virtio-gpu beside bochs and vgem, as QEMU and Linux 6.12 have them.

    Since Linux 6.1 the DRM device of virtio-gpu hangs on the PCI function (virtgpu_drv.c,
    ``virtio_gpu_probe``). bochs has no render node. vgem hangs on a device of the platform
    bus, without a driver.
    """
    tree = GpuTree(root)
    path = tree.function("0000:00:02.0", "1234:1111", "bochs-drm", numa_node=-1)
    tree.drm(path, render=False, connectors=("Virtual-1",))
    path = tree.function("0000:00:05.0", "1af4:1050", "virtio-pci", numa_node=-1, pci_class=DISPLAY)
    virtio = path.removeprefix("/sys/devices/") + "/virtio1"
    tree.device(virtio, "virtio", files={"device": "0x0010"}, DRIVER="virtio_gpu")
    tree.drm(path, connectors=("Virtual-2",))
    tree.drm(tree.platform("vgem"))
    return tree


def older_virtual_machine(root: Path) -> GpuTree:
    """virtio-gpu until Linux 6.0: the DRM device hangs on the virtio device."""
    tree = GpuTree(root)
    path = tree.function("0000:00:05.0", "1af4:1050", "virtio-pci", numa_node=-1)
    virtio = path.removeprefix("/sys/devices/") + "/virtio1"
    tree.drm(tree.device(virtio, "virtio", files={"device": "0x0010"}, DRIVER="virtio_gpu"))
    return tree


def board(root: Path) -> GpuTree:
    """A single-board computer: a GPU and a display controller of the SoC, and a display on USB.

    arch/arm64/boot/dts: devices of the platform bus are named after their address in the device tree
    (drivers/of/platform.c). drivers/gpu/drm/udl hangs on the USB interface.
    """
    tree = GpuTree(root)
    gpu = tree.device("platform/fde60000.gpu", "platform", DRIVER="panfrost", OF_NAME="gpu")
    tree.drm(gpu)
    display = tree.device("platform/display-subsystem", "platform", DRIVER="rockchip-drm")
    tree.drm(display, render=False)
    tree.function("0000:01:00.0", "1b21:2142", "xhci_hcd", below="0000:00:00.0", pci_class="0x0c0330")
    usb = "pci0000:00/0000:00:00.0/0000:01:00.0/usb1/1-2/1-2:1.0"
    tree.drm(tree.device(usb, "usb", DRIVER="udl"), render=False)
    return tree


def server_console(root: Path) -> GpuTree:
    """The graphics of a server's BMC: an AST2600, which renders nothing."""
    tree = GpuTree(root)
    path = tree.function("0000:04:00.0", "1a03:2000", "ast", below="0000:00:1c.5/0000:03:00.0", numa_node=0)
    tree.drm(path, render=False, connectors=("VGA-1",))
    return tree


def troubled(root: Path) -> GpuTree:
    """Four MI210 of which only the first is healthy, and an Arc without a driver.

    The second has lost its driver, the third has one that gave up without making DRM devices, the fourth is
    bound for a virtual machine.
    """
    tree = GpuTree(root)
    tree.kfd()
    for index, driver in enumerate(("amdgpu", "", "amdgpu", "vfio-pci")):
        address = f"0000:{0x23 + index * 0x20:02x}:00.0"
        path = tree.function(
            address,
            MI210,
            driver,
            below=f"0000:{0x20 + index * 0x20:02x}:01.1",
            pci_class=DISPLAY,
            group=40 + index,
            files={"mem_info_vram_total": str(MI210_MEMORY)} | ras() if driver == "amdgpu" else {},
        )
        if index == 0:
            drm = tree.drm(path)
            tree.kfd_gpu(address, drm.render, version=90010, memory=MI210_MEMORY)
    tree.function("0000:a3:00.0", ARC_A770, below="0000:a0:01.0")
    return tree


def everything(root: Path) -> GpuTree:
    """All difficult cases in one machine: a bridge, partitions, virtual functions, twins, unhealthy cards."""
    tree = troubled(root)
    second = tree.function("0000:05:00.0", MI210, "amdgpu", below="0000:00:01.1", pci_class=DISPLAY)
    tree.file(f"{second}/current_compute_partition", "CPX")
    tree.file(f"{second}/current_memory_partition", "NPS4")
    first = tree.drm(second)
    part = tree.drm(tree.platform("amdgpu_xcp_0"))
    tree.drm(tree.platform("amdgpu_xcp_1"))
    a, b = (
        tree.kfd_gpu("0000:05:00.0", drm.render, version=90402, memory=1 << 35, partition=number)
        for number, drm in enumerate((first, part))
    )
    tree.kfd_link(a, b, weight=13)
    physical = tree.function("0000:0a:00.0", "8086:56c0", "i915", below="0000:00:02.0", pci_class=DISPLAY)
    tree.drm(physical)
    virtual = tree.function("0000:0a:00.1", "8086:56c0", "i915", below="0000:00:02.0", pci_class=DISPLAY)
    tree.drm(virtual)
    tree.virtual_functions(physical, virtual, total=31)
    for number in range(2):
        address = f"0000:1{number}:00.0"
        tree.drm(tree.function(address, "1af4:1050", "virtio-pci", below=f"0000:00:1{number}.0"))
    tree.drm(tree.platform("vgem"))
    tree.drm(tree.function("0000:18:00.0", "1234:1111", "bochs-drm", below="0000:00:18.0"), render=False)
    return tree
