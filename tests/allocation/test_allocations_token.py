"""Whether a container has a token: what the ledger says to those who only know a name, as after a restart."""

from __future__ import annotations

from devhost.allocation.allocations import Allocations, Listing
from devhost.backend.model import Holder
from devhost.planning.timing import ALLOCATION as NODE

APART = NODE.release_gap
RELAXED = NODE.list_held

NET, HOLDER = "example.com/net", Holder("default", "pod", "main")


class Desk:
    """A ledger, and a kubelet that is asked at chosen moments."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = Allocations(lambda: self.now)
        self.released: list[tuple[str, tuple[str, ...]]] = []
        self.ledger.subscribe(lambda resource, tokens: self.released.append((resource, tokens)))

    def hear(self, *tokens: str, pods: int = 1, after: float = RELAXED) -> None:
        self.now += after
        holders = {NET: dict.fromkeys(tokens, HOLDER)} if tokens else {}
        self.ledger.apply(Listing(kubelet=(1, 2, 3), began=self.now, pods=pods, holders=holders))


def test_nothing_is_known_before_the_first_list_of_the_kubelet() -> None:
    desk = Desk()
    assert desk.ledger.has_token(NET, "a") is None
    desk.hear(pods=0)  # as a kubelet answers that knows no pods yet
    assert desk.ledger.has_token(NET, "a") is None
    desk.hear()
    assert desk.ledger.has_token(NET, "a") is False


def test_a_token_of_a_resource_that_devhost_does_not_serve_counts_too() -> None:
    desk = Desk()
    desk.hear("a")
    assert desk.ledger.has_token(NET, "a") is True
    assert desk.ledger.has_token(NET, "b") is False


def test_asking_for_a_token_subscribes_to_its_release() -> None:
    desk = Desk()
    desk.hear("a", "b")
    desk.ledger.has_token(NET, "a")
    desk.hear("b")
    assert desk.released == []  # one list may be wrong
    desk.hear("b", after=APART)
    assert desk.released == [(NET, ("a",))]
    assert desk.ledger.has_token(NET, "a") is False
    assert desk.ledger.has_token(NET, "b") is True


def test_asking_makes_a_list_due_as_long_as_the_token_is_held() -> None:
    desk = Desk()
    desk.hear("a")
    desk.ledger.has_token(NET, "a")
    due = desk.ledger.due(desk.now)
    assert due is not None
    assert due <= desk.now + RELAXED
