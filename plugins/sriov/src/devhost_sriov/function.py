"""What is known of one function and of its network interfaces: frozen values, all from sysfs.

The seams of this package: :mod:`.scan` gives a :class:`~.look.Look` (functions by id), :mod:`.facts` adds
what netlink tells, and everything else (attributes, health, allocation, device-info, provisioning) is made
from these values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

ETHERNET, INFINIBAND = 1, 32
"""``type`` of an interface: ARPHRD_ETHER, ARPHRD_INFINIBAND (kernel, include/uapi/linux/if_arp.h)."""

REPRESENTOR = re.compile(
    r"(?:c(?P<controller>\d+))?pf(?P<pf>\d+)(?:(?P<kind>vf|sf)(?P<number>\d+))?|(?P<old>\d+)"
)
"""``phys_port_name`` of an interface that stands for another function (kernel, net/devlink/port.c,
``__devlink_port_phys_port_name_get``; plain numbers before that existed, which are those of virtual ones).
Only one on another controller, a host seen from its adapter, has ``c<N>``."""

VDPA_TYPES = {"vhost_vdpa": "vhost", "virtio_vdpa": "virtio"}
"""What the drivers of the vDPA bus make of a device."""

_PASSED_ON = re.compile(r"(?:.*[-_])?vfio(?:[-_].*)?|uio_pci_generic|igb_uio|uio_dfl")


class Kind(StrEnum):
    """What kind of function it is; the words are those of the attribute ``kind``."""

    PHYSICAL = "pf"
    """A PCI function of its own, whether or not it could have virtual ones."""
    VIRTUAL = "vf"
    """An SR-IOV virtual function."""
    SCALABLE = "sf"
    """A device on the auxiliary bus that is a part of a PCI function."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. Texts are empty, numbers ``None``, where sysfs says nothing.

    ``kind`` is its ARPHRD number, ``state`` its operstate (``up``, ``down``, ``lowerlayerdown``, ``dormant``,
    ``unknown``), ``is_set_up`` whether somebody brought it up (IFF_UP): only then does ``down`` mean that it
    has no carrier. ``port_name`` and ``switch`` are ``phys_port_name`` and ``phys_switch_id``.
    """

    name: str
    index: int | None = None
    mac: str = ""
    kind: int | None = None
    state: str = ""
    is_set_up: bool = False
    mtu: int | None = None
    port_name: str = ""
    switch: str = ""

    @property
    def is_representor(self) -> bool:
        """Whether it stands for another function in an embedded switch."""
        return bool(self.switch and REPRESENTOR.fullmatch(self.port_name))


@dataclass(frozen=True, slots=True)
class Vdpa:
    """A vDPA device of a function: ``driver`` is ``vhost_vdpa`` or ``virtio_vdpa``, empty while unbound."""

    name: str
    path: str
    driver: str = ""

    @property
    def type(self) -> str:
        """``vhost`` or ``virtio``; empty while it is bound to neither."""
        return VDPA_TYPES.get(self.driver, "")


@dataclass(frozen=True, slots=True)
class Function:
    """One function as sysfs shows it. Texts are empty, numbers ``None``, where it says nothing.

    ``id``
        The PCI address, or the name on the auxiliary bus: what CNI plugins take as the device's id.
    ``path``
        Its directory, ``/sys/devices/…``.
    ``address``
        That of the PCI function which it is, or on which it lies if scalable.
    ``vendor``, ``device``, ``subsystem_vendor``, ``subsystem_device``, ``pci_class``
        Lower-case hex digits; of a scalable function those of ``address``.
    ``parent``
        The address of the physical function that it is a part of; empty if it is none.
    ``vf_index``, ``sf_number``
        The number of a virtual function, from 0, and of a scalable one (``sfnum``).
    ``total_vfs``
        How many virtual functions it can have; ``None`` without the capability.
    ``num_vfs``, ``num_sfs``
        How many virtual and scalable functions it has now.
    ``interfaces``
        Its own network interfaces, the uplinks of a switch among them, in the order of ports.
    ``away``
        Those that left while its driver stayed: they are in another network namespace, a pod's mostly. Empty
        after a restart, when nobody knows any more what there was.
    ``representors``
        Interfaces of its embedded switch that stand for other functions.
    ``rdma_devices``
        Names of its RDMA devices, also of those in another network namespace.
    ``inode``
        Another one when the function went and came back under its id.
    """

    id: str
    kind: Kind
    path: str
    address: str
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    pci_class: str = ""
    driver: str = ""
    numa_node: int | None = None
    iommu_group: str = ""
    parent: str = ""
    vf_index: int | None = None
    sf_number: int | None = None
    total_vfs: int | None = None
    num_vfs: int = 0
    num_sfs: int = 0
    interfaces: tuple[Interface, ...] = ()
    away: tuple[Interface, ...] = ()
    representors: tuple[Interface, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    vdpa: Vdpa | None = None
    acpi_index: int | None = None
    pkey: str = ""
    inode: int = 0

    @property
    def is_network(self) -> bool:
        """Whether it is a network adapter: PCI base class 02 (kernel, include/linux/pci_ids.h)."""
        return self.pci_class.startswith("02")

    @property
    def is_passed_on(self) -> bool:
        """Whether its driver hands it to programs as it is: vfio with its variants, uio."""
        return is_passed_on(self.driver)

    @property
    def uses_vfio(self) -> bool:
        """Whether it is bound to vfio-pci or one of its variants, such as ``mlx5_vfio_pci``."""
        return self.is_passed_on and "vfio" in self.driver

    @property
    def last_interfaces(self) -> tuple[Interface, ...]:
        """Its own interfaces, or those it had before they went into another network namespace."""
        return self.interfaces or self.away


def is_passed_on(driver: str) -> bool:
    """Whether a driver of this name hands devices to programs as they are: vfio with its variants, uio."""
    return _PASSED_ON.fullmatch(driver) is not None
