"""A kubelet that lost its checkpoint gives no device to a second pod, and loses no device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from onenode.plugin import Devhost
from onenode.pods import Pod
from onenode.settings import PLUGIN_DIRECTORY
from onenode.waiting import until

from devhost.kubelet.api import CHECKPOINT
from devhost.planning.settings import Prefer


def empty(checkpoint: Path) -> None:
    checkpoint.write_text("")


def garbage(checkpoint: Path) -> None:
    checkpoint.write_bytes(b"\0\1\2 not JSON")


def bad_checksum(checkpoint: Path) -> None:
    content = json.loads(checkpoint.read_text())
    checkpoint.write_text(json.dumps({**content, "Checksum": content["Checksum"] + 1}))


def missing(checkpoint: Path) -> None:
    checkpoint.unlink()


def resource(policy: Prefer) -> str:
    return f"example.com/{policy}"


def device(pod: Pod) -> str:
    """The only device node that a pod got."""
    (found,) = (node for node in pod.nodes() if node.startswith("/dev/zram"))
    return found


@pytest.mark.parametrize("damage", [empty, garbage, bad_checksum, missing])
def test_no_two_pods_get_one_device_after_the_kubelet_lost_its_checkpoint(
    cluster, pods, zram, damage: Callable[[Path], None]
):
    """One pod holds one of three devices. Two new pods run, and a third one when the first has ended."""
    names = [f"zram{zram.plug()}" for _ in range(3 * len(Prefer))]
    configuration = {
        "version": 1,
        "resources": [
            {
                "name": resource(policy),
                "backend": "udev",
                "where": {"subsystem": "block", "sysName": names[3 * n : 3 * n + 3]},
                "prefer": str(policy),
            }
            for n, policy in enumerate(Prefer)
        ],
    }
    with Devhost(cluster, configuration) as devhost:
        for policy in Prefer:
            cluster.shows(resource(policy), 3)
        first = {policy: pods.create(f"{policy}-first", {resource(policy): 1}) for policy in Prefer}
        held = {policy: device(pod.running()) for policy, pod in first.items()}
        identity = {policy: pod.identity() for policy, pod in first.items()}
        known_to_podresources(devhost, 4)
        checkpoint = cluster.namespaces.path(PLUGIN_DIRECTORY) / CHECKPOINT
        cluster.restart_kubelet(meanwhile=lambda: damage(checkpoint))
        for policy in Prefer:
            cluster.shows(resource(policy), 4, 3)
        text = ", which the kubelet no longer knows"
        until(
            "each allocation is forgotten",
            lambda: [text in reason for reason in forgotten(devhost)] == [True] * len(Prefer),
            seen=lambda: forgotten(devhost),
        )
        new = {
            policy: [pods.create(f"{policy}-new-{n}", {resource(policy): 1}) for n in range(2)]
            for policy in Prefer
        }
        for policy, two in new.items():
            assert len({held[policy], *(device(pod.running()) for pod in two)}) == 3
        third = {policy: pods.create(f"{policy}-third", {resource(policy): 1}) for policy in Prefer}
        for policy, pod in third.items():
            pod.waits_for(resource(policy))
        for policy, pod in first.items():
            assert pod.identity() == identity[policy]
            pod.delete()
        for policy, pod in third.items():
            assert device(pod.running()) == held[policy]
            pod.delete()
        for policy in Prefer:
            cluster.shows(resource(policy), 3)
        until(
            "no allocation is forgotten",
            lambda: not forgotten(devhost),
            seen=lambda: forgotten(devhost),
        )


def forgotten(devhost: Devhost) -> list[str]:
    """Why allocations are problems."""
    return [str(p["reason"]) for p in devhost.status()["problems"] if p["kind"] == "allocation"]


def known_to_podresources(devhost: Devhost, count: int) -> None:
    """Waits until devhost has read from the kubelet which pods hold so many devices."""

    def holders() -> list[object]:
        return [d["holder"] for r in devhost.status()["resources"] for d in r["devices"] if d["holder"]]

    until(f"{count} devices have a holder", lambda: len(holders()) == count, seen=holders)
