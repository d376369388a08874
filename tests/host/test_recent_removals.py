from __future__ import annotations

from devhost.host.shown.recent_removals import LONGEST, MOST, Departed, RecentRemovals
from devhost.planning.claims import Reason

GONE = Reason("the device is gone")


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def test_a_device_has_departed_once_it_is_no_longer_listed() -> None:
    departures = RecentRemovals(clock := Clock())
    departures.left({"a": GONE, "b": Reason("entry 1 (x/y) already took it")})
    departures.settle(lambda: {"a", "b", "c"})
    assert departures.recent() == []
    clock.now += 2
    departures.settle(lambda: {"a", "c"})
    clock.now += 7200
    departures.settle(lambda: {"c"})  # a container held it for two hours
    assert departures.recent() == [Departed("a", GONE, clock.now)]


def test_the_newest_is_first_and_old_or_returned_devices_are_forgotten() -> None:
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


def test_a_device_that_returns_before_it_leaves_the_list_never_left() -> None:
    departures = RecentRemovals(Clock())
    departures.left({"a": GONE})
    departures.came(["a"])
    departures.settle(tuple)
    assert departures.recent() == []


def test_as_many_departed_devices_are_kept_as_the_log_names() -> None:
    departures = RecentRemovals(Clock())
    departures.left({f"d{n}": GONE for n in range(10_000)})
    departures.settle(tuple)
    assert {one.device for one in departures.recent()} == {f"d{n}" for n in range(MOST)}


def test_a_device_that_leaves_again_is_the_last_one_to_be_forgotten() -> None:
    departures = RecentRemovals(Clock())
    for device in ("a", *(f"d{n}" for n in range(MOST - 1)), "a", "e"):
        departures.left({device: GONE})
    departures.settle(tuple)
    assert {one.device for one in departures.recent()} == {"a", "e", *(f"d{n}" for n in range(1, MOST - 1))}


def test_a_list_is_read_only_while_a_device_leaves() -> None:
    departures = RecentRemovals(Clock())
    departures.came(["a"])
    departures.settle(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
