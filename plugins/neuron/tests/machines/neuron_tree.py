"""Machines with Neuron devices, as aws-neuron-driver fca19f7 lays them out.

- ``neuron_cdev.c``: the class, and the files ``core_count``, ``connected_devices`` and ``reset``
- ``neuron_sysfs_metrics.c``: the directories of cores, of errors and of the architecture
- ``v2/neuron_dhal_v2.c``: which devices of an instance are connected
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from devhost_testing.trees import Tree

ERRORS = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")

INF2_RING = {n: ((n - 1) % 12, (n + 1) % 12) for n in range(12)}
"""``inf2_48xl_neighbor_ids``: a ring of twelve."""

TRN1_TORUS = {
    n: tuple(sorted({(n - 4) % 16, (n + 4) % 16, n - n % 4 + (n - 1) % 4, n - n % 4 + (n + 1) % 4}))
    for n in range(16)
}
"""``trn1_32xl_neigbor_ids``: four rows of four, each a ring, and so is each column."""


class NeuronTree(Tree):
    """A machine with the driver ``neuron``."""

    def neuron(
        self,
        number: int,
        *,
        cores: int = 2,
        connected: Sequence[int] = (),
        model: str = "Trainium1",
        family: str = "Trn1",
    ) -> str:
        """A device; its ``sys_path``. Inferentia reports no memory errors."""
        files = {
            "core_count": str(cores),
            "connected_devices": ", ".join(map(str, connected)),
            "reset": "1",
            "info/architecture/device_name": model,
            "info/architecture/instance_type": family,
            "info/notify_delay": "-1",
            "stats/power/utilization": "POWER_STATUS_VALID",
        }
        files |= {f"neuron_core{core}/stats/status/success/total": "0" for core in range(cores)}
        if model != "Inferentia":
            files |= {f"stats/hardware/{name}": "0" for name in ERRORS}
        name = f"neuron{number}"
        return self.device(f"virtual/neuron_device/{name}", "neuron_device", name, f"240:{number}", files)

    def error(self, number: int, name: str = "mem_ecc_uncorrected", count: int = 1) -> None:
        """The counter of a device's errors."""
        self.file(f"/sys/devices/virtual/neuron_device/neuron{number}/stats/hardware/{name}", str(count))


def trainium(root: Path) -> NeuronTree:
    """A Trn1.32xlarge."""
    tree = NeuronTree(root)
    for number, connected in TRN1_TORUS.items():
        tree.neuron(number, connected=connected)
    tree.file("/sys/class/neuron_device/ultraserver_mode", "0")
    return tree


def inferentia(root: Path) -> NeuronTree:
    """An Inf2.48xlarge."""
    tree = NeuronTree(root)
    for number, connected in INF2_RING.items():
        tree.neuron(number, connected=connected, model="Inferentia2", family="Inf2")
    return tree
