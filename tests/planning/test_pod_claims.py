"""Claims that bind pods: which are such, and whom they keep a device from."""

from __future__ import annotations

import pytest

from devhost.backend.model import AnyHolder, Device, Holder
from devhost.planning.claims import IN_USE, Held, Occupant, PodClaims, Reason, binds_pod

VM = Holder("default", "vm", "main")
POD, OTHER = ("default", "vm"), ("default", "other")
GPU = Device("gpu", claims=frozenset({"pci:0000:01:00.0", "iommu:17", "node:/dev/vfio/17"}))
AUDIO = Device("audio", claims=frozenset({"pci:0000:01:00.1"}), part_of=frozenset({"iommu:17"}))


def bound(may_get_more: bool = False, holder: Holder | None = VM) -> PodClaims:
    def occupant(holder: AnyHolder) -> Occupant:
        return Occupant(frozenset({POD}), may_get_more)

    return PodClaims([Held("e.x/gpu", "gpu", "sriov", GPU, True, holder)], occupant)


@pytest.mark.parametrize(
    ("claim", "binds"),
    [
        ("iommu:17", True),
        ("node:/dev/vfio/17", True),
        ("node:/dev/vfio/noiommu-17", True),
        ("node:/dev/vfio/devices/vfio17", False),
        ("node:/dev/vfio/vfio", False),
        ("pci:0000:01:00.0", False),
    ],
)
def test_only_a_group_and_its_node_bind_pods(claim: str, binds: bool) -> None:
    assert binds_pod(claim) is binds


def test_a_free_device_is_not_for_other_pods_once_its_groups_pod_gets_nothing_more() -> None:
    assert bound().objection(("sriov", "audio"), AUDIO) == Reason(IN_USE, (VM,))
    assert bound(may_get_more=True).objection(("sriov", "audio"), AUDIO) is None
    assert bound().objection(("sriov", "gpu"), GPU) is None


def test_what_a_pod_has_is_no_objection_to_its_own_devices() -> None:
    assert bound().objection(("sriov", "audio"), AUDIO, [POD]) is None
    assert bound(may_get_more=True).objection(("sriov", "audio"), AUDIO, [OTHER]) == Reason(IN_USE, (VM,))


def test_a_holder_that_the_kubelet_has_not_named_binds_nothing() -> None:
    assert not bound(holder=None)
