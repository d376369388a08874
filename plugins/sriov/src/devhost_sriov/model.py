"""Functions, their network interfaces and their relations, as values.

:mod:`.scan` creates a :class:`Snapshot` (functions by id), :mod:`.network` adds :class:`Facts` from netlink,
and attributes, health, allocation, device-info and provisioning are derived from these values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from devhost.backend.frozen import frozen

ETHERNET, INFINIBAND = 1, 32
"""``type`` of an interface: ARPHRD_ETHER, ARPHRD_INFINIBAND (kernel, include/uapi/linux/if_arp.h)."""

REPRESENTOR = re.compile(
    r"(?:c(?P<controller>\d+))?pf(?P<pf>\d+)(?:(?P<kind>vf|sf)(?P<number>\d+))?|(?P<old>\d+)"
)
"""``phys_port_name`` of a representor (kernel, net/devlink/port.c, ``__devlink_port_phys_port_name_get``; in
older kernels the plain number of a virtual function). ``c<N>`` means another controller, such as the host of
an adapter."""

VDPA_TYPES = {"vhost_vdpa": "vhost", "virtio_vdpa": "virtio"}
"""Types of vDPA devices, by driver."""

VGPU_TYPE = "nvidia/current_vgpu_type"
"""The file with the number of the vGPU type of a virtual function, below its directory; 0: none. Source:
NVIDIA Virtual GPU Software User Guide, "Creating an NVIDIA vGPU on a Linux Distribution that Uses a
Vendor-Specific VFIO Framework"."""

_PASSED_ON = re.compile(r"(?:.*[-_])?vfio(?:[-_].*)?|uio_pci_generic|igb_uio|uio_dfl")


class FunctionKind(StrEnum):
    """The kind of a function, with the values of the attribute ``kind``."""

    PHYSICAL = "pf"
    """A physical PCI function, with or without the SR-IOV capability."""
    VIRTUAL = "vf"
    """An SR-IOV virtual function."""
    SCALABLE = "sf"
    """A device on the auxiliary bus that is a part of a PCI function."""
    MEDIATED = "mdev"
    """No function, but a mediated device, which :mod:`.mediated` reads."""


@frozen(slots=True)
class Interface:
    """A network interface. Unknown texts are empty, unknown numbers ``None``.

    ``kind`` is its ARPHRD number, ``state`` its operstate (``up``, ``down``, ``lowerlayerdown``, ``dormant``,
    ``unknown``), ``is_set_up`` whether it is enabled (IFF_UP): only then ``down`` means that it has no
    carrier. ``port_name`` and ``switch`` are ``phys_port_name`` and ``phys_switch_id``.
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
        """Whether it represents another function in an embedded switch."""
        return bool(self.switch and REPRESENTOR.fullmatch(self.port_name))


@frozen(slots=True)
class Vdpa:
    """A vDPA device of a function: ``driver`` is ``vhost_vdpa`` or ``virtio_vdpa``, empty if unbound."""

    name: str
    path: str
    driver: str = ""

    @property
    def type(self) -> str:
        """``vhost`` or ``virtio``; empty for other drivers."""
        return VDPA_TYPES.get(self.driver, "")


@frozen(slots=True)
class Function:
    """One function as sysfs shows it. Unknown texts are empty, unknown numbers ``None``.

    ``id``
        The PCI address, or the name on the auxiliary bus, which CNI plugins use as device id.
    ``path``
        Its directory, ``/sys/devices/…``.
    ``address``
        The address of its PCI function; of a scalable function, that of its physical function.
    ``vendor``, ``device``, ``subsystem_vendor``, ``subsystem_device``, ``pci_class``
        Lower-case hex digits; of a scalable function those of ``address``.
    ``parent``
        The address of the physical function of a virtual or scalable one; else empty.
    ``vf_index``, ``sf_number``
        The number of a virtual function, from 0, and of a scalable one (``sfnum``).
    ``total_vfs``
        The largest number of virtual functions; ``None`` without the capability.
    ``num_vfs``, ``num_sfs``
        The current numbers of virtual and scalable functions.
    ``interfaces``
        Its network interfaces, including the uplinks of a switch, in the order of ports.
    ``away``
        Interfaces that disappeared while its driver stayed, because they are in the network namespace of a
        pod. Empty after a restart, since they are not stored.
    ``representors``
        Interfaces of its embedded switch that represent other functions.
    ``rdma_devices``
        Names of its RDMA devices, also of those in another network namespace.
    ``has_vfio_device``
        Whether the kernel lists a vfio device of it, under any name of its driver (``vfio-dev``, see
        Documentation/ABI/testing/sysfs-devices-vfio-dev, since Linux 6.1).
    ``vgpu_type``
        The number of its NVIDIA vGPU type, for a virtual function on driver ``nvidia`` since Linux 6.8; 0 if
        no vGPU is configured.
    ``files``
        The names and the content of those files in its directory that the configuration names, if there are
        any, in the order of names.
    ``inode``
        Changes when the function is removed and appears again under its id.
    """

    id: str
    kind: FunctionKind
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
    has_vfio_device: bool = False
    vgpu_type: int | None = None
    vdpa: Vdpa | None = None
    acpi_index: int | None = None
    pkey: str = ""
    files: tuple[tuple[str, str], ...] = ()
    inode: int = 0

    @property
    def pci_path(self) -> str:
        return self.path.rpartition("/")[0] if self.kind is FunctionKind.SCALABLE else self.path

    @property
    def is_network(self) -> bool:
        """Whether it is a network adapter: PCI base class 02 (kernel, include/linux/pci_ids.h)."""
        return self.pci_class.startswith("02")

    @property
    def is_passed_on(self) -> bool:
        """Whether its driver passes it on to programs: through vfio or uio."""
        return self.has_vfio_device or is_passed_on(self.driver)

    @property
    def uses_vfio(self) -> bool:
        """Whether programs use it through vfio.

        Kernels before Linux 6.1 list no vfio device: there, a driver that is called so counts.
        """
        return self.has_vfio_device or (self.is_passed_on and "vfio" in self.driver)

    @property
    def last_interfaces(self) -> tuple[Interface, ...]:
        """Its interfaces, or those that are now in another network namespace."""
        return self.interfaces or self.away


def is_passed_on(driver: str) -> bool:
    """Whether a driver of this name passes devices on to programs: vfio-pci with its variants, uio."""
    return _PASSED_ON.fullmatch(driver) is not None


@frozen
class Snapshot:
    """The functions at one moment, by id, in the order of addresses.

    ``representors`` are the interfaces that represent virtual and scalable functions in an embedded switch,
    by the id of the function; ``everything`` is whether every function was read again. ``functions`` contains
    the physical function of every other one, unless it is being removed.
    """

    functions: Mapping[str, Function] = field(default_factory=dict)
    representors: Mapping[str, Interface] = field(default_factory=dict)
    everything: bool = False

    def physical_of(self, function: Function) -> Function | None:
        """The physical function of a virtual or scalable one; ``None`` for a physical one."""
        return self.functions.get(function.parent) if function.parent else None


_Port = tuple[str, int]
"""A value of :class:`FunctionKind` and a number, from the name of a port."""


def representors(functions: Mapping[str, Function], strays: Iterable[Interface]) -> dict[str, Interface]:
    """The representor of each function, by the id of the function.

    Found by ``phys_port_name`` among the interfaces of the physical function, else among interfaces without a
    parent device (bnxt, ice) on the switch of its uplink.
    """
    by_switch: dict[str, list[Interface]] = {}
    for stray in strays:
        by_switch.setdefault(stray.switch, []).append(stray)
    ports: dict[str, dict[_Port, Interface]] = {}
    found: dict[str, Interface] = {}
    for function in functions.values():
        physical = functions.get(function.parent)
        number = function.vf_index if function.kind is FunctionKind.VIRTUAL else function.sf_number
        if physical is None or number is None:
            continue
        if physical.id not in ports:
            near = {one.switch for one in physical.last_interfaces if one.switch}
            others = [stray for switch in sorted(near) for stray in by_switch.get(switch, ())]
            ports[physical.id] = _ports(others, physical) | _ports(physical.representors, physical)
        interface = ports[physical.id].get((function.kind.value, number))
        if interface is not None:
            found[function.id] = interface
    return found


def _ports(interfaces: Iterable[Interface], physical: Function) -> dict[_Port, Interface]:
    """The representors by the function they represent, as far as it may belong to ``physical``.

    One switch may have functions of several physical functions. The number in ``pf<N>`` is usually that of
    the PCI function; some adapters number differently, so it is ignored if no port matches. ``c<N>`` is a
    function of another controller, on another machine.
    """
    own: dict[_Port, Interface] = {}
    foreign: dict[_Port, list[Interface]] = {}
    for interface in interfaces:
        port = REPRESENTOR.fullmatch(interface.port_name)
        if port is None or port["controller"]:
            continue
        if port["old"]:
            own[FunctionKind.VIRTUAL.value, int(port["old"])] = interface
        elif port["kind"]:
            key = (port["kind"], int(port["number"]))
            if port["pf"] == physical.address[-1]:
                own[key] = interface
            else:
                foreign.setdefault(key, []).append(interface)
    if own:
        return own
    return {key: several[0] for key, several in foreign.items() if len(several) == 1}


@frozen(slots=True)
class Facts:
    """Facts about one function from netlink. Unknown texts are empty.

    ``eswitch_mode`` is ``legacy`` or ``switchdev`` (devlink, ``DEVLINK_ATTR_ESWITCH_MODE``) of the physical
    function. ``mac`` is the address that the physical function has set for a virtual one (rtnetlink,
    ``IFLA_VF_MAC``), for functions without an interface. ``representor`` is its representor according to
    devlink. ``in_use`` is a clause about its use by the node: ``"it carries the IPv4 default route, through
    bond0"``.
    """

    eswitch_mode: str = ""
    mac: str = ""
    ddp_profile: str = ""
    representor: str = ""
    in_use: str = ""
