"""What the log says of a backend: lost once for each reason, back once, and few lines of many devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from kit.clock import in_virtual_time
from kit.scanner import Scene, said

from devhost.backend import Event
from devhost.backend.errors import BackendError
from devhost.backend.model import Device
from devhost.planning.timing import DISCOVERY as NODE
from devhost.runtime.log import NAMED


class Netlink:
    """An event source that fails while it is broken; then it speaks after so many seconds, and only once."""

    def __init__(self, silent: float) -> None:
        self.broken = True
        self._silent = silent

    async def __call__(self) -> AsyncIterator[Event]:
        if self.broken:
            raise OSError("netlink is gone")
        await asyncio.sleep(self._silent)
        yield Event("toy")
        await asyncio.sleep(1e6)


@in_virtual_time
async def test_a_backend_that_fails_for_two_reasons_in_turn_logs_each_once_and_its_recovery_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    async with Scene(probes=False).running() as scene:
        for number in range(20):
            scene.source.error = BackendError("no firmware" if number % 2 else "no driver")
            await scene.hears(then=60)
        scene.source.error = None
        await asyncio.sleep(60)
    assert said(caplog) == [
        ("backend is degraded", "no driver"),
        ("backend is degraded for another reason", "no firmware"),
        ("backend is back", 2),
    ]


@in_virtual_time
async def test_an_event_source_that_keeps_failing_is_logged_once_and_once_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    scene = Scene(probes=False)
    netlink = scene.source.watching = Netlink(silent=0.0)
    async with scene.running(watch=True):
        await asyncio.sleep(600)
        netlink.broken = False
        await asyncio.sleep(120)
    assert said(caplog) == [
        ("event source failed", "OSError: netlink is gone"),
        ("event source is back", ""),
    ]


@in_virtual_time
async def test_an_event_source_that_is_open_without_events_for_long_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    scene = Scene(probes=False)
    netlink = scene.source.watching = Netlink(silent=1e6)
    async with scene.running(watch=True):
        await asyncio.sleep(600)
        assert scene.discovery.event_source_error == "OSError: netlink is gone"
        told = len(scene.found)
        netlink.broken = False
        await asyncio.sleep(60 + NODE.silence / 2)
        await asyncio.sleep(NODE.silence)
        assert scene.discovery.event_source_error == ""
        assert len(scene.found) == told + 1
    assert [message for message, _ in said(caplog)] == ["event source failed", "event source is back"]


@in_virtual_time
async def test_a_backend_that_has_not_started_is_one_problem_and_not_also_one_of_its_event_source(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    scene = Scene(probes=False)
    scene.source.started, scene.source.error = False, BackendError("no library")
    async with scene.running(watch=True):
        await asyncio.sleep(600)
        assert scene.discovery.event_source_error == ""
        assert scene.source.watches == []
        scene.source.started, scene.source.error = True, None
        await asyncio.sleep(600)
        assert len(scene.source.watches) == 1
    assert [message for message, _ in said(caplog)] == ["backend is degraded", "backend is back"]


@in_virtual_time
async def test_a_backend_without_an_event_source_has_no_event_source_error() -> None:
    old, new = Scene(probes=False), Scene(probes=False)
    old.source.watching = Netlink(silent=1e6)
    async with old.running(watch=True):
        await asyncio.sleep(10)
    new.succeed(old)
    assert new.discovery.event_source_error
    looking = asyncio.create_task(new.discovery.run())
    await new.discovery.watch()
    assert not new.discovery.event_source_error
    looking.cancel()


@in_virtual_time
async def test_very_many_refused_or_accepted_devices_are_partly_named_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    scene = Scene(probes=False)
    scene.source.devices = [Device(f"{'x' * 64}{number}") for number in range(500)]
    async with scene.running():
        await asyncio.sleep(120)
        scene.source.devices = []
        await scene.hears(then=1)
        assert scene.discovery.condition.refused == ()
    messages = [message for message, _ in said(caplog)]
    assert messages == [
        *["device refused"] * NAMED,
        "more devices refused",
        *["device is no longer refused"] * NAMED,
        "more devices are no longer refused",
    ]
