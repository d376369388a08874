"""What is shown is a function of one value, so a test of it needs no host."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.host import observer
from moments import CONFIG, ENTRY, PLUGINS, SOCKET, TOY, backend, now, served

from devhost.allocation.allocations import Holding, TokenGroup
from devhost.allocation.given import Difference
from devhost.allocation.inventory import FORGOTTEN, Entry, Member, Snapshot
from devhost.backend import MissingDriver
from devhost.backend.errors import BackendError
from devhost.backend.model import HEALTHY, MAX_DEVICE_ID, Device, Holder, unhealthy
from devhost.config.loader import Copied
from devhost.discovery.manager import ProvisioningCondition, ProvisioningState
from devhost.discovery.observers import ObserverCondition
from devhost.discovery.scanner import BackendCondition, BackendNow, BackendState
from devhost.discovery.validation import RefusedDevice
from devhost.dra.now import DraNow, DriverNow
from devhost.dra.publisher import PublisherStatus
from devhost.host.node_labels import LabelFile
from devhost.host.reload import LastReload
from devhost.host.shown.entries import EntryOutcomes
from devhost.host.shown.gauges import gauges
from devhost.host.shown.now import (
    GONE,
    ConfigurationNow,
    EntriesNow,
    KubeletNow,
    Lost,
    Memory,
    ObserverNow,
    PodsNow,
)
from devhost.host.shown.problems import KINDS, ROOT, Problem, problems, readiness, status_line
from devhost.host.shown.recent_removals import Departed, Removals
from devhost.host.shown.shortages import (
    OTHER_BACKEND,
    SHARED_OTHERWISE,
    UNSERVED,
    holders,
    lost,
    orphans,
    report,
)
from devhost.host.shown.status import document
from devhost.kubelet.podresources_poller import KubeletCondition
from devhost.planning.claims import Reason
from devhost.planning.plan import Plan
from devhost.planning.settings import ResourceSettings, Settings, Share
from devhost.runtime.tasks import Failing

POD = Holder("default", "train-0", "main")
LATE = Failing("it does not work", 5.0)


def one_driver(*, needed: bool = True, over: bool = False) -> DraNow:
    """A node whose DRA driver the kubelet does not use."""
    driver = DriverNow(
        driver="dra.example.com",
        node="n1",
        needed=needed,
        over=over,
        refusal="no answer",
        status=PublisherStatus(synced_at=1.0),
        published={},
        claims={},
        kept={},
        calls={},
    )
    return DraNow([driver], (), (), {}, {})


def held(token: str, *, by: Holder | None = POD, **others: Any) -> dict[str, Holding]:
    """A container has one token, of the device that it is made of."""
    return {TOY: Holding(TOY, [TokenGroup((token,), (("toy", token),), by)], **others)}


WRONG = (
    ({"last_reload": LastReload(3.0, ("line 1",))}, Problem("config", str(CONFIG), "line 1", 3.0)),
    ({"last_good": LATE}, Problem("config", str(CONFIG), *LATE)),
    ({"rollout": LATE}, Problem("config", str(CONFIG), *LATE)),
    ({"kubelet": KubeletNow(PLUGINS, None, LATE)}, Problem("kubelet", str(PLUGINS), *LATE)),
    ({"self_check": LATE}, Problem("kubelet", str(PLUGINS), *LATE)),
    ({"resources": served(failure="refused")}, Problem("resource", TOY, "refused")),
    ({"dra": one_driver()}, Problem("dra", "dra.example.com", "no answer")),
    ({"node": ("n1", LATE)}, Problem("node", "n1", *LATE)),
    (
        {"holdings": held("d0", forgotten={"d0": POD})},
        Problem("allocation", f"{TOY} d0", FORGOTTEN, held_by=(POD,)),
    ),
    ({"holdings": held("d7")}, Problem("device", f"{TOY} d7", GONE)),
    (
        {"differences": {(TOY, ("toy", "d0")): Difference("another node", (POD,))}},
        Problem("device", f"{TOY} d0", "another node", held_by=(POD,)),
    ),
    (
        {"backends": {"toy": backend(state=BackendState.DEGRADED, reason="it hangs", since=4.0)}},
        Problem("backend", "toy", "it hangs", 4.0),
    ),
    (
        {"backends": {"toy": backend(refused=(RefusedDevice("d9", "no id"),))}},
        Problem("refused", "toy d9", "no id"),
    ),
    (
        {
            "shortages": EntriesNow(
                EntryOutcomes(Settings(), Plan(), {}), [("toy", MissingDriver("card 1", "no driver", {}))]
            )
        },
        Problem("driver", "toy card 1", "no driver"),
    ),
    ({"event_sources": {"uevents": "not permitted"}}, Problem("events", "uevents", "not permitted")),
    (
        {"provisioning": {"toy": ProvisioningCondition(ProvisioningState.FAILED, "in use", 6.0)}},
        Problem("provisioning", "toy", "in use", 6.0),
    ),
    ({"labels": {"toy": LabelFile(Path("/f"), 1, "full")}}, Problem("labels", "toy", "full")),
    (
        {
            "pod_resources": PodsNow(
                Path("/pods.sock"), KubeletCondition("no answer", None, silent=True, since=2.0)
            )
        },
        Problem("pods", str(SOCKET), "no answer", 2.0),
    ),
    ({"failing": {"labels": LATE}}, Problem("task", "labels", *LATE)),
    ({"faults": [("record", "/f", LATE)]}, Problem("record", "/f", *LATE)),
    (
        {"observers": [ObserverNow(observer(object(), "ear"), ObserverCondition(reason="it raises"))]},
        Problem("observer", "ear", "it raises"),
    ),
)


def test_a_host_with_nothing_wrong_has_no_problem_and_is_ready() -> None:
    found = problems(now())
    assert not found.shown and found.counts == dict.fromkeys(KINDS, 0)
    assert readiness(now()) == (True, "")


@pytest.mark.parametrize(("others", "problem"), WRONG, ids=lambda one: getattr(one, "reason", ""))
def test_each_part_that_is_wrong_is_one_problem(others: dict[str, Any], problem: Problem) -> None:
    found = problems(now(**others))
    assert list(found.shown) == [problem]
    assert sum(found.counts.values()) == found.counts[problem.kind] == 1


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"planned": False}, "looking for devices"),
        (
            {"backends": {"toy": BackendNow(BackendCondition(), False, {})}},
            "no devices listed yet: toy (starting)",
        ),
        (
            {"resources": served(missing="waiting: no kubelet")},
            f"no list stream yet: {TOY} (waiting: no kubelet)",
        ),
        ({"dra": one_driver()}, "DRA driver: dra.example.com (no answer)"),
        ({"failing": {"labels": LATE}}, "failing tasks: labels (it does not work)"),
        ({"rollout": LATE}, "it does not work"),
        ({"faults": [("backend", ROOT, LATE)]}, "it does not work"),
        (
            {
                "configuration": ConfigurationNow(CONFIG, "", None, Copied(CONFIG, "yesterday", ("a", "b"))),
                "last_reload": LastReload(1.0, ("a", "b")),
            },
            "configuration refused, running on the copy of yesterday: a and 1 more",
        ),
    ],
)
def test_a_node_is_not_ready_for_this_reason(others: dict[str, Any], reason: str) -> None:
    assert readiness(now(**others)) == (False, reason)


def test_a_token_that_no_list_has_is_an_orphan_for_this_reason() -> None:
    for others, reason in (
        ({"holdings": held("d7")}, GONE),
        ({"holdings": held("d0"), "resources": {}}, UNSERVED),
        (
            {"holdings": {TOY: Holding(TOY, [TokenGroup(("d0",), (("other", "d0"),), POD)])}},
            OTHER_BACKEND,
        ),
        ({"holdings": {TOY: Holding(TOY, [TokenGroup(("d0::1",), (), POD)])}}, SHARED_OTHERWISE),
    ):
        (orphan,) = orphans(now(**others))
        assert (orphan.resource, orphan.holder, orphan.reason.text) == (TOY, POD, reason)


def test_what_containers_have_lost_is_found_by_resource() -> None:
    assert lost(now()) == Lost()
    assert lost(now(holdings=held("d7"))) == Lost(((TOY, "d7"),))
    assert lost(now(holdings=held("d0", forgotten={"d0": POD}))).forgotten == {(TOY, "d0"): POD}


@pytest.mark.parametrize(("length", "gone"), [(MAX_DEVICE_ID - 1, 1), (MAX_DEVICE_ID, 0)])
def test_a_device_whose_id_may_be_truncated_is_never_certainly_gone(length: int, gone: int) -> None:
    unknown = TokenGroup(("x" * length,), (), POD)
    assert len(lost(now(holdings={TOY: Holding(TOY, [unknown])})).gone) == gone


def test_provisioning_of_a_backend_that_no_longer_runs_is_no_problem() -> None:
    failed = {"toy": ProvisioningCondition(ProvisioningState.FAILED, "in use", 6.0)}
    assert not problems(now(provisioning=failed, backends={}, resources={})).shown


def test_a_driver_that_the_file_no_longer_names_is_a_problem_until_it_ends_and_the_node_is_ready() -> None:
    withdrawing = now(dra=one_driver(needed=False))
    assert [one.kind for one in problems(withdrawing).shown] == ["dra"] and readiness(withdrawing)[0]
    assert not problems(now(dra=one_driver(needed=False, over=True))).shown


def test_a_device_out_of_service_on_purpose_is_no_problem() -> None:
    cordoned = BackendNow(
        BackendCondition(BackendState.OK),
        True,
        {"d0": Device("d0")},
        {"d0": unhealthy("fan is replaced")},
    )
    assert cordoned.is_cordoned("d0") and not cordoned.is_cordoned("d1")


def test_a_scrape_and_systemd_show_the_same_problems_as_the_status() -> None:
    memory = Memory({TOY: Removals(departed=[Departed("d1", Reason(GONE), 1.0)])})
    wrong = now(failing={"labels": LATE}, memory=memory, holdings=held("d0"))
    found = {name: [*samples] for name, samples in gauges(wrong, pods=True)}
    assert found["problem_info"] == [(("task", "labels", LATE.reason), 1)]
    assert (("task",), 1) in found["problems"]
    assert found["devices_left"] == [((TOY, GONE), 1)]
    assert found["entry_devices"] == [(("resources[0]", TOY, "toy", "false"), 0)]
    assert found["device_held"] == [((TOY, "d0", "default", "train-0", "main"), 1)]
    assert "device_held" not in dict(gauges(wrong, pods=False))
    assert f"labels: {LATE.reason}" in status_line(wrong)


def test_systemd_names_the_backends_that_required_entries_wait_for() -> None:
    unlisted = {name: BackendNow(BackendCondition(), False, {}) for name in ("toy", "more")}
    entries = (ENTRY, ResourceSettings(1, "example.com/more", "more", optional=True))
    settings = Settings(entries)
    found = now(
        settings=settings,
        backends=unlisted,
        shortages=EntriesNow(EntryOutcomes(settings, Plan(), unlisted)),
    )
    assert status_line(found) == "1 resource, waiting for toy"


def test_each_loss_is_logged_once_and_each_forgotten_allocation_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    both = Lost(((TOY, "d0"), (TOY, "d1")), {(TOY, "d0"): POD})
    report(Lost(), Lost(((TOY, "d0"),), {(TOY, "d0"): POD}))
    report(Lost(((TOY, "d0"),), {(TOY, "d0"): POD}), both)
    report(both, Lost(both.gone))
    assert [(one.getMessage(), vars(one)["fields"]["device"]) for one in caplog.records] == [
        ("the kubelet has forgotten an allocation", "d0"),
        ("a container holds a device that no longer exists", "d0"),
        ("a container holds a device that no longer exists", "d1"),
        ("a forgotten allocation has ended", "d0"),
    ]


def test_a_container_holds_the_devices_of_its_tokens_once_each() -> None:
    together = TokenGroup(("all::1", "all::2"), (("toy", "d0"), ("toy", "d1"), ("toy", "d0")), POD)
    unknown = TokenGroup(("d7::1", "d7::2"), (), POD)
    found = now(holdings={TOY: Holding(TOY, [together, unknown])})
    assert [device for _, device, _ in holders(found)] == ["d0", "d1", "d7"]


def test_the_devices_behind_tokens_are_those_of_tokens_that_are_not_gone() -> None:
    tokens = [
        Entry(unit, unit, (Member(Device(f"{unit}0"), HEALTHY),), (), HEALTHY, 1.0, gone_at)
        for unit, gone_at in (("a", None), ("b", 2.0))
    ]
    snapshot = Snapshot(1, {one.token: one for one in tokens})
    resource = replace(served()[TOY], entry=replace(ENTRY, share=Share(of="board")), snapshot=snapshot)
    (shown,) = document(now(resources={TOY: resource}))().resources
    assert [one.id for one in shown.devices] == ["a", "b"]
    assert [one.device for one in shown.together] == ["a0"]


def test_a_released_backend_has_that_state_and_the_reason() -> None:
    (shown,) = document(now(released={"toy": "until noon"}))().backends
    assert (shown.state, shown.reason) == ("released", "until noon")


async def test_before_the_first_plan_an_entry_waits_for_its_degraded_backend(rig, kubelet) -> None:
    def fail() -> None:
        raise BackendError("no card answers")

    answer = threading.Event()
    rig.scripts["toy"].on_discover = fail
    rig.scripts["other"].on_discover = partial(answer.wait, 60)
    rig.write(f"name: {TOY}, backend: toy", "name: example.com/other, backend: other")
    async with rig.running(timing=replace(rig.timing, first_plan=60.0)) as host:
        await rig.until(lambda: host.scanners and host.now().backends["toy"].condition.reason)
        toy, other = host.now().shortages.outcomes.all()
        assert not host.planned and toy.state == other.state == "waiting"
        assert "no card answers" in toy.reason and other.reason.endswith("has not answered yet")
        answer.set()
