"""The attributes of a device node that a configuration can use, with their types, meanings and examples."""

from __future__ import annotations

from devhost.backend import Attribute

ATTRIBUTES = {
    "subsystem": Attribute(str, "kernel subsystem", "tty", plain=True),
    "sysName": Attribute(str, "the kernel's name of the device", "ttyUSB0", plain=True),
    "devNode": Attribute(
        str,
        "path of the device node, or in `where` any symbolic link to it",
        "/dev/ttyUSB0",
        begins="/dev/",
        also="devLinks",
    ),
    "devLinks": Attribute(
        list, "symbolic links to the node", ("/dev/serial/by-id/usb-FTDI_A10B-if00-port0",), begins="/dev/"
    ),
    "devType": Attribute(
        str, "kind of device within its subsystem: disk, partition, usb_device", "disk", plain=True
    ),
    "driver": Attribute(
        str,
        "driver of the device, else of the nearest above it, up to its USB device or PCI function",
        "nvme",
        plain=True,
    ),
    "sysPath": Attribute(str, "directory in sysfs", "/sys/devices/virtual/misc/fuse", begins="/sys/"),
    "major": Attribute(int, "major device number", 188),
    "minor": Attribute(int, "minor device number", 0),
    "idVendor": Attribute(str, "USB vendor id", "1a86", hex=True),
    "idProduct": Attribute(str, "USB product id", "7523", hex=True),
    "usbInterface": Attribute(str, "number of the USB interface that the device belongs to", "00", hex=True),
    "usbPort": Attribute(
        str,
        "USB port: controller, `usb` or `ss` (SuperSpeed side), then ports from its root hub",
        "0000:00:14.0-usb1.4",
    ),
    "serial": Attribute(str, "serial number that the USB device, disk or controller itself reports", "A10B"),
    "vendor": Attribute(str, "vendor name that the device reports (USB, SCSI)", "FTDI"),
    "model": Attribute(str, "model name that the device reports (USB, SCSI, NVMe)", "FT232R USB UART"),
    "wwid": Attribute(str, "world-wide id of a disk", "eui.0025385b91b1a2c3"),
    "partition": Attribute(int, "number of the partition; whole disks have none", 1),
    "system": Attribute(
        bool,
        "whether the node itself uses a disk or partition; absent if that cannot be determined",
        False,
    ),
    "pciBusID": Attribute(
        str,
        "address of the PCI function that the device is part of or connected to (USB: the controller)",
        "0000:3b:00.0",
        hex=True,
    ),
    "pciVendor": Attribute(str, "vendor id of that PCI function", "10ee", hex=True),
    "pciDevice": Attribute(str, "device id of that PCI function", "5004", hex=True),
    "mdevUUID": Attribute(
        str,
        "UUID of the mediated device that a vfio node gives access to",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
    ),
    "numaNode": Attribute(int, "NUMA node near the device", 0),
    "group": Attribute(str, "name of the configured group; single nodes have none", "onload", reveals=True),
    "alternative": Attribute(int, "number of the group among those with its name, in file order from 0", 0),
    "members": Attribute(list, "paths of the nodes in a group", ("/dev/onload", "/dev/onload_epoll")),
    "ID_*": Attribute(str, "property from udevd's rules; absent if udevd does not run", "usb"),
    "sysattr.*": Attribute(
        str, "text file in the device's sysfs directory: sysattr.size, sysattr.queue/rotational", "0"
    ),
}
"""The attributes of the backend."""

LINKS = "devLinks"

NUMBER = "number"
"""The placeholder for the last number in the name of a node."""

PROPERTY_FAMILY = "ID_"
SYSATTR_FAMILY = "sysattr."

OF_GROUPS = ("group", "alternative", "members")
"""Attributes that only groups have; their other attributes are those of their first node."""

OF_NODES = {name: one for name, one in ATTRIBUTES.items() if name not in OF_GROUPS}
"""Attributes that single nodes have."""

EVERYTHING = "*"
"""In ``context.wanted``: all attributes, which ``devhost discover`` and ``explain`` request."""

SHOWN = ("size", "ro", "removable", "queue/rotational", "name", "index", "device/model", "device/name")
"""The sysfs files that are read if all attributes are requested; reading unknown ones may have side
effects."""
