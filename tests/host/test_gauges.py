"""The gauges of a scrape are functions of one value, so a test of them needs no host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from moments import CONFIG, ENTRY, TOY, backend, now, served
from prometheus_client.parser import text_string_to_metric_families
from scraped_series import samples, value

from devhost.allocation.allocations import Holding, TokenGroup
from devhost.allocation.inventory import Snapshot, Tally
from devhost.backend import MissingDriver
from devhost.backend.model import Holder
from devhost.discovery.catalog import InstalledObserver
from devhost.discovery.manager import ProvisioningCondition, ProvisioningState
from devhost.discovery.observers import ObserverCondition, ObserverState
from devhost.discovery.scanner import BackendState
from devhost.discovery.validation import RefusedDevice
from devhost.discovery.verdict_follower import VerdictsNow
from devhost.discovery.verdicts import Verdict, VerdictKind
from devhost.dra.now import DraNow
from devhost.host.node_labels import LabelFile
from devhost.host.reload import LastReload
from devhost.host.shown.entries import EntryOutcomes
from devhost.host.shown.gauges import (
    MOST_REASONS,
    MOST_VERDICTS,
    OTHER_AUTHORS,
    OTHER_REASONS,
    gauges,
)
from devhost.host.shown.now import (
    GONE,
    ConfigurationNow,
    EntriesNow,
    Memory,
    Now,
    ObserverNow,
    ResourceNow,
)
from devhost.host.shown.recent_removals import Departed, Removals
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, Plan, PlannedResource, Refusal, RefusalKind
from devhost.planning.settings import ResourceSettings, Settings
from devhost.telemetry.exposition import TABLE, TURN, Gauge
from devhost.telemetry.metrics import CallFailure, Metrics, ProblemKind

POD = Holder("default", "train", "main")
OBSERVER = InstalledObserver("audit", "audit.py", "", (), None, None)  # type: ignore[arg-type]


def scrape(moment: Now, *, pods: bool = False) -> Metrics:
    """Metrics of a host, without an event."""
    made = Metrics()
    made.name_gauges(lambda: gauges(moment, pods=pods))
    return made


def shown(name: str, *, pods: bool = False, **others: Any) -> Mapping[tuple[str, ...], float]:
    """The samples of one gauge, by the labels in the order of the table; each series is there once."""
    (labels,) = (one.labels for one in TABLE if one.name == name)
    found = [
        (tuple(sample.labels[label] for label in labels), sample.value)
        for sample in samples(scrape(now(**others), pods=pods))
        if sample.name == f"devhost_{name}"
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def listed(healthy: int, unhealthy: Mapping[str, int], backend: str = "toy") -> dict[str, ResourceNow]:
    """A resource with so many tokens, the unhealthy ones by reason."""
    tally = Tally(healthy, healthy + sum(unhealthy.values()), unhealthy)
    (one,) = served(Snapshot(1, {}, None, tally)).values()
    return {TOY: replace(one, entry=replace(ENTRY, backend=backend))}


def reasons(**others: Any) -> Mapping[tuple[str, ...], float]:
    return {labels[1:]: count for labels, count in shown("devices", **others).items()}


class SharedByAmount(DraNow):
    """A node with a device that claims share by amount."""

    def gauges(self) -> Iterator[Gauge]:
        for name in ("device_capacity", "device_capacity_used"):
            yield name, [(("a/b", "d0", "memory"), 8)]


def test_every_metric_is_shown_once_and_no_other() -> None:
    metrics = scrape(now(dra=SharedByAmount([], (), (), {}, {})), pods=True)
    names = [metric.name for metric in metrics.collect(used=()) if metric.name.startswith("devhost_")]
    assert names == [f"devhost_{one.name}" for one in TABLE]
    assert {name for name, _ in gauges(now(dra=SharedByAmount([], (), (), {}, {})), pods=True)} <= {
        one.name for one in TABLE
    }


def test_what_is_known_without_an_event_exists_at_zero_from_the_start() -> None:
    waits = ProvisioningCondition(ProvisioningState.WAITING, "", 1.0)
    others: dict[str, Any] = {
        "resources": {TOY: replace(served()[TOY], streams=0)},
        "provisioning": {"toy": waits, "gone": waits},
        "labels": {"toy": None},
        "observers": [ObserverNow(OBSERVER, ObserverCondition())],
    }
    assert reasons(**others) == {("toy", "Healthy", ""): 0, ("toy", "Unhealthy", ""): 0}
    assert shown("streams", **others) == {(TOY,): 0}
    assert shown("backend_degraded", **others) == {("toy",): 0}
    assert shown("provisioning", **others) == {("toy", "waiting"): 1, ("toy", "ok"): 0, ("toy", "failed"): 0}
    assert shown("labels", **others) == {("toy",): 0}
    assert shown("observer_paused", **others) == {("audit",): 0}
    assert shown("plan_refusals", **others) == {(kind,): 0 for kind in RefusalKind}


def test_each_state_has_its_value() -> None:
    refused = [Refusal("toy", f"d{n}", 0, RefusalKind.TAKEN, "") for n in range(3)]
    paused = ObserverCondition(ObserverState.PAUSED)
    others: dict[str, Any] = {
        "backends": {"toy": backend(state=BackendState.DEGRADED)},
        "labels": {"toy": LabelFile(CONFIG, 4)},
        "observers": [ObserverNow(OBSERVER, paused)],
        "plan": Plan({}, tuple(refused)),
        "generation": 5,
        "last_reload": LastReload(7.0, ("no",)),
    }
    assert shown("streams", **others) == {(TOY,): 1}
    assert shown("backend_degraded", **others) == {("toy",): 1}
    assert shown("labels", **others) == {("toy",): 4}
    assert shown("observer_paused", **others) == {("audit",): 1}
    assert shown("plan_refusals", **others)["taken",] == 3
    assert shown("config_generation", **others) == {(): 5}
    assert shown("config_last_reload_success", **others) == {(): 0}
    assert shown("config_last_reload_success") == {(): 1}
    assert shown("config_last_reload_timestamp_seconds", **others) == {(): 7}


def test_a_resource_that_changes_its_backend_leaves_no_series_of_the_old_one() -> None:
    moments = [now(resources=listed(2, {"x": 1}))]
    metrics = Metrics()
    metrics.name_gauges(lambda: gauges(moments[-1], pods=False))
    assert value(metrics, "devhost_devices", resource=TOY, backend="toy", health="Unhealthy", reason="x") == 1
    moments.append(now(resources=listed(0, {}, "gpu"), backends={"gpu": backend()}))
    assert {one.labels["backend"] for one in samples(metrics) if one.name == "devhost_devices"} == {"gpu"}


def test_a_reason_of_unhealthy_devices_is_a_series_only_while_it_applies() -> None:
    well = {("toy", "Healthy", ""): 3.0, ("toy", "Unhealthy", ""): 0.0}
    down = reasons(resources=listed(3, {"port 1 is down": 2}))
    assert down == {**well, ("toy", "Unhealthy", "port 1 is down"): 2}
    assert reasons(resources=listed(3, {})) == well
    assert reasons(resources=listed(3, {"": 2})) == {**well, ("toy", "Unhealthy", ""): 2}


def test_the_most_common_reasons_have_series_and_the_rest_is_counted() -> None:
    many = {f"reason {n:03}": 1 for n in range(500)}
    found = reasons(resources=listed(0, {**many, "the common one": 9, OTHER_REASONS: 2}))
    assert len(found) == 2 + MOST_REASONS
    assert found["toy", "Unhealthy", "the common one"] == 9
    assert found["toy", "Unhealthy", OTHER_REASONS] == 2 + 500 - (MOST_REASONS - 2)
    assert sum(found.values()) == 511
    assert len(reasons(resources=listed(0, many))) == 2 + MOST_REASONS + 1


def test_reasons_are_the_same_with_and_without_pod_metrics() -> None:
    """A reason never names a pod (tests/host/test_host_pod_names.py)."""
    reason = "a pod has it as a, from before it was shared in this way"
    for pods in (False, True):
        moment = now(
            resources=listed(0, {reason: 1}),
            backends={"toy": backend(state=BackendState.DEGRADED, reason=reason)},
            memory=Memory({TOY: Removals(departed=[Departed("d1", Reason(reason), 1.0)])}),
        )
        text = asyncio.run(scrape(moment, pods=pods).render()).decode()
        assert text.count(f'reason="{reason}"') == 3


def test_every_kind_of_problem_exists_at_zero_and_follows_the_problems() -> None:
    assert shown("problems") == {(kind,): 0 for kind in get_args(ProblemKind)}
    lacking = MissingDriver("card 1", 'it said "no"\n', {})
    wrong = {
        "shortages": EntriesNow(EntryOutcomes(Settings(), Plan(), {}), [("toy", lacking), ("toy", lacking)]),
        "backends": {"toy": backend(refused=(RefusedDevice("x", "twice"),))},
    }
    assert shown("problems", **wrong)["driver",] == 2
    assert shown("problems", **wrong)["refused",] == 1
    assert shown("problems", **wrong)["config",] == 0
    assert shown("problem_info", **wrong) == {
        ("driver", "toy card 1", r'it said "no"\n'): 1,  # written as everywhere else
        ("refused", "toy x", "twice"): 1,
    }
    assert not shown("problem_info")


def test_devices_that_left_are_counted_by_reason() -> None:
    left = Removals(departed=[Departed(f"d{n}", Reason(GONE), 1.0) for n in range(2)])
    assert shown("devices_left", memory=Memory({TOY: left})) == {(TOY, GONE): 2}
    assert not shown("devices_left")


def test_each_entry_of_the_file_has_a_series_that_ends_with_it() -> None:
    """This includes an entry without a device, for which there is an alert."""
    others = ResourceSettings(1, "a/{c}", "gpu", optional=True)
    settings = Settings((ENTRY, others))
    planned = PlannedResource("a/x", others, (Offer(backend("d0").devices["d0"]),))
    outcomes = EntriesNow(EntryOutcomes(settings, Plan({"a/x": planned}), {"gpu": backend("d0")}))
    assert shown("entry_devices", settings=settings, shortages=outcomes) == {
        ("resources[0]", TOY, "toy", "false"): 0,
        ("resources[1]", "a/{c}", "gpu", "true"): 1,
    }
    assert len(shown("entry_devices")) == 1


def test_the_file_in_force_has_a_series_that_ends_with_it() -> None:
    for digest in ("ab", "cd"):
        configuration = ConfigurationNow(CONFIG, digest)
        assert shown("config_info", configuration=configuration) == {(digest,): 1}
    assert not shown("config_info")


def test_holders_are_shown_at_each_scrape_and_end_with_the_container() -> None:
    named, unnamed = TokenGroup(("d0",), (("toy", "d0"),), POD), TokenGroup(("d1",), (("toy", "d1"),), None)
    holdings = {TOY: Holding(TOY, [named, unnamed])}
    assert "devhost_device_held" not in {metric.name for metric in scrape(now()).collect()}
    assert shown("device_held", pods=True, holdings=holdings) == {
        (TOY, "d0", "default", "train", "main"): 1,
        (TOY, "d1", "", "", ""): 1,
    }
    assert not shown("device_held", pods=True)
    assert b"# TYPE devhost_device_held gauge" in asyncio.run(scrape(now(), pods=True).render())


def test_verdicts_are_counted_by_a_bounded_number_of_authors_and_reasons() -> None:
    def given(kind: VerdictKind, by: str, reason: str, *since: float) -> list[Verdict]:
        return [Verdict(f"{by}-{at}", kind, ("d0",), reason, by, at) for at in since]

    verdicts = [
        *given(VerdictKind.CORDON, "alice", "fan replaced", 7.0, 5.0),
        *given(VerdictKind.UNHEALTHY, "dcgm", "XID\n79", 9.0, 8.0),
    ]
    found = VerdictsNow(in_force=verdicts)
    alice = ("cordon", "alice", "fan replaced")
    assert shown("verdicts", verdicts=found)[alice] == 2
    oldest = shown("verdicts_oldest_timestamp_seconds", verdicts=found)
    assert oldest[alice] == 5.0
    (xid,) = (labels for labels, at in oldest.items() if at == 8.0)
    assert xid[:2] == ("unhealthy", "dcgm") and "\n" not in xid[2]
    verdicts += [one for n in range(1000) for one in given(VerdictKind.CORDON, "carol", f"reason {n}", 1.0)]
    counts = shown("verdicts", verdicts=found)
    assert len(counts) == MOST_VERDICTS + 1 and sum(counts.values()) == 1004
    assert counts["cordon", OTHER_AUTHORS, OTHER_REASONS] == 1000 - (MOST_VERDICTS - 2)


RESOURCES = 200
HOST = 100
"""Series that do not depend on the number of resources."""


def many() -> Now:
    """A host with so many resources."""
    entries = [ResourceSettings(n, f"example.com/{n}", "toy") for n in range(RESOURCES)]
    (one,) = listed(8, {}).values()
    return now(
        settings=Settings(tuple(entries)),
        resources={entry.name: replace(one, name=entry.name, entry=entry) for entry in entries},
    )


@pytest.mark.parametrize(("state", "most"), [("new", 8), ("used", 24), ("every failure", 44)])
def test_a_resource_has_few_series(state: str, most: int) -> None:
    """So 200 resources have at most 5,000 series when all are in use."""
    metrics = scrape(many())
    metrics.begin("backend", "toy")
    for number in range(RESOURCES):
        name = f"example.com/{number}"
        metrics.begin("resource", name)
        if state != "new":
            metrics.observe("event_to_list_seconds", name, seconds=0.004)
            metrics.observe("allocate_seconds", name, seconds=0.002)
        if state == "every failure":
            metrics.begin("prepared", name)
            metrics.observe("prepare_seconds", name, seconds=0.1)
            for reason in CallFailure:
                metrics.add("allocation_failures_total", name, reason)
                metrics.add("prepare_failures_total", name, reason)
    count = sum(1 for _ in samples(metrics))
    assert RESOURCES * most < count <= RESOURCES * most + HOST
    assert state == "every failure" or count <= 5000


async def test_a_scrape_lets_other_work_run_and_is_valid_for_prometheus() -> None:
    metrics = scrape(many())
    for number in range(RESOURCES):
        metrics.begin("resource", f"example.com/{number}")
    metrics.observe("allocate_seconds", "example.com/0", seconds=0.001)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other_work())
    text = await metrics.render()
    task.cancel()
    assert turns >= RESOURCES * 7 // TURN
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert families["devhost_streams"].samples[0].labels == {"resource": "example.com/0"}
    assert families["devhost_allocate_seconds"].type == "histogram"
