"""Parts of the simulator, and its documentation."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from devhost_testing.commands.kubelet import command
from devhost_testing.kubelet import (
    EventLog,
    Fault,
    Faults,
    ListedDevice,
    Point,
    delay,
    events,
    fail,
    registry,
    wire,
)
from devhost_testing.kubelet.console import HELP
from devhost_testing.kubelet.render import abbreviated, lines, listed, response_lines

from devhost.kubelet.api.api_pb2 import CDIDevice, ContainerAllocateResponse, DeviceSpec, Mount

RESOURCE = "example.com/tiny"
DOCS = Path(__file__).resolve().parents[3] / "docs/simulator.md"


class Plug:
    """The part of a connection that the registry uses."""

    def __init__(self, path: str) -> None:
        self.resource = RESOURCE
        self.path = path


def kinds() -> list[type[events.Event]]:
    found = [events.Event]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if "kind" in vars(kind) and kind is not events.Event]


def test_until_1_36_a_stream_that_ends_during_a_registration_removes_the_new_plugin(clock):
    books = registry.ByName(clock, 300)
    old, new = Plug("/old"), Plug("/new")
    books.enlist(old)
    books.connect(old, registry.Options())
    books.update(RESOURCE, [ListedDevice("a", "Healthy")])
    books.enlist(new)
    assert books.successor(old) is new
    books.disconnect(new)
    books.connect(new, registry.Options())
    books.update(RESOURCE, [ListedDevice("a", "Healthy")])
    assert books.successor(new) is None, "the end of the new stream will go unnoticed"
    assert books.resource(RESOURCE).primary.stopped_at is None


def test_since_1_37_a_stopped_endpoint_does_not_block_its_path(clock):
    books = registry.ByPath(clock, 300)
    first, second = Plug("/same"), Plug("/same")
    for plug in (first, second):
        books.enlist(plug)
        books.connect(plug, registry.Options())
        assert books.resource(RESOURCE).primary.connection is plug
        assert books.successor(plug) is plug
        assert books.disconnect(plug) is None


def test_a_resource_that_was_never_listed_does_not_expire(clock):
    books = registry.ByName(clock, 300)
    books.enlist(Plug("/x"))
    clock.now += 1000
    assert books.expire() == ()


async def test_faults_apply_in_order_of_injection_and_as_often_as_requested():
    faults = Faults()
    faults.inject(Point.ALLOCATE, fail("first"), times=2)
    faults.inject(Point.ALLOCATE, fail("second"))
    for text in ("first", "first", "second"):
        await faults.reached(Point.REGISTER, RESOURCE)
        with pytest.raises(Fault, match=text):
            await faults.reached(Point.ALLOCATE, RESOURCE)
    await faults.reached(Point.ALLOCATE, RESOURCE)
    faults.inject(Point.LIST, delay(0))
    await faults.reached(Point.LIST, RESOURCE)


async def test_a_limited_log_still_counts_all_events():
    log = EventLog(keep=2)
    heard: list[events.Event] = []
    log.listen(heard.append)
    for number in range(5):
        log.append(events.PodReleased(at=number, pod=str(number)))
    assert (len(log), log.position, len(heard)) == (2, 5, 5)
    assert [event.pod for event in log.of(events.PodReleased)] == ["3", "4"]
    assert [event.pod for event in log.of(events.PodReleased, since=4)] == ["4"]
    assert log.of(events.PodReleased, since=5) == []
    assert log.of(events.Started) == []


async def test_a_waiter_is_woken_by_the_event_that_makes_its_condition_true():
    log = EventLog()
    waiting = asyncio.create_task(log.wait_for(lambda: log.position >= 2 and "value", 60))
    await asyncio.sleep(0)
    log.append(events.PodReleased(at=0, pod="a"))
    log.append(events.PodReleased(at=0, pod="b"))
    assert await waiting == "value"


def test_long_lists_are_abbreviated():
    assert abbreviated(()) == "-"
    assert abbreviated("abcdef") == "a, b, c, d, e, f"
    assert abbreviated([str(n) for n in range(100)]) == "0, 1, 2, 3, 4, 5 and 94 more"
    assert listed([]) == "0 healthy, 0 unhealthy"
    assert listed([ListedDevice("a", "odd")]) == "0 healthy, 1 unhealthy; unhealthy: a"


def test_an_answer_is_shown_completely():
    response = ContainerAllocateResponse(
        envs={"B": "2", "A": "1"},
        annotations={"k": "v"},
        mounts=[
            Mount(container_path="/c", host_path="/h", read_only=True),
            Mount(container_path="/w", host_path="/w"),
        ],
        devices=[DeviceSpec(container_path="/dev/a", host_path="/dev/a", permissions="rw")],
        cdi_devices=[CDIDevice(name="v.example/c=d")],
    )
    assert [" ".join(line.split()) for line in response_lines(response)] == [
        "device /dev/a (rw)",
        "mount /h as /c (read-only)",
        "mount /w (read-write)",
        "env A=1",
        "env B=2",
        "annotation k=v",
        "cdi v.example/c=d",
    ]
    empty = events.Allocated(
        at=0, pod="p", container="c", device_ids=("a",), response=ContainerAllocateResponse()
    )
    assert lines(empty) == ["p/c gets a", "an empty answer"]


def test_a_preference_shows_the_devices_that_must_be_included():
    asked = events.PreferenceAsked(
        at=0,
        pod="p",
        container="c",
        available=("a", "b", "c"),
        must_include=("a",),
        size=2,
        answer=("a", "c"),
    )
    assert lines(asked) == ["p/c: requested 2 of 3 including a; the plugin prefers a, c"]


def test_every_event_command_option_and_point_is_documented():
    text = DOCS.read_text()
    for kind in kinds():
        (row,) = [line for line in text.splitlines() if line.startswith(f"- `{kind.kind}`")]
        for field in {item.name for item in fields(kind)} - {"at", "resource"}:
            assert f"`{field}`" in row, (kind, field)
    for line in HELP.splitlines():
        assert f"- `{line.split('  ')[0].replace(' / ', '` / `')}`: " in text, line
    for option in command.params:
        assert option.opts[0] in text
    for point in Point:
        assert f"`Point.{point.name}`" in text


async def test_the_example_in_the_documentation_works(plugin_dir, tiny):
    (source,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(source, names)
    running: list = []

    async def start_plugin() -> None:
        for plugin in running:
            await plugin.stop()
        running.append(await tiny())
        await running[-1].register()

    await names["shows_its_devices_again_after_a_restart"](plugin_dir, start_plugin)


def test_a_wipe_ignores_a_socket_that_is_removed_meanwhile(tmp_path, monkeypatch):
    for name in ("going.sock", "old.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(tmp_path / name))

    @contextmanager
    def scandir(path, listed=os.scandir):
        with listed(path) as entries:
            found = list(entries)
        (tmp_path / "going.sock").unlink()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", scandir)
    assert wire.wipe(tmp_path) == ("old.sock",)
