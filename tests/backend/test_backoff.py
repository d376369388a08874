"""Delays that double within their bounds, and work that leaves time for other work."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.backoff import Backoff, Pacer


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
def test_the_rest_has_a_least_and_a_most(took: float, pause: float) -> None:
    pacer = Pacer()
    pacer.ran(10.0, 10.0 + took)
    assert pacer.pause(10.0 + took) == pytest.approx(pause)
