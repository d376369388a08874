"""The parts SR-IOV machines are made of, as files laid out the way the kernel lays them out.

Paths follow Linux 6.12 unless a machine names another source:

- functions: Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/{pci-sysfs,iov}.c. A virtual function has
  ``physfn`` and ``sriov_vf_msix_count``, a physical one ``sriov_*`` and ``virtfn<N>``.
- interfaces: Documentation/ABI/testing/sysfs-class-net. Where reading an attribute is an error in the
  kernel (``phys_port_name`` without a switch), the file is left out.
- scalable functions: drivers/net/ethernet/mellanox/mlx5/core/sf/dev/dev.c, on the auxiliary bus.
- vfio: drivers/vfio/{group,vfio_main}.c, the node of a group on ``virtual/vfio``, that of a device (from
  6.2 on, with CONFIG_VFIO_DEVICE_CDEV) in the function's ``vfio-dev``.
- vDPA: drivers/vdpa/vdpa.c, a separate bus; drivers/vhost/vdpa.c.
- mediated devices: drivers/vfio/mdev/mdev_{core,sysfs,driver}.c. Since Linux 5.16, vfio makes the group
  of each and names it ``vfio-noiommu``; the node is ``vfio/<n>`` (``vfio_create_group``).
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

SWITCH = "702fd400039f59b8"
"""A ``phys_switch_id``."""


class SriovTree(Tree):
    """A machine with functions of any class. Paths of functions are relative to ``/sys/devices``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._count = {"ifindex": 2, "uverbs": 0, "vfio": 0, "vhost-vdpa": 0, "uio": 0}
        for directory in ("sys/bus/pci/devices", "sys/class/net"):
            (root / directory).mkdir(parents=True, exist_ok=True)

    def function(
        self, address: str, ids: str, driver: str = "", *, total: int | None = None, **facts: Any
    ) -> str:
        """A PCI function; its path below ``/sys/devices``.

        Args:
            address: of the function.
            ids: ``vendor:device``, as lspci writes them.
            driver: it is bound to; empty for none.
            total: how many virtual functions it can have; ``None`` without the capability.
            facts: what else ``Tree.function`` takes; the board is the vendor's ``0001`` if not given.
        """
        files = dict(facts.pop("files", None) or {})
        if total is not None:
            files |= {"sriov_totalvfs": str(total), "sriov_numvfs": "0", "sriov_drivers_autoprobe": "1"}
        board = facts.pop("subsystem", "") or f"{ids.partition(':')[0]}:0001"
        made = super().function(address, ids, driver, subsystem=board, files=files, **facts)
        return made.removeprefix("/sys/devices/")

    def virtual(
        self, physical: str, address: str, ids: str, driver: str = "", *, group: int | None = None
    ) -> str:
        """The next virtual function of ``physical``, on the same bus, class and board; its path."""
        whole = self.root / "sys/devices" / physical
        number = next(number for number in count() if not (whole / f"virtfn{number}").is_symlink())
        vendor, _, device = ids.partition(":")
        path = f"{physical.rpartition('/')[0]}/{address}"
        attributes = {
            name: (whole / name).read_text().strip()
            for name in ("class", "subsystem_vendor", "subsystem_device", "numa_node")
        }
        attributes |= {"vendor": f"0x{vendor}", "device": f"0x{device}", "sriov_vf_msix_count": ""}
        self.pci(path, driver=driver, iommu_group=group, files=attributes)
        self.link(f"/sys/devices/{physical}/virtfn{number}", f"/sys/devices/{path}")
        self.link(f"/sys/devices/{path}/physfn", f"/sys/devices/{physical}")
        self.file(f"/sys/devices/{physical}/sriov_numvfs", str(len(list(whole.glob("virtfn*")))))
        return path

    def scalable(self, physical: str, name: str, number: int) -> str:
        """A scalable function such as ``mlx5_core.sf.2``, with its ``sfnum``; its path."""
        path = f"{physical}/{name}"
        driver = name.rpartition(".")[0]
        self.device(path, "auxiliary", files={"sfnum": str(number)}, DRIVER=driver)
        return path

    def netdev(
        self,
        parent: str,
        name: str,
        *,
        kind: int = 1,
        up: bool = True,
        port: int = 0,
        port_name: str = "",
        switch: str = SWITCH,
        mtu: int = 1500,
    ) -> str:
        """A network interface of what is at ``parent``; its ``sys_path``.

        Args:
            parent: what it hangs on, below ``/sys/devices``; ``virtual`` for nothing.
            name: of the interface.
            kind: its ``type``, 1 for Ethernet and 32 for IP over InfiniBand.
            up: whether it is enabled and has a carrier.
            port: of its function, from 0.
            port_name: which port of an embedded switch it is; empty where there is no switch.
            switch: the id of that switch.
            mtu: in bytes.
        """
        index = self.next("ifindex")
        mac = f"02:00:5e:10:{index // 256:02x}:{index % 256:02x}"
        files = {
            "type": str(kind),
            "address": mac if kind == 1 else f"80:00:00:00:fe:80:00:00:00:00:00:00:00:00:{mac}",
            "dev_port": str(port),
            "ifindex": str(index),
            "operstate": "up" if up else "down",
            "flags": "0x1003" if up else "0x1002",
            "mtu": str(mtu),
        }
        if port_name:
            files |= {"phys_port_name": port_name, "phys_switch_id": switch}
        return self.device(f"{parent}/net/{name}", "net", files=files, INTERFACE=name, IFINDEX=str(index))

    def rdma(self, parent: str, name: str, *, link_layer: str = "Ethernet", pkey: str = "0xffff") -> str:
        """An RDMA device with its uverbs node; its ``sys_path``."""
        files = {
            "node_type": "1: CA",
            "node_guid": "b859:9f03:00d4:2f70",
            "ports/1/link_layer": link_layer,
            "ports/1/state": "4: ACTIVE",
            "ports/1/pkeys/0": pkey,
        }
        path = self.device(f"{parent}/infiniband/{name}", "infiniband", files=files, NAME=name)
        number = self.next("uverbs")
        place, node = f"{parent}/infiniband_verbs/uverbs{number}", f"infiniband/uverbs{number}"
        self.device(place, "infiniband_verbs", node, f"231:{192 + number}", {"ibdev": name})
        if not (self.root / "sys/devices/virtual/misc/rdma_cm").exists():
            self.device("virtual/misc/rdma_cm", "misc", "infiniband/rdma_cm", "10:260")
        return path

    def vfio(self, path: str, *, cdev: bool = True) -> None:
        """The nodes of a function that is bound to vfio-pci: of its group, of itself, of vfio."""
        function = self.root / "sys/devices" / path
        group = (function / "iommu_group").readlink().name
        if not (self.root / "sys/devices/virtual/misc/vfio").exists():
            self.device("virtual/misc/vfio", "misc", "vfio/vfio", "10:196")
        self.device(f"virtual/vfio/{group}", "vfio", f"vfio/{group}", f"243:{group}")
        if cdev:
            number = self.next("vfio")
            place = f"{path}/vfio-dev/vfio{number}"
            self.device(place, "vfio-dev", f"vfio/devices/vfio{number}", f"242:{number}")

    def vdpa(self, parent: str, name: str, driver: str) -> str:
        """A vDPA device of what is at ``parent``; its ``sys_path``."""
        path = self.device(f"{parent}/{name}", "vdpa", DRIVER=driver)
        if driver == "vhost_vdpa":
            number = self.next("vhost-vdpa")
            node = f"vhost-vdpa-{number}"
            self.device(f"{parent}/{name}/{node}", "vhost-vdpa", node, f"240:{number}")
        return path

    def mediated(self, parent: str, uuid: str, kind: str, name: str = "", *, driver: str, group: int) -> str:
        """A mediated device of what is at ``parent``, with its group; its path.

        Args:
            kind: the directory of its type below ``mdev_supported_types``.
            name: the name of its type; empty for a driver without names.
        """
        path, kind = f"{parent}/{uuid}", f"/sys/devices/{parent}/mdev_supported_types/{kind}"
        self.device(path, "mdev", DRIVER=driver)
        self.file(f"{kind}/device_api", "vfio-pci")
        if name:
            self.file(f"{kind}/name", name)
        self.link(f"{kind}/devices/{uuid}", f"/sys/devices/{path}")
        self.link(f"/sys/devices/{path}/mdev_type", kind)
        place = f"/sys/kernel/iommu_groups/{group}"
        self.file(f"{place}/name", "vfio-noiommu")
        self.link(f"{place}/devices/{uuid}", f"/sys/devices/{path}")
        self.link(f"/sys/devices/{path}/iommu_group", place)
        if not (self.root / "sys/devices/virtual/misc/vfio").exists():
            self.device("virtual/misc/vfio", "misc", "vfio/vfio", "10:196")
        self.device(f"virtual/vfio/{group}", "vfio", f"vfio/{group}", f"243:{group}")
        return path

    def next(self, what: str) -> int:
        """The next number of a kind of thing, as the kernel gives them out."""
        self._count[what] += 1
        return self._count[what] - 1
