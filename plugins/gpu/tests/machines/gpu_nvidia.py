"""Models of machines with NVIDIA GPUs: the files of kernel and driver, and the stub NVML.

The layout of ``/proc/driver/nvidia`` is that of the driver's README ("Using the /proc Filesystem Interface")
and of the MIG user guide ("Device Nodes and Capabilities").
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpu_nvml import LIBRARY, Nvml
from gpu_tree import THREE_D, GpuTree

A100 = "10de:20b2"

DGX = (
    "0000:07:00.0",
    "0000:0f:00.0",
    "0000:47:00.0",
    "0000:4e:00.0",
    "0000:87:00.0",
    "0000:90:00.0",
    "0000:b7:00.0",
    "0000:bd:00.0",
)
"""The PCI addresses of the GPUs of a DGX A100."""


class NvidiaMachine:
    """A machine whose kernel, driver and NVML are consistent until a test changes one of them.

    Args:
        root: the directory used as ``/``.
        library: the stub library that was built; ``None`` for a machine without NVML.
    """

    def __init__(self, root: Path, library: Path | None) -> None:
        self.tree = GpuTree(root)
        self.root = root
        self.nvml = Nvml(root.parent / f"{root.name}-nvml.txt")
        self.uuids: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        self._minors = 0
        self._capabilities = 3
        if library is not None:
            place = root / "usr/lib64" / LIBRARY
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(library)
        self.load_driver()

    def users(self) -> list[str]:
        """The processes that have the driver open."""
        marker, found = os.fspath(self.nvml.open_marker), []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marker in map(os.path.realpath, (process / "fd").iterdir()):
                    found.append(process.name)
        return found

    def load_driver(self, version: str = "570.124.06") -> None:
        """Loads the driver: its module and its directory in ``/proc``."""
        self.tree.file("/sys/module/nvidia/version", version)
        self.tree.file("/sys/module/nvidia/initstate", "live")
        self.tree.file("/proc/driver/nvidia/version", f"NVRM version: Kernel Module  {version}  Release")
        self.nvml.system["driver"] = version
        self.nvml.loaded = True
        self.nvml.write()

    def gpu(self, address: str, driver: str = "nvidia", **more: object) -> str:
        """Adds a GPU; its UUID."""
        minor, self._minors = self._minors, self._minors + 1
        bus = int(address.split(":")[1], 16)
        self.paths[address] = self.tree.function(
            address,
            A100,
            driver,
            below=f"0000:{bus - 1:02x}:01.0",
            pci_class=THREE_D,
            numa_node=bus >> 7,
        )
        uuid = self.nvml.gpu(minor, address, **more)
        self.uuids[address] = uuid
        self.tree.file(f"/dev/nvidia{minor}", f"c195:{minor}")
        self.inform(address, minor, uuid)
        self.nvml.write()
        return uuid

    def inform(self, address: str, minor: int, uuid: str, excluded: str = "No") -> None:
        """The driver's file about a GPU in ``/proc``."""
        self.tree.file(
            f"/proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 255\nGPU UUID: \t {uuid}\n"
            f"Video BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\nBus Location: \t {address}\n"
            f"Device Minor: \t {minor}\nGPU Excluded:\t {excluded}",
        )

    def mig(self, address: str, gi: int, ci: int, profile: str = "1g.10gb", **more: object) -> str:
        """Adds a MIG instance with its capability nodes; its UUID."""
        parent = self.uuids[address]
        uuid = self.nvml.mig(parent, gi, ci, profile, **more)
        base = f"/proc/driver/nvidia/capabilities/gpu{self.nvml.gpus[parent]['minor']}/mig/gi{gi}"
        for place in (f"{base}/access", f"{base}/ci{ci}/access"):
            if not (self.root / place.lstrip("/")).exists():
                self._capability(place)
        self.nvml.write()
        return uuid

    def divisible(self, address: str, model: str = "H100-80") -> str:
        """Adds a GPU with MIG mode on, and without instances, which can be divided like a model; its UUID.

        The driver has the capability files of all possible instances, and a device node for each.
        """
        uuid = self.gpu(address, name=f"NVIDIA {model}GB", mig=1, model=model)
        base = f"/proc/driver/nvidia/capabilities/gpu{self.nvml.gpus[uuid]['minor']}/mig"
        for gi in range(1, 8):
            for place in (f"{base}/gi{gi}/access", f"{base}/gi{gi}/ci0/access"):
                self._capability(place)
        return uuid

    def _capability(self, place: str) -> None:
        number, self._capabilities = self._capabilities, self._capabilities + 1
        self.tree.file(place, f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1")
        self.tree.file(f"/dev/nvidia-caps/nvidia-cap{number}", f"c237:{number}")

    def unbind(self, address: str) -> None:
        """Takes a GPU from its driver."""
        self.tree.bind(self.paths[address], "")
        del self.nvml.gpus[self.uuids[address]]
        self.nvml.write()

    def lose(self, address: str) -> None:
        """The GPU falls off the bus."""
        self.nvml.gpus[self.uuids[address]]["lost"] = 1
        self.nvml.write()

    def drain(self, address: str, *, on: bool = True) -> None:
        """Does what ``nvidia-smi drain`` does: no process may open the GPU."""
        self.nvml.gpus[self.uuids[address]]["drain"] = int(on)
        self.nvml.write()

    def reset(self, address: str) -> None:
        """The GPU is reset, and works again."""
        gpu = self.nvml.gpus[self.uuids[address]]
        gpu.pop("lost", None)
        gpu["field230"] = 0
        self.nvml.write()


def dgx(root: Path, library: Path | None) -> NvidiaMachine:
    """Eight GPUs on NVSwitches, of which the last two are split: one in seven alike, one in unlike parts."""
    machine = NvidiaMachine(root, library)
    for address in DGX:
        uuid = machine.gpu(address)
        machine.nvml.link(uuid, "switch", 12)
    for number in range(7):
        machine.mig(DGX[6], 7 + number, 0)
    machine.mig(DGX[7], 1, 0, "3g.40gb", gi_slices=3, ci_slices=3, memory_mib=40320)
    machine.mig(DGX[7], 2, 0, "1c.3g.40gb", gi_slices=3, ci_slices=1, memory_mib=40320)
    machine.mig(DGX[7], 2, 1, "1c.3g.40gb", gi_slices=3, ci_slices=1, memory_mib=40320)
    machine.nvml.write()
    return machine
