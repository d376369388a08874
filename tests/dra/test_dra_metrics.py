"""What a scrape tells of devices, slices and claims of DRA."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kit.dra import DRIVER, DraNode
from scraped_series import value

from devhost.dra.api import dra_v1_pb2 as v1

CLAIMED = "{name: example.com/card, backend: cards, serve: dra}"
PLAIN = "{name: example.com/card, backend: cards}"
RESOURCE = "example.com/card"


async def test_devices_slices_and_claims_are_counted() -> None:
    # a thread of devhost may still write
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        async with DraNode(Path(place)) as node, node.served(CLAIMED):
            await _counted(node)


async def _counted(node: DraNode) -> None:
    def counted(name: str, **labels: str) -> float | None:
        return value(node.host.metrics, f"devhost_dra_{name}", driver=DRIVER, **labels)

    await node.until(lambda: counted("synced_timestamp_seconds"))
    assert node.published() == {RESOURCE: {"c0", "c1"}}
    assert counted("devices", resource=RESOURCE, health="Healthy") == 2
    assert counted("moving_devices", resource=RESOURCE) == 0
    assert counted("slices") == len(node.slices())
    assert (counted("slice_writes_total") or 0) >= len(node.slices())
    assert counted("dropped_fields") == 0
    assert (counted("watch_timestamp_seconds") or 0) > 1e9
    assert (counted("api_requests_total", method="GET", code="200") or 0) > 0
    assert (counted("api_requests_total", method="POST", code="201") or 0) >= len(node.slices())
    assert counted("prepared_claims") == counted("prepared_devices") == 0
    assert b"device_capacity" not in await node.host.metrics.render()  # no device is shared by amount

    claim = node.allocate("one", node.name_of("c0"))
    absent = v1.Claim(namespace="default", name="absent", uid="absent")
    answers = await node.prepare(claim, absent)
    assert not answers[claim.uid].error and answers[absent.uid].error
    assert [counted("prepares_total", result=one) for one in ("done", "failed")] == [1, 1]
    assert counted("prepare_seconds_count") == 1
    assert [counted("prepared_claims"), counted("prepared_devices")] == [1, 1]
    assert counted("api_requests_total", method="GET", code="404") == 1
    await node.released(claim)
    assert [counted("prepared_claims"), counted("prepared_devices")] == [0, 0]
    assert counted("unprepare_seconds_count") == 1
    assert [counted("calls_in_flight", call=one) for one in ("prepare", "unprepare")] == [0, 0]
    assert [counted("unprepares_total", result=one) for one in ("done", "failed")] == [1, None]

    await node.reload(PLAIN)
    await node.until(lambda: counted("moving_devices", resource=RESOURCE) == 1)  # the claim has c0
    assert counted("devices", resource=RESOURCE, health="Healthy") is None
