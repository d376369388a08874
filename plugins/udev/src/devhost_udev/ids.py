"""The id of each device node, made only from facts about the hardware.

An id consists of the subsystem, the hardware, and the kernel's name for the device on that hardware::

    tty-1a86:7523-A10B-00          USB vendor:product, serial number, interface
    video4linux-046d:0825-0000:00:14.0-usb1.4-00-1     no serial number: the port; the node with index 1
    block-eui.0025385b91b1a2c3-part1                   world-wide id, partition
    drm-0000:3b:00.0-renderD       PCI address
    dsa-0000:6a:01.0-wq0.1         PCI address, queue
    misc-fuse, block-zram0         only a name

An id never depends on the order of discovery or on an earlier scan. It depends on another device only if two
USB devices with the same serial number are plugged in: then both ids contain the port. Other devices with the
same id get different names for display only, and none of them is offered: :func:`apart`.

Numbers that the kernel assigns in the order in which devices appear (``ttyUSB0``, ``video4``, ``hidraw2``)
may belong to another device after a reboot. They are part of an id only if nothing better exists.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from devhost.backend import AttributeValue
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID
from devhost.backend.sysfs import BDF

from .sysfs import Kobject, SysTree, is_counted, names_before
from .usb import Usb

_ILLEGAL = re.compile(r"[^A-Za-z0-9._:-]+")

RANKS = ".*"
"""The end of a former id that may be followed by any rank, see ``Device.former_ids``."""


@frozen(slots=True)
class Name:
    """An id, and the ids that earlier versions may have given the device.

    ``former`` are texts of any length, as in ``Device.former_ids``. ``serial`` is the serial number or
    world-wide id that the id contains (empty if it contains a place), ``place`` is where that hardware is
    plugged in. ``placed`` is the id with the place, for USB hardware with a serial number: it is used while
    another device has the same number.
    """

    id: str
    former: tuple[str, ...] = ()
    serial: str = ""
    place: str = ""
    placed: str = ""


def legal(text: str) -> str:
    """``text`` as part of an id: other characters become ``_``, and it starts with a letter or digit."""
    return _ILLEGAL.sub("_", text).strip("._:-")


def joined(*parts: str) -> str:
    """The parts that are not empty as one text of any length."""
    return legal("-".join(filter(None, parts))) or "device"


def fit(text: str) -> str:
    """``text`` if it is short enough for an id, else its beginning and eight hex digits of its hash."""
    if len(text) <= MAX_DEVICE_ID:
        return text
    return f"{text[: MAX_DEVICE_ID - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def ranked(*texts: str) -> tuple[str, ...]:
    """Former ids of devices that were distinguished by rank: each text, and each with any rank."""
    return tuple(form for text in dict.fromkeys(texts) for form in (text, text + RANKS))


def apart(name: str, node: str) -> str:
    """The name for display of a device whose id another device has, too; ids never contain ``@``."""
    return fit(f"{name}@{legal(node.removeprefix('/dev/'))}")


_DUD_SERIALS = re.compile(
    r"(.)\1*|(SN)?0*[0-9]{1,2}|0?123456789(0|ABC|ABCDEF)?|200901010001", re.ASCII | re.IGNORECASE
)
"""Serial numbers that vendors leave in by mistake, or count from one: they do not identify a device."""

_NAMESPACE = re.compile(r"n([0-9]+)(?:p[0-9]+)?$")
_FIRST_NUMBER = re.compile(r"[0-9]+")
_MMC_AREA = re.compile(r"mmcblk[0-9]+(boot[0-9]+|gp[0-9]+)")
_RECEIVER_SLOT = re.compile(r"/input[0-9]+:(\w+)$")

_ALONE = frozenset(
    {
        ("accel", "accel"),
        ("accel", "accel_controlD"),
        ("apex", "apex_"),
        ("dlb2", "dlb"),
        ("drm", "card"),
        ("drm", "controlD"),
        ("drm", "renderD"),
        ("hailo_chardev", "hailo"),
        ("media", "media"),
        ("mei", "mei"),
        ("ptp", "ptp"),
        ("remoteproc", "remoteproc"),
        ("vfio-dev", "vfio"),
    }
)
"""Subsystem and name, without its number, of nodes of which a driver creates one per device
(drivers/gpu/drm/drm_drv.c, drivers/accel/drm_accel.c, drivers/misc/mei/main.c, drivers/vfio/vfio_main.c)."""

_STRUCTURED = frozenset({"sound", "virtio-ports"})
"""Subsystems whose names are unique except for the number of the card: ``pcmC0D1p``, ``vport0p1``."""

_PASSED = frozenset({"drm", "hid", "input", "pci", "scsi", "usb", "usb-serial", "virtio"})
"""Subsystems of parents whose names contain a number that the kernel assigns; other facts are better."""

_NUMBERED_I2C = re.compile(r"i2c-[0-9]+|[0-9]+-[0-9a-f]{4}")

_ADDRESSED = frozenset({"acpi", "amba", "of_platform", "platform", "pnp", "vmbus"})
"""Buses outside PCI and USB on which the firmware names the devices."""

_ON_ADDRESSED = frozenset({"accel", "drm", "hidraw", "input", "media", "remoteproc", "video4linux"})
"""Subsystems whose numbers there depend on the order of probing. Those of others (``ttyS0``, ``i2c-1``,
``spidev0.0``) come from the firmware: aliases of the device tree, or addresses."""

_MAJORS = {"c10": "misc", "c116": "sound"}
"""The subsystems of major numbers (``Documentation/admin-guide/devices.txt``)."""

_STATIC = frozenset({"", "infiniband", "mapper", "net", "snd", "vfio"})
"""Directories of ``/dev`` with nodes that exist before their module is loaded (``modules.devname``)."""

_BY_PATH = frozenset({"c108:0"})
"""``/dev/ppp``: exists before its module is loaded (``modules.devname``), when its subsystem is unknown."""


class Hardware(NamedTuple):
    """The hardware of a device.

    ``serial`` is the serial number or world-wide id in ``label``; empty if ``label`` is a place. ``former``
    are the labels that earlier versions used, ``place`` is the place of hardware with a serial number.
    """

    label: str
    former: tuple[str, ...] = ()
    serial: str = ""
    place: str = ""


class Stem(NamedTuple):
    """The part of an id that distinguishes the nodes of the same hardware and is the same in all versions.

    ``interface`` is the USB interface. ``kind`` is the kernel's name without its number, if that is not the
    subsystem's, or the partition. ``number`` is the kernel's number within the parent, empty for the first.
    """

    interface: str = ""
    kind: str = ""
    number: str = ""


class Namer:
    """Names devices.

    ``shared`` are serial numbers and world-wide ids that several devices have; these devices are named by
    place.
    """

    def __init__(self, tree: SysTree, shared: Collection[str] = ()) -> None:
        self._tree = tree
        self._shared = frozenset(shared)

    def name(
        self,
        key: str,
        node: str,
        chain: Sequence[Kobject],
        found: Mapping[str, AttributeValue],
        usb: Usb | None,
        address: str,
    ) -> Name:
        """The name of the device with this key (``c10:229``) and node.

        ``chain`` is the device and its ancestors, nearest first, ``address`` that of its PCI function.
        """
        kind, plain = chain[0].subsystem, chain[0].name.replace("/", "-")
        hardware = self._hardware(chain, found, usb, address)
        if not hardware.label:
            return _by_name(key, node, kind, plain)
        stem = self._stem(chain, found, usb)
        siblings = self._siblings(chain, usb, hardware)
        if siblings is None:
            own = chain[0].name.rpartition("/")[2] if kind == "dsa" else plain
            below: tuple[str, ...] = (stem.interface, own)
        elif _is_storage(chain[0]):  # the disk, then its partition
            below = (stem.interface, *siblings, stem.kind)
        else:
            below = (*stem, *siblings)
        parts = (kind, hardware.label, *below)
        text = joined(*parts)
        is_usb = usb is not None and bool(usb.vendor)
        placed = joined(kind, hardware.label, hardware.place, *below) if is_usb and hardware.serial else ""
        former = [joined(kind, label, *stem) for label in hardware.former] or [joined(kind, plain)]
        if is_usb:  # some earlier versions had only the stem below the hardware
            former += [joined(kind, label, *below) for label in hardware.former]
        former += self._counted(chain, parts)
        return Name(
            fit(text),
            ranked(*(one for one in former if one != text)),
            hardware.serial,
            hardware.place,
            fit(placed) if placed else "",
        )

    def _counted(self, chain: Sequence[Kobject], parts: Sequence[str]) -> Iterator[str]:
        """The ids with counted names, as earlier versions had them, see :meth:`.SysTree.stable_name`."""
        for kobject in chain[1:]:
            if is_counted(kobject.name):
                stable = {self._tree.cell_name(kobject.path), self._tree.stable_name(kobject.path)}
                if stable.intersection(parts):
                    for before in names_before(kobject.name):
                        yield joined(*(before if part in stable else part for part in parts))

    def _hardware(
        self, chain: Sequence[Kobject], found: Mapping[str, AttributeValue], usb: Usb | None, address: str
    ) -> Hardware:
        former: tuple[str, ...]
        if usb is not None and usb.vendor:
            by_place = f"{usb.model}-{usb.place}"
            places = tuple(dict.fromkeys((usb.place, *usb.former_ports)))
            by_places = tuple(f"{usb.model}-{place}" for place in places)
            if not usb.serial:
                return Hardware(by_place, by_places)
            # earlier versions added the port where two devices with one serial number were plugged in
            by_serial = f"{usb.model}-{usb.serial}"
            former = (by_serial, *(f"{by_serial}-{place}" for place in places))
            if is_counted(usb.serial):  # that of a root hub is the kernel's name of its controller
                former = tuple(f"{usb.model}-{serial}" for serial in names_before(usb.serial))
            elif usb.serial not in self._shared and not _DUD_SERIALS.fullmatch(usb.serial):
                return Hardware(by_serial, former, usb.serial, usb.place)
            return Hardware(by_place, (*by_places, *former))
        disk = disk_of(chain)
        mapped = self._tree.read(disk.path, "dm/name") if disk.subsystem == "block" else ""
        if mapped:
            return Hardware(f"dm-{mapped}", (f"dm-{mapped}",))
        unit = _scsi_unit(chain)
        wwid, serial = str(found.get("wwid", "")), str(found.get("serial", ""))
        # for namespaces without a wwid the kernel makes one of 80 characters, "nvme.…"
        known = serial if wwid.startswith("nvme.") or not wwid else wwid
        place = "-".join(filter(None, (address, _position(unit)))) or disk.name
        if known:
            former = (known, f"{known}-{place}")
        else:
            former = (address,) if address else ()
            known = self._tree.read(unit.path, "wwid") if unit else ""
        if known and known not in self._shared:
            return Hardware(known, former, known, place)
        return Hardware(address, former) if address else self._elsewhere(chain)

    def _elsewhere(self, chain: Sequence[Kobject]) -> Hardware:
        """The hardware of a device that is neither on USB nor on PCI; without a label if it is unknown."""
        hid = next((k for k in chain[1:] if k.subsystem == "hid"), None)
        if hid is not None and (unique := hid.properties.get("HID_UNIQ", "")):
            return Hardware(f"{_hid_model(hid)}-{unique}", serial=unique)  # over Bluetooth: its address
        if chain[0].subsystem not in _ON_ADDRESSED:
            return Hardware("")
        addressed = next((k for k in chain[1:] if k.subsystem in _ADDRESSED), None)
        return Hardware(self._tree.stable_name(addressed.path) if addressed else "")

    def _stem(self, chain: Sequence[Kobject], found: Mapping[str, AttributeValue], usb: Usb | None) -> Stem:
        device = chain[0]
        interface = usb.interface if usb is not None else ""
        if _is_storage(device):
            return Stem(interface, "-".join(_parts(chain, found, usb)))
        if device.dev_type == "usb_device":
            return Stem()
        kind = _FIRST_NUMBER.sub("", device.name, count=1)
        plain = _FIRST_NUMBER.split(kind)[0]
        if device.subsystem.startswith(plain) or plain.startswith(device.subsystem):
            kind = ""
        # ports of one USB interface, and the capture and metadata nodes of one camera
        index = self._tree.read(device.path, "index") or self._tree.read(device.path, "device/port_number")
        return Stem(interface, kind, index if index.strip("0") else "")

    def _siblings(
        self, chain: Sequence[Kobject], usb: Usb | None, hardware: Hardware
    ) -> tuple[str, ...] | None:
        """What distinguishes the device from others of its kind on the same hardware.

        ``None`` if that is only the kernel's name, whose number may change at a reboot.
        """
        device = chain[0]
        kind = device.subsystem
        if device.dev_type == "usb_device":
            return ()
        if kind == "dsa":
            return None  # dsa/wq0.1, iax/wq1.0: the name has the queue's number (drivers/dma/idxd/cdev.c)
        if _is_storage(device) or _scsi_unit(chain) is not None:
            return self._storage(chain, usb, hardware)
        slot = _slot(chain, usb)
        if kind == "input":  # one interface or sound card has several: keyboard, consumer control, …
            title = next((self._tree.read(k.path, "name") for k in chain[1:] if k.subsystem == "input"), "")
            return (*(slot or ()), title) if title else None
        if usb is not None and usb.vendor:
            if kind == "dvb" or (kind == "video4linux" and not self._tree.read(device.path, "index")):
                return None
            return slot if kind == "hidraw" else ()  # drivers create one of the others per interface
        return self._on_function(chain, hardware)

    def _storage(
        self, chain: Sequence[Kobject], usb: Usb | None, hardware: Hardware
    ) -> tuple[str, ...] | None:
        device, unit = chain[0], _scsi_unit(chain)
        area = _MMC_AREA.match(device.name)
        if area is not None:
            return (area[1],)
        if unit is None:
            return ()
        if usb is not None and usb.vendor:
            lun = unit.name.rpartition(":")[2]
            return () if _is_storage(device) or lun == "0" else (f"lun{lun}",)
        if hardware.serial:
            return ()
        host = re.search(r"/(ata[0-9]+)/", device.path)
        if host is None:
            return (_position(unit),)
        port = self._tree.read(f"{device.path[: host.end() - 1]}/ata_port/{host[1]}", "port_no")
        return (f"port{port}", _position(unit)) if port else None

    def _on_function(self, chain: Sequence[Kobject], hardware: Hardware) -> tuple[str, ...] | None:
        """The same for nodes below PCI functions and on other buses."""
        device = chain[0]
        kind = device.subsystem
        if hardware.serial or kind in _STRUCTURED or self._tree.read(device.path, "index"):
            return ()
        if kind == "tty":
            return self._serial_port(chain)
        if kind == "i2c-dev" and (title := self._tree.read(chain[1].path, "name")):
            return (title,)  # "i915 gmbus dpb": the kernel's name of the connector
        if kind == "drm_dp_aux_dev" and "-" in chain[1].name:
            return (chain[1].name.partition("-")[2],)  # card0-eDP-1
        parent = self._named_parent(chain, hardware.label)
        if parent:
            return (self._tree.cell_name(parent.path),)
        return () if (kind, _FIRST_NUMBER.sub("", device.name, count=1)) in _ALONE else None

    def _named_parent(self, chain: Sequence[Kobject], end: str) -> Kobject | None:
        """The nearest ancestor below ``end`` whose name comes from its bus: ``i915.mei-gsc.768``.

        Devices of a class, which are in a directory with the name of the class, are numbered by the kernel.
        """
        for kobject in chain[1:]:
            if end in (kobject.name, self._tree.stable_name(kobject.path)):
                return None
            is_class = kobject.path.split("/")[-2] == kobject.subsystem
            numbered = kobject.subsystem == "i2c" and _NUMBERED_I2C.fullmatch(kobject.name)
            if not (is_class or numbered or kobject.subsystem in {*_PASSED, chain[0].subsystem}):
                return kobject
        return None

    def _serial_port(self, chain: Sequence[Kobject]) -> tuple[str, ...] | None:
        """The port of a UART within its PCI function.

        Since Linux 6.5 the name of its parent ends in it: ``0000:05:00.0:0.1``. On earlier kernels it is the
        address within the function (Documentation/ABI/testing/sysfs-tty).
        """
        function = next((k for k in chain if BDF.fullmatch(k.name)), None)
        if function is None:
            return None
        for kobject in chain[1:]:
            if kobject.subsystem == "serial-base" and kobject.name.startswith(f"{function.name}:"):
                return (kobject.name.removeprefix(f"{function.name}:"),)
        for file in ("iomem_base", "port"):
            address = _number(self._tree.read(chain[0].path, file))
            if not address:
                continue
            for bar, line in enumerate(self._tree.text(f"{function.path}/resource").splitlines()):
                first, last = ([*map(_number, line.split()), 0, 0])[:2]
                if first <= address <= last:
                    return (f"bar{bar}.{address - first:x}",)
            return (f"{'mem' if file == 'iomem_base' else 'io'}{address:x}",)
        return None


def undeclared(node: str, number: str) -> Name:
    """The name of a node that is not in sysfs: if possible, the same as after its module is loaded."""
    directory, _, last = node.removeprefix("/dev/").rpartition("/")
    by_path = joined("dev", directory.replace("/", "-"), last)
    subsystem = _MAJORS.get(number.partition(":")[0])
    if subsystem is None:
        return Name(fit(by_path))
    expected = joined(subsystem, last)
    if directory in _STATIC:
        return Name(fit(expected), (by_path,) if subsystem != "misc" else ())
    return Name(fit(by_path), ranked(expected))  # a second node of a device, created by hand


def is_misc(number: str) -> bool:
    """Whether a device key is that of a miscellaneous device."""
    return _MAJORS.get(number.partition(":")[0]) == "misc"


def disk_of(chain: Sequence[Kobject]) -> Kobject:
    """The disk of a partition; any other device itself."""
    if chain[0].dev_type == "partition" and len(chain) > 1:
        return chain[1]
    return chain[0]


def _by_name(key: str, node: str, kind: str, plain: str) -> Name:
    """The name of a device without hardware, and the one before its module was loaded."""
    text, before = fit(joined(kind, plain)), undeclared(node, key).id
    if key in _BY_PATH:
        return Name(before, (text,))
    return Name(text, () if before == text or key.startswith("b") else (before,))


def _is_storage(device: Kobject) -> bool:
    return device.subsystem == "block" or device.subsystem.startswith("nvme")


def _parts(chain: Sequence[Kobject], found: Mapping[str, AttributeValue], usb: Usb | None) -> Iterator[str]:
    """Namespace, partition and logical unit of a disk."""
    namespace = _NAMESPACE.search(chain[0].name)
    if namespace and not str(found.get("wwid", "nvme.")).startswith(("eui.", "uuid.", "naa.")):
        yield f"n{namespace[1]}"
    if "partition" in found:
        yield f"part{found['partition']}"
    unit = _scsi_unit(chain)
    if usb is not None and unit is not None and not unit.name.endswith(":0"):
        yield f"lun{unit.name.rpartition(':')[2]}"


def _scsi_unit(chain: Sequence[Kobject]) -> Kobject | None:
    return next((k for k in chain if k.dev_type == "scsi_device"), None)


def _position(unit: Kobject | None) -> str:
    """Channel, target and logical unit of a SCSI device. The number of its host changes at a reboot."""
    return unit.name.partition(":")[2] if unit is not None else ""


def _slot(chain: Sequence[Kobject], usb: Usb | None) -> tuple[str, ...] | None:
    """The number of a HID device among those of one interface, such as a wireless receiver
    (hid-logitech-dj.c).

    ``None`` if the kernel does not report where the HID device is plugged in.
    """
    hid = next((k for k in chain[1:] if k.subsystem == "hid"), None)
    if hid is None or usb is None or not (where := hid.properties.get("HID_PHYS", "")):
        return None
    if slot := _RECEIVER_SLOT.search(where):
        return (slot[1],)
    model = _hid_model(hid)
    return () if model == usb.model else (model, hid.properties.get("HID_UNIQ", ""))


def _hid_model(hid: Kobject) -> str:
    """``046d:c52b`` for ``0003:046D:C52B.0004``, without the kernel's running number."""
    return hid.name.partition(".")[0].partition(":")[2].lower()


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return 0
