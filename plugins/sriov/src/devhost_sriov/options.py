"""The options of the backend. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

import re

from devhost.backend import OptionError, option
from devhost.backend.frozen import frozen
from devhost.backend.traffic import is_address

MAX_VFS = 65535
"""Limit of virtual functions: TotalVFs of the PCIe SR-IOV capability has 16 bits."""

_DRIVER = re.compile(r"[A-Za-z0-9_.-]{0,64}")


@frozen
class VirtualFunctions:
    """One entry of ``backends.sriov.virtualFunctions``."""

    pf: str = option(
        meaning="The physical function: its network interface, or its PCI address.", example="ens1f0"
    )
    count: int = option(meaning="Number of virtual functions; 0 removes them.", example=8)
    driver: str = option("", "Driver of each; by default the kernel chooses.", example="vfio-pci")

    def __post_init__(self) -> None:
        if not self.pf or "/" in self.pf or self.pf in (".", ".."):
            raise OptionError("must be an interface or a PCI address", key="pf", hint="for example ens1f0")
        if not 0 <= self.count <= MAX_VFS:
            raise OptionError(f"must be from 0 to {MAX_VFS}, not {self.count}", key="count")
        if not _DRIVER.fullmatch(self.driver) or self.driver in (".", ".."):
            hint = "for example vfio-pci"
            raise OptionError(f'"{self.driver}" is not the name of a driver', key="driver", hint=hint)


@frozen
class SriovOptions:
    """The keys under ``backends.sriov``."""

    allow_in_use: bool = option(
        False,
        "Offer functions that the node itself uses: for a default route, the address of the kubelet, or a "
        "mounted file system.",
    )
    node_addresses: tuple[str, ...] = option(
        (),
        "Addresses of the kubelet (its `--node-ip`), whose functions are in use; by default those in the "
        "variable `NODE_IP`.",
        example=["192.0.2.7", "2001:db8::7"],
    )
    ignore_port_state: bool = option(False, "Network functions whose port has no carrier count as healthy.")
    virtual_functions: tuple[VirtualFunctions, ...] = option(
        (), "Virtual functions to create, and their drivers. By default devhost changes no hardware."
    )

    def __post_init__(self) -> None:
        for n, address in enumerate(self.node_addresses):
            if not is_address(address):
                raise OptionError(f'"{address}" is not an IP address', key=f"nodeAddresses[{n}]")
        seen: set[str] = set()
        for n, entry in enumerate(self.virtual_functions):
            if entry.pf in seen:
                hint = "all virtual functions of one physical function are created together"
                raise OptionError(f'"{entry.pf}" appears twice', key=f"virtualFunctions[{n}].pf", hint=hint)
            seen.add(entry.pf)


RDMA, VHOST_NET, KUBEVIRT = "rdma", "vhostNet", "kubevirt"
"""What a resource needs of the function besides itself, by option name."""

PERMISSIONS = "permissions"
"""The key of every entry for the permissions of device nodes."""


@frozen
class SriovUse:
    """The keys of an entry under ``resources`` that belong to this backend."""

    rdma: bool = option(
        False,
        "Also give the container the nodes of the RDMA devices of its functions. Default `true` if `where` "
        "has `isRdma: true`.",
        implied_by="isRdma",
    )
    vhost_net: bool = option(
        False, "Also give containers with network functions `/dev/vhost-net` and `/dev/net/tun`."
    )
    kubevirt: bool = option(
        False,
        "Give containers with functions bound to vfio what KubeVirt's own plugin gives: `PCI_RESOURCE_…`, "
        "and the permissions `mrw`.",
    )
    info: dict[str, dict[str, str]] = option(
        {},
        "Additional content of `PCIDEVICE_…_INFO` by id of a function; `*` is for all.",
        example={"*": {"token": "abc"}, "0000:3b:02.0": {"token": "def"}},
    )

    @property
    def uses(self) -> frozenset[str]:
        """What the resource needs of the function besides itself."""
        uses = {RDMA: self.rdma, VHOST_NET: self.vhost_net, KUBEVIRT: self.kubevirt}
        return frozenset(use for use, wanted in uses.items() if wanted)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that only containers of such a resource get, with ``*`` for its name."""
        return ("PCI_RESOURCE_*",) if self.kubevirt else ()


PLAIN = SriovUse()
"""An entry without keys of this backend."""
