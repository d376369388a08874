"""What the health monitor of NVIDIA GPUs concludes from answers, events and the lack of answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from devhost_gpu.environment import Environment
from devhost_gpu.nvidia.health import HealthMonitor, XidRule
from devhost_gpu.nvml.process import Reply, Unanswered
from devhost_gpu.nvml.reports import Check, NvmlError

from devhost.backend import Cause

A, B = "0000:07:00.0", "0000:0f:00.0"
HEALTHY: Mapping[str, Any] = {"uuid": "GPU-1", "recovery": 0, "remapped": None, "retired": None}
NEEDS_RESET = {**HEALTHY, "recovery": 1}


class Nvml:
    """Answers requests with ``answers``; does not answer where one is ``None``."""

    def __init__(self, *answers: Mapping[str, Any] | None) -> None:
        self.answers = [*answers]
        self.asked = 0

    def ask(self, do: str, patience: float) -> Reply:
        self.asked += 1
        answer = self.answers.pop(0)
        if answer is None:
            raise Unanswered("NVML does not answer")
        return Reply(200.0, answer)

    def ask_alone(self, address: str) -> Check | NvmlError | None:
        return None


def monitor(nvml: Nvml, checks: frozenset[str] = frozenset({"xid", "recovery"})) -> HealthMonitor:
    return HealthMonitor(nvml, XidRule(), checks, lambda: None, Environment(clock=lambda: 100.0))


def test_a_check_that_is_due_is_repeated_until_nvml_answers() -> None:
    """Otherwise a fault whose event was missed would stay unknown until the next probe."""
    nvml = Nvml(None, None, {A: HEALTHY, B: NEEDS_RESET})
    health = monitor(nvml)
    health.request_check()
    for _ in range(2):
        health.check(frozenset({A, B}))
        assert health.is_needed
        assert not health.verdict_at(B).reason
    health.check(frozenset({A, B}))
    assert health.verdict_at(B).reason == "it needs a reset, according to its driver"
    assert not health.verdict_at(A).reason


@pytest.mark.parametrize("event", [{"event": "recovery"}, {"event": "xid", "gpu": A, "data": 154}])
def test_a_changed_recovery_action_is_not_forgotten_while_nvml_does_not_answer(event: dict[str, Any]) -> None:
    health = monitor(Nvml(None, {A: NEEDS_RESET}))
    health.add_event(event)
    health.check(frozenset({A}))
    assert not health.verdict_at(A).reason
    health.check(frozenset({A}))
    assert health.verdict_at(A).reason


def test_while_every_gpu_is_healthy_and_nothing_is_due_none_is_asked() -> None:
    nvml = Nvml({A: HEALTHY})
    health = monitor(nvml)
    health.request_check()
    for _ in range(3):
        health.check(frozenset({A}))
    assert nvml.asked == 1
    assert not health.is_needed


def test_a_late_check_does_not_close_an_incident_that_came_after_it_began() -> None:
    health = monitor(Nvml())
    health.add_checks({A: Check("GPU-1", recovery=0)}, 90.0)
    health.add_event({"event": "xid", "gpu": A, "data": 94})
    health.add_checks({A: Check("GPU-1", recovery=0, age=8.0)}, 115.0)
    assert health.verdict_at(A).reason
    health.add_checks({A: Check("GPU-1", recovery=0, age=2.0)}, 115.0)
    assert not health.verdict_at(A).reason


def test_an_xid_that_needs_a_reset_releases_a_whole_gpu_and_never_one_for_an_instance() -> None:
    health = monitor(Nvml())
    health.add_event({"event": "xid", "gpu": A, "data": 95, "gi": 1, "ci": 0})
    assert health.verdict_at(A, (1, 0)).reason
    assert health.released == frozenset()
    health.add_event({"event": "xid", "gpu": B, "data": 95})
    assert health.released == {B}


def test_every_fault_has_its_cause() -> None:
    health = monitor(Nvml(), frozenset({"xid", "ecc", "remap", "recovery"}))
    health.add_checks({B: Check("GPU-2", remap_failed=True)}, 90.0)
    health.add_event({"event": "xid", "gpu": A, "data": 79})
    assert health.verdict_at(A).causes == {Cause.XID}
    health.add_event({"event": "dram", "gpu": A})
    assert health.verdict_at(A).causes == {Cause.XID, Cause.ECC}
    assert health.verdict_at(B).causes == {Cause.ECC}
    health.add_checks({B: Check("GPU-2", recovery=1)}, 95.0)
    assert health.verdict_at(B).causes == {Cause.ECC, Cause.UNHEALTHY}
