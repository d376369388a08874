"""Machines with XRT cards, as the files that the drivers create.

What is where was taken from XRT's sources (src/runtime_src/core/pcie/driver/linux/xocl), 2018.3 to 2023:

- ``user_pf``, ``ready``, ``dev_offline``, ``logic_uuids``, ``interface_uuids``: userpf/xocl_sysfs.c. Of
  these, only ``user_pf`` stays across a hot reset.
- ``mgmt_pf``, ``instance``, ``ready``, ``dev_offline``: mgmtpf/mgmt-sysfs.c; the node ``xclmgmt<n>`` of class
  ``xrt_mgmt``, whose number is the function's address: mgmtpf/mgmt-core.c.
- Parts are platform devices below the function, ``<part>.u.<n>`` and ``<part>.m.<n>``: xocl_subdev.c, which
  also names the nodes of class ``xrt_user``: ``xfpga/<part>.u.<function>.<index>``.
- ``rom``, ``firewall``, ``mig``, ``xmc``: subdev/{feature_rom,firewall,mig,xmc}.c.
- Shells and serial numbers are like those that Xilinx prints in its manuals (``xbutil examine``).
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

U250, U250_MANAGEMENT = "10ee:5005", "10ee:5004"
U280, U280_MANAGEMENT = "10ee:500d", "10ee:500c"
U30, U30_MANAGEMENT = "10ee:513d", "10ee:513c"
VCK5000, VCK5000_MANAGEMENT = "10ee:5045", "10ee:5044"
F1 = "1d0f:f010"
V80 = "10ee:50b4"
MA35D = "10ee:5070"

U30_SHELL = "xilinx_u30_gen3x4_base_1"
U250_SHELL = "xilinx_u250_gen3x16_xdma_shell_3_1"
LOGIC = "12c8fafb-0632-499d-b1c0-c6676271b8a6"
INTERFACE = "d02e4a1e-6b52-4a0d-9c1a-6ab1f2b7ff3a"


class XrtTree(Tree):
    """A machine with cards of XRT's."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._parts = 28672

    def function(self, address: str, ids: str, driver: str = "", **facts: Any) -> str:
        """An accelerator with a configuration space; its ``sys_path``."""
        vendor, _, device = ids.partition(":")
        board = {"subsystem": f"{vendor}:000e", "pci_class": "0x120000"}
        made = super().function(address, ids, driver, **board | facts)
        header = bytes.fromhex(vendor)[::-1] + bytes.fromhex(device)[::-1] + bytes(60)
        (self.root / made.lstrip("/") / "config").write_bytes(header)
        return made

    def part(self, path: str, part: str, /, **files: str) -> str:
        """A part of a card, with its attributes; its ``sys_path``."""
        self._parts += 1
        return self.device(
            f"{path.removeprefix('/sys/devices/')}/{part}.{self._parts}", "platform", files=files, DRIVER=part
        )

    def user(
        self,
        path: str,
        shell: str = U250_SHELL,
        timestamp: str = "0",
        serial: str = "2130048AK02K",
        logic: str = LOGIC,
        interface: str = INTERFACE,
        sensors: str = "xmc",
    ) -> str:
        """What xocl makes of a user function; the ``sys_path`` of its render node."""
        self.file(f"{path}/user_pf")
        self.file(f"{path}/ready", "0x1")
        self.file(f"{path}/dev_offline", "0")
        if logic:
            self.file(f"{path}/logic_uuids", logic)
            self.file(f"{path}/interface_uuids", interface)
        self.part(path, "rom.u", VBNV=shell, timestamp=timestamp)
        if serial:
            self.part(path, f"{sensors}.u", serial_num=serial)
        return self.render(path)

    def render(self, path: str) -> str:
        """The DRM nodes of a device; the ``sys_path`` of the render node."""
        # the lowest free one (drm_minor_alloc), so after a reset that of before
        taken = {node.name for node in (self.root / "dev/dri").glob("renderD*")}
        number = next(n for n in itertools.count(128) if f"renderD{n}" not in taken)
        base = path.removeprefix("/sys/devices/")
        card = number - 128
        self.device(f"{base}/drm/card{card}", "drm", f"dri/card{card}", f"226:{card}", DEVTYPE="drm_minor")
        name = f"renderD{number}"
        return self.device(f"{base}/drm/{name}", "drm", f"dri/{name}", f"226:{number}", DEVTYPE="drm_minor")

    def manager(self, path: str, number: int, serial: str = "2130048AK02K", sensors: str = "xmc") -> str:
        """What xclmgmt makes of a management function; the ``sys_path`` of its node."""
        self.file(f"{path}/mgmt_pf")
        self.file(f"{path}/instance", str(number))
        self.file(f"{path}/ready", "1")
        self.file(f"{path}/dev_offline", "0")
        self.part(path, "firewall.m", status="0", level="18446744073709551615")
        self.part(path, f"{sensors}.m", serial_num=serial, xmc_fpga_temp="41")
        self.part(path, "mig.m", name="bank0", ecc_status="0")
        base = path.removeprefix("/sys/devices/")
        return self.device(
            f"{base}/xrt_mgmt/xclmgmt{number}", "xrt_mgmt", f"xclmgmt{number}", f"240:{number}"
        )

    def queue(self, path: str, function: int) -> str:
        """The node of a shell with QDMA; its ``sys_path``."""
        part = self.part(path, "dma.qdma.u").removeprefix("/sys/devices/")
        name = f"dma.qdma.u.{function}.0"
        return self.device(
            f"{part}/xrt_user/xfpga!{name}", "xrt_user", f"xfpga/{name}", f"241:{function % 256}"
        )

    def reset_begins(self, path: str) -> None:
        """What is left of a user function while its card is being reset: ``user_pf`` and the driver."""
        place = self.root / path.lstrip("/")
        for name in ("ready", "dev_offline", "logic_uuids", "interface_uuids"):
            (place / name).unlink(missing_ok=True)
        for inner in [*place.glob("*.u.*"), *place.glob("drm/*")]:
            if (inner / "uevent").exists():
                self.remove("/" + str(inner.relative_to(self.root)))
        shutil.rmtree(place / "drm", ignore_errors=True)

    def dies(self, path: str) -> None:
        """The link of a function is gone: all of its configuration space reads as ones."""
        (self.root / path.lstrip("/") / "config").write_bytes(b"\xff" * 64)


def alveo_u250(root: Path) -> XrtTree:
    """One U250 with its two functions, near NUMA node 1."""
    tree = XrtTree(root)
    manager = tree.function("0000:3b:00.0", U250_MANAGEMENT, "xclmgmt", below="0000:3a:00.0", numa_node=1)
    user = tree.function("0000:3b:00.1", U250, "xocl", below="0000:3a:00.0", numa_node=1)
    tree.manager(manager, 15104)
    tree.user(user)
    return tree


def alveo_u280(root: Path) -> XrtTree:
    """Two U280, one with a QDMA shell, and a Xilinx network adapter, which XRT does not drive."""
    tree = XrtTree(root)
    for bus, number, shell, serial in (
        ("af", 44800, "xilinx_u280_gen3x16_xdma_base_1", "21770205K01Y"),
        ("d8", 55296, "xilinx_u280_gen3x16_qdma_base_1", "21770205K02A"),
    ):
        manager = tree.function(f"0000:{bus}:00.0", U280_MANAGEMENT, "xclmgmt", numa_node=1)
        user = tree.function(f"0000:{bus}:00.1", U280, "xocl", numa_node=1)
        tree.manager(manager, number, serial)
        tree.user(user, shell, serial=serial)
        if "qdma" in shell:
            tree.queue(user, number + 1)
    tree.function("0000:5e:00.0", "10ee:903f", "onic")
    return tree


def alveo_u30(root: Path) -> XrtTree:
    """A U30: two FPGAs on one card, with one serial number."""
    tree = XrtTree(root)
    for bus in ("21", "22"):
        u30_fpga(tree, bus, "XFL1YV0M20E0")
    return tree


def u30_fpga(tree: XrtTree, bus: str, serial: str) -> str:
    """One FPGA of a U30; the ``sys_path`` of its user function."""
    manager = tree.function(f"0000:{bus}:00.0", U30_MANAGEMENT, "xclmgmt")
    user = tree.function(f"0000:{bus}:00.1", U30, "xocl")
    tree.manager(manager, int(bus, 16) << 8, serial)
    tree.user(user, U30_SHELL, serial=serial, logic="")
    return user


def vck5000(root: Path) -> XrtTree:
    """A Versal: its serial number comes from the sensors' part, as with the V70."""
    tree = XrtTree(root)
    manager = tree.function("0000:81:00.0", VCK5000_MANAGEMENT, "xclmgmt", numa_node=-1)
    user = tree.function("0000:81:00.1", VCK5000, "xocl", numa_node=-1)
    tree.manager(manager, 33024, "XFL1TESTVCK5", "hwmon_sdm")
    tree.user(user, "xilinx_vck5000_gen4x8_qdma_base_2", serial="XFL1TESTVCK5", sensors="hwmon_sdm")
    return tree


def aws_f1(root: Path) -> XrtTree:
    """A virtual machine at Amazon: two user functions alone, beside a disk and an adapter of Amazon's."""
    tree = XrtTree(root)
    for device in ("0f", "11"):
        user = tree.function(f"0000:00:{device}.0", F1, "xocl", numa_node=-1)
        tree.user(user, "xilinx_aws-vu9p-f1_shell-v04261818_201920_3", "0", serial="", logic="")
    tree.function("0000:00:05.0", "1d0f:ec20", "ena")
    tree.function("0000:00:1f.0", "1d0f:8061", "nvme")
    return tree


def v80(root: Path) -> XrtTree:
    """An Alveo V80 with AMD's AMI driver (sysfs attributes: ami_sysfs.c of AVED)."""
    tree = XrtTree(root)
    path = tree.function("0000:c1:00.0", V80, "ami")
    for name, text in {
        "dev_state": "READY",
        "dev_name": "ALVEO V80 PQ",
        "logic_uuid": LOGIC.replace("-", ""),
        "board_serial": "XFL1V80TEST0",
    }.items():
        tree.file(f"{path}/{name}", text)
    tree.device("virtual/ami/ami0", "ami", "ami0", "242:0")
    return tree


def ma35d(root: Path) -> XrtTree:
    """One MA35D: two transcoders, with misc devices that have no parent (driver ``ama_transcoder``)."""
    tree = XrtTree(root)
    for number, bus in enumerate(("03", "04")):
        tree.function(f"0000:{bus}:00.0", MA35D, "ama_transcoder")
        name = f"ama_transcoder{number}"
        info = "Product name = Alveo MA35D\nProduct serial number = XFL1MA35D001\nPCIe device ID = 0x5070"
        files = {"bus_id": f"0000:{bus}:00.0", "device_info": info}
        tree.device(f"virtual/misc/{name}", "misc", name, f"10:{120 + number}", files)
    return tree
