"""The backend keeps the promises that every backend makes."""

from __future__ import annotations

from pathlib import Path

from devhost_neuron.backend import Neuron
from devhost_testing.contract import BackendContract
from neuron_tree import NeuronTree


class TestNeuronContract(BackendContract):
    """A device that works, one without its node, one after a failed reset, and one without a driver."""

    backend = Neuron

    def tree(self, root: Path) -> None:
        tree = NeuronTree(root)
        tree.neuron(0, connected=(1,))
        tree.neuron(1, connected=(0,))
        (root / "dev/neuron1").unlink()
        path = tree.neuron(2, cores=4, model="Inferentia", family="Inf1")
        tree.file(f"{path}/reset", "2")
        tree.function("0000:00:1e.0", "1d0f:7164", pci_class="0x120000")
