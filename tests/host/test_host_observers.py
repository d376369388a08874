"""The events that observers get from a whole host, which does not depend on them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest
from status_values import status

from devhost.backend.model import Device, unhealthy
from devhost.backend.observe import (
    Allocated,
    Appeared,
    BackendChanged,
    ConfigurationRead,
    HealthChanged,
    Held,
    Left,
    News,
    Released,
    VerdictChanged,
    hookimpl,
)
from devhost.discovery import catalog
from devhost.discovery.verdicts import own_file, write

TOY = "example.com/toy"
LINE = f"name: {TOY}, backend: toy"
PAGE = Path(__file__).parents[2] / "docs" / "observers.md"


@dataclass
class Recorder:
    """An observer with every hook."""

    news: list[News] = field(default_factory=list)
    hang: threading.Event | None = None

    def _receive(self, news: tuple[News, ...]) -> None:
        if self.hang is not None:
            self.hang.wait(120)
        self.news += news

    @hookimpl
    def devhost_appeared(self, news: tuple[News, ...]) -> None:
        self._receive(news)

    devhost_left = devhost_health_changed = devhost_allocated = devhost_held = devhost_appeared
    devhost_released = devhost_backend_changed = devhost_configuration_read = devhost_appeared
    devhost_claim_prepared = devhost_claim_unprepared = devhost_verdict_changed = devhost_appeared

    def of(self, kind: type[News]) -> list[News]:
        return [one for one in self.news if isinstance(one, kind)]

    def about_devices(self) -> list[tuple[str, str]]:
        """Kind and device of the events about devices, in order."""
        return [(type(one).__name__, one.device.id) for one in self.news if hasattr(one, "device")]


@pytest.fixture
def recorder(rig) -> Recorder:
    recorder = Recorder()
    rig.observe(recorder)
    return recorder


async def test_each_change_of_a_shared_device_is_one_event(rig, kubelet, recorder):
    async with rig.running(f"{LINE}, share: {{replicas: 100}}"):
        await rig.until(lambda: len(recorder.news) == 2)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 200})
        first, second = rig.scripts["toy"].devices
        failing = replace(first, health=unhealthy("port 1 is down"))
        for changed, count in (([failing, second], 3), ([first, second], 4), ([first], 5)):
            rig.change("toy", changed)
            await rig.until(lambda count=count: len(recorder.news) == count)
    appeared, _, fell, recovered, left = recorder.news
    assert isinstance(appeared, Appeared)
    assert (appeared.resource, appeared.backend, appeared.generation) == (TOY, "toy", 1)
    assert (appeared.device.id, dict(appeared.device.attributes)) == ("d0", {"model": "x100", "index": 0})
    assert appeared.health.healthy
    assert isinstance(fell, HealthChanged)
    assert (fell.health.reason, fell.previous.healthy) == ("port 1 is down", True)
    assert isinstance(recovered, HealthChanged)
    assert (recovered.health.healthy, recovered.previous.reason) == (True, "port 1 is down")
    assert isinstance(left, Left)
    assert (left.device.id, left.reason) == ("d1", "the device is gone")


async def test_a_device_that_appears_unhealthy_is_one_event(rig, kubelet, recorder):
    rig.scripts["toy"].devices = [Device("d0", health=unhealthy("cold"))]
    async with rig.running(LINE):
        await rig.until(lambda: recorder.news)
    assert [(one.device.id, one.health.reason) for one in recorder.of(Appeared)] == [("d0", "cold")]
    assert recorder.of(HealthChanged) == []


async def test_allocation_holder_and_release_are_events(rig, kubelet, recorder):
    async with rig.running(f"{LINE}, share: {{replicas: 3}}", allocatable={TOY: 6}):
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: recorder.of(Held))
        kubelet.release("pod")
        await rig.until(lambda: recorder.of(Released))
    device = recorder.of(Allocated)[0].device.id
    assert [one for one in recorder.about_devices() if one[0] != "Appeared"] == [
        ("Allocated", device),
        ("Held", device),
        ("Released", device),
    ]
    (allocated,), (held,), (released,) = recorder.of(Allocated), recorder.of(Held), recorder.of(Released)
    assert re.fullmatch(rf"{device}::\d", *allocated.tokens)
    assert allocated.tokens == held.tokens == released.tokens
    assert held.holder.pod == released.holder.pod == "pod"


async def test_an_observer_added_by_a_reload_gets_the_present_state_and_a_removed_one_nothing(
    rig, kubelet, recorder
):
    async with rig.running(LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: recorder.of(Held))
        new = Recorder()
        rig.observe(new)
        host.reload()
        await rig.until(lambda: new.of(ConfigurationRead))
        old = len(recorder.news)
        rig.change("toy", [])
        await rig.until(lambda: len(new.of(Left)) >= 2)
    assert len(recorder.news) == old
    assert sorted(new.about_devices()[:2]) == [("Appeared", "d0"), ("Appeared", "d1")]
    assert new.about_devices()[2:3] == [("Held", recorder.of(Held)[0].device.id)]


async def test_configurations_and_the_devices_they_add_and_remove_are_events(rig, kubelet, recorder):
    async with rig.running(LINE):
        await rig.until(lambda: len(recorder.of(Appeared)) >= 2)
        rig.config.write_text("version: 1\nresources: 7\n")
        await rig.until(lambda: recorder.of(ConfigurationRead))
        rig.write("name: example.com/other, backend: other")
        await rig.until(lambda: len(recorder.of(Appeared)) >= 3)
        await rig.until(lambda: len(recorder.of(Left)) >= 2)
    refused, taken = recorder.of(ConfigurationRead)
    assert "resources" in refused.complaints[0]
    assert (taken.complaints, taken.generation, taken.file) == ((), 2, str(rig.config))
    assert {one.reason for one in recorder.of(Left)} == {"the resource has left the configuration"}


async def test_a_backend_failure_and_its_end_are_one_event_each(rig, kubelet, recorder):
    rig.write(LINE)

    def fail() -> None:
        raise OSError("the driver is busy")

    async with rig.running() as host:
        await rig.until(lambda: recorder.of(Appeared))
        rig.scripts["toy"].on_discover = fail
        host.scanners["toy"].request_scan()
        await rig.until(lambda: recorder.of(BackendChanged))
        rig.scripts["toy"].on_discover = lambda: None
        await rig.until(lambda: len(recorder.of(BackendChanged)) >= 2)
    degraded, back = recorder.of(BackendChanged)
    assert (degraded.backend, degraded.degraded, back.degraded, back.reason) == ("toy", True, False, None)
    assert "the driver is busy" in degraded.reason


async def test_the_begin_and_the_end_of_a_verdict_are_events_and_its_begin_is_one_after_a_restart(
    rig, kubelet, recorder, tmp_path
):
    rig.write(LINE)
    until = time.time() + 3600
    write(tmp_path / "state" / "verdicts", "toy/d0", "alice", "fan", until)
    for _ in range(2):
        recorder.news.clear()
        async with rig.running(state_dir=tmp_path / "state"):
            await rig.until(lambda: recorder.of(Appeared))
        (begun,) = recorder.of(VerdictChanged)
        assert (begun.in_force, begun.kind, begun.devices) == (True, "cordon", ("toy/d0",))
        assert (begun.reason, begun.by, begun.until) == ("fan", "alice", int(until))
    recorder.news.clear()
    async with rig.running(state_dir=tmp_path / "state"):
        await rig.until(lambda: recorder.of(Appeared))
        own_file(tmp_path / "state" / "verdicts", "toy/d0").unlink()
        await rig.until(lambda: recorder.of(HealthChanged))
    begun, ended = recorder.of(VerdictChanged)
    assert (ended.in_force, replace(ended, in_force=True, at=begun.at)) == (False, begun)
    # the reason comes before the consequence
    kinds = [type(one) for one in recorder.news]
    assert kinds.index(VerdictChanged) < kinds.index(Appeared)
    assert kinds[-2:] == [VerdictChanged, HealthChanged]


async def test_a_hung_observer_delays_neither_lists_nor_pods_nor_the_exit(rig, kubelet, recorder):
    recorder.hang = threading.Event()
    other = Recorder()
    rig.observe(recorder, other)
    rig.write(LINE)
    rig.hurry_discovery(observer=1.0)
    async with rig.running(allocatable={TOY: 2}) as host:
        await rig.until(lambda: status(host)["observers"][0]["state"] == "paused")
        async with asyncio.timeout(60):
            await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: other.of(Allocated))
        shown, working = status(host)["observers"]
        assert shown["reason"] == "devhost_appeared did not return within 1 s"
        assert (shown["calls"], shown["failures"], working["state"]) == (1, 1, "ok")
        host.stop()
        async with asyncio.timeout(60):
            await host.stopped()
    recorder.hang.set()


async def test_without_observers_no_event_is_made(rig, kubelet):
    async with rig.running(LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        assert status(host)["observers"] == []
        assert not host.tasks.named("observer ")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("observe")]


def _programs() -> list[str]:
    return re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))


async def test_the_drop_in_of_the_documentation_records_holders(rig, kubelet, tmp_path):
    file = tmp_path / "holding.py"
    file.write_text(_programs()[0], encoding="utf-8")
    (module,) = (one.plugin for one in catalog.load([tmp_path]).observers if one.origin == str(file))
    rig.observe(module)
    written = tmp_path / "holding.jsonl"
    async with rig.running(LINE, allocatable={TOY: 2}):
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: written.exists() and '"held"' in written.read_text())
        kubelet.release("pod")
        await rig.until(lambda: '"released"' in written.read_text())
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["held", "released"]
    assert {(line["resource"], line["holder"].split("/")[1]) for line in lines} == {(TOY, "pod")}


async def test_the_object_of_the_documentation_knows_every_device(rig, kubelet):
    package = ModuleType("example_inventory")
    exec(_programs()[1], vars(package))
    rig.observe(package.exporter)
    async with rig.running(LINE):
        await rig.until(lambda: len(package.exporter.devices) == 2)
        rig.change("toy", [])
        await rig.until(lambda: not package.exporter.devices)
