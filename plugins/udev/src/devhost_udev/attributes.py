"""What a configuration can say of a device node: every attribute with its type, meaning and example."""

from __future__ import annotations

from devhost.backend import Attribute

ATTRIBUTES = {
    "subsystem": Attribute(str, "kernel subsystem", "tty"),
    "sysName": Attribute(str, "the kernel's name of the device", "ttyUSB0"),
    "devNode": Attribute(str, "path of the device node", "/dev/ttyUSB0"),
    "devLinks": Attribute(
        list, "symbolic links that udevd made to the node", ("/dev/serial/by-id/usb-FTDI_A10B-if00-port0",)
    ),
    "devType": Attribute(str, "kind of device within its subsystem: disk, partition, usb_device", "disk"),
    "driver": Attribute(str, "driver of the device, else of the nearest thing it hangs on", "nvme"),
    "sysPath": Attribute(str, "directory in sysfs", "/sys/devices/virtual/misc/fuse"),
    "major": Attribute(int, "major device number", 188),
    "minor": Attribute(int, "minor device number", 0),
    "idVendor": Attribute(str, "USB vendor id", "1a86", hex=True),
    "idProduct": Attribute(str, "USB product id", "7523", hex=True),
    "usbInterface": Attribute(str, "number of the USB interface the device belongs to", "00", hex=True),
    "usbPort": Attribute(str, "USB port: controller, then ports from its root hub", "0000:00:14.0-usb1.4"),
    "serial": Attribute(str, "serial number of the USB device, disk or controller", "A10B"),
    "vendor": Attribute(str, "maker, as the device says it (USB, SCSI)", "FTDI"),
    "model": Attribute(str, "model, as the device says it (USB, SCSI, NVMe)", "FT232R USB UART"),
    "wwid": Attribute(str, "world-wide id of a disk", "eui.0025385b91b1a2c3"),
    "partition": Attribute(int, "number of the partition; whole disks have none", 1),
    "system": Attribute(
        bool,
        "whether a disk or partition carries what the node itself runs on; absent where that cannot be told",
        False,
    ),
    "pciBusID": Attribute(str, "address of the PCI function the device hangs on", "0000:3b:00.0", hex=True),
    "pciVendor": Attribute(str, "vendor id of that PCI function", "10ee", hex=True),
    "pciDevice": Attribute(str, "device id of that PCI function", "5004", hex=True),
    "numaNode": Attribute(int, "NUMA node the device is near", 0),
    "group": Attribute(str, "name of the configured group; single nodes have none", "onload", reveals=True),
    "alternative": Attribute(int, "which of the groups with this name it is, in file order from 0", 0),
    "members": Attribute(list, "paths of the nodes in a group", ("/dev/onload", "/dev/onload_epoll")),
    "ID_*": Attribute(str, "property that udevd's rules gave; absent where udevd does not run", "usb"),
    "sysattr.*": Attribute(
        str, "text file in the device's sysfs directory: sysattr.size, sysattr.queue/rotational", "0"
    ),
}
"""The declaration of the backend's attributes."""

PROPERTY_FAMILY = "ID_"
SYSATTR_FAMILY = "sysattr."

OF_GROUPS = ("group", "alternative", "members")
"""What only groups have; their other attributes are those of their first node."""

EVERYTHING = "*"
"""In ``context.wanted``: all attributes, as ``devhost discover`` and ``explain`` ask."""

SHOWN = ("size", "ro", "removable", "queue/rotational", "name", "index", "device/model", "device/name")
"""The sysfs files read when everything is asked for; reading unknown ones may set things off."""
