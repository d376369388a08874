"""The backend keeps the promises that every backend must keep, alone and with groups configured."""

from __future__ import annotations

from pathlib import Path

from devhost_testing.contract import BackendContract
from devhost_testing.trees import Tree
from devhost_udev import Udev
from devhost_udev.options import Group, Member, UdevOptions


class TestUdev(BackendContract):
    backend = Udev

    def tree(self, root: Path) -> None:
        tree = Tree(root)
        tree.device("virtual/misc/fuse", "misc", "fuse", "10:229")
        tree.pci("pci0000:3a/0000:3a:00.0", driver="pcieport")
        tree.pci("pci0000:3a/0000:3a:00.0/0000:3b:00.0", driver="nvme", numa_node=1)
        disk = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/nvme/nvme0/nvme0n1"
        tree.device(disk, "block", "nvme0n1", "259:0", {"wwid": "eui.0025385b91b1a2c3"}, DEVTYPE="disk")
        tree.device(
            f"{disk}/nvme0n1p1", "block", "nvme0n1p1", "259:1", {"partition": "1"}, DEVTYPE="partition"
        )
        for number in range(2):  # twins without a serial number
            hub = f"pci0000:00/0000:00:14.0/usb1/1-{number + 1}"
            tree.device(hub, "usb", files={"idVendor": "1a86", "idProduct": "7523"}, DEVTYPE="usb_device")
            tty = f"{hub}/1-{number + 1}:1.0/ttyUSB{number}/tty/ttyUSB{number}"
            tree.device(tty, "tty", f"ttyUSB{number}", f"188:{number}")
        tree.udev_record("c10:229", "E:ID_FAKE=1")


class TestUdevWithGroups(TestUdev):
    options = UdevOptions(
        (
            Group("serial", (Member("/dev/ttyUSB*", permissions="rwm"),)),
            Group("both", (Member("/dev/fuse"), Member("/dev/absent", optional=True))),
        )
    )
