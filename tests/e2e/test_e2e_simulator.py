"""The simulator shows what the real kubelet shows."""

from __future__ import annotations

import re
from pathlib import Path

from devhost_testing.kubelet import KubeletSimulator, Profile
from onenode.cluster import Cluster
from onenode.kubelets import Real, Simulated
from onenode.pods import Pods
from onenode.scenario import play


def profile(cluster: Cluster) -> Profile:
    """The simulator's profile for this kubelet's release."""
    version = cluster.node()["status"]["nodeInfo"]["kubeletVersion"]
    minor = re.match(r"v1\.(\d+)\.", version)
    assert minor, version
    return "1.37" if int(minor[1]) >= 37 else "1.36"


async def test_the_simulator_and_the_kubelet_agree_on_a_scenario(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    async with KubeletSimulator(tmp_path / "plugins", profile(cluster), dial_timeout=1.0) as simulator:
        simulated = await play(Simulated(simulator))
    real = await play(Real(cluster, pods), simulated)
    for one, other in zip(simulated, real, strict=True):
        print(one.step, other.answer, other.counts, other.calls, sep="; ")
    assert real == simulated
