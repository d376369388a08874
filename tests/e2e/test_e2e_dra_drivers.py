"""Two DRA drivers of one devhost, with a real API server, scheduler, kubelet and container runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from onenode.access import RIGHTS, Access
from onenode.claims import CARD, DRIVER, Claims, Driver
from onenode.cluster import Cluster
from onenode.offers import ZRAM
from onenode.waiting import until

OTHER = "disks.example.org"
CARDS = {"name": CARD, "backend": "cards", "serve": "dra"}
DISKS = {
    "name": ZRAM,
    "where": {"subsystem": "block", "sysName": "zram[1-9]*"},
    "serve": "dra",
    "dra": {"driver": OTHER},
}


@pytest.fixture
def others(cluster: Cluster) -> Iterator[Claims]:
    """What the second driver publishes."""
    claims = Claims(cluster, OTHER)
    yield claims
    claims.clear()


@pytest.fixture
def driver(cluster: Cluster, claims: Claims, others: Claims) -> Iterator[Driver]:
    """A devhost that may write slices of both drivers."""
    of_one, of_both = f'driver == "{DRIVER}"', f'driver in ["{DRIVER}", "{OTHER}"]'
    rights = RIGHTS.read_text()
    assert of_one in rights
    with Access(cluster, rights.replace(of_one, of_both)), Driver(cluster) as driver:
        yield driver


def test_a_pod_gets_a_device_of_each_driver_with_one_claim(driver, claims, others, pods, zram):
    disk = zram.plug()
    driver.cards(f"c0 zram{disk}")
    driver.serve(CARDS, DISKS)
    driver.registered()
    claims.classes(driver)

    def published() -> bool:
        names = [one["attributes"]["sysName"]["string"] for one in others.offered().values()]
        return f"zram{disk}" in names

    until("the disk is published", published, seen=others.offered)
    this_disk = f'device.attributes["{OTHER}"].sysName == "zram{disk}"'
    wanted = (
        {"deviceClassName": "card.example.com"},
        {"deviceClassName": "zram.example.com", "selectors": [{"cel": {"expression": this_disk}}]},
    )
    for name in ("both", "next"):
        claims.create(name, *wanted)
    pod = pods.create("user", claims=["both"]).running()
    assert {one["driver"] for one in claims.allocated("both")} == {DRIVER, OTHER}
    assert pod.shell("echo $CARDS") == "c0"
    assert pod.opens(f"/dev/zram{disk}")
    late = pods.create("late", claims=["next"])
    late.waits_for_claims()
    pod.delete()
    assert late.running().shell("echo $CARDS") == "c0"
    assert late.opens(f"/dev/zram{disk}")
