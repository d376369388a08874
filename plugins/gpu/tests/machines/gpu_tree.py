"""The parts that machines with GPUs are made of, as files laid out the way the kernel lays them out.

What is where was taken from Linux 6.12 unless a machine says otherwise:

- ``/sys/class/drm``: drivers/gpu/drm/drm_sysfs.c. A DRM device hangs on its GPU, below ``drm/``; so do its
  connectors (``card0-DP-1``), below the card. ``version`` lies beside them. Nodes have major 226, cards
  minors from 0 and render nodes from 128. Their names are ``dri/card0``, ``dri/renderD128``
  (``drm_devnode``).
- ``/dev/dri/by-path``: udev's rule 60-drm.rules.
- ``/sys/class/kfd/kfd/topology``: drivers/gpu/drm/amd/amdkfd/kfd_topology.c. Every property stands in a line
  of its own, number after name; flags and hashes are decimal too.
- ``/sys/devices/platform/amdgpu_xcp_<n>``: drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c, without a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

XGMI, PCIE = 11, 2
"""``CRAT_IOLINK_TYPE_XGMI``, ``…_PCIEXPRESS`` (kfd_crat.h)."""

PUBLIC = 1
"""``HSA_MEM_HEAP_TYPE_FB_PUBLIC``: a GPU's memory that the processor sees whole."""

VGA, THREE_D, DISPLAY, ACCELERATOR = "0x030000", "0x030200", "0x038000", "0x120000"
"""PCI classes, as sysfs writes them (``pci_ids.h``)."""

_BDF = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Drm:
    """The names of the nodes that a driver made."""

    card: str
    render: str


class GpuTree(Tree):
    """A machine with GPUs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._cards = 0
        self._renders = 128
        self._nodes = 0
        (root / "sys/class/drm").mkdir(parents=True, exist_ok=True)
        self.file("/sys/class/drm/version", "drm 1.1.0 20060810")

    def function(self, address: str, ids: str, driver: str = "", **facts: Any) -> str:
        """A display controller, for a screen by default."""
        return super().function(address, ids, driver, **{"pci_class": VGA} | facts)

    def drm(
        self, sys_path: str, *, card: bool = True, render: bool = True, connectors: tuple[str, ...] = ()
    ) -> Drm:
        """The DRM devices of a GPU, with their nodes and udev's links to them."""
        parent = sys_path.removeprefix("/sys/devices/")
        made = Drm("", "")
        if card:
            name, self._cards = f"card{self._cards}", self._cards + 1
            number = f"226:{name.removeprefix('card')}"
            self.device(f"{parent}/drm/{name}", "drm", f"dri/{name}", number, DEVTYPE="drm_minor")
            for connector in connectors:
                path = self.device(f"{parent}/drm/{name}/{name}-{connector}", "drm", DEVTYPE="drm_connector")
                self.file(f"{path}/status", "disconnected")
            made = Drm(name, "")
        if render:
            name, self._renders = f"renderD{self._renders}", self._renders + 1
            number = f"226:{name.removeprefix('renderD')}"
            self.device(f"{parent}/drm/{name}", "drm", f"dri/{name}", number, DEVTYPE="drm_minor")
            made = Drm(made.card, name)
        self._by_path(parent, made)
        return made

    def platform(self, name: str, driver: str = "") -> str:
        """A device of the platform bus; its ``sys_path``."""
        uevent = {"MODALIAS": f"platform:{name}"} | ({"DRIVER": driver} if driver else {})
        return self.device(f"platform/{name}", "platform", files={}, **uevent)

    def hwmon(self, sys_path: str, number: int, **temperatures: int) -> None:
        """Sensors by their labels, in degrees Celsius (Documentation/hwmon/sysfs-interface.rst)."""
        parent = sys_path.removeprefix("/sys/devices/")
        files = {"name": "gpu"}
        for index, (label, celsius) in enumerate(temperatures.items(), 1):
            files |= {f"temp{index}_input": str(celsius * 1000), f"temp{index}_label": label}
        self.device(f"{parent}/hwmon/hwmon{number}", "hwmon", files=files)

    # AMD

    def kfd(self) -> None:
        """The node for compute, with the processor as the first node of the topology."""
        self.device("virtual/kfd/kfd", "kfd", "kfd", "509:0")
        self.file("/sys/devices/virtual/kfd/kfd/topology/generation_id", "1")
        self.kfd_node(simd_count=0, cpu_cores_count=64, drm_render_minor=0)

    def kfd_node(self, memory: int = 0, **properties: int) -> int:
        """A node of the topology; its number.

        Args:
            memory: its own, in bytes.
            properties: what differs from a processor's.
        """
        number, self._nodes = self._nodes, self._nodes + 1
        place = self._place_of(number)
        facts = {"cpu_cores_count": 0, "simd_count": 0, "mem_banks_count": 1, "io_links_count": 0}
        facts |= {"p2p_links_count": 0, "domain": 0, "location_id": 0, "drm_render_minor": 0, "hive_id": 0}
        self.file(f"{place}/properties", _lines(facts | properties))
        self.file(f"{place}/gpu_id", "0" if not properties.get("simd_count") else str(51000 + number))
        kind = PUBLIC if properties.get("simd_count") else 0
        bank = {"heap_type": kind, "size_in_bytes": memory, "flags": 0, "width": 4096, "mem_clk_max": 1600}
        self.file(f"{place}/mem_banks/0/properties", _lines(bank))
        return number

    def kfd_gpu(
        self,
        address: str,
        render: str,
        *,
        version: int,
        memory: int,
        partition: int = 0,
        is_early: bool = False,
        hive: int = 0,
    ) -> int:
        """The node of a GPU, or of a partition, of which the first has number 0; its number.

        ``is_early``: as drivers did it before the number of a partition got the upper bits of the location.
        """
        domain, bus, rest = address.split(":")
        device, function = rest.split(".")
        location = (
            (partition if is_early else partition << 28)
            | int(bus, 16) << 8
            | int(device, 16) << 3
            | int(function)
        )
        return self.kfd_node(
            memory,
            simd_count=416,
            simd_per_cu=4,
            gfx_target_version=version,
            vendor_id=0x1002,
            domain=int(domain, 16),
            location_id=location,
            drm_render_minor=int(render.removeprefix("renderD")),
            hive_id=hive,
        )

    def kfd_link(
        self, a: int, b: int, kind: int = XGMI, weight: int = 15, *, below: str = "io_links", links: int = 1
    ) -> None:
        """A link between two nodes of the topology, in both directions."""
        for here, there in ((a, b), (b, a)):
            place = f"{self._place_of(here)}/{below}"
            directory = self.root / place.lstrip("/")
            count = len(list(directory.iterdir())) if directory.is_dir() else 0
            link = {"type": kind, "version_major": 0, "version_minor": 0, "node_from": here, "node_to": there}
            link |= {"weight": weight, "min_bandwidth": 50000, "max_bandwidth": 50000 * links, "flags": 1}
            self.file(f"{place}/{count}/properties", _lines(link))

    def kfd_changes(self) -> None:
        """Updates the topology's generation, as the kernel does after each change."""
        file = self.root / "sys/devices/virtual/kfd/kfd/topology/generation_id"
        file.write_text(f"{int(file.read_text()) + 1}\n")

    def kfd_forget(self) -> None:
        """The topology without any GPU, as while a partition mode is being changed."""
        nodes = self.root / "sys/devices/virtual/kfd/kfd/topology/nodes"
        for number in range(1, self._nodes):
            for file in sorted((nodes / str(number)).rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
            (nodes / str(number)).rmdir()
        self._nodes = 1
        self.kfd_changes()

    def bind(self, sys_path: str, driver: str) -> None:
        """Binds a function to another driver, or to none if that is empty; its DRM devices go."""
        for name in ("card", "renderD"):
            for path in sorted((self.root / sys_path.lstrip("/") / "drm").glob(f"{name}*")):
                if (path / "uevent").exists():
                    self.remove(f"{sys_path}/drm/{path.name}")
        (self.root / sys_path.lstrip("/") / "driver").unlink(missing_ok=True)
        if driver:
            self.link(f"{sys_path}/driver", f"/sys/bus/pci/drivers/{driver}")
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)

    def _by_path(self, parent: str, made: Drm) -> None:
        address = [part for part in parent.split("/") if _BDF.fullmatch(part)]
        last = parent.rpartition("/")[2]
        name = f"pci-{address[-1]}" if address else f"platform-{last}"
        if address and last.startswith("simple-framebuffer"):
            name += f"-platform-{last}"
        for node, kind in ((made.card, "card"), (made.render, "render")):
            if node:
                self.link(f"/dev/dri/by-path/{name}-{kind}", f"/dev/dri/{node}")

    def _place_of(self, number: int) -> str:
        return f"/sys/devices/virtual/kfd/kfd/topology/nodes/{number}"


def _lines(facts: Mapping[str, int]) -> str:
    return "\n".join(f"{name} {number}" for name, number in facts.items())
