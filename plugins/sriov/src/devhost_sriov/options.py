"""The options of the backend. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

import re
from dataclasses import dataclass

from devhost.backend import OptionError, option

from .in_use import is_address

MOST = 65535
"""Virtual functions of one physical function: TotalVFs of the PCIe SR-IOV capability has 16 bits."""

_DRIVER = re.compile(r"[A-Za-z0-9_.-]{0,64}")


@dataclass(frozen=True, slots=True)
class VirtualFunctions:
    """One entry of ``backends.sriov.virtualFunctions``."""

    pf: str = option(
        meaning="The physical function: a network interface of it, or its PCI address.", example="ens1f0"
    )
    count: int = option(meaning="How many virtual functions it shall have; 0 removes them.", example=8)
    driver: str = option(
        "", "What each is bound to; without it, what the kernel chooses.", example="vfio-pci"
    )

    def __post_init__(self) -> None:
        if not self.pf or "/" in self.pf or self.pf in (".", ".."):
            raise OptionError("must be an interface or a PCI address", key="pf", hint="for example ens1f0")
        if not 0 <= self.count <= MOST:
            raise OptionError(f"must be from 0 to {MOST}, not {self.count}", key="count")
        if not _DRIVER.fullmatch(self.driver) or self.driver in (".", ".."):
            hint = "for example vfio-pci"
            raise OptionError(f'"{self.driver}" is no driver\'s name', key="driver", hint=hint)


@dataclass(frozen=True, slots=True)
class SriovOptions:
    """The keys under ``backends.sriov``."""

    allow_in_use: bool = option(
        False,
        "Whether a function that the node itself lives from (it carries a default route, the address the "
        "kubelet uses, or a mounted file system) is offered all the same.",
    )
    node_addresses: tuple[str, ...] = option(
        (),
        "Addresses that the kubelet uses (its `--node-ip`), if not those in the variable `NODE_IP`: the "
        "functions that have them are in use too.",
        example=["192.0.2.7", "2001:db8::7"],
    )
    ignore_port_state: bool = option(
        False, "Whether network functions are healthy although their port has no carrier."
    )
    virtual_functions: tuple[VirtualFunctions, ...] = option(
        (), "Virtual functions to make, and what to bind them to. Without it devhost changes no hardware."
    )

    def __post_init__(self) -> None:
        for n, address in enumerate(self.node_addresses):
            if not is_address(address):
                raise OptionError(f'"{address}" is no IP address', key=f"nodeAddresses[{n}]")
        seen: set[str] = set()
        for n, entry in enumerate(self.virtual_functions):
            if entry.pf in seen:
                hint = "all virtual functions of one physical function are made at once"
                raise OptionError(f'"{entry.pf}" stands twice', key=f"virtualFunctions[{n}].pf", hint=hint)
            seen.add(entry.pf)


RDMA, VHOST_NET = "rdma", "vhostNet"
"""What a resource can hand out beside the function itself, in the words of the keys that ask for it."""


@dataclass(frozen=True, slots=True)
class SriovUse:
    """The keys of an entry under ``resources`` that are this backend's."""

    rdma: bool = option(
        False,
        "Whether a container also gets the nodes of the RDMA devices that its functions have. It is `true` "
        "without the key where `where` says `isRdma: true`.",
        implied_by="isRdma",
    )
    vhost_net: bool = option(
        False, "Whether a container with network functions also gets `/dev/vhost-net` and `/dev/net/tun`."
    )
    kubevirt: bool = option(
        False,
        "Whether a container with functions bound to vfio gets what KubeVirt's own plugin gives: "
        "`PCI_RESOURCE_…`, and the right to make the nodes (`mrw`).",
    )
    info: dict[str, dict[str, str]] = option(
        {},
        "What `PCIDEVICE_…_INFO` says in addition, by the id of a function; `*` is each of them.",
        example={"*": {"token": "abc"}, "0000:3b:02.0": {"token": "def"}},
    )

    @property
    def uses(self) -> frozenset[str]:
        """What is handed out beside the function itself."""
        return frozenset(use for use, wanted in ((RDMA, self.rdma), (VHOST_NET, self.vhost_net)) if wanted)


PLAIN = SriovUse()
"""An entry without keys of this backend."""
