"""The plugins: how each one is started with its authors' settings, and which devices it offers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import programs
from .machine import ADAPTERS, FPGAS, INTEL_GPUS, NVIDIA_GPUS
from .programs import Program

TOKENS = 100
"""The number of tokens of an RDMA adapter."""

NVIDIA_RESOURCE = "nvidia.com/gpu"
INTEL_RESOURCE = "gpu.intel.com/i915"
FPGA_RESOURCE = "fpga.intel.com/af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs"
RDMA_RESOURCE = "rdma/hca_shared"

RDMA_CONFIG = {
    "configList": [
        {
            "resourceName": "hca_shared",
            "rdmaHcaMax": TOKENS,
            "selectors": {"vendors": ["15b3"], "drivers": ["mlx5_core"]},
        }
    ]
}
"""Without ``periodicUpdateInterval``, whose default is 60 s."""

NVIDIA_CONFIG = """\
version: v1
flags:
  migStrategy: none
"""

DEVHOST_CONFIG = """\
version: 1
backends:
  gpu: {driverRoot: ROOT}
resources:
- {name: nvidia.com/gpu, backend: gpu, where: {vendor: nvidia, kind: gpu}}
- {name: "gpu.intel.com/{driver}", backend: gpu, where: {vendor: intel}}
- {name: "fpga.intel.com/{intelName}", backend: fpga, where: {vendor: intel, kind: af}}
- {name: rdma/hca_shared, backend: rdma, where: {vendor: "15b3", driver: mlx5_core}, share: {replicas: 100}}
"""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin to start.

    Args:
        title: its column in the table.
        program: the program to build; ``None`` for devhost.
        arguments: returns the arguments for a place with a machine.
        offers: the expected number of devices by resource.
        config: returns name and text of its file for a place, if it has one.
        environment: returns the variables for a place.
        options: options of ``inside.py``.
    """

    title: str
    program: Program | None
    arguments: Callable[[Path], list[str]]
    offers: Mapping[str, int]
    config: Callable[[Path], tuple[str, str]] | None = None
    environment: Callable[[], dict[str, str]] = dict
    options: tuple[str, ...] = ()
    needs: Callable[[], object] = field(default=lambda: None)

    def command(self, place: Path) -> list[str]:
        """The command to run.

        Raises:
            Unavailable: its program is not available on this machine.
        """
        self.needs()
        own = Path(sys.executable).with_name("devhost")
        return [os.fspath(programs.built(self.program) if self.program else own), *self.arguments(place)]

    def configuration(self, place: Path) -> Path | None:
        """Writes its file, and returns its path."""
        if self.config is None:
            return None
        name, text = self.config(place)
        file = place / name
        file.write_text(text, encoding="utf-8")
        return file


DEVHOST = Plugin(
    "devhost",
    None,
    lambda place: [
        *("run", "--config", str(place / "devhost.yaml")),
        *("--status-socket", str(place / "status.sock")),
        *("--state-dir", str(place / "state")),
        *("--listen", "127.0.0.1:0"),  # as in its DaemonSet
    ],
    {
        NVIDIA_RESOURCE: NVIDIA_GPUS,
        INTEL_RESOURCE: INTEL_GPUS,
        FPGA_RESOURCE: FPGAS,
        RDMA_RESOURCE: ADAPTERS * TOKENS,
    },
    lambda place: ("devhost.yaml", DEVHOST_CONFIG.replace("ROOT", str(place / "root"))),
)
NVIDIA = Plugin(
    "NVIDIA k8s-device-plugin",
    programs.NVIDIA,
    lambda place: [
        *("--driver-root-ctr-path", str(place / "root")),
        *("--config-file", str(place / "nvidia.yaml")),
    ],
    {NVIDIA_RESOURCE: NVIDIA_GPUS},
    lambda _: ("nvidia.yaml", NVIDIA_CONFIG),
)
INTEL_GPU = Plugin("Intel gpu_plugin", programs.INTEL_GPU, lambda _: [], {INTEL_RESOURCE: INTEL_GPUS})
INTEL_FPGA = Plugin("Intel fpga_plugin", programs.INTEL_FPGA, lambda _: ["-mode=af"], {FPGA_RESOURCE: FPGAS})
RDMA = Plugin(
    "k8s-rdma-shared-dev-plugin",
    programs.RDMA,
    lambda place: ["--config-file", str(place / "rdma.json")],
    {RDMA_RESOURCE: TOKENS},
    lambda _: ("rdma.json", json.dumps(RDMA_CONFIG, indent=2)),
    lambda: {"PCIDB_PATH": str(programs.pci_ids())},
    ("--no-rdma",),
    programs.pci_ids,
)
PEERS = (NVIDIA, INTEL_GPU, INTEL_FPGA, RDMA)
EVERYONE = (DEVHOST, *PEERS)
