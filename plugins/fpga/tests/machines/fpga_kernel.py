"""Machines whose FPGAs the kernel's own classes know, and those where zocl runs, as files.

- Classes: drivers/fpga/{fpga-mgr,fpga-region,fpga-bridge,of-fpga-region}.c of Linux 6.12; a region of the
  device tree is a device of class ``fpga_region`` below a platform device, with inner regions below it.
- ``of_node`` and ``phandle``: drivers/of/kobj.c; numbers are of 32 bits, the high byte first.
- ``firmware``, ``flags`` and ``key`` of a manager: only in Xilinx's kernel (fpga-mgr.c of linux-xlnx).
- Zynq, ZynqMP: arch/arm/boot/dts/xilinx/zynq-7000.dtsi, arch/arm64/boot/dts/xilinx/zynqmp.dtsi.
- zocl and its node ``zyxclmm_drm``: src/runtime_src/core/edge/drm/zocl of XRT.
"""

from __future__ import annotations

import struct
from pathlib import Path

from fpga_xrt import XrtTree

_BASE = "/sys/firmware/devicetree/base"


class KernelTree(XrtTree):
    """A machine with FPGA managers, regions and bridges."""

    def of_node(self, path: str, name: str, phandle: int = 0, **links: int) -> None:
        """A node of the device tree with the device at ``path``; ``links`` name others by their phandles."""
        place = self.root / f"{_BASE}/{name}".lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        if phandle:
            (place / "phandle").write_bytes(struct.pack(">I", phandle))
        for key, number in links.items():
            (place / key.replace("_", "-")).write_bytes(struct.pack(">I", number))
        self.link(f"{path}/of_node", f"{_BASE}/{name}")

    def fpga_manager(
        self, parent: str, number: int, name: str, state: str = "operating", *, firmware: bool = False
    ) -> str:
        """A manager below the device ``parent``; its ``sys_path``."""
        files = {"name": name, "state": state}
        if firmware:
            files |= {"firmware": "", "flags": "0", "key": ""}
        return self.device(f"{parent}/fpga_manager/fpga{number}", "fpga_manager", files=files)

    def fpga_region(self, parent: str, number: int, compat_id: str = "") -> str:
        """A region below the device ``parent``; its ``sys_path``."""
        files = {"compat_id": compat_id} if compat_id else {}
        return self.device(f"{parent}/fpga_region/region{number}", "fpga_region", files=files)

    def fpga_bridge(self, parent: str, number: int, name: str, state: str = "enabled") -> str:
        """A bridge below the device ``parent``; its ``sys_path``."""
        return self.device(
            f"{parent}/fpga_bridge/br{number}", "fpga_bridge", files={"name": name, "state": state}
        )

    def uio(self, parent: str, number: int) -> str:
        """A platform device with a uio node, as an overlay brings it; the ``sys_path`` of the latter."""
        self.device(parent, "platform", DRIVER="uio_pdrv_genirq")
        return self.device(f"{parent}/uio/uio{number}", "uio", f"uio{number}", f"247:{number}")


def kria_kv260(root: Path) -> KernelTree:
    """A Kria KV260 with Xilinx's kernel and an application's overlay: zocl, the manager and its region."""
    tree = KernelTree(root)
    parent = "platform/firmware:zynqmp-firmware/firmware:zynqmp-firmware:pcap"
    tree.device(parent, "platform", DRIVER="zynqmp_fpga_manager")
    tree.fpga_manager(parent, 0, "Xilinx ZynqMP FPGA Manager", firmware=True)
    tree.of_node(f"/sys/devices/{parent}", "firmware/zynqmp-firmware/pcap", 0x0E)
    tree.device("platform/fpga-full", "platform", DRIVER="of-fpga-region")
    region = tree.fpga_region("platform/fpga-full", 0)
    tree.of_node(region, "fpga-full", fpga_mgr=0x0E)
    tree.device("platform/axi", "platform")
    zocl = tree.device("platform/axi/axi:zyxclmm_drm", "platform", DRIVER="zocl-drm")
    tree.render(zocl)
    tree.device("platform/axi/fd4a0000.display", "platform", DRIVER="zynqmp-dpsub")
    tree.render("/sys/devices/platform/axi/fd4a0000.display")
    return tree


def zynq(root: Path, *, firmware: bool = False) -> KernelTree:
    """A Zynq-7000 with a mainline kernel: a region with two uio devices, and a bridge before it."""
    tree = KernelTree(root)
    tree.device("platform/axi", "platform")
    parent = "platform/axi/f8007000.devcfg"
    tree.device(parent, "platform", DRIVER="zynq_fpga")
    tree.fpga_manager(parent, 0, "Xilinx Zynq FPGA Manager", firmware=firmware)
    tree.of_node(f"/sys/devices/{parent}", "axi/devcfg@f8007000", 0x11)
    tree.device("platform/43c10000.decoupler", "platform", DRIVER="xlnx-pr-decoupler")
    bridge = tree.fpga_bridge("platform/43c10000.decoupler", 0, "xlnx,pr-decoupler")
    tree.of_node(bridge, "decoupler@43c10000", 0x12)
    tree.device("platform/fpga-region", "platform", DRIVER="of-fpga-region")
    region = tree.fpga_region("platform/fpga-region", 0)
    tree.of_node(region, "fpga-region", 0x13, fpga_mgr=0x11, fpga_bridges=0x12)
    tree.uio("platform/fpga-region/43c00000.filter", 0)
    tree.uio("platform/fpga-region/43c40000.scaler", 1)
    return tree


def ice40(root: Path) -> KernelTree:
    """A small FPGA on SPI, with no region, beside one that its driver has a character device for."""
    tree = KernelTree(root)
    tree.device("platform/soc/spi0.0", "spi", DRIVER="ice40-spi")
    tree.fpga_manager("platform/soc/spi0.0", 0, "Lattice iCE40 FPGA Manager", "operating")
    tree.device("platform/soc/spi1.0", "spi", DRIVER="xlnx-slave-spi")
    tree.fpga_manager("platform/soc/spi1.0", 1, "Xilinx Slave Serial FPGA Manager", "unknown")
    tree.device("platform/soc/spi1.0/misc/mychip0", "misc", "mychip0", "10:99")
    return tree


def cvp(root: Path) -> KernelTree:
    """An Altera card on PCI that is configured over the bus, with a driver's node on the same function."""
    tree = KernelTree(root)
    path = tree.function("0000:65:00.0", "1172:e003", "altera-cvp", below="0000:64:00.0", numa_node=1)
    parent = path.removeprefix("/sys/devices/")
    tree.fpga_manager(parent, 0, "Altera CvP FPGA Manager @0000:65:00.0", "operating")
    tree.device(f"{parent}/misc/mycard0", "misc", "mycard0", "10:77")
    return tree


def nested(root: Path) -> KernelTree:
    """A socfpga with a static region and two partial ones in it, each with its own device."""
    tree = KernelTree(root)
    tree.device("platform/soc/ff706000.fpgamgr", "platform", DRIVER="socfpga_fpgamgr")
    tree.fpga_manager("platform/soc/ff706000.fpgamgr", 0, "Altera SOCFPGA FPGA Manager")
    tree.of_node("/sys/devices/platform/soc/ff706000.fpgamgr", "soc/fpgamgr@ff706000", 0x21)
    base = "platform/soc:base-region"
    tree.device(base, "platform", DRIVER="of-fpga-region")
    tree.of_node(tree.fpga_region(base, 0), "soc/base-region", 0x22, fpga_mgr=0x21)
    tree.uio(f"{base}/ff200000.static", 0)
    for number, name in ((1, "c0000000.pr"), (2, "c0010000.pr")):
        inner = f"{base}/fpga_region/region0/{name}"
        tree.device(inner, "platform", DRIVER="of-fpga-region")
        region = tree.fpga_region(inner, number)
        tree.of_node(region, f"soc/base-region/{name}", 0x22 + number)
        tree.uio(f"{inner}/{name}.persona", number)
    return tree
