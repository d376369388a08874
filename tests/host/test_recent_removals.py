from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from devhost.host.shown.recent_removals import LONGEST, MOST, Departed, Removals
from devhost.planning.claims import Reason

GONE = Reason("the device is gone")


class Followed:
    """The removals of one resource, list by list."""

    def __init__(self) -> None:
        self.now = 1e9
        self.removals = Removals()

    def list(
        self,
        *listed: str,
        left: Mapping[str, Reason] | None = None,
        came: Iterable[str] = (),
        read: Callable[[], Container[str]] | None = None,
    ) -> None:
        self.removals = self.removals.after(left or {}, came, read or (lambda: listed), self.now)

    def recent(self) -> list[Departed]:
        return self.removals.recent(self.now)


def test_a_device_has_departed_once_it_is_no_longer_listed() -> None:
    one = Followed()
    one.list("a", "b", "c", left={"a": GONE, "b": Reason("entry 1 (x/y) already took it")})
    assert one.recent() == []
    one.now += 2
    one.list("a", "c")
    one.now += 7200
    one.list("c")  # a container held it for two hours
    assert one.recent() == [Departed("a", GONE, one.now)]


def test_the_newest_is_first_and_old_or_returned_devices_are_forgotten() -> None:
    one = Followed()
    for device in ("a", "b", "c"):
        one.now += 1
        one.list(left={device: GONE})
    assert [gone.device for gone in one.recent()] == ["c", "b", "a"]
    one.list(came=["b", "new"])
    assert [gone.device for gone in one.recent()] == ["c", "a"]
    one.list(left={"a": Reason("again")})
    assert [(gone.device, gone.reason) for gone in one.recent()] == [("a", Reason("again")), ("c", GONE)]
    one.now += LONGEST
    assert one.recent() == []


def test_a_device_that_returns_before_it_leaves_the_list_never_left() -> None:
    one = Followed()
    one.list("a", left={"a": GONE})
    one.list("a", came=["a"])
    one.list()
    assert one.recent() == []


def test_as_many_departed_devices_are_kept_as_the_log_names() -> None:
    one = Followed()
    one.list(left={f"d{n}": GONE for n in range(10_000)})
    assert {gone.device for gone in one.recent()} == {f"d{n}" for n in range(MOST)}


def test_a_device_that_leaves_again_is_the_last_one_to_be_forgotten() -> None:
    one = Followed()
    leaving = ("a", *(f"d{n}" for n in range(MOST - 1)), "a", "e")
    for device in leaving:
        one.list(*leaving, left={device: GONE})
    one.list()
    assert {gone.device for gone in one.recent()} == {"a", "e", *(f"d{n}" for n in range(1, MOST - 1))}


def test_a_list_is_read_only_while_a_device_leaves() -> None:
    one = Followed()
    one.list(came=["a"], read=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    one.list("a", left={"a": GONE})
    one.list(came=["a"])
    one.list(read=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
