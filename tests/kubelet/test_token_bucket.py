"""A few lists go out at once, and sustained ones are spread."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.kubelet.server import TokenBucket


class Clock:
    """Seconds that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_full_bucket_allows_its_size_at_once_and_then_one_each_interval() -> None:
    clock = Clock()
    bucket = TokenBucket(3, 0.5, clock)
    for _ in range(3):
        assert bucket.delay() == 0
        bucket.take()
    assert bucket.delay() == 0.5
    clock.now += 0.25
    assert bucket.delay() == 0.25
    clock.now += 0.25
    assert bucket.delay() == 0
    bucket.take()
    assert bucket.delay() == 0.5


def test_a_rest_fills_the_bucket_and_never_beyond_its_size() -> None:
    clock = Clock()
    bucket = TokenBucket(2, 1.0, clock)
    bucket.take()
    bucket.take()
    clock.now += 1000.0
    for _ in range(2):
        assert bucket.delay() == 0
        bucket.take()
    assert bucket.delay() == 1.0


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 0.125, 0.5, 2.0]), min_size=1, max_size=60))
def test_no_stretch_of_time_sees_more_than_the_size_and_one_per_interval(pauses: list[float]) -> None:
    clock = Clock()
    bucket = TokenBucket(3, 0.5, clock)
    taken = []
    for pause in pauses:
        clock.now += pause
        clock.now += bucket.delay()
        bucket.take()
        taken.append(clock.now)
    for index, began in enumerate(taken):
        for count, ended in enumerate(taken[index:], 1):
            assert count <= 3 + (ended - began) / 0.5
