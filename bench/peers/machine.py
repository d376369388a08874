"""The machine for the plugins: files in the layout of kernel and drivers, and a substitute for NVML."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

for _kind in ("gpu", "fpga"):  # the machine models of the backends' tests
    sys.path.append(os.fspath(Path(__file__).parents[2] / "plugins" / _kind / "tests" / "machines"))

NVIDIA_GPUS, INTEL_GPUS, FPGAS, ADAPTERS = 8, 4, 8, 8
"""The number of devices of each kind."""

KEPT = ("null", "zero", "full", "random", "urandom", "tty")
"""Nodes of this machine that programs may need."""

CHARACTER, BLOCK = 0o020000, 0o060000

PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "rate": "400 Gb/sec (4X NDR)",
}


class Machine:
    """A server with GPUs, FPGAs and RDMA adapters, ``place / "root"``, and its nodes, ``place / "dev"``."""

    def __init__(self, place: Path) -> None:
        from fpga_tree import FpgaTree  # type: ignore[import-not-found]
        from gpu_nvidia import DGX, NvidiaMachine  # type: ignore[import-not-found]
        from gpu_nvml import build  # type: ignore[import-not-found]

        self.place = place
        self.root = place / "root"
        self.root.mkdir()
        self.nvidia: Any = NvidiaMachine(self.root, build(place))
        self.gpus: Any = self.nvidia.tree
        self.fpgas: Any = FpgaTree(self.root)
        self.tree = Tree(self.root)
        self.present: dict[str, list[str]] = {"nvidia": [], "intel": [], "fpga": [], "rdma": []}
        for address in DGX:
            self.add_nvidia_gpu(address)
        for node in ("nvidiactl", "nvidia-uvm"):
            self.gpus.file(f"/dev/{node}", "c195:255")
        for number in range(INTEL_GPUS):
            self.add_intel_gpu(number)
        for number in range(FPGAS):
            self.add_fpga(number)
        self.tree.device("virtual/misc/rdma_cm", "misc", "infiniband/rdma_cm", "10:260")
        for number in range(ADAPTERS):
            self.add_adapter(number)
        self.nvidia.nvml.write()
        self.make_nodes()

    @property
    def environment(self) -> dict[str, str]:
        """The environment for the substitute for NVML."""
        return dict(self.nvidia.nvml.environment)

    def add_nvidia_gpu(self, address: str) -> str:
        """Adds an NVIDIA GPU; returns its ``sys_path``."""
        self.nvidia.gpu(address)
        self.present["nvidia"].append(str(self.nvidia.paths[address]))
        return self.present["nvidia"][-1]

    def add_intel_gpu(self, number: int) -> str:
        """Adds a Flex 170; returns its ``sys_path``."""
        path: str = self.gpus.function(
            f"0000:{0x1D + number:02x}:00.0",
            "8086:56c0",
            "i915",
            below=f"0000:{0x12 + number:02x}:01.0",
            pci_class="0x038000",
        )
        self.gpus.drm(path)
        self.present["intel"].append(path)
        return path

    def add_fpga(self, number: int, *, programmable: bool = True) -> str:
        """Adds an FPGA card with an engine and a port; returns its ``sys_path``.

        If not programmable, it has no interface id.
        """
        path: str = self.fpgas.function(
            f"0000:{0xC0 + number:02x}:00.0", below=f"0000:{0xD0 + number:02x}:00.0"
        )
        container = self.fpgas.container(path)
        if programmable:
            self.fpgas.engine(container)
        else:
            self.fpgas.engine(container, interface_id=None)
        self.fpgas.port(container, 0)
        self.present["fpga"].append(path)
        return path

    def add_adapter(self, number: int) -> str:
        """Adds an InfiniBand adapter with all its nodes; returns its ``sys_path``."""
        port = f"pci0001:00/0001:00:{number:02x}.0"
        card = f"{port}/0001:{number * 8 + 1:02x}:00.0"
        self.tree.pci(port, driver="pcieport", files={"class": "0x060400"})
        modalias = "pci:v000015B3d00001021sv000015B3sd00000001bc02sc07i00"
        files = {"class": "0x020700", "modalias": modalias}
        path = self.tree.pci(
            card, driver="mlx5_core", vendor="0x15b3", device="0x1021", numa_node=number % 2, files=files
        )
        guid = f"b859:9f03:00d4:{number:04x}"
        facts = {"node_type": "1: CA", "node_guid": guid, "sys_image_guid": guid, "fw_ver": "28.39.1002"}
        facts |= {"board_id": "MT_0000000838"} | {f"ports/1/{name}": text for name, text in PORT.items()}
        name = f"mlx5_{number}"
        self.tree.device(f"{card}/infiniband/{name}", "infiniband", files=facts, NAME=name)
        for kind, node, minor in (("verbs", "uverbs", 192), ("mad", "umad", 0), ("mad", "issm", 64)):
            self.tree.device(
                f"{card}/infiniband_{kind}/{node}{number}",
                f"infiniband_{kind}",
                f"infiniband/{node}{number}",
                f"231:{minor + number}",
                {"ibdev": name},
            )
        self.present["rdma"].append(path)
        return path

    def make_nodes(self) -> None:
        """Creates missing device nodes of the machine, and udev's links to them."""
        dev = self.place / "dev"
        (dev / "char").mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if not (dev / name).exists():
                os.mknod(dev / name, CHARACTER | 0o666, Path("/dev", name).stat().st_rdev)
        for name, kind, major, minor in nodes(self.root):
            node = dev / name
            if node.exists():
                continue
            node.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(node, kind | 0o666, os.makedev(major, minor))
            link = dev / "char" / f"{major}:{minor}"
            if not link.is_symlink():
                link.symlink_to(os.path.relpath(node, link.parent))
        for link in (self.root / "dev/dri/by-path").iterdir():
            (dev / "dri/by-path").mkdir(exist_ok=True)
            copy = dev / "dri/by-path" / link.name
            if not copy.is_symlink():
                copy.symlink_to(f"../{link.readlink().name}")

    def remove(self, sys_path: str) -> None:
        """Removes a device with its children and nodes."""
        for uevent in (self.root / sys_path.lstrip("/")).rglob("uevent"):
            if name := facts_of(uevent.read_text(encoding="utf-8")).get("DEVNAME"):
                (self.place / "dev" / name).unlink(missing_ok=True)
        self.tree.remove(sys_path)
        for paths in self.present.values():
            if sys_path in paths:
                paths.remove(sys_path)
        for dev in (self.place / "dev", self.root / "dev"):
            for link in (dev / "dri/by-path").iterdir():
                if not link.exists():
                    link.unlink()


def facts_of(uevent: str) -> dict[str, str]:
    """The lines of a ``uevent`` file."""
    return dict(line.split("=", 1) for line in uevent.splitlines() if "=" in line)


def nodes(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """The device nodes of a machine of files: path below ``/dev``, type, major and minor number."""
    for name, kind in (("char", CHARACTER), ("block", BLOCK)):
        for link in (root / "sys/dev" / name).iterdir():
            facts = facts_of((link / "uevent").read_text(encoding="utf-8"))
            yield facts["DEVNAME"], kind, int(facts["MAJOR"]), int(facts["MINOR"])
    for file in (root / "dev").rglob("*"):
        if file.is_file() and not file.is_symlink() and (text := file.read_text(encoding="utf-8").strip()):
            major, minor = text[1:].split(":")  # a node that is not in sysfs: c195:255
            yield str(file.relative_to(root / "dev")), CHARACTER, int(major), int(minor)
