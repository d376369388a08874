"""Delays that double within their bounds, permits that return, and work that leaves time for other work."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.backoff import Backoff, Pacer, TokenBucket


def test_delays_double_up_to_the_cap_and_start_again() -> None:
    backoff = Backoff(0.5, 3.0, draw=lambda: 0.0)
    assert [backoff.delay() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.delay() == 0.5


@pytest.mark.parametrize(("draw", "delays"), [(0.0, [4.0, 8.0]), (0.5, [3.0, 6.0]), (1.0, [2.0, 4.0])])
def test_jitter_only_shortens_and_never_adds_up(draw: float, delays: list[float]) -> None:
    backoff = Backoff(4.0, 60.0, draw=lambda: draw)
    assert [backoff.delay() for _ in range(2)] == delays


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30), st.floats(0, 1))
def test_no_delay_leaves_its_bounds(draws: list[float], jitter: float) -> None:
    queue = iter(draws)
    backoff = Backoff(0.5, 30.0, jitter, draw=lambda: next(queue))
    for number in range(len(draws)):
        full = min(30.0, 0.5 * 2**number)
        assert full * (1 - jitter) <= backoff.delay() <= full


def test_the_first_run_after_quiet_begins_at_once() -> None:
    assert Pacer().pause(0.0) == 0.0


def test_a_run_is_followed_by_a_rest_in_proportion() -> None:
    pacer = Pacer(rest=4.0)
    pacer.ran(10.0, 10.1)
    assert pacer.pause(10.1) == pytest.approx(0.4)
    assert pacer.pause(10.3) == pytest.approx(0.2)
    assert pacer.pause(99.0) == 0.0


@pytest.mark.parametrize(("took", "pause"), [(0.0, 0.004), (60.0, 1.0)])
def test_the_pause_has_a_minimum_and_a_maximum(took: float, pause: float) -> None:
    pacer = Pacer()
    pacer.ran(10.0, 10.0 + took)
    assert pacer.pause(10.0 + took) == pytest.approx(pause)


def test_runs_within_the_budget_have_no_pause_and_the_run_that_exceeds_it_has() -> None:
    pacer = Pacer(rest=4.0, budget=0.1)
    now = 10.0
    for _ in range(5):
        assert pacer.pause(now) == 0.0
        pacer.ran(now, now + 0.025)
        now += 0.025
    assert pacer.pause(now) == pytest.approx(0.025 * 5 * 5 - 0.125 - 0.1 * 5)


def test_quiet_time_refills_the_budget_up_to_its_size() -> None:
    pacer = Pacer(rest=4.0, budget=0.1)
    for began in (10.0, 1000.0, 2000.0):
        pacer.ran(began, began + 0.11)
        assert pacer.pause(began + 0.11) == 0.0
        pacer.ran(began + 0.11, began + 0.21)
        assert pacer.pause(began + 0.21) == pytest.approx(0.21 * 5 - 0.21 - 0.5)


def test_a_long_run_has_the_longest_pause_at_most_with_a_budget() -> None:
    pacer = Pacer(budget=0.1)
    pacer.ran(10.0, 70.0)
    assert pacer.pause(70.0) == pytest.approx(0.5)
    pacer.ran(70.5, 130.5)
    assert pacer.pause(130.5) == pytest.approx(1.0)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.001, 0.02, 0.3]), st.floats(0.0, 0.2)), min_size=1, max_size=60
    )
)
def test_no_stretch_of_time_sees_more_work_than_the_budget_and_the_share(
    runs: list[tuple[float, float]],
) -> None:
    """A run that begins within the budget may exceed it once, as its length is not known before."""
    pacer, now = Pacer(rest=4.0, budget=0.1), 100.0
    done: list[tuple[float, float]] = []
    for quiet, took in runs:
        now += quiet
        now += pacer.pause(now)
        pacer.ran(now, now + took)
        done.append((now, now + took))
        now += took
    for first in range(len(done)):
        for last in range(first, len(done)):
            worked = sum(ended - began for began, ended in done[first : last + 1])
            longest = max(ended - began for began, ended in done[first : last + 1])
            assert worked <= 0.1 + longest + (done[last][1] - done[first][0]) / 5 + 1e-6


def test_a_full_bucket_allows_its_size_at_once_and_then_one_each_interval() -> None:
    bucket = TokenBucket(3, 0.5)
    for _ in range(3):
        assert bucket.delay(100.0) == 0
        bucket.take(100.0)
    assert bucket.delay(100.0) == 0.5
    assert bucket.delay(100.25) == 0.25
    assert bucket.delay(100.5) == 0
    bucket.take(100.5)
    assert bucket.delay(100.5) == 0.5


def test_a_rest_fills_the_bucket_and_never_beyond_its_size() -> None:
    bucket = TokenBucket(2, 1.0)
    bucket.take(100.0)
    bucket.take(100.0)
    for _ in range(2):
        assert bucket.delay(1100.0) == 0
        bucket.take(1100.0)
    assert bucket.delay(1100.0) == 1.0


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 0.125, 0.5, 2.0]), min_size=1, max_size=60))
def test_no_stretch_of_time_sees_more_than_the_size_and_one_per_interval(pauses: list[float]) -> None:
    bucket, now = TokenBucket(3, 0.5), 100.0
    taken = []
    for pause in pauses:
        now += pause
        now += bucket.delay(now)
        bucket.take(now)
        taken.append(now)
    for index, began in enumerate(taken):
        for count, ended in enumerate(taken[index:], 1):
            assert count <= 3 + (ended - began) / 0.5
