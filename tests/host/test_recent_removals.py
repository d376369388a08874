from __future__ import annotations

from devhost.host.recent_removals import LONGEST, MOST, Departed, RecentRemovals
from devhost.planning.claims import Reason

GONE = Reason("the device is gone")


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def test_a_device_has_departed_once_it_is_in_the_list_no_more() -> None:
    departures = RecentRemovals(clock := Clock())
    departures.left({"a": GONE, "b": Reason("entry 1 (x/y) already took it")})
    departures.settle(lambda: {"a", "b", "c"})
    assert departures.recent() == []
    clock.now += 2
    departures.settle(lambda: {"a", "c"})
    clock.now += 7200
    departures.settle(lambda: {"c"})  # a container had it for two hours
    assert departures.recent() == [Departed("a", GONE, clock.now)]


def test_the_newest_is_first_and_what_comes_back_or_is_old_is_forgotten() -> None:
    departures = RecentRemovals(clock := Clock())
    for device in ("a", "b", "c"):
        clock.now += 1
        departures.left({device: GONE})
        departures.settle(tuple)
    assert [one.device for one in departures.recent()] == ["c", "b", "a"]
    departures.came(["b", "new"])
    assert [one.device for one in departures.recent()] == ["c", "a"]
    departures.left({"a": Reason("again")})
    departures.settle(tuple)
    assert [(one.device, one.reason) for one in departures.recent()] == [("a", Reason("again")), ("c", GONE)]
    clock.now += LONGEST
    assert departures.recent() == []


def test_what_comes_back_before_the_list_is_without_it_never_left() -> None:
    departures = RecentRemovals(Clock())
    departures.left({"a": GONE})
    departures.came(["a"])
    departures.settle(tuple)
    assert departures.recent() == []


def test_ten_thousand_devices_that_leave_are_no_more_than_the_log_names() -> None:
    departures = RecentRemovals(Clock())
    departures.left({f"d{n}": GONE for n in range(10_000)})
    departures.settle(tuple)
    assert {one.device for one in departures.recent()} == {f"d{n}" for n in range(MOST)}


def test_a_list_is_looked_at_only_while_some_device_leaves() -> None:
    departures = RecentRemovals(Clock())
    departures.came(["a"])
    departures.settle(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
