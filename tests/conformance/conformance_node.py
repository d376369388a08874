"""Shared by the conformance tests: two resources of the rig, and waiting until the kubelet has them."""

from __future__ import annotations

from devhost_testing.kubelet import KubeletSimulator

TOY, OTHER = "example.com/toy", "example.com/other"
TOY_LINE, OTHER_LINE = "name: example.com/toy, backend: toy", "name: example.com/other, backend: other"

WAIT = 60
"""Seconds for what takes a fraction of one, on a machine that is busy."""


async def served(kubelet: KubeletSimulator, **expected: int) -> None:
    """Waits until the present plugins make exactly these allocatable; ``toy`` is ``example.com/toy``."""
    want = {f"example.com/{name}": count for name, count in expected.items()}
    await kubelet.wait_for(lambda: kubelet.allocatable() == want and all(map(kubelet.settled, want)), WAIT)
