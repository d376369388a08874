"""Resources that move between device plugin and DRA, with a real scheduler, and pods that come and go."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from onenode.claims import CARD, DRIVER, Claims, Driver
from onenode.cluster import Cluster
from onenode.history import History, Instant
from onenode.pods import Pod, Pods
from onenode.settings import SPECIFICATIONS
from onenode.waiting import LIMIT, until

CLASS = {"deviceClassName": "card.example.com"}
PLUGIN = {"name": CARD, "backend": "cards", "serve": "plugin"}
DRA = {**PLUGIN, "serve": "dra"}
CARDS = ("c0", "c1", "c2", "c3")


@pytest.fixture
def driver(cluster: Cluster, access: None, claims: Claims) -> Iterator[Driver]:
    """A devhost that can serve claims; it offers the cards through the device plugin."""
    with Driver(cluster, PLUGIN, cards=[f"{card} {card}" for card in CARDS]) as driver:
        yield driver


@pytest.fixture
def history(cluster: Cluster, driver: Driver) -> Iterator[History]:
    """What both sides offer of the cards during the test."""
    with History(cluster.api, CARD, DRIVER) as history:
        yield history


class Churn:
    """Pods that come and go on both sides, while somebody watches that nothing is offered or given twice."""

    def __init__(self, cluster: Cluster, claims: Claims, pods: Pods, holders: list[Pod]) -> None:
        self._cluster = cluster
        self._claims = claims
        self._pods = pods
        self._holders = holders
        self._numbers = itertools.count()
        self._living: list[tuple[Pod, str]] = []
        self.given: set[str] = set()
        """The cards that pods of this churn got."""

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Goes on until a condition is true.

        Raises:
            TimeoutError: it does not come true.
            AssertionError: a card was offered or given twice.
        """
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, what
            self.step()

    def step(self) -> None:
        """One pod comes on each side, and the pods that run go."""
        self.check()
        if len(self._living) < 4:
            number = next(self._numbers)
            self._claims.create(f"churn-{number}", CLASS)
            self._living.append(
                (self._pods.create(f"claim-{number}", claims=[f"churn-{number}"]), f"churn-{number}")
            )
            self._living.append((self._pods.create(f"limit-{number}", {CARD: 1}), ""))
        running = [(pod, claim) for pod, claim in self._living if pod.phase in ("Running", "Failed")]
        cards = [card for pod in self._holders for card in card_of(pod)]
        for pod, _ in running:
            if pod.phase == "Running":
                mine = card_of(pod)
                self.given |= set(mine)
                cards += mine
        assert len(cards) == len(set(cards)), cards
        for pod, claim in running:
            pod.delete()
            if claim:
                self._claims.delete(claim)
            self._living.remove((pod, claim))

    def check(self) -> None:
        """The Node and the slices never offer more than there is: whatever is read first."""
        slices = self._claims.offered()
        counts = self._cluster.counts(CARD) or (0, 0)
        assert counts[1] + len(slices) <= len(CARDS), (counts, sorted(slices))

    def end(self) -> None:
        """The remaining pods go."""
        for pod, claim in self._living:
            pod.delete()
            if claim:
                self._claims.delete(claim)
        self._living.clear()


def offered_twice(instants: Sequence[Instant]) -> list[Instant]:
    """When the two sides together offered more cards than there are."""
    return [one for one in instants if one.allocatable + len(one.devices) > len(CARDS)]


def card_of(pod: Pod) -> list[str]:
    """The cards of a pod, as its container sees them."""
    return [card for card in pod.shell("echo $CARDS").split(",") if card]


@pytest.mark.conformance(111, 112)
@pytest.mark.parametrize("restart", [False, True], ids=["undisturbed", "kubelet and devhost killed"])
def test_a_resource_moves_to_dra_and_back_while_pods_come_and_go(
    cluster, driver, claims, pods, history, restart
):
    driver.serving()
    cluster.refreshed()
    cluster.shows(CARD, len(CARDS))
    old = pods.create("old", {CARD: 1}).running()
    (held,) = card_of(old)
    free = set(CARDS) - {held}

    driver.serve(DRA)
    churn = Churn(cluster, claims, pods, [old])
    if restart:
        churn.step()
        cluster.restart_kubelet(kill=True, meanwhile=lambda: driver.restart(kill=True))
    churn.until("the free cards are in slices", lambda: claims.offered().keys() == free)
    claims.classes(driver)
    assert driver.moving() == {held}
    claims.create("new", CLASS)
    new = pods.create("new", claims=["new"])
    churn.until("a claim gets a card", lambda: new.phase == "Running")
    (kept,) = card_of(new)
    assert card_of(old) == [held]
    old.delete()
    churn = _next(churn, Churn(cluster, claims, pods, [new]))
    churn.until("the held card has joined", lambda: claims.offered().keys() == set(CARDS))
    assert driver.moving() == set()

    driver.serve(PLUGIN)
    if restart:
        churn.step()
        cluster.restart_kubelet(kill=True, meanwhile=lambda: driver.restart(kill=True))
    churn.until("the slices are gone", lambda: not claims.offered())
    churn.until("free cards are listed", lambda: (cluster.counts(CARD) or (0, 0))[1] == len(CARDS) - 1)
    assert driver.moving() == {kept}
    assert card_of(new) == [kept]
    new.delete()
    claims.delete("new")
    churn = _next(churn, Churn(cluster, claims, pods, []))
    churn.until("all cards are listed", lambda: (cluster.counts(CARD) or (0, 0))[1] == len(CARDS))
    churn.end()
    until("nothing moves", lambda: not driver.moving(), limit=100, seen=lambda: driver.status())

    instants = history.instants()
    assert {len(CARDS), 0} <= {one.allocatable for one in instants}, "it has seen the device plugin's side"
    assert {len(CARDS), 0} <= {len(one.devices) for one in instants}, "it has seen the slices"
    assert not offered_twice(instants)


def test_a_reboot_in_the_middle_of_a_move_leaves_pods_their_cards(cluster, driver, claims, pods, history):
    """One runs, the other was scheduled just before; the directory of CDI files is in memory."""
    driver.serve(DRA)
    claims.shows(*CARDS)
    claims.classes(driver)
    for name in ("old", "late"):
        claims.create(name, CLASS)
    old = pods.create("old", claims=["old"]).running()
    (held,) = card_of(old)

    def reboot() -> None:
        pods.create("late", claims=["late"])
        until("a scheduler has allocated the claim", lambda: claims.allocated("late"))
        driver.serve(PLUGIN)
        driver.stop(kill=True)
        for file in cluster.namespaces.path(SPECIFICATIONS).glob("*"):
            file.unlink()
        driver.start()

    cluster.restart_kubelet(kill=True, meanwhile=reboot)
    late = Pod(cluster, "late").running()
    assert len({held, *card_of(late)}) == 2
    until("the claims are known again", lambda: len(driver.status()["dra"]["claims"]) == 2)
    assert card_of(old.restarted()) == [held]
    until("two cards are listed", lambda: (cluster.counts(CARD) or (0, 0))[1] == 2)
    assert not claims.offered()
    assert driver.moving() == {held, *card_of(late)}
    assert not offered_twice(history.instants())


def _next(before: Churn, after: Churn) -> Churn:
    before.end()
    return after
