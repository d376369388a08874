"""The facts about one device node, read from sysfs and from udevd's record of it.

Whether the node itself uses a disk depends only on mount points that exist before any pod does, so mounts of
pods do not change it. In a container, the files that the kubelet mounts into it (``/etc/hosts`` and others)
lead to the disk with the kubelet's directory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from devhost.backend import AttributeValue, Device, claim, unhealthy
from devhost.backend.disks import disks
from devhost.backend.frozen import mutable
from devhost.backend.sysfs import BDF, Sysfs, pcie_path, prefix_of, read_lines

from .allocation import NO_USB_DEVICE, is_usb_device
from .attributes import EVERYTHING, LINKS, PROPERTY_FAMILY, SHOWN, SYSATTR_FAMILY
from .ids import Name, Namer, disk_of
from .sysfs import Kobject, SysTree
from .usb import Usb, usb_of

_MOUNTED = re.compile(
    r"/|/(boot|efi|usr|var|etc|home)(/efi)?|/var/lib(/(kubelet|containerd|docker|containers|rancher))?"
    r"|/var/lib/kubelet/device-plugins|/etc/(hosts|hostname|resolv\.conf)|/dev/termination-log"
)
"""Mount points of the node itself; the last ones are those that the kubelet adds to every container."""


def system_disks(root: Path) -> frozenset[str] | None:
    """The sysfs directories of the block devices that the node itself uses, down to the physical ones.

    ``None`` if that cannot be determined: in a recorded tree without ``/proc``, on a diskless node, in a
    container without access to its host, or with a ZFS pool, which does not name its disks.
    """
    found = disks(Sysfs(root), lambda point: _MOUNTED.fullmatch(point) is not None)
    return frozenset(found.carried) or None if found.is_complete else None


SystemDisks = Callable[[], frozenset[str] | None]


WithLinks = Callable[[str, Mapping[str, AttributeValue], Sequence[str]], dict[str, AttributeValue]]
"""Returns the attributes of a node with the links to it, given those that udevd's record has."""


@mutable(slots=True)
class Record:
    """One device node; ``sys_path`` is empty if it is not in sysfs (yet).

    ``own`` is the device with the id from its name, ``device`` how it is shown: the same, or withheld with
    another id if several devices have that name. ``links`` are the links to it according to udevd. ``absent``
    is ``device`` without its node, created when first needed and kept, so that an unchanged device is always
    the same object.
    """

    sys_path: str
    node: str
    name: Name
    own: Device
    device: Device
    links: tuple[str, ...] = ()
    absent: Device | None = None
    present: bool = True

    @property
    def seen(self) -> Device:
        """The device as it is now, healthy or not."""
        if self.present:
            return self.device
        if self.absent is None:
            self.absent = replace(self.device, health=unhealthy(f"{self.node} is missing"))
        return self.absent


class Reader:
    """Reads the facts of nodes, as far as ``wanted`` requests them."""

    def __init__(
        self,
        root: Path,
        tree: SysTree,
        namer: Namer,
        wanted: Collection[str],
        system: SystemDisks,
        with_links: WithLinks,
    ) -> None:
        self._tree = tree
        self._namer = namer
        self._prefix = prefix_of(root)
        self._system = system
        self._with_links = with_links
        everything = EVERYTHING in wanted
        self._properties = everything or any(want.startswith(PROPERTY_FAMILY) for want in wanted)
        self._links = everything or LINKS in wanted
        self._wants_system = everything or "system" in wanted
        named = {want.removeprefix(SYSATTR_FAMILY) for want in wanted if want.startswith(SYSATTR_FAMILY)}
        self._sysattrs = sorted(named.union(SHOWN if everything else ()) - {""})

    def record(self, key: str) -> Record | None:
        """The record of the device with this key (``c10:229``); ``None`` if it is gone or has no node."""
        path = self._tree.path_of(key)
        chain = self._tree.chain(path)
        if not chain or chain[0].path != path:
            return None
        device = chain[0]
        node = device.properties.get("DEVNAME", "")
        if not node:
            return None
        node = node if node.startswith("/dev/") else f"/dev/{node}"
        usb = usb_of(self._tree, chain)
        found = self._attributes(key, node, chain, usb)
        odd = {name for name, value in found.items() if value not in ("", ()) and not _is_plain(value)}
        odd |= {name for name in self._odd_hardware(chain) if not found.get(name)}
        pcie = pcie_path(_pci_source(chain))
        if pcie:
            self._add_pci(found, pcie[-1], chain)
        numa = self._numa(chain)
        if numa is not None:
            found["numaNode"] = numa
        links = found.pop(LINKS, ())
        group = self._iommu_group(chain)
        claims = _claims(node, chain, pcie, usb, group, self._functions(group, chain))
        known = links if isinstance(links, tuple) else ()
        name = self._namer.name(key, node, chain, found, usb, pcie[-1] if pcie else "")
        attributes = {name: value for name, value in found.items() if _is_plain(value)}
        own = Device(
            id=name.id,
            attributes=self._with_links(node, attributes, known),
            claims=frozenset(claims.own),
            part_of=frozenset(claims.part_of),
            numa_nodes=() if numa is None else (numa,),
            pcie_path=tuple(map(sys.intern, pcie)),
            withheld=claims.flaw,  # sysfs has a name or number that cannot be claimed
            unusable_for={} if is_usb_device(attributes) else NO_USB_DEVICE,
            former_ids=name.former,
            left_out=frozenset(odd - {LINKS}),
        )
        return Record(path, node, name, own, own, known)

    def _iommu_group(self, chain: Sequence[Kobject]) -> str:
        """The number of the IOMMU group that this node gives access to; empty if there is none.

        The node is that of the group, ``<n>`` or ``noiommu-<n>``, or that of one of its functions
        (Documentation/driver-api/vfio.rst of the Linux kernel).
        """
        if chain[0].subsystem == "vfio":
            return chain[0].name.removeprefix("noiommu-")
        if chain[0].subsystem == "vfio-dev" and len(chain) > 1:
            return self._tree.target(f"{chain[1].path}/iommu_group")
        return ""

    def _functions(self, group: str, chain: Sequence[Kobject]) -> list[str]:
        """The PCI functions of an IOMMU group, which its node gives access to; none for another node."""
        if chain[0].subsystem != "vfio" or not group.isdecimal():
            return []
        return [name for name in self._tree.names(f"{_GROUPS}/{group}/devices") if BDF.fullmatch(name)]

    def _mediated(self, chain: Sequence[Kobject]) -> str:
        """The UUID of the mediated device that a node gives access to; empty if it is none.

        Its name is the UUID (Documentation/driver-api/vfio-mediated-device.rst of the Linux kernel).
        """
        if chain[0].subsystem == "vfio":
            names = self._tree.names(f"{_GROUPS}/{self._iommu_group(chain)}/devices")
        else:
            names = [one.name for one in chain[1:2]]
        return names[0] if len(names) == 1 and _UUID.fullmatch(names[0]) else ""

    def _attributes(
        self, key: str, node: str, chain: Sequence[Kobject], usb: Usb | None
    ) -> dict[str, AttributeValue]:
        device = chain[0]
        major, _, minor = key[1:].partition(":")
        found: dict[str, AttributeValue] = {
            "subsystem": sys.intern(device.subsystem),
            "sysName": device.name,
            "devNode": node,
            "devType": sys.intern(device.dev_type),
            "driver": sys.intern(next((k.driver for k in _own(chain) if k.driver), "")),
            "sysPath": device.path,
            "major": int(major),
            "minor": int(minor),
        }
        if usb is not None:
            found |= {"idVendor": usb.vendor, "idProduct": usb.product}
            found |= {"usbInterface": usb.interface, "usbPort": usb.port}
        self._add_hardware(found, chain)
        if device.subsystem in ("vfio", "vfio-dev"):
            found["mdevUUID"] = self._mediated(chain)
        if device.subsystem == "block":
            self._add_block(found, chain)
        if self._properties or self._links:
            self._add_properties(found, key, device)
        for name in self._sysattrs:
            found[SYSATTR_FAMILY + name] = self._tree.sysattr(device.path, name)
        return found

    def _add_hardware(self, found: dict[str, AttributeValue], chain: Sequence[Kobject]) -> None:
        """Adds the serial number, vendor and model that the hardware of the node reports."""
        for kobject in _own(chain):
            for attribute, files in _HARDWARE_FILES.get((kobject.subsystem, kobject.dev_type), {}).items():
                for file in files:
                    found[attribute] = found.get(attribute) or self._tree.read(kobject.path, file)

    def _odd_hardware(self, chain: Sequence[Kobject]) -> Iterator[str]:
        """The attributes for which hardware reports text that is not read."""
        for kobject in _own(chain):
            for attribute, files in _HARDWARE_FILES.get((kobject.subsystem, kobject.dev_type), {}).items():
                if any(self._tree.is_odd(kobject.path, file) for file in files):
                    yield attribute

    def _add_block(self, found: dict[str, AttributeValue], chain: Sequence[Kobject]) -> None:
        device, disk = chain[0], disk_of(chain)
        number = self._tree.read(device.path, "partition")
        if number.isdecimal():
            found["partition"] = int(number)
        found["wwid"] = self._tree.read(disk.path, "wwid") or self._tree.read(disk.path, "device/wwid")
        if not found.get("serial"):
            found["serial"] = self._tree.read(disk.path, "serial")
        system = self._system() if self._wants_system else None
        if system is not None:
            inside = f"{device.path}/"
            found["system"] = device.path in system or any(path.startswith(inside) for path in system)

    def _add_properties(self, found: dict[str, AttributeValue], key: str, device: Kobject) -> None:
        """Adds properties (``ID_*``) and links, of the kernel and of udevd's record in ``/run/udev/data``."""
        properties = dict(device.properties)
        links = properties.get("DEVLINKS", "").split()
        for line in read_lines(f"{self._prefix}/run/udev/data/{key}"):
            tag, _, text = line.partition(":")
            if tag == "E":
                name, _, value = text.partition("=")
                properties[name] = value
            elif tag == "S":
                links.append(f"/dev/{text}")
        if self._links:
            found[LINKS] = tuple(link for link in dict.fromkeys(links) if link.isprintable())
        for name, value in properties.items():
            if self._properties and name.startswith(PROPERTY_FAMILY):
                found[sys.intern(name)] = value

    def _add_pci(self, found: dict[str, AttributeValue], address: str, chain: Sequence[Kobject]) -> None:
        found["pciBusID"] = sys.intern(address)
        function = next((k for k in chain if k.path.endswith(f"/{address}")), None)
        if function is not None:
            vendor, device = (self._tree.read(function.path, file) for file in ("vendor", "device"))
            found["pciVendor"] = sys.intern(vendor.removeprefix("0x"))
            found["pciDevice"] = sys.intern(device.removeprefix("0x"))

    def _numa(self, chain: Sequence[Kobject]) -> int | None:
        for kobject in chain:
            text = self._tree.read(kobject.path, "numa_node")
            if text.isdecimal():  # the kernel's -1 means "none"
                return int(text)
        return None


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_GROUPS = "/sys/kernel/iommu_groups"

_HARDWARE_FILES: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("usb", "usb_device"): {"serial": ("serial",), "vendor": ("manufacturer",), "model": ("product",)},
    ("nvme", ""): {"serial": ("serial",), "model": ("model",)},
    ("nvme-subsystem", ""): {"serial": ("serial",), "model": ("model",)},
    ("scsi", "scsi_device"): {"vendor": ("vendor",), "model": ("model",)},
    ("mmc", ""): {"serial": ("serial",), "model": ("name",)},
}
"""The files with attributes of the hardware, by subsystem and type of a device in the chain."""


_WHOLE = frozenset({"mmc", "pci"})
"""Subsystems of hardware that is a device by itself, even if it is plugged into other hardware."""


def _own(chain: Sequence[Kobject]) -> Iterator[Kobject]:
    """The part of the chain that is the device itself, without the hubs, readers and bridges above it.

    A SCSI device on USB is part of the USB device, which has the serial number.
    """
    for kobject in chain:
        yield kobject
        if kobject.dev_type == "usb_device" or kobject.subsystem in _WHOLE:
            return


def _is_plain(value: AttributeValue) -> bool:
    """Whether a value exists, and is text without a line break or any other character that does not print."""
    texts = value if isinstance(value, tuple) else (value,)
    return value not in ("", ()) and all(text.isprintable() for text in texts if isinstance(text, str))


def _pci_source(chain: Sequence[Kobject]) -> str:
    """The path whose components are the PCI functions above the device.

    Usually that of the device; an NVMe namespace with native multipath is not below its controller.
    """
    return next((k.path for k in chain if BDF.search(k.path)), "")


@mutable
class _Claims:
    """The claims of a device, what it is part of, and the first claim that could not be made."""

    own: set[str] = field(default_factory=set)
    part_of: set[str] = field(default_factory=set)
    flaw: str | None = None

    def add(self, make: Callable[[str], str], name: str, *, part: bool = False) -> None:
        try:
            (self.part_of if part else self.own).add(make(name))
        except ValueError as error:
            self.flaw = self.flaw or f"it cannot be claimed: {error}"


def node_claims(node: str) -> tuple[frozenset[str], str | None]:
    """The claim of a device node; for a path that cannot be claimed, none and the reason."""
    claims = _Claims()
    claims.add(claim.node, node)
    return frozenset(claims.own), claims.flaw


def _claims(
    node: str,
    chain: Sequence[Kobject],
    pcie: Sequence[str],
    usb: Usb | None,
    iommu_group: str,
    functions: Iterable[str],
) -> _Claims:
    """What the device occupies, and what it is only part of. It gives access to ``functions``."""
    device, disk = chain[0], disk_of(chain)
    claims = _Claims()
    claims.add(claim.node, node)
    for address in pcie[-1:]:
        claims.add(claim.pci, address, part=True)
    for above in chain[1:]:
        if above.subsystem == "auxiliary":
            claims.add(claim.auxiliary, above.name, part=True)
    if device.subsystem == "block":
        major, minor = disk.properties.get("MAJOR", ""), disk.properties.get("MINOR", "")
        if major and minor:  # both are missing from the uevent file of a disk that is just being removed
            claims.add(claim.block, f"{major}:{minor}", part=device is not disk)
    if usb is not None:
        claims.add(claim.usb, usb.port, part=device.dev_type != "usb_device")
    if iommu_group.isdecimal():
        claims.add(claim.iommu_group, iommu_group)
    for address in functions:
        claims.add(claim.pci, address)
    return claims
