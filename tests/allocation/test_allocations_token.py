"""Whether a container has a token: what the ledger says to those who only know a name, as after a restart."""

from __future__ import annotations

from kit.allocator import Ledger

from devhost.backend.model import Holder
from devhost.planning.timing import ALLOCATION as NODE

APART = NODE.release_gap
RELAXED = NODE.list_held

NET, HOLDER = "example.com/net", Holder("default", "pod", "main")


def test_nothing_is_known_before_the_first_list_of_the_kubelet() -> None:
    desk = Ledger()
    assert desk.allocations.has_token(NET, "a") is None
    desk.hear(pods=0)  # as a kubelet answers that knows no pods yet
    assert desk.allocations.has_token(NET, "a") is None
    desk.hear()
    assert desk.allocations.has_token(NET, "a") is False


def test_a_token_of_a_resource_that_devhost_does_not_serve_counts_too() -> None:
    desk = Ledger()
    desk.hear(net="a")
    assert desk.allocations.has_token(NET, "a") is True
    assert desk.allocations.has_token(NET, "b") is False


def test_asking_for_a_token_subscribes_to_its_release() -> None:
    desk, released = Ledger(), list[tuple[str, tuple[str, ...]]]()
    desk.allocations.subscribe(lambda resource, tokens: released.append((resource, tokens)))
    desk.hear(net="a b")
    desk.allocations.has_token(NET, "a")
    desk.hear(net="b", after=RELAXED)
    assert released == []  # one list may be wrong
    desk.hear(net="b")
    assert released == [(NET, ("a",))]
    assert desk.allocations.has_token(NET, "a") is False
    assert desk.allocations.has_token(NET, "b") is True


def test_asking_makes_a_list_due_as_long_as_the_token_is_held() -> None:
    desk = Ledger()
    desk.hear(net="a")
    desk.allocations.has_token(NET, "a")
    due = desk.allocations.due(desk.now)
    assert due is not None
    assert due <= desk.now + RELAXED
