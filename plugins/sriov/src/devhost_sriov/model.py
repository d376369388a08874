"""Functions, their network interfaces and how they belong together, as values.

The seams of this package: :mod:`.scan` gives a :class:`Snapshot` (functions by id), :mod:`.netlink` adds
what netlink tells, and everything else (attributes, health, allocation, device-info, provisioning) is made
from these values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
        after a restart, when nobody knows any longer what there was.
    ``representors``
        Interfaces of its embedded switch that stand for other functions.
    ``rdma_devices``
        Names of its RDMA devices, also of those in another network namespace.
    ``inode``
        Another value when the function went and came back under its id.
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All functions at one moment, by id, in the order of addresses.

    ``representors`` are the interfaces that stand for virtual and scalable functions in an embedded switch,
    by the id of the function; ``everything`` is whether each function was read again. The physical function
    of every virtual and scalable one is among ``functions``, unless it is just going.
    """

    functions: Mapping[str, Function] = field(default_factory=dict)
    representors: Mapping[str, Interface] = field(default_factory=dict)
    everything: bool = False

    def physical_of(self, function: Function) -> Function | None:
        """The physical function that a virtual or scalable one is a part of; ``None`` if it is a whole."""
        return self.functions.get(function.parent) if function.parent else None


_Port = tuple[str, int]
"""A word of :class:`Kind` and a number: what the name of a port says."""


def representors(functions: Mapping[str, Function], strays: Iterable[Interface]) -> dict[str, Interface]:
    """Which interface stands for which function, by the id of the function.

    Told by ``phys_port_name`` among the interfaces of the physical function, else among those that hang on
    nothing and have the switch of its uplink.

    Args:
        functions: all of them, by id.
        strays: representors that hang on no function (bnxt, ice).
    """
    by_switch: dict[str, list[Interface]] = {}
    for stray in strays:
        by_switch.setdefault(stray.switch, []).append(stray)
    ports: dict[str, dict[_Port, Interface]] = {}
    found: dict[str, Interface] = {}
    for function in functions.values():
        whole = functions.get(function.parent)
        number = function.vf_index if function.kind is Kind.VIRTUAL else function.sf_number
        if whole is None or number is None:
            continue
        if whole.id not in ports:
            near = {one.switch for one in whole.last_interfaces if one.switch}
            others = [stray for switch in sorted(near) for stray in by_switch.get(switch, ())]
            ports[whole.id] = _ports(others, whole) | _ports(whole.representors, whole)
        interface = ports[whole.id].get((function.kind.value, number))
        if interface is not None:
            found[function.id] = interface
    return found


def _ports(interfaces: Iterable[Interface], whole: Function) -> dict[_Port, Interface]:
    """The interfaces by what they stand for, as far as that can be a part of ``whole``.

    One switch may have the parts of several physical functions: the number in ``pf<N>`` is mostly that in the
    function's PCI address, and where no port has it, which adapters with their own numbers do, it says
    nothing. ``c<N>`` is a function of another controller, which is another machine's.
    """
    own: dict[_Port, Interface] = {}
    foreign: dict[_Port, list[Interface]] = {}
    for interface in interfaces:
        port = REPRESENTOR.fullmatch(interface.port_name)
        if port is None or port["controller"]:
            continue
        if port["old"]:
            own[Kind.VIRTUAL.value, int(port["old"])] = interface
        elif port["kind"]:
            key = (port["kind"], int(port["number"]))
            if port["pf"] == whole.address[-1]:
                own[key] = interface
            else:
                foreign.setdefault(key, []).append(interface)
    if own:
        return own
    return {key: several[0] for key, several in foreign.items() if len(several) == 1}


@dataclass(frozen=True, slots=True)
class Facts:
    """About one function. Texts are empty where nothing was told.

    ``eswitch_mode`` is ``legacy`` or ``switchdev`` (devlink, ``DEVLINK_ATTR_ESWITCH_MODE``), of the function
    itself if physical, else of the one it is of. ``mac`` is the address that the physical function has set
    for a virtual one (rtnetlink, ``IFLA_VF_MAC``), for when it has no interface here. ``representor`` is
    the interface that stands for it in the embedded switch, where devlink names it. ``in_use`` says, as
    a clause, what the node uses it for: ``"it carries the IPv4 default route, through bond0"``.
    """

    eswitch_mode: str = ""
    mac: str = ""
    ddp_profile: str = ""
    representor: str = ""
    in_use: str = ""


NOTHING = Facts()
"""Nothing was told."""
