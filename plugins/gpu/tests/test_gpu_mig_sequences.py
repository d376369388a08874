"""Whatever happens, claims have their instances, others keep theirs, and nothing is left over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from devhost_gpu.nvidia.partitions import FILE
from gpu_mig import MODELS, Profile, placements
from gpu_mig_node import A, Node
from gpu_nvidia import NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devhost.backend import AllocationError

At = tuple[Profile, int]

CALLS = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
crashes = st.none() | st.tuples(st.sampled_from(CALLS), st.sampled_from(("before", "after")))
numbers = st.integers(0, 24)
steps = st.lists(
    st.tuples(st.just("prepare"), numbers, crashes)
    | st.tuples(
        st.sampled_from(("unprepare", "restart", "theirs", "theirs gone", "settle")), numbers, crashes
    ),
    min_size=2,
    max_size=8,
)


def overlap(one: At, other: At) -> bool:
    (a, at), (b, to) = one, other
    return at < to + b.size and to < at + a.size


class Model:
    """What claims hold and what others have created, beside the node that must agree."""

    def __init__(self, node: Node, model: str) -> None:
        self.node = node
        self.every = [*placements(model)]
        self.claims: set[At] = set()
        self.theirs: dict[At, str] = {}

    def do(self, step: str, number: int) -> None:
        node, one = self.node, self.every[number]
        if step == "prepare":
            self._prepare(one)
        elif step == "unprepare" and self.claims:
            gone = sorted(self.claims, key=str)[number % len(self.claims)]
            self.claims.remove(gone)
            node.unprepare(gone[0].name, gone[1])
        elif step == "restart":
            node.crash()
            node.start()
        elif step == "settle":
            node.desk.settle()
        elif step == "theirs" and not any(overlap(one, other) for other in self._there()):
            self.theirs[one] = node.machine.nvml.partition(node.machine.uuids[A], one[0].name, one[1])
        elif step == "theirs gone" and self.theirs:
            one = sorted(self.theirs, key=str)[number % len(self.theirs)]
            node.machine.nvml.remove(self.theirs.pop(one))

    def _prepare(self, one: At) -> None:
        held = self.claims - {one}
        conflicts = any(
            overlap(one, other) or "+me" in one[0].name == "+me" in other[0].name for other in held
        )
        if conflicts or not self.node.device(one[0].name, one[1]).divided:
            return  # neither a scheduler nor devhost gives it
        try:
            self.node.prepare(one[0].name, one[1])
        except AllocationError:
            self.claims.discard(one)
        else:
            self.claims.add(one)

    def _there(self) -> list[At]:
        return [
            (profile, start) for profile, start in self.every if self._row(profile, start) in self._rows()
        ]

    def _rows(self) -> list[tuple[int, int]]:
        return [
            (int(one["profile"]), int(one["start"]))
            for one in self.node.machine.nvml.instances()
            if one["word"] == "gi"
        ]

    @staticmethod
    def _row(profile: Profile, start: int) -> tuple[int, int]:
        return profile.id, start

    def check(self, *, settled: bool = False) -> None:
        there = self._there()
        assert not any(overlap(a, b) for n, a in enumerate(there) for b in there[:n])
        assert {*there} >= self.claims | self.theirs.keys()
        if settled:
            assert {*there} == self.claims | self.theirs.keys()


@pytest.mark.parametrize("model", sorted(MODELS))
@settings(
    deadline=None,
    derandomize=True,
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sequence=steps)
def test_claims_have_their_instances_and_nothing_is_left_over(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk], model: str, sequence: list[tuple[str, int, object]]
) -> None:
    if not nvidia.uuids:
        nvidia.divisible(A, model)
    nvidia.nvml.made.unlink(missing_ok=True)
    (nvidia.root / FILE.lstrip("/")).unlink(missing_ok=True)
    node = Node(nvidia, at)
    subject = Model(node, model)
    for step, number, crash in sequence:
        fault = nvidia.nvml.fault(crash[0], crash=crash[1]) if isinstance(crash, tuple) else None
        subject.do(step, number)
        if fault is not None:
            nvidia.nvml.fix(fault)
        subject.check()
    node.settle()
    subject.check(settled=True)
    node.crash()
