"""No reason names a pod: the name is in a separate field, which the page has only with ``--show-pods``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from status_values import Json, document_of, status

from devhost.backend import Device
from devhost.cli.status_report import show
from devhost.host.shown.status import captured
from devhost.runtime.http import Response
from devhost.telemetry.metrics import Metrics
from devhost.telemetry.page import StatusPage

TOY, NEW = "example.com/toy", "example.com/new"
LINE = f"name: {TOY}, backend: toy"
OTHER_LINE = "name: example.com/other, backend: other"
NEW_LINE = f"name: {NEW}, backend: toy"
POD = "train-x7"
HOLDER = {"namespace": "default", "pod": POD, "container": "main"}


async def forgotten(rig, kubelet, token: str) -> None:
    await kubelet.restart(forget=True)


async def in_a_stand_in(rig, kubelet, token: str) -> None:
    await kubelet.restart(forget=True)
    await kubelet.wait_for(lambda: f"~{token}" in {device.id for device in kubelet.devices(TOY)})
    await kubelet.admit("other", "main", TOY, 1)  # the free device
    kubelet.release(POD)
    await kubelet.admit(POD, "main", TOY, 1)


async def shared_otherwise(rig, kubelet, token: str) -> None:
    rig.write(f"{LINE}, share: {{replicas: 2}}")


async def under_a_former_id(rig, kubelet, token: str) -> None:
    """The next devhost uses other ids, as after an upgrade."""
    found = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [Device(f"new-{one.id}", former_ids=(one.id,)) for one in found]


async def through_another_resource(rig, kubelet, token: str) -> None:
    rig.change("toy", [one for one in rig.scripts["toy"].devices if one.id == token])
    rig.write(NEW_LINE)


async def through_a_claim(rig, kubelet, token: str) -> None:
    for backend in ("toy", "other"):
        found = rig.scripts[backend].devices
        rig.change(backend, [replace(one, claims=frozenset({f"fpga:{one.id}"})) for one in found])
    (other,) = rig.scripts["other"].devices
    rig.change("other", [replace(other, claims=frozenset({f"fpga:{token}"}))])


class Case(NamedTuple):
    """What happens to a pod's device, and the reason that refers to the pod."""

    happens: Callable[[Any, Any, str], Awaitable[None]]
    sentence: str
    places: tuple[str, ...]


CASES = [
    Case(forgotten, "held by a pod, which the kubelet no longer knows", ("devices", "problems")),
    Case(in_a_stand_in, "held by a pod as ~", ("devices",)),
    Case(shared_otherwise, "a pod has it as ", ("devices",)),
    Case(under_a_former_id, "held by a pod under its former id ", ("devices",)),
    Case(through_another_resource, f"a pod holds it through {TOY}", ("refusals", "entries", "problems")),
    Case(through_a_claim, " is in use: a pod holds ", ("refusals", "entries", "problems", "departed")),
]


def rows(document: Json, place: str) -> list[Any]:
    if place in ("devices", "departed"):
        return [row for resource in document["resources"] for row in resource[place]]
    return list(document[place])


def meant(document: Json, case: Case, place: str) -> list[Any]:
    """The rows of a place with the reason of a case."""
    return [
        row
        for row in rows(document, place)
        if case.sentence in row["reason"] and row.get("heldBy") == [HOLDER]
    ]


async def answers(page: StatusPage) -> tuple[str, str]:
    found = []
    for path in ("/", "/status.json"):
        answer = await page.routes()[path]()
        assert isinstance(answer, Response)
        found.append(answer.body.decode())
    return found[0], found[1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.happens.__name__)
async def test_reasons_never_name_a_pod_and_a_separate_field_does(
    rig, kubelet, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    rig.write(OTHER_LINE, LINE)
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(rig.running(metrics=metrics))
        await kubelet.wait_for(lambda: len(kubelet.healthy(TOY)) == 2)
        (token,) = (await kubelet.admit(POD, "main", TOY, 1)).device_ids
        await rig.until(lambda: host.allocations.of(TOY).leases.holder(token))
        await rig.until(lambda: kubelet.healthy("example.com/other"))
        await case.happens(rig, kubelet, token)
        if case.happens is under_a_former_id:
            await stack.aclose()
            host = await stack.enter_async_context(rig.running(metrics=metrics))
        for place in case.places:
            await rig.until(lambda place=place: meant(status(host), case, place))
        document = status(host)
        for reason in all_reasons(document):
            assert POD not in reason
        everything = show(document_of(document), datetime.now(UTC), everything=True)
        assert any(
            case.sentence in line and f"(default/{POD}/main)" in line for line in everything.splitlines()
        )

        page, text = await answers(StatusPage(lambda: captured(host), pods=False))
        page = page.replace("<wbr>", "")
        assert POD not in page and POD not in text
        assert case.sentence in page and case.sentence in text
        assert "heldBy" not in text
        samples = (await metrics.render()).decode()
        assert POD not in samples
        assert {"devices", "problems", "departed"}.isdisjoint(case.places) or case.sentence in samples

        page, text = await answers(StatusPage(lambda: captured(host), pods=True))
        assert f"(default/{POD}/main)" in page.replace("<wbr>", "")
        for place in case.places:
            assert meant(json.loads(text), case, place)
        for record in caplog.records:
            assert POD not in vars(record).get("fields", {}).get("reason", "")


def all_reasons(value: Any) -> list[str]:
    """Every reason of a document, wherever it is."""
    if isinstance(value, dict):
        own = [value["reason"]] if "reason" in value else []
        return own + [reason for one in value.values() for reason in all_reasons(one)]
    return [reason for one in value for reason in all_reasons(one)] if isinstance(value, list) else []
