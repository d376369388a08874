"""Verdicts: sick at once, back at once, and held only while a device keeps flapping."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.errors import MAX_REASON
from devhost.backend.model import (
    HEALTHY,
    NO_REASON,
    Cause,
    Device,
    Health,
    sound_health,
    unhealthy,
)
from devhost.discovery.health import LONGEST_HOLD, WINDOW, HealthTracker, in_resource, worst

GOOD = Device("d0")
BAD = Device("d0", health=unhealthy("too hot"))


def flap(ward: HealthTracker, times: int, *, start: float = 0.0) -> float:
    """Lets d0 fall and recover that often, a second apart each; the time of the last recovery."""
    now = start
    for _ in range(times):
        ward.of(BAD, now)
        now += 1.0
        ward.of(GOOD, now)
    return now


@pytest.mark.parametrize("start", [0.0, 5.0, 1e9])
def test_failures_and_the_first_recoveries_take_effect_at_once(start: float) -> None:
    ward = HealthTracker()
    for now in (start, start + 2):
        assert ward.of(GOOD, now) == HEALTHY
        assert ward.of(BAD, now + 0.5) == unhealthy("too hot")
        assert ward.next_change(now + 0.5, now + 0.5) is None
        assert ward.of(GOOD, now + 1) == HEALTHY


@pytest.mark.parametrize(("falls", "hold"), [(3, 2.0), (4, 4.0), (5, 8.0), (8, 60.0), (20, 60.0)])
def test_a_flapping_device_is_held_longer_with_each_failure(falls: int, hold: float) -> None:
    ward = HealthTracker()
    now = flap(ward, falls)
    held = ward.of(GOOD, now)
    assert held == unhealthy("it fails again and again, and must stay healthy a little longer: too hot")
    assert ward.next_change(now, now) == hold
    assert not ward.of(GOOD, now + hold - 0.001)
    assert ward.of(GOOD, now + hold) == HEALTHY
    assert ward.next_change(now + hold, now + hold) is None


def test_a_device_that_was_healthy_for_a_window_recovers_at_once_again() -> None:
    ward = HealthTracker()
    now = flap(ward, 3)
    assert ward.of(GOOD, now + 2.0)
    assert flap(ward, 1, start=now + WINDOW)
    assert ward.of(GOOD, now + WINDOW + 1.0)


def test_a_failure_during_the_hold_restarts_it() -> None:
    ward = HealthTracker()
    now = flap(ward, 3)
    assert ward.of(BAD, now + 1.0) == unhealthy("too hot")
    assert ward.next_change(now + 1.0, now + 1.0) is None
    assert not ward.of(GOOD, now + 2.0)
    assert ward.next_change(now + 2.0, now + 2.0) == 4.0


Steps = st.lists(st.tuples(st.integers(0, 40).map(lambda quarter: quarter / 4), st.booleans()), max_size=60)


@settings(deadline=None, derandomize=True)
@given(Steps)
def test_a_verdict_is_never_better_than_the_device_and_changes_at_the_predicted_time(
    steps: list[tuple[float, bool]],
) -> None:
    ward, now = HealthTracker(), 0.0
    for wait, well in steps:
        now += wait
        device = GOOD if well else BAD
        verdict, left = ward.of(device, now), ward.next_change(now, now)
        if not well:
            assert verdict == BAD.health
            assert left is None
        elif verdict.healthy:
            assert left is None
        else:
            assert verdict.reason
            assert left is not None and 0 < left <= LONGEST_HOLD
            assert not ward.of(device, now + left - 0.125).healthy
            if wait > 5:
                now += left
                assert ward.of(device, now) == HEALTHY


def test_the_next_change_is_that_of_the_first_device_released() -> None:
    ward = HealthTracker()
    now = flap(ward, 4)
    other = Device("d1", health=unhealthy("loose"))
    for _ in range(3):
        ward.of(other, now)
        ward.of(Device("d1"), now)
    assert ward.next_change(now + 0.5, now + 0.5) == 1.5


def test_an_expired_hold_is_due_until_the_verdict_was_requested() -> None:
    ward = HealthTracker()
    now = flap(ward, 3)
    ward.of(GOOD, now)
    assert ward.next_change(now + 2.5, asked=now + 1.0) == 0.0
    assert ward.next_change(now + 2.5, asked=now + 2.5) is None
    assert ward.of(GOOD, now + 2.5) == HEALTHY


def test_a_probe_counts_in_addition_to_discover_and_returns_whether_it_changed() -> None:
    ward = HealthTracker()
    assert not ward.apply_probe({})
    assert not ward.apply_probe({"d0": HEALTHY})
    assert ward.apply_probe({"d0": unhealthy("link down"), "d1": HEALTHY})
    assert ward.of(GOOD, 1.0) == unhealthy("link down")
    assert ward.of(BAD, 1.0) == unhealthy("too hot")
    assert not ward.apply_probe({"d0": unhealthy("link down")})
    assert ward.apply_probe({})
    assert ward.of(GOOD, 2.0) == HEALTHY


def test_a_denied_device_is_unhealthy_until_all_missing_paths_are_back() -> None:
    ward = HealthTracker()
    ward.report_missing("d0", ["/dev/a", "/dev/b"])
    assert ward.missing_paths == {"d0": ("/dev/a", "/dev/b")}
    assert ward.of(GOOD, 1.0) == unhealthy("/dev/a, /dev/b do not exist on the node: a pod needed them")
    assert ward.of(Device("d1"), 1.0) == HEALTHY
    ward.paths_restored("d0")
    ward.paths_restored("never denied")
    assert not ward.missing_paths
    assert ward.of(GOOD, 2.0) == HEALTHY


def test_a_stale_backend_makes_all_its_devices_unhealthy_until_its_first_answer() -> None:
    ward = HealthTracker()
    ward.stale = "it hangs"
    assert ward.of(GOOD, 1.0) == ward.of(BAD, 1.0) == unhealthy("it hangs")
    ward.stale = ""
    assert ward.of(GOOD, 2.0) == HEALTHY


def test_a_forgotten_device_starts_without_a_history() -> None:
    ward = HealthTracker()
    ward.report_missing("d1", ["/dev/a"])
    now = flap(ward, 5)
    ward.forget({"d1"})
    assert ward.of(GOOD, now) == HEALTHY
    assert ward.next_change(now, now) is None
    assert ward.missing_paths
    ward.forget(())
    assert not ward.missing_paths


def test_a_verdict_has_a_reason_exactly_if_it_is_unhealthy() -> None:
    assert Health(True, "") == HEALTHY
    assert unhealthy("why") == Health(False, "why")


def test_every_unhealthy_verdict_has_a_reason_that_can_be_shown() -> None:
    assert sound_health(unhealthy(" ")) == unhealthy(NO_REASON)
    long = sound_health(unhealthy("x" * 10_000)).reason
    assert len(long) == MAX_REASON and long.endswith("x…")
    for verdict in (HEALTHY, unhealthy("too hot")):
        assert sound_health(verdict) is verdict


@pytest.mark.parametrize(
    ("uses", "reason"),
    [
        ((), ""),
        (("other",), ""),
        (("rdma",), "no uverbs node"),
        (("vhost", "rdma"), "no uverbs node; no vhost node"),
    ],
)
def test_a_device_is_unhealthy_in_a_resource_for_the_uses_that_it_hands_out(
    uses: tuple[str, ...], reason: str
) -> None:
    device = Device("d0", unusable_for={"rdma": "no uverbs node", "vhost": "no vhost node"})
    assert in_resource(device, HEALTHY, uses) == (unhealthy(reason) if reason else HEALTHY)
    assert in_resource(device, unhealthy("too hot"), uses) == unhealthy("too hot")


def test_several_verdicts_are_combined_with_every_reason_once() -> None:
    hot, dead = unhealthy("too hot"), unhealthy("dead")
    assert worst(HEALTHY, HEALTHY) is HEALTHY
    assert worst(HEALTHY, hot) == hot
    assert worst(hot, dead, hot) == unhealthy("too hot; dead")


def test_an_empty_reason_counts_as_none() -> None:
    assert unhealthy("").reason is None and Health(True, "").reason is None
    assert sound_health(unhealthy("")) == sound_health(Health(False)) == unhealthy(NO_REASON)
    assert worst(Health(False), unhealthy("port down")) == unhealthy(f"{NO_REASON}; port down")
    assert Device("a", withheld="").withheld is None
    assert Device("a", withheld="") == Device("a")


def test_every_kind_of_failure_has_its_cause() -> None:
    ward = HealthTracker()
    xid = unhealthy("Xid 79", Cause.XID)

    def causes(device: Device = GOOD) -> set[str]:
        return {cause.value for cause in ward.of(device, 0.0).causes}

    assert causes() == set()
    assert causes(BAD) == {"unhealthy"}
    ward = HealthTracker()
    ward.report_missing("d0", ["/dev/card"])
    assert causes() == {"missing"}
    ward.cordons = {"d0": unhealthy("cordoned", Cause.CORDONED)}
    assert causes(Device("d0", health=xid)) == {"cordoned", "xid"}
    ward.stale = "it does not answer"
    assert causes() == {"cordoned", "backend"}
    ward.stale, ward.released = "", "its driver is released"
    assert causes() == {"cordoned"}


def test_a_device_that_is_held_because_it_flaps_keeps_its_cause() -> None:
    ward, hot = HealthTracker(), Device("d0", health=unhealthy("too hot", Cause.THERMAL))
    for now in range(0, 8, 2):
        ward.of(hot, float(now))
        held = ward.of(GOOD, now + 1.0)
    assert not held.healthy and held.causes == {Cause.THERMAL}


def test_several_verdicts_have_the_causes_of_each() -> None:
    both = worst(unhealthy("it is odd"), HEALTHY, unhealthy("x" * MAX_REASON * 2, Cause.LINK))
    assert both.causes == {Cause.UNHEALTHY, Cause.LINK}
    assert HEALTHY.causes == set()
