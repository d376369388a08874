"""Finds GPUs: PCI functions of a display class, and all other devices with a DRM node.

A scan reads everything again, except PCI functions that are known not to be displays: a machine may have
thousands. The layout is that of Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel, and of
``drm_sysfs.c``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID
from devhost.backend.sysfs import BDF, DEVICES, PCI_BUS, Sysfs, natural, pcie_path

VENDORS = NVIDIA, AMD, INTEL, OTHER = "nvidia", "amd", "intel", "other"
"""The values of the attribute ``vendor``."""

DISPLAY = "03"
"""PCI base class of display controllers (PCI Code and ID Assignment Specification)."""

ACCELERATOR = "1200"
"""PCI class of processing accelerators, such as AMD's Instinct since MI300."""


@frozen
class Adapter:
    """One adapter. Strings are empty if sysfs has no value; ids are lower-case hex digits without ``0x``.

    ``id`` is the PCI address, or the name of its directory if it is not on PCI. ``path`` is its directory
    below ``/sys/devices``, ``address`` its PCI address, ``driver`` the driver of its DRM device.
    ``physical_function`` is the address of its physical function if it is a virtual one, ``num_vfs`` the
    number of its virtual functions. ``card`` and ``render`` are names of DRM devices: ``card0``,
    ``renderD128``. ``inode`` distinguishes it from an earlier adapter with the same name.
    """

    id: str
    path: str
    inode: int = 0
    address: str = ""
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    pci_class: str = ""
    driver: str = ""
    numa_node: int | None = None
    physical_function: str = ""
    num_vfs: int = 0
    card: str = ""
    render: str = ""

    @property
    def card_node(self) -> str:
        """The node for mode setting; empty if it has none."""
        return f"/dev/dri/{self.card}" if self.card else ""

    @property
    def render_node(self) -> str:
        """The node for rendering and computing; empty if it has none."""
        return f"/dev/dri/{self.render}" if self.render else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for node in (self.card_node, self.render_node) if node)

    @property
    def is_virtual(self) -> bool:
        """Whether it is an SR-IOV virtual function."""
        return bool(self.physical_function)

    @property
    def pcie_path(self) -> tuple[str, ...]:
        """PCI addresses from the root port down to it; empty if it is not a PCI function."""
        return pcie_path(self.path) if self.address else ()


# A recording of a machine may lack its buses and have only what another device plugin reads. AMD's plugin
# reads the functions below its driver and the partitions below the platform bus, Intel's plugin the
# directories of the class of DRM devices. In place of links to a device, such a recording has copies of the
# device's files. On a running machine, all devices are on the buses, and nothing is found here.

DRM_CLASS = "/sys/class/drm"
AMDGPU = "/sys/module/amdgpu/drivers/pci:amdgpu"
PLATFORM = f"{DEVICES}platform"

AMD_PARTITION = re.compile(r"amdgpu_xcp[_.]\d{1,5}")
"""Names of the directories of AMD partitions (drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c); early drivers
have a dot in them."""

NODE = re.compile(r"(card|renderD)\d{1,5}")
"""Names of DRM devices."""


@frozen
class RecordedDevice:
    """A device whose files are at ``path``.

    ``address`` is its PCI address, empty if it has none or that is not recorded; ``nodes`` are the names of
    its DRM devices. ``vendor`` and ``driver`` follow from its location, if its files lack them.
    """

    path: str
    address: str
    nodes: tuple[str, ...]
    vendor: str = ""
    driver: str = ""


def of_amdgpu(sysfs: Sysfs) -> Iterator[RecordedDevice]:
    """The functions bound to AMD's driver, and the AMD partitions."""
    for name in sysfs.names(AMDGPU):
        if BDF.fullmatch(name):
            path = sysfs.device(f"{AMDGPU}/{name}") or f"{AMDGPU}/{name}"
            yield RecordedDevice(path, name, nodes_of(sysfs, path), "1002", "amdgpu")
    for name in sysfs.names(PLATFORM):
        path = f"{PLATFORM}/{name}"
        if AMD_PARTITION.fullmatch(name) and (nodes := nodes_of(sysfs, path)):
            yield RecordedDevice(path, "", nodes)


def of_drm_class(sysfs: Sysfs, names: Iterable[str]) -> Iterator[RecordedDevice]:
    """The devices of entries of the class that are not links to a device."""
    seen: set[str] = set()
    for name in names:
        path = f"{DRM_CLASS}/{name}/device"
        if name in seen or not sysfs.exists(path):
            continue
        address = sysfs.target(path)
        if not BDF.fullmatch(address):
            address = sysfs.uevent(path).get("PCI_SLOT_NAME", "")
        nodes = nodes_of(sysfs, path) or (name,)
        seen.update(nodes)
        yield RecordedDevice(path, address if BDF.fullmatch(address) else "", nodes)


def nodes_of(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """The names of the DRM devices of the device at ``path``."""
    return tuple(name for name in sysfs.names(f"{path}/drm") if NODE.fullmatch(name))


_VIRTUAL_FUNCTION = re.compile(r"virtfn\d{1,5}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._:@+-]|^[^A-Za-z0-9]+")
_VIRTIO = re.compile(r"virtio\d+")


class AdapterScanner:
    """Finds the adapters below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._not_displays: dict[str, int] = {}

    def scan(self) -> list[Adapter]:
        """All adapters: PCI functions by their addresses, then others by their names.

        Raises ``OSError`` if the PCI bus or the class of DRM devices cannot be listed.
        """
        drm, strays = self._drm_devices()
        listed = self._sysfs.identities(PCI_BUS)
        found: dict[str, Adapter] = {}
        self._not_displays = {
            name: inode for name, inode in self._not_displays.items() if listed.get(name) == inode
        }
        for name, inode in listed.items():
            if not BDF.fullmatch(name) or name in self._not_displays:
                continue
            path = self._sysfs.device(f"{PCI_BUS}/{name}")
            if path.rpartition("/")[2] != name:  # a link that is damaged, or a directory in its place
                path = self._copy_of(f"{PCI_BUS}/{name}")
            if path and self._is_display(path):
                found[name] = self._pci(path, inode, drm.pop(path, ()))
            elif path and path not in drm:
                self._not_displays[name] = inode
        plain = Counter(_named_by(path) for path in drm)
        for path, nodes in drm.items():
            last = path.rpartition("/")[2]
            if last in listed and BDF.fullmatch(last):
                adapter = self._pci(path, listed[last], nodes)
            else:
                adapter = self._plain(path, nodes)
            if not adapter.address and (plain[adapter.id] > 1 or adapter.id in found):
                # two buses may use the same name, and the name of the parent is more stable than a node
                # number
                above = _named_by(path.rpartition("/")[0])
                adapter = replace(adapter, id=f"{above}-{adapter.id}"[:MAX_DEVICE_ID])
            found[adapter.id] = adapter
        copies = [*of_drm_class(self._sysfs, strays)]
        if not drm or not any(adapter.address for adapter in found.values()):
            copies += of_amdgpu(self._sysfs)
        for copy in copies:
            adapter = self._copied(copy)
            known = found.get(adapter.id)
            if known is None or not known.nodes:
                found[adapter.id] = adapter
        return sorted(found.values(), key=_order)

    def _drm_devices(self) -> tuple[dict[str, tuple[str, ...]], list[str]]:
        """The names of DRM devices by their parent device, and those without one.

        The parent of a virtio GPU on PCI is the PCI function.
        """
        strays: list[str] = []
        found: dict[str, tuple[str, ...]] = {}
        for name in self._sysfs.listed(DRM_CLASS):
            if not NODE.fullmatch(name):
                continue
            path = self._sysfs.device(f"{DRM_CLASS}/{name}")
            if not path.endswith(f"/drm/{name}"):
                strays.append(name)
                continue
            owner = path.removesuffix(f"/drm/{name}")
            above, _, last = owner.rpartition("/")
            if _VIRTIO.fullmatch(last) and BDF.fullmatch(above.rpartition("/")[2]):
                owner = above  # until Linux 6.0 its parent is the virtio device
            found[owner] = (*found.get(owner, ()), name)
        return found, strays

    def _copy_of(self, path: str) -> str:
        """The path itself, if a recording has a directory instead of a link to one."""
        return path if self._sysfs.exists(f"{path}/class") else ""

    def _copied(self, copy: RecordedDevice) -> Adapter:
        if not copy.address and copy.path.startswith(DEVICES):
            return self._plain(copy.path, copy.nodes)
        adapter = self._pci(copy.path, 0, copy.nodes)
        return replace(
            adapter,
            id=copy.address or copy.nodes[0],
            address=copy.address,
            vendor=adapter.vendor or copy.vendor,
            driver=adapter.driver or copy.driver,
            num_vfs=adapter.num_vfs or self._sysfs.integer(f"{copy.path}/sriov_numvfs") or 0,
        )

    def _is_display(self, path: str) -> bool:
        number = self._sysfs.hexadecimal(f"{path}/class").rjust(6, "0")
        return number.startswith((DISPLAY, ACCELERATOR))

    def _pci(self, path: str, inode: int, nodes: tuple[str, ...]) -> Adapter:
        function = path.rpartition("/")[2]
        physical = self._sysfs.target(f"{path}/physfn")
        nodes = nodes or nodes_of(self._sysfs, path)
        return Adapter(
            id=function,
            path=path,
            inode=inode,
            address=function,
            vendor=self._sysfs.hexadecimal(f"{path}/vendor"),
            device=self._sysfs.hexadecimal(f"{path}/device"),
            subsystem_vendor=self._sysfs.hexadecimal(f"{path}/subsystem_vendor"),
            subsystem_device=self._sysfs.hexadecimal(f"{path}/subsystem_device"),
            pci_class=self._sysfs.hexadecimal(f"{path}/class").rjust(6, "0"),
            driver=self._driver(path, nodes),
            numa_node=self._numa_node(path),
            physical_function=physical if BDF.fullmatch(physical) else "",
            num_vfs=self._count_virtual(path),
            card=_first(nodes, "card"),
            render=_first(nodes, "renderD"),
        )

    def _plain(self, path: str, nodes: tuple[str, ...]) -> Adapter:
        return Adapter(
            id=_named_by(path),
            path=path,
            driver=self._driver(path, nodes),
            numa_node=self._numa_node(path),
            card=_first(nodes, "card"),
            render=_first(nodes, "renderD"),
        )

    def _driver(self, path: str, nodes: tuple[str, ...]) -> str:
        driver = self._sysfs.target(f"{path}/driver")
        if nodes and not driver:  # a recording may lack the link, and nodes have a driver
            driver = self._sysfs.uevent(path).get("DRIVER", "")
        if driver == "virtio-pci":
            for name in self._sysfs.names(path):
                if _VIRTIO.fullmatch(name):
                    return self._sysfs.target(f"{path}/{name}/driver") or driver
        return driver

    def _count_virtual(self, path: str) -> int:
        # the links, not sriov_numvfs: reading that waits for a lock while virtual functions are created
        return sum(1 for name in self._sysfs.names(path) if _VIRTUAL_FUNCTION.fullmatch(name))

    def _numa_node(self, path: str) -> int | None:
        number = self._sysfs.numa_node(path)
        if number is None and not path.startswith(DEVICES):
            number = self._sysfs.integer(f"{path}/numa_node")
        return number if number is not None and 0 <= number < 1 << 16 else None


def _order(adapter: Adapter) -> tuple[str, tuple[object, ...]]:
    # addresses are hexadecimal, so they sort correctly as text; names come after them
    return (adapter.address, ()) if adapter.address else ("~", natural(adapter.id))


def _named_by(path: str) -> str:
    """The id of a device that is not on PCI, by its directory in sysfs."""
    return _FOREIGN.sub("-", path.rpartition("/")[2]).lstrip("-")[:MAX_DEVICE_ID] or "device"


def _first(nodes: tuple[str, ...], prefix: str) -> str:
    return next((name for name in nodes if name.startswith(prefix)), "")


NVIDIA_DRIVER = "/proc/driver/nvidia"
"""Exists while NVIDIA's driver is loaded."""

_PCI_VENDORS = {"1002": AMD, "10de": NVIDIA, "8086": INTEL}


def vendor_of(adapter: Adapter) -> str:
    """The vendor whose code handles an adapter; empty if none does."""
    if AMD_PARTITION.fullmatch(adapter.id):
        return AMD
    vendor = _PCI_VENDORS.get(adapter.vendor, OTHER)
    is_gpu = adapter.pci_class.startswith((DISPLAY, ACCELERATOR) if vendor == AMD else DISPLAY)
    if vendor != OTHER and (is_gpu or adapter.nodes):
        return vendor
    return OTHER if adapter.nodes else ""


def by_vendor(adapters: Iterable[Adapter], sysfs: Sysfs) -> dict[str, list[Adapter]]:
    """The adapters of each vendor on this machine, which includes NVIDIA if only its driver is loaded."""
    found: dict[str, list[Adapter]] = {}
    if sysfs.exists(NVIDIA_DRIVER):
        found[NVIDIA] = []
    for adapter in adapters:
        if vendor := vendor_of(adapter):
            found.setdefault(vendor, []).append(adapter)
    return found
