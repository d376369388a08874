"""Two devhosts with one DRA driver that take turns: claims are prepared throughout, and all slices stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Thread

import pytest
from onenode.claims import CARD, DRIVER, Claims, Driver
from onenode.cluster import Cluster
from onenode.history import History
from onenode.pods import Pods

CLASS = {"deviceClassName": "card.example.com"}
CARDS = [f"c{number} d{number}" for number in range(8)]
ENTRY = {"name": CARD, "backend": "cards", "serve": "dra"}


class TakingTurns(Driver):
    """A devhost that waits while another one acts."""

    def arguments(self) -> Sequence[str]:
        return *super().arguments(), "--take-turns"


@pytest.fixture
def old(cluster: Cluster, access: None, claims: Claims) -> Iterator[TakingTurns]:
    with TakingTurns(cluster, ENTRY, cards=CARDS) as driver:
        driver.registered()
        claims.classes(driver)
        yield driver


@pytest.fixture
def new(cluster: Cluster, old: TakingTurns) -> Iterator[TakingTurns]:
    with TakingTurns(cluster, ENTRY, cards=CARDS) as driver:
        driver.says("ready for the turn")
        yield driver


@pytest.fixture
def pods(cluster: Cluster, new: TakingTurns) -> Iterator[Pods]:
    """Creates pods; they are deleted while the newer driver still runs."""
    pods = Pods(cluster)
    yield pods
    pods.clear()


def test_claims_are_prepared_throughout_an_upgrade_and_no_device_leaves_its_slice(
    cluster, old, new, claims, pods
):
    claims.create("turns-before", CLASS)
    holder = pods.create("turns-before", claims=["turns-before"]).running()
    identity = holder.identity()
    with History(cluster.api, CARD, DRIVER) as history:
        upgrade = Thread(target=old.stop)
        upgrade.start()
        for number in range(5):
            claims.create(f"turns-{number}", CLASS)
            pods.create(f"turns-{number}", claims=[f"turns-{number}"]).running()
        upgrade.join()
        new.says("DRA driver registered")
    assert holder.identity() == identity
    assert {len(one.devices) for one in history.instants()[1:]} == {len(CARDS)}
    events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
    own = [one for one in events if one["involvedObject"]["name"].startswith("turns-")]
    assert [one["message"] for one in own if one["reason"] == "FailedPrepareDynamicResources"] == []
