"""How closely NVIDIA's GPUs are joined by NVLink. Pure.

PCIe and NUMA are the core's: it weighs them after the links, so a single NVLink counts for more than any
closeness on PCIe, and between links their number decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SWITCH = "switch"
"""What stands for every NVSwitch together: they join all GPUs that lead to them."""


@dataclass(frozen=True, slots=True)
class NvLinks:
    """The NVLinks of each GPU that are up: how many lead to which other, by their PCI addresses."""

    peers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def between(self, a: str, b: str) -> int:
        """How many links two GPUs can use towards each other; 0 for a GPU and itself.

        What one end says is enough, for a GPU that does not answer says nothing. Over switches, it is what
        the GPU with fewer links has.
        """
        if a == b:
            return 0
        one, other = self.peers.get(a, {}), self.peers.get(b, {})
        direct = max(one.get(b, 0), other.get(a, 0))
        return direct + min(one.get(SWITCH, 0), other.get(SWITCH, 0))
