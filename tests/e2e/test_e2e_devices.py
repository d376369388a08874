"""What the node shows as devices become unhealthy, appear and disappear."""

from __future__ import annotations

from pathlib import Path

from onenode.machine import plugged
from onenode.offers import ZRAM


def test_an_unhealthy_device_lowers_allocatable_and_its_recovery_raises_it(cluster, devhost, zram):
    broken = Path(f"/dev/zram{zram.plug()}")
    zram.plug()
    count = plugged()
    cluster.shows(ZRAM, count)
    hidden = broken.with_name(f".{broken.name}")
    broken.rename(hidden)
    try:
        cluster.shows(ZRAM, count, count - 1)
    finally:
        hidden.rename(broken)
    cluster.shows(ZRAM, count)


def test_a_hot_plugged_device_raises_capacity_and_a_waiting_pod_gets_it(cluster, devhost, pods, zram):
    before = plugged()
    cluster.shows(ZRAM, before)
    waiting = pods.create("waiting", {ZRAM: before + 1})
    waiting.waits_for(ZRAM)
    number = zram.plug()
    cluster.shows(ZRAM, before + 1)
    assert waiting.running().opens(f"/dev/zram{number}")


def test_an_unplugged_device_is_not_allocatable_until_it_is_plugged_in_again(cluster, devhost, pods, zram):
    """Its id stays listed as Unhealthy, so that the kubelet's records of pods that held it stay correct."""
    before = plugged()
    number = zram.plug()
    cluster.shows(ZRAM, before + 1)
    holder = pods.create("holder", {ZRAM: before + 1}).running()
    zram.unplug(number)
    cluster.shows(ZRAM, before + 1, before)
    assert holder.phase == "Running"
    holder.delete()
    while zram.plug() != number:
        pass
    count = plugged()
    cluster.shows(ZRAM, count)
    assert pods.create("next", {ZRAM: count}).running().opens(f"/dev/zram{number}")
