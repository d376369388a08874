"""Scans the functions in sysfs, reading them again only after relevant events.

Files that block are not read. A process that creates virtual functions holds the device lock until the last
of them has its driver, which can take minutes. ``sriov_numvfs``, ``driver_override`` and on some kernels
``uevent`` wait for this lock (drivers/pci/iov.c, ``sriov_numvfs_show``; drivers/base/core.c of 6.10).
``carrier``, ``speed`` and ``duplex`` of an interface wait for the lock of all interfaces, so netlink is used
instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from devhost.backend import Event
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import (
    AUXILIARY_BUS,
    BDF,
    DEVICES,
    PCI_BUS,
    SCALABLE,
    Sysfs,
    function_path,
    natural,
)

from .attributes import NO_NAMED_FILES, NamedFiles
from .model import (
    REPRESENTOR,
    VGPU_TYPE,
    Function,
    FunctionKind,
    Interface,
    Snapshot,
    Vdpa,
    is_passed_on,
    representors,
)

VDPA_BUS = "/sys/bus/vdpa/devices"
MDEV_BUS = "/sys/bus/mdev/devices"

OFFERED_CLASSES = ("02", "12", "0b40")
"""PCI classes whose functions are listed even without SR-IOV: network adapters, processing accelerators,
co-processors (kernel, include/linux/pci_ids.h). Others are listed only if their
driver passes them to programs."""

VIRTIO = "virtio-pci"
"""The driver whose functions have their interface below a device of the virtio bus."""

NVIDIA = "nvidia"
"""The driver whose virtual functions become vGPUs."""

IFF_UP = 0x1
"""Bit of ``flags`` (kernel, include/uapi/linux/if.h)."""

_PKEY = re.compile(r"0x[0-9a-f]{4}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5,31}")
_VIRTFN = re.compile(r"virtfn(\d{1,5})")
_VIRTIO_DEVICE = re.compile(r"virtio\d{1,9}")
_BRIDGE = "06"
_LOCKED = frozenset({"sriov_numvfs", "driver_override", "uevent", "carrier", "speed", "duplex"})
"""Files that block, see above: none of them is read, even if the configuration names it."""


class FunctionReader:
    """Reads functions. Caches what they have in common, so create a new one for each scan."""

    def __init__(self, sysfs: Sysfs, files: NamedFiles = NO_NAMED_FILES) -> None:
        self._sysfs = sysfs
        self._files = files
        self._numa: dict[str, int | None] = {}
        self._indexes: dict[str, dict[str, int]] = {}
        self._vdpa: dict[str, Vdpa] | None = None

    def pci(self, path: str, inode: int) -> Function | None:
        """The PCI function at ``path``; ``None`` if it is not a device of this backend.

        Such as bridges, chipset functions, and virtual functions that are being created or removed: the
        kernel adds the link to the physical function after the directory (``pci_iov_add_virtfn``), with an
        event.
        """
        sysfs = self._sysfs
        # whether it is a function of this backend at all
        address = path.rpartition("/")[2]
        if not BDF.fullmatch(address):  # a damaged link on the bus
            return None
        parent = sysfs.target(f"{path}/physfn")
        pci_class = sysfs.hexadecimal(f"{path}/class")
        driver = sysfs.target(f"{path}/driver")
        has_vfio_device = bool(driver) and sysfs.exists(f"{path}/vfio-dev")
        total = None
        if BDF.fullmatch(parent):
            kind = FunctionKind.VIRTUAL
        else:
            kind, parent = FunctionKind.PHYSICAL, ""
            total = _positive(sysfs.integer(f"{path}/sriov_totalvfs"))
            if not (total or has_vfio_device or _is_offered(pci_class, driver)):
                return None
            if sysfs.exists(f"{path}/sriov_vf_msix_count"):
                return None  # only virtual functions have this file, since 5.13
        vendor = sysfs.hexadecimal(f"{path}/vendor")
        if not vendor and not sysfs.exists(path):
            return None
        # what it has besides its own files
        vdpa = self._vdpa_of(path)
        interfaces, representors = self._interfaces(path, vdpa, through_virtio=driver == VIRTIO)
        rdma_devices = self._rdma_devices(path)
        return Function(
            id=address,
            kind=kind,
            path=path,
            address=address,
            vendor=vendor,
            device=sysfs.hexadecimal(f"{path}/device"),
            subsystem_vendor=sysfs.hexadecimal(f"{path}/subsystem_vendor"),
            subsystem_device=sysfs.hexadecimal(f"{path}/subsystem_device"),
            pci_class=pci_class,
            driver=driver,
            numa_node=sysfs.numa_node(path, self._numa),
            iommu_group=sysfs.target(f"{path}/iommu_group"),
            parent=parent,
            vf_index=self._vf_index(path, address) if parent else None,
            total_vfs=total,
            interfaces=interfaces,
            representors=representors,
            rdma_devices=rdma_devices,
            has_vfio_device=has_vfio_device,
            vgpu_type=_positive(sysfs.integer(f"{path}/{VGPU_TYPE}")) if driver == NVIDIA else None,
            vdpa=vdpa,
            acpi_index=_positive(sysfs.integer(f"{path}/acpi_index")),
            pkey=self._pkey(path, rdma_devices),
            files=self._named(path, kind),
            inode=inode,
        )

    def scalable(self, path: str, inode: int) -> Function | None:
        """The scalable function at ``path``; ``None`` if it is being removed, or not on a PCI function."""
        sysfs = self._sysfs
        below, _, name = path.rpartition("/")
        address = below.rpartition("/")[2]
        if not BDF.fullmatch(address) or not SCALABLE.fullmatch(name) or not sysfs.exists(path):
            return None
        vdpa = self._vdpa_of(path)
        interfaces, _ = self._interfaces(path, vdpa)
        rdma_devices = self._rdma_devices(path)
        return Function(
            id=name,
            kind=FunctionKind.SCALABLE,
            path=path,
            address=address,
            vendor=sysfs.hexadecimal(f"{below}/vendor"),
            device=sysfs.hexadecimal(f"{below}/device"),
            subsystem_vendor=sysfs.hexadecimal(f"{below}/subsystem_vendor"),
            subsystem_device=sysfs.hexadecimal(f"{below}/subsystem_device"),
            pci_class=sysfs.hexadecimal(f"{below}/class"),
            driver=sysfs.target(f"{path}/driver"),
            numa_node=sysfs.numa_node(below, self._numa),
            parent=address,
            sf_number=_positive(sysfs.integer(f"{path}/sfnum")),
            interfaces=interfaces,
            rdma_devices=rdma_devices,
            vdpa=vdpa,
            pkey=self._pkey(path, rdma_devices),
            files=self._named(path, FunctionKind.SCALABLE),
            inode=inode,
        )

    def representor(self, path: str, name: str) -> Interface | None:
        """The interface at ``path`` if it is a representor, which has a port name; else ``None``."""
        port_name = self._sysfs.text(f"{path}/phys_port_name")
        if not port_name or not REPRESENTOR.fullmatch(port_name):
            return None
        found = Interface(name, port_name=port_name, switch=self._sysfs.text(f"{path}/phys_switch_id"))
        return found if found.is_representor else None

    def _interfaces(
        self, path: str, vdpa: Vdpa | None, *, through_virtio: bool = False
    ) -> tuple[tuple[Interface, ...], tuple[Interface, ...]]:
        """The interfaces of a function, and its representors of other functions.

        A virtio device has its own interfaces, and is below the function or its vDPA device. A function with
        representors also has an interface itself. If none is left, port names that are plain numbers are its
        own ports, as on adapters without an embedded switch.
        """
        own: list[tuple[int, Interface]] = []
        numbered: list[tuple[int, Interface]] = []
        others: list[Interface] = []
        places = [path]
        if through_virtio:
            places += self._virtio(path)
        if vdpa and vdpa.type == "virtio":
            places += self._virtio(vdpa.path)
        for place in places:
            for name in self._sysfs.names(f"{place}/net"):
                there = f"{place}/net/{name}"
                representor = self.representor(there, name)
                if representor is not None:
                    others.append(representor)
                if representor is not None and not representor.port_name.isdecimal():
                    continue
                if (found := self._interface(there, name)) is not None:
                    port = self._sysfs.integer(f"{there}/dev_port") or 0
                    (own if representor is None else numbered).append((port, found))
        if not own:
            own, others = numbered, [one for one in others if not one.port_name.isdecimal()]
        own.sort(key=lambda entry: entry[0])  # stable: interfaces of one port stay ordered by name
        return tuple(interface for _, interface in own), tuple(others)

    def _virtio(self, path: str) -> list[str]:
        return [f"{path}/{name}" for name in self._sysfs.names(path) if _VIRTIO_DEVICE.fullmatch(name)]

    def _interface(self, path: str, name: str) -> Interface | None:
        sysfs = self._sysfs
        index = sysfs.integer(f"{path}/ifindex")
        if index is None and not sysfs.exists(path):
            return None
        mac = sysfs.text(f"{path}/address").lower()
        flags = sysfs.integer(f"{path}/flags") or 0
        port_name = sysfs.text(f"{path}/phys_port_name")
        return Interface(
            name=name,
            index=index,
            mac=mac if _MAC.fullmatch(mac) else "",
            kind=sysfs.integer(f"{path}/type"),
            state=_word(sysfs.text(f"{path}/operstate")),
            is_set_up=bool(flags & IFF_UP),
            mtu=_positive(sysfs.integer(f"{path}/mtu")),
            port_name=_word(port_name),
            switch=_word(sysfs.text(f"{path}/phys_switch_id")) if port_name else "",
        )

    def _rdma_devices(self, path: str) -> tuple[str, ...]:
        """RDMA devices, also those in another network namespace, whose uverbs are visible everywhere."""
        names = set(self._sysfs.names(f"{path}/infiniband"))
        for node in self._sysfs.names(f"{path}/infiniband_verbs"):
            names.add(_word(self._sysfs.text(f"{path}/infiniband_verbs/{node}/ibdev")))
        names.discard("")
        return tuple(sorted(names, key=natural))

    def _named(self, path: str, kind: FunctionKind) -> tuple[tuple[str, str], ...]:
        """The files that the configuration names, with their content."""
        names = self._files.own | (self._files.physical if kind is FunctionKind.PHYSICAL else frozenset())
        found = ((name, self._sysfs.sysattr(path, name)) for name in sorted(names) if not _waits(name))
        return tuple((name, text) for name, text in found if text)

    def _pkey(self, path: str, rdma_devices: tuple[str, ...]) -> str:
        for name in rdma_devices:
            text = self._sysfs.text(f"{path}/infiniband/{name}/ports/1/pkeys/0").lower()
            if _PKEY.fullmatch(text):
                return text
        return ""

    def _vf_index(self, path: str, address: str) -> int | None:
        """The number of a virtual function, from the links of its physical one."""
        indexes = self._indexes.get(physical := self._sysfs.link(f"{path}/physfn"))
        if indexes is None:
            indexes = {}
            for name in self._sysfs.identities(f"{path}/physfn"):
                if found := _VIRTFN.fullmatch(name):
                    indexes[self._sysfs.target(f"{path}/physfn/{name}")] = int(found[1])
            self._indexes[physical] = indexes
        return indexes.get(address)

    def _vdpa_of(self, path: str) -> Vdpa | None:
        if self._vdpa is None:
            self._vdpa = {}
            for name in reversed(self._sysfs.names(VDPA_BUS)):
                there = self._sysfs.device(f"{VDPA_BUS}/{name}")
                if there:
                    driver = self._sysfs.target(f"{there}/driver")
                    self._vdpa[there.rpartition("/")[0]] = Vdpa(name, there, driver)
        return self._vdpa.get(path)


def _is_offered(pci_class: str, driver: str) -> bool:
    if pci_class.startswith(_BRIDGE):
        return False
    return pci_class.startswith(OFFERED_CLASSES) or is_passed_on(driver)


def _positive(number: int | None) -> int | None:
    """The number if it is valid: broken firmware may give any number."""
    return number if number is not None and 0 <= number < 1 << 32 else None


def _waits(name: str) -> bool:
    """Whether a file may wait for the lock of a device."""
    return name.rpartition("/")[2] in _LOCKED


def _word(text: str) -> str:
    return text if text.isprintable() and not any(map(str.isspace, text)) else ""


VIRTUAL_INTERFACES = f"{DEVICES}virtual/net"

NETWORK = "/sys/class/net"
"""The ``sys_path`` of an event after which only the state of interfaces may have changed; with ``/<name>``
only that of one."""

MAX_PLACES = 1024
"""Limit of places to remember between two scans; beyond it, everything is read again."""


@frozen(slots=True)
class _Known:
    """A device on a bus. ``function`` is ``None`` if it is not a device of this backend, or not now.

    ``is_virtual`` is whether it was a virtual function at any time.
    """

    path: str
    inode: int
    function: Function | None
    is_virtual: bool


class Scan:
    """Scans the tree below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._files = NO_NAMED_FILES
        self._known: dict[str, _Known] = {}
        self._strays: tuple[Interface, ...] = ()
        self._strays_read = False
        self._last = Snapshot()
        self._forget()

    def notice(self, event: Event) -> None:
        """Notes what the next scan must read again: everything if the event names no device.

        An event below a function concerns only this function; an event of a bridge or a function itself also
        concerns everything below it.
        """
        path = event.sys_path.rstrip("/")
        if path.startswith(NETWORK):
            self._interfaces_stale.add(path[len(NETWORK) + 1 :])
        elif not path or len(self._stale) >= MAX_PLACES:
            self._everything = True
        else:
            self._quiet = False
            place = function_path(path)
            if place:
                self._stale.add(place)
                if place == path:
                    self._stale_below.add(place)
            elif path.startswith(VIRTUAL_INTERFACES):
                self._strays_stale = True

    def scan(self, files: NamedFiles = NO_NAMED_FILES) -> Snapshot:
        """Everything that exists now, with the files that the configuration names.

        Without an event since the last scan, everything is read again.
        """
        other_files, self._files = files != self._files, files
        everything = self._everything or other_files or (self._quiet and not self._interfaces_stale)
        listed = self._sysfs.identities(PCI_BUS)
        scalable = self._sysfs.identities(AUXILIARY_BUS)
        listed |= {name: inode for name, inode in scalable.items() if SCALABLE.fullmatch(name)}
        # every device on the buses: read again, or as before
        reader = FunctionReader(self._sysfs, files)
        known: dict[str, _Known] = {}
        for name, inode in listed.items():
            old = self._known.get(name)
            if old is not None and old.inode != inode:
                old = None  # another device with the same name
            if old is not None and not everything and not self._is_stale(old):
                known[name] = old
            else:
                known[name] = self._read(reader, name, inode, old)
        # representors without a parent device, which belong to functions of the same switch
        before, strays = self._known, self._strays
        if everything or self._strays_stale:
            self._strays_read = False
        self._read_strays(reader, known)
        self._known = known
        self._forget()
        if strays == self._strays and before == known:
            self._last = replace(self._last, everything=everything)
        else:
            functions = _put_together(known)
            self._last = Snapshot(functions, representors(functions, self._strays), everything)
        return self._last

    def _forget(self) -> None:
        self._everything = False
        self._quiet = True
        self._stale: set[str] = set()
        self._stale_below: set[str] = set()
        self._interfaces_stale: set[str] = set()
        self._strays_stale = False

    def _is_stale(self, known: _Known) -> bool:
        if known.path in self._stale:
            return True
        above = known.path.rpartition("/")[0]
        while self._stale_below and above.count("/") > 3:
            if above in self._stale_below:
                return True
            above = above.rpartition("/")[0]
        return self._has_stale_interface(known.function)

    def _has_stale_interface(self, function: Function | None) -> bool:
        if function is None or not self._interfaces_stale:
            return False
        if "" in self._interfaces_stale:
            return bool(function.interfaces)
        return any(interface.name in self._interfaces_stale for interface in function.interfaces)

    def _read(self, reader: FunctionReader, name: str, inode: int, old: _Known | None) -> _Known:
        bus = PCI_BUS if BDF.fullmatch(name) else AUXILIARY_BUS
        path = self._sysfs.device(f"{bus}/{name}")
        function = None
        if path:
            function = reader.pci(path, inode) if bus is PCI_BUS else reader.scalable(path, inode)
        if function is None or old is None:
            return _Known(path, inode, function, _is_virtual(function) or bool(old and old.is_virtual))
        if old.is_virtual and not _is_virtual(function):
            # it is being removed, and has already lost the link to its physical function
            return _Known(path, inode, None, is_virtual=True)
        return _Known(path, inode, _with_away(function, old.function), _is_virtual(function))

    def _read_strays(self, reader: FunctionReader, known: Mapping[str, _Known]) -> None:
        """Reads representors without a parent device, if a function has a switch."""
        functions = (entry.function for entry in known.values() if entry.function)
        if not any(one.switch for function in functions for one in function.last_interfaces):
            self._strays, self._strays_read = (), False
        elif not self._strays_read:
            names = self._sysfs.names(VIRTUAL_INTERFACES)
            found = (reader.representor(f"{VIRTUAL_INTERFACES}/{name}", name) for name in names)
            self._strays, self._strays_read = tuple(one for one in found if one is not None), True


def _is_virtual(function: Function | None) -> bool:
    return function is not None and function.kind is FunctionKind.VIRTUAL


def _with_away(function: Function, before: Function | None) -> Function:
    """The function with the interfaces that disappeared while its driver stayed."""
    if before is None or function.interfaces or not function.driver or function.driver != before.driver:
        return function
    return replace(function, away=before.last_interfaces)


def _put_together(known: Mapping[str, _Known]) -> dict[str, Function]:
    """The functions in the order of addresses, the physical ones with the numbers of their functions."""
    functions = [entry.function for entry in known.values() if entry.function is not None]
    virtual: dict[str, int] = {}
    scalable: dict[str, int] = {}
    for function in functions:
        if function.parent:
            counts = virtual if function.kind is FunctionKind.VIRTUAL else scalable
            counts[function.parent] = counts.get(function.parent, 0) + 1
    found: dict[str, Function] = {}
    for function in sorted(functions, key=lambda one: (one.address, natural(one.id))):
        vfs, sfs = virtual.get(function.id, 0), scalable.get(function.id, 0)
        if (function.num_vfs, function.num_sfs) != (vfs, sfs):
            function = replace(function, num_vfs=vfs, num_sfs=sfs)
        found[function.id] = function
    return found
