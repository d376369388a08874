"""The parts RDMA machines are made of, as files laid out the way the kernel lays them out.

Paths follow Linux 6.12 unless a machine names another source:

- ``/sys/class/infiniband/<ibdev>``: drivers/infiniband/core/{device,sysfs}.c and
  Documentation/ABI/stable/sysfs-class-infiniband. The ``uevent`` has ``NAME=``, and no node.
- ``/sys/class/infiniband_verbs/uverbs<N>``: drivers/infiniband/core/uverbs_main.c. It hangs on what the RDMA
  device hangs on (``dev.parent``), not on the RDMA device: ``ibdev`` names its RDMA device.
- ``/sys/class/infiniband_mad/{umad,issm}<N>``: drivers/infiniband/core/user_mad.c, one for each port
  with ``RDMA_CORE_CAP_IB_MAD``. Since 6.11 an issm only with ``RDMA_CORE_CAP_IB_SMI``, before beside each.
- ``/sys/class/misc/rdma_cm``: drivers/infiniband/core/ucma.c.
- the auxiliary bus: drivers/base/auxiliary.c, devices ``<module>.<name>.<id>``, drivers ``<module>.<name>``.

A file whose reading is an error in the kernel (``gid_attrs/ndevs`` of an InfiniBand port) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

ROCE_GIDS = ("IB/RoCE v1", "RoCE v2")
"""The types of a RoCE port's first addresses (drivers/infiniband/core/cache.c, ``gid_type_str``)."""

MODULES = frozenset({"ib_core", "ib_uverbs", "ib_umad", "rdma_ucm"})
"""What a node for RDMA loads beside its drivers (rdma-core, ``/etc/rdma/modules``)."""

CA, RNIC, UNSPECIFIED = "1: CA", "4: RNIC", "7: unspecified"
"""``node_type``, as ``node_type_show`` writes it."""

ACTIVE, INIT, DOWN = ("4: ACTIVE", "5: LinkUp"), ("2: INIT", "5: LinkUp"), ("1: DOWN", "2: Polling")
"""``state`` and ``phys_state`` of a port, as ``state_show`` and ``phys_state_show`` write them."""

DISABLED = ("1: DOWN", "3: Disabled")
"""A port whose network interface is down."""

HDR, EDR, SDR = "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)"
"""``rate``, as ``rate_show`` writes it: width times speed, both as negotiated."""

FIXED_UVERBS, FIXED_UMAD = 32, 64
"""How many nodes have numbers below major 231; those beyond get a dynamic major."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port.

    ``mad`` and ``smi`` are its capabilities: whether there is a umad, and an issm, for it. ``gid_types`` has
    the type of each address that is in use, from index 0.
    """

    link_layer: str
    condition: tuple[str, str]
    rate: str
    lid: str = "0x0"
    netdev: str = ""
    mad: bool = False
    smi: bool = False
    gid_types: tuple[str, ...] = ("IB/RoCE v1",)


def infiniband(rate: str, condition: tuple[str, str] = ACTIVE, *, lid: str = "0x1", smi: bool = True) -> Port:
    """A port of an InfiniBand fabric (``RDMA_CORE_PORT_IBA_IB``)."""
    return Port("InfiniBand", condition, rate, lid, mad=True, smi=smi)


def roce(netdev: str, rate: str, condition: tuple[str, str] = ACTIVE, *, smi: bool = False) -> Port:
    """A RoCE port: management datagrams, but no subnet (``RDMA_CORE_PORT_IBA_ROCE``)."""
    return Port("Ethernet", condition, rate, "0x0", netdev, True, smi, ROCE_GIDS)


def iwarp(netdev: str, rate: str, condition: tuple[str, str] = ACTIVE) -> Port:
    """An iWARP port: neither (``RDMA_CORE_PORT_IWARP``). Before 6.6 it does not name its interface."""
    return Port("Ethernet", condition, rate, netdev=netdev)


class RdmaTree(Tree):
    """A machine with RDMA. Which modules are loaded decides which nodes there are."""

    def __init__(self, root: Path, *drivers: str, without: str = "") -> None:
        super().__init__(root)
        self._loaded = (MODULES | set(drivers)) - {without}
        self._next = {"uverbs": 0, "umad": 0, "ifindex": 2}
        for module in self._loaded:
            self.file(f"/sys/module/{module}/initstate", "live")
        (root / "sys/class/infiniband").mkdir(parents=True, exist_ok=True)
        if "ib_uverbs" in self._loaded:
            self.file("/sys/class/infiniband_verbs/abi_version", "6")
        if "ib_umad" in self._loaded:
            self.file("/sys/class/infiniband_mad/abi_version", "5")
        if "rdma_ucm" in self._loaded:
            node, files = "infiniband/rdma_cm", {"abi_version": "4"}
            self.device("virtual/misc/rdma_cm", "misc", node, "10:260", files, DEVMODE="0666")

    def ibdev(
        self,
        parent: str,
        name: str,
        *ports: Port,
        node_type: str = CA,
        guid: str = "b859:9f03:00d4:2f70",
        files: Mapping[str, str] | None = None,
        uverbs: bool = True,
    ) -> str:
        """An RDMA device with its nodes.

        Args:
            parent: what it hangs on, below ``/sys/devices``: ``pci…/0000:3b:00.0``, ``virtual``.
            name: of the RDMA device.
            ports: from number 1.
            node_type: as the kernel writes it.
            guid: of the node, and of the system image.
            files: further attributes: ``fw_ver``, ``board_id``, ``hca_type``.
            uverbs: false for a device that gets no uverbs, or not yet.

        Returns:
            Its ``sys_path``.
        """
        attributes = {"node_type": node_type, "node_guid": guid, "sys_image_guid": guid}
        attributes |= {"node_desc": name, "fw_ver": ""}
        attributes |= dict(files or {})
        for number, port in enumerate(ports, 1):
            attributes |= {f"ports/{number}/{key}": text for key, text in _port_files(port, guid).items()}
            if node_type != RNIC:  # iWARP has no partitions
                attributes[f"ports/{number}/pkeys/0"] = "0xffff"
        path = self.device(f"{parent}/infiniband/{name}", "infiniband", files=attributes, NAME=name)
        if uverbs:
            self.uverbs(parent, name)
        for number, port in enumerate(ports, 1):
            if port.mad:
                self.umad(parent, name, number, issm=port.smi)
        return path

    def uverbs(self, parent: str, ibdev: str) -> None:
        """The node for verbs, if its module is loaded."""
        if "ib_uverbs" not in self._loaded:
            return
        count = self._count("uverbs")
        number = f"231:{192 + count}" if count < FIXED_UVERBS else f"509:{count - FIXED_UVERBS}"
        path, node = f"{parent}/infiniband_verbs/uverbs{count}", f"infiniband/uverbs{count}"
        files = {"ibdev": ibdev, "abi_version": "1"}
        self.device(path, "infiniband_verbs", node, number, files, DEVMODE="0666")

    def umad(self, parent: str, ibdev: str, port: int, *, issm: bool) -> None:
        """The nodes for management datagrams and for a subnet manager, if their module is loaded."""
        if "ib_umad" not in self._loaded:
            return
        count = self._count("umad")
        fixed = count < FIXED_UMAD
        files = {"ibdev": ibdev, "port": str(port)}
        minors = {f"umad{count}": f"231:{count}" if fixed else f"508:{count - FIXED_UMAD}"}
        if issm:
            minors[f"issm{count}"] = f"231:{64 + count}" if fixed else f"507:{count - FIXED_UMAD}"
        for name, number in minors.items():
            self.device(
                f"{parent}/infiniband_mad/{name}", "infiniband_mad", f"infiniband/{name}", number, files
            )

    def netdev(
        self,
        parent: str,
        name: str,
        *,
        port: int = 0,
        kind: int = 1,
        up: bool = True,
        phys_port_name: str = "",
    ) -> None:
        """A network interface (Documentation/ABI/testing/sysfs-class-net).

        Args:
            parent: what it hangs on, below ``/sys/devices``.
            name: of the interface.
            port: of its function, from 0.
            kind: its ``type``, 1 for Ethernet and 32 for IP over InfiniBand.
            up: whether it is enabled.
            phys_port_name: the port of an embedded switch that it represents; empty without a switch.
        """
        index = self._count("ifindex")
        files = {
            "type": str(kind),
            "dev_port": str(port),
            "dev_id": "0x0",
            "operstate": "up" if up else "down",
            "flags": "0x1003" if up else "0x1002",
            "ifindex": str(index),
            "address": f"b8:59:9f:d4:2f:{index % 256:02x}",
        }
        if phys_port_name:
            files |= {"phys_port_name": phys_port_name, "phys_switch_id": "702fd400039f59b8"}
        self.device(f"{parent}/net/{name}", "net", files=files, INTERFACE=name, IFINDEX=str(index))

    def auxiliary(self, parent: str, name: str, driver: str, files: Mapping[str, str] | None = None) -> str:
        """A device of the auxiliary bus, such as ``mlx5_core.rdma.0``; its path below ``/sys/devices``."""
        path, alias = f"{parent}/{name}", name.rpartition(".")[0]
        self.device(path, "auxiliary", files=files, DRIVER=driver, MODALIAS=f"auxiliary:{alias}")
        return path

    def function(self, address: str, driver: str, ids: str, **facts: Any) -> str:
        """A PCI function of a board with the number ``0001``; its path below ``/sys/devices``."""
        board = f"{ids.partition(':')[0]}:0001"
        return super().function(address, ids, driver, subsystem=board, **facts).removeprefix("/sys/devices/")

    def _count(self, what: str) -> int:
        self._next[what] += 1
        return self._next[what] - 1


def _port_files(port: Port, guid: str) -> dict[str, str]:
    files = {
        "state": port.condition[0],
        "phys_state": port.condition[1],
        "link_layer": port.link_layer,
        "rate": port.rate,
        "lid": port.lid,
        "lid_mask_count": "0",
        "sm_lid": port.lid,
        "sm_sl": "0",
        "cap_mask": "0x04010000",
        f"gids/{len(port.gid_types)}": "0000:0000:0000:0000:0000:0000:0000:0000",
    }
    for index, kind in enumerate(port.gid_types):
        files |= {f"gids/{index}": f"fe80:0000:0000:0000:{guid}", f"gid_attrs/types/{index}": kind}
        if port.netdev:
            files[f"gid_attrs/ndevs/{index}"] = port.netdev
    return files
