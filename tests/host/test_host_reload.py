"""Editing the file while devhost runs: only differences take effect, and an invalid file changes nothing."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

import pytest
from devhost_testing.kubelet import events as ev
from scraped_series import value

from devhost.backend import AllocationError
from devhost.backend.files import fingerprint
from devhost.backend.model import unhealthy
from devhost.config.last_good import LastGood
from devhost.config.loader import load
from devhost.discovery.catalog import Catalog
from devhost.discovery.health import PATIENCE
from devhost.host.host import Host
from devhost.host.reload import Configuration, Reloader, follower
from devhost.planning.settings import LABEL_DIRECTORY, ResourceSettings, Settings
from devhost.planning.timing import NODE, ConfigTiming
from devhost.telemetry.metrics import Metrics

REFUSED = "configuration refused, the old one stays"
TOY, OTHER = "example.com/toy", "example.com/other"
TOY_LINE, OTHER_LINE = "name: example.com/toy, backend: toy", "name: example.com/other, backend: other"


def registrations(kubelet, resource):
    return len(kubelet.events.of(ev.Registered, resource))


def test_a_part_follows_only_what_differs_for_it_and_everything_on_request() -> None:
    told = []
    part = follower(lambda now, _: (now.label_directory, now.write_labels), lambda *new: told.append(new))
    before = Settings(), Catalog()
    entry = ResourceSettings(0, "example.com/x", "toy")
    part(before, (Settings((entry,)), Catalog()))
    assert told == []
    part(before, (Settings(write_labels=True), Catalog()))
    assert told == [(LABEL_DIRECTORY, True)]
    part(None, before)
    assert told[1:] == [(LABEL_DIRECTORY, False)]


async def test_a_part_that_failed_to_follow_an_edit_follows_it_again(tmp_path):
    told, plans = [], []

    def fail_once(*new):
        told.append(new)
        if len(told) == 1:
            raise RuntimeError("a bug")

    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nresources: []\n")
    reloader = Reloader(
        Configuration(file, load(file)),
        partial(load, file),
        lambda settings: asyncio.sleep(0),
        [follower(lambda now, _: (now.write_labels,), fail_once)],
        lambda: plans.append(1),
        last_good=LastGood(file, None),
        backends=None,
        tasks=None,
        monitors=None,
        publish=lambda: None,
        changed=lambda: None,
        reloading=nullcontext,
        timing=NODE,
    )
    file.write_text("version: 1\nlabels: {write: true}\nresources: []\n")
    with pytest.raises(RuntimeError):
        await reloader.read()
    for _ in range(2):
        await reloader.read()
        assert told == [(True,), (True,)]
        assert plans == [1]
    reloader.close()


async def test_an_added_resource_appears_and_the_others_keep_their_streams(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        rig.write(TOY_LINE, OTHER_LINE)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        assert registrations(kubelet, TOY) == 1
        assert not kubelet.events.of(ev.StreamEnded)


@pytest.mark.field_failure("F20")
async def test_a_removed_resource_leaves_with_an_empty_list(rig, kubelet):
    async with rig.running(TOY_LINE, OTHER_LINE) as host:
        await kubelet.wait_for(lambda: len(kubelet.allocatable()) == 2)
        rig.write(TOY_LINE)
        await kubelet.wait_for(lambda: kubelet.events.of(ev.StreamEnded, OTHER))
        assert kubelet.events.of(ev.ListReceived, OTHER)[-1].devices == ()
        assert kubelet.capacity()[OTHER] == 0
        assert registrations(kubelet, TOY) == 1
        await rig.until(lambda: list(host.services) == [TOY])


async def test_a_changed_selection_keeps_the_socket(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        path = host.services[TOY].registration.server.path
        rig.write(TOY_LINE + ", where: {index: 1}")
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 1})
        assert host.services[TOY].registration.server.path == path
        assert registrations(kubelet, TOY) == 1


async def test_an_invalid_file_changes_nothing_and_is_reported(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        rig.config.write_text("version: 1\nresources:\n  - {name: broken, backend: toy}\n")
        await rig.until(lambda: host.configuration.last_reload.complaints)
        assert "broken" in host.configuration.last_reload.complaints[0]
        assert host.configuration.generation == 1
        rig.write(TOY_LINE, OTHER_LINE)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        assert host.configuration.last_reload.complaints == ()
        assert registrations(kubelet, TOY) == 1


async def test_a_file_that_vanishes_changes_nothing_until_it_is_back(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        rig.config.unlink()
        await rig.until(lambda: host.configuration.last_reload.complaints)
        assert kubelet.allocatable() == {TOY: 2}
        rig.write(TOY_LINE)
        await rig.until(lambda: not host.configuration.last_reload.complaints)
        assert registrations(kubelet, TOY) == 1


async def test_circular_links_change_nothing_until_there_is_a_file_again(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        other = rig.config.with_name("other.yaml")
        rig.config.unlink()
        rig.config.symlink_to(other)
        other.symlink_to(rig.config)
        await rig.until(lambda: host.configuration.last_reload.complaints)
        assert host.configuration.generation == 1
        rig.config.unlink()
        rig.write(TOY_LINE, OTHER_LINE)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})


async def test_a_configmap_update_is_noticed(rig, kubelet, tmp_path):
    mount = tmp_path / "mount"
    mount.mkdir()

    def publish(version: str) -> None:
        data = mount / f"..{version}"
        data.mkdir()
        rig.config.rename(data / "devhost.yaml")
        (mount / "..tmp").symlink_to(data.name)
        (mount / "..tmp").replace(mount / "..data")

    rig.write(TOY_LINE)
    publish("one")
    (mount / "devhost.yaml").symlink_to("..data/devhost.yaml")
    source, rig.config = rig.config, mount / "devhost.yaml"
    async with rig.running(allocatable={TOY: 2}):
        rig.config = source
        rig.write(TOY_LINE, OTHER_LINE)
        target, rig.config = rig.config, source
        publish("two")
        rig.config = mount / "devhost.yaml"
        assert target == source
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        assert registrations(kubelet, TOY) == 1


async def test_a_resource_that_changes_its_backend_is_registered_again(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        rig.write("name: example.com/toy, backend: other")
        await kubelet.wait_for(lambda: registrations(kubelet, TOY) == 2)
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 1})
        assert list(host.scanners) == ["other"]


async def test_streams_are_counted_correctly_when_a_resource_changes_its_backend(rig, kubelet):
    metrics = Metrics()

    def streams() -> float | None:
        return value(metrics, "devhost_streams", resource=TOY)

    async with rig.running(TOY_LINE, metrics=metrics) as host:
        await rig.until(lambda: streams() == 1)
        for number, backend in enumerate(("other", "toy"), 2):
            rig.write(f"name: example.com/toy, backend: {backend}")
            await kubelet.wait_for(lambda number=number: registrations(kubelet, TOY) == number)
            await rig.until(lambda: host.ready()[0])
            assert streams() == host.services[TOY].registration.streams == 1
    assert streams() == 0


async def test_an_edit_while_devhost_starts_is_adopted(rig, kubelet):
    async with rig.running(TOY_LINE) as host:
        rig.write(OTHER_LINE)  # it has been read and is not watched yet
        await kubelet.wait_for(lambda: kubelet.allocatable().get(OTHER) == 1)
        assert host.configuration.generation == 2


def test_an_edit_during_a_reading_is_noticed(tmp_path):
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nbackendPaths: [.]\nresources: []\n")
    (tmp_path / "slow.py").write_text(
        f"from pathlib import Path\nPath({str(file)!r}).write_text('version: 1\\nresources: []\\n')\n"
    )
    before = fingerprint(file)
    assert load(file).seen == before != fingerprint(file)


async def test_waiting_reload_requests_become_one(rig, kubelet):
    rig.write(TOY_LINE)
    reading, go_on = threading.Event(), threading.Event()
    reads = []

    def read():
        reads.append(1)
        reading.set()
        assert go_on.wait(60)
        return rig.load()

    async with rig.running(allocatable={TOY: 2}, reload=read) as host:
        host.reload()
        await asyncio.to_thread(reading.wait, 60)
        for _ in range(10):
            host.reload()
        go_on.set()
        await rig.until(lambda: host.configuration.generation >= 3)
        assert len(reads) == 2
        host.reload()
        await rig.until(lambda: host.configuration.generation == 4)


async def test_reload_requests_before_the_start_lead_to_one_reading(rig, kubelet):
    rig.write(TOY_LINE)
    reads = []

    def read():
        reads.append(1)
        return rig.load()

    host = Host(rig.config, rig.load(), read, rig.kubelet_dir, timing=rig.timing)
    host.reload()
    host.reload()
    running = asyncio.create_task(host.run())
    try:
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        await rig.until(lambda: host.configuration.generation == 2)
        host.reload()  # one that comes later is another reading
        await rig.until(lambda: host.configuration.generation == 3)
        assert len(reads) == 2
    finally:
        host.stop()
        await asyncio.wait_for(running, 60)


async def test_a_reload_before_the_start_is_in_force_from_the_first_list(rig, kubelet):
    """As after an edit while devhost waits for its turn."""

    def read():
        over = time.monotonic() + 0.5
        while not host.planned and time.monotonic() < over:
            time.sleep(0.01)
        return rig.load()

    rig.timing = replace(rig.timing, first_plan=60.0)
    async with rig.running(TOY_LINE, reload=read) as host:
        rig.write(f"{TOY_LINE}, where: {{index: 0}}")
        host.reload()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
        assert [len(one.devices) for one in kubelet.events.of(ev.ListReceived, TOY)] == [1]


async def test_a_flapping_device_that_is_no_longer_offered_causes_no_plans(rig, kubelet):
    rig.write(TOY_LINE)
    healthy = rig.scripts["toy"].devices
    failing = [replace(healthy[0], health=unhealthy("port 1 is down")), healthy[1]]
    async with rig.running(allocatable={TOY: 2}) as host:
        tracker = host.scanners["toy"].health
        for _ in range(PATIENCE + 1):
            rig.change("toy", failing)
            await rig.until(lambda: host.services[TOY].inventory.snapshot.healthy == 1)
            rig.change("toy", healthy)
            await rig.until(lambda: host.scanners["toy"].devices["d0"].health.healthy)
            if not tracker.of(healthy[0], time.monotonic()):
                break
            await rig.until(lambda: host.services[TOY].inventory.snapshot.healthy == 2)
        rig.write(TOY_LINE + ", where: {index: 1}")
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
        held_until = time.monotonic() + 2.0**1  # from then on time alone changes its health
        await rig.until(lambda: time.monotonic() > held_until)
        plans = []
        replan = host.replan
        host.replan = lambda caused_at: (plans.append(1), replan(caused_at))
        await asyncio.sleep(0.3)
        assert len(plans) < 5


async def test_sighup_reads_the_file_and_scans_again(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        host.reload()
        await rig.until(lambda: host.configuration.generation == 2)
        assert registrations(kubelet, TOY) == 1


async def test_resources_of_a_name_template_appear_with_their_devices(rig, kubelet):
    rig.write("name: 'example.com/toy-{model}', backend: toy")
    async with rig.running(allocatable={"example.com/toy-x100": 2}):
        old = rig.scripts["toy"].devices
        new = [type(old[0])(id="n", attributes={"model": "y+200", "index": 7})]
        rig.change("toy", old + new)
        both = {"example.com/toy-x100": 2, "example.com/toy-y.200": 1}
        await kubelet.wait_for(lambda: kubelet.allocatable() == both)


async def test_pods_are_served_until_a_replaced_backend_has_scanned(rig, kubelet):
    rig.write(TOY_LINE)
    old = rig.classes["toy"]
    gate = threading.Event()

    class Slow(old):
        """Serves only devices that it has found, and its first scan takes long."""

        seen = False

        def discover(self):
            assert gate.wait(60)
            self.seen = True
            return super().discover()

        def allocate(self, request):
            if not self.seen:
                raise AllocationError("is gone")
            return super().allocate(request)

    async with rig.running(allocatable={TOY: 2}) as host:
        rig.classes["toy"] = Slow
        host.reload()
        await rig.until(
            lambda: host.scanners["toy"].runner.backend_class is Slow and host.configuration.generation == 2
        )
        try:
            await kubelet.admit("early", "main", TOY, 1)
        finally:
            gate.set()
        await host.scanners["toy"].answered.wait()
        await kubelet.admit("late", "main", TOY, 1)
        assert isinstance(host.scanners["toy"].runner.serving, Slow)


async def test_a_complaint_describes_the_present_file(rig, kubelet):
    rig.write(TOY_LINE)
    good = rig.config.read_text()
    async with rig.running(allocatable={TOY: 2}) as host:

        async def complains(words: str) -> None:
            await rig.until(lambda: any(words in one for one in host.configuration.last_reload.complaints))

        rig.config.unlink()
        await complains("there is no such file")
        rig.config.mkdir()
        await complains("this is a directory")
        rig.config.rmdir()
        rig.config.symlink_to("/dev/zero")
        await complains("this is a device")
        rig.config.unlink()
        rig.config.write_text(good)
        await rig.until(lambda: not host.configuration.last_reload.complaints)


async def test_a_pipe_in_place_of_the_file_blocks_nothing(rig, kubelet):
    rig.write(TOY_LINE)
    good = rig.config.read_text()
    async with rig.running(allocatable={TOY: 2}, reload=partial(rig.load, pipe_deadline=0.2)) as host:
        rig.config.unlink()
        os.mkfifo(rig.config)
        await rig.until(lambda: host.configuration.last_reload.complaints)
        assert "no process wrote to this pipe" in host.configuration.last_reload.complaints[0]
        rig.config.unlink()
        rig.config.write_text(good)
        await rig.until(lambda: not host.configuration.last_reload.complaints)


async def test_the_file_that_replaces_a_pipe_is_read_while_the_pipe_waits_for_data(rig, kubelet):
    rig.timing = replace(rig.timing, reload=3600.0)
    rig.write(TOY_LINE)
    new = rig.config.with_name("new")
    new.write_text(rig.config.read_text().replace(TOY, "example.com/renamed"))
    with ExitStack() as opened:

        def is_read():
            with suppress(OSError):  # no process has it open for reading
                opened.callback(os.close, os.open(rig.config, os.O_WRONLY | os.O_NONBLOCK))
                return True

        async with rig.running(reload=partial(rig.load, pipe_deadline=math.inf)) as host:
            await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
            rig.config.unlink()
            os.mkfifo(rig.config)
            await rig.until(is_read)
            new.replace(rig.config)
            await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/renamed") == 2)
            assert not host.configuration.last_reload.complaints


async def test_a_fault_outside_the_file_can_be_fixed_there(rig, kubelet, caplog):
    rig.timing = replace(rig.timing, config=ConfigTiming(poll=0.05, settle=0.02, retry=0.05))
    rig.write(TOY_LINE)
    reads = []
    async with rig.running(allocatable={TOY: 2}, reload=lambda: (reads.append(None), rig.load())[1]) as host:
        other = rig.classes.pop("other")
        rig.write(TOY_LINE, OTHER_LINE)
        await rig.until(lambda: host.configuration.last_reload.complaints and len(reads) > 5)
        assert caplog.messages.count(REFUSED) == 1, "reported once, read often"
        rig.classes["other"] = other
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        assert not host.configuration.last_reload.complaints
