"""Decisions about NVIDIA GPUs that need none: profiles, Xids, incidents and when they are closed."""

from __future__ import annotations

import pytest
from devhost_gpu.environment import DEFAULT
from devhost_gpu.nvidia.cards import NvidiaFacts, profile
from devhost_gpu.nvidia.health import APPLICATION_ERRORS, Incidents, XidRule, fault
from devhost_gpu.nvidia.health import xid_reason as reason
from devhost_gpu.nvml.reports import Check, Instance, NvmlError, Shape, inventory
from devhost_gpu.options import GpuOptions

from devhost.backend import OptionError

A, B = "0000:07:00.0", "0000:0f:00.0"
WELL = Check("GPU-1", recovery=0)
LOST = NvmlError(15, "GPU is lost")


def instance(name: str, memory: int = 0, shape: Shape | None = None) -> Instance:
    return Instance("MIG-1", 0, 1, 0, name, memory or None, shape)


def shape(gpu: int, compute: int) -> Shape:
    return Shape(gpu, compute, 14, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "1g.10gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", "1c.3g.40gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "1g.5gb+me"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb+gfx", "1g.24gb+gfx"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb-me", "1g.24gb-me"),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", "7g.80gb"),
    ],
)
def test_a_profile_is_read_from_the_name(name: str, expected: str) -> None:
    assert profile(instance(name), 81920) == expected


@pytest.mark.parametrize(
    ("slices", "memory", "whole", "expected"),
    [
        ((1, 1), 4864, 40960, "1g.5gb"),
        ((3, 3), 20096, 40960, "3g.20gb"),
        ((3, 1), 20096, 40960, "1c.3g.20gb"),
        ((1, 1), 9728, 81920, "1g.10gb"),
        ((7, 7), 81050, 81920, "7g.80gb"),
        ((1, 1), 9984, None, "1g.10gb"),
    ],
)
def test_a_profile_without_a_name_is_that_of_its_shape(
    slices: tuple[int, int], memory: int, whole: int | None, expected: str
) -> None:
    assert profile(instance("", memory, shape(*slices)), whole) == expected


def test_an_instance_without_name_and_shape_has_no_profile() -> None:
    assert profile(instance("NVIDIA A100"), 81920) == ""


def test_application_errors_are_no_fault_of_a_gpu() -> None:
    rule = XidRule()
    assert not any(map(rule.matters, APPLICATION_ERRORS))
    assert rule.matters(79)
    assert not rule.matters(154)


def test_the_xids_that_matter_are_options() -> None:
    assert not XidRule(ignored=(63,)).matters(63)
    assert XidRule(ignored=(63,)).matters(64)
    assert XidRule(heeded=(31,)).matters(31)
    assert not XidRule(ignored="all").matters(79)
    assert XidRule(ignored="all", heeded=(79,)).matters(79)


def test_an_xid_has_words() -> None:
    assert reason(79) == "the GPU has fallen off the bus (Xid 79)"
    assert reason(1234) == "the driver reported Xid 1234"


@pytest.mark.parametrize("options", [{"ignore_xids": (0,)}, {"heed_xids": (-1,)}])
def test_an_invalid_xid_is_refused(options: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(OptionError, match="1 or more"):
        GpuOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (LOST, "fallen off the bus"),
        (NvmlError(16, "x"), "needs a reset"),
        (NvmlError(999, "Unknown Error"), "NVML: Unknown Error"),
        (Check("", recovery=1), "needs a reset, according to its driver"),
        (Check("", recovery=2), "rebooted"),
        (Check("", recovery=99), "recovery action 99"),
        (Check("", remap_failed=True), "used up"),
        (Check("", remap_pending=True, remap_uncorrectable=1), "waits for a reset"),
        (Check("", retirement_pending=True), "retired"),
    ],
)
def test_a_fault_that_a_check_finds_has_words(found: Check | NvmlError, words: str) -> None:
    assert words in fault(found)


@pytest.mark.parametrize("found", [WELL, Check(""), Check("", remap_pending=True)])
def test_memory_that_the_driver_works_around_is_not_a_fault(found: Check) -> None:
    assert fault(found) == ""


def test_an_xid_holds_until_a_check_some_while_later_finds_nothing() -> None:
    incidents = Incidents()
    incidents.add_check(A, WELL, 0)
    incidents.add_event(A, reason(79), 100)
    assert incidents.reason(A) == reason(79)
    incidents.add_check(A, WELL, 100 + DEFAULT.hold - 1)
    assert incidents.reason(A)
    incidents.add_check(A, WELL, 100 + DEFAULT.hold)
    assert not incidents.reason(A)
    assert not incidents.unhealthy


def test_a_check_that_fails_restarts_the_wait() -> None:
    incidents = Incidents()
    incidents.add_check(A, WELL, 0)
    incidents.add_event(A, reason(79), 100)
    incidents.add_check(A, LOST, 200)
    incidents.add_check(A, WELL, 200 + DEFAULT.hold - 1)
    assert incidents.reason(A) == f"{reason(79)}; {fault(LOST)}"
    incidents.add_check(A, WELL, 200 + DEFAULT.hold)
    assert not incidents.reason(A)


def test_time_alone_heals_nothing() -> None:
    incidents = Incidents()
    incidents.add_event(A, reason(48), 0)
    assert incidents.reason(A)
    assert incidents.unhealthy == {A}


def test_a_gpu_that_cannot_report_whether_it_needs_a_reset_waits_longer() -> None:
    incidents = Incidents()
    incidents.add_event(A, reason(48), 0)
    incidents.add_check(A, Check("GPU-1"), DEFAULT.blind_hold - 1)
    assert incidents.reason(A)
    incidents.add_check(A, Check("GPU-1"), DEFAULT.blind_hold)
    assert not incidents.reason(A)


def test_a_gpu_whose_driver_was_loaded_again_does_not_wait_longer() -> None:
    incidents = Incidents()
    incidents.add_event(A, reason(48), 0, needs_reset=True)
    incidents.was_reset(A)
    assert not incidents.to_release
    incidents.add_check(A, Check("GPU-1"), DEFAULT.hold)
    assert not incidents.reason(A)


def test_what_concerns_one_instance_leaves_its_siblings_alone() -> None:
    incidents = Incidents()
    incidents.add_event(A, "x", 0, (7, 0))
    incidents.add_event(A, "y", 0, (8, None))
    assert (incidents.reason(A), incidents.reason(A, 7, 0), incidents.reason(A, 7, 1)) == ("", "x", "")
    assert (incidents.reason(A, 8, 0), incidents.reason(A, 8, 1), incidents.reason(A, 9, 0)) == ("y", "y", "")
    incidents.add_event(A, "z", 0)
    assert [incidents.reason(A), incidents.reason(A, 9, 0), incidents.reason(A, 7, 0)] == ["z", "z", "z; x"]
    assert not incidents.reason(B)


def test_only_a_gpu_that_must_be_reset_is_released() -> None:
    incidents = Incidents()
    incidents.add_event(A, reason(63), 0)
    incidents.add_check(B, LOST, 0)
    assert incidents.to_release == {B}
    incidents.add_event(A, reason(79), 0, needs_reset=True)
    assert incidents.to_release == {A, B}
    incidents.add_check(A, WELL, DEFAULT.hold)
    assert incidents.to_release == {B}


def test_a_storm_of_errors_takes_no_memory() -> None:
    incidents = Incidents()
    for xid in range(1, 10_000):
        incidents.add_event(A, reason(xid), xid)
    assert len(incidents.reason(A)) < 300


def test_gpus_that_are_gone_are_forgotten() -> None:
    incidents = Incidents()
    incidents.add_event(A, "x", 0)
    incidents.keep_only({B})
    assert not incidents.unhealthy


def test_an_answer_without_anything_optional_can_be_read() -> None:
    names = ("index", "minor", "name", "memory", "capability", "architecture", "serial", "vbios", "mig")
    answer: dict[str, object] = {"uuid": "GPU-1", "instances": [], **dict.fromkeys(names)}
    found = inventory({"driver": None, "cuda": None, "gpus": {A: answer}})
    assert (found.driver, found.cuda) == ("", "")
    assert "memory=None" in repr(found.gpus[A])


def test_the_nodes_of_an_instance_are_its_gpus_and_its_capabilities() -> None:
    facts = NvidiaFacts("MIG-1", "GPU-1", A, "3:0", 3, (1, 0), (12, 13))
    assert facts.is_mig
    assert facts.nodes == ("/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
