"""Log, status document and metrics of a host on which one thing breaks and is fixed, word for word.

``DEVHOST_GOLDEN=1 pytest tests/golden`` writes the files in ``expected`` again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from devhost_testing.kubelet import KubeletSimulator, OtherPlugin, UnexpectedAdmissionError
from kit.host import FAST, Rig, devices
from shown import Golden, Log, flat, series
from status_values import status

from devhost.backend import Device, Event, unhealthy
from devhost.host.shown.gauges import gauges
from devhost.planning.timing import DiscoveryTiming
from devhost.telemetry.metrics import Metrics

TOY = "example.com/toy"
LINE = f"name: {TOY}, backend: toy"
STILL = replace(FAST, discovery=DiscoveryTiming(resync=1e6, missing_resync=0.2, stale_after=0.0))
"""Nothing happens without a cause."""

Steps = AsyncIterator[str]
SCENARIOS: list[Callable[[Rig], Steps]] = []


def scenario(steps: Callable[[Rig], Steps]) -> Callable[[Rig], Steps]:
    SCENARIOS.append(steps)
    return steps


@scenario
async def unhealthy_device(rig: Rig) -> Steps:
    first, second = rig.scripts["toy"].devices
    rig.change("toy", [replace(first, health=unhealthy("port 1 is down")), second])
    yield "a device is unhealthy"
    rig.change("toy", [first, second])
    yield "it is healthy again"


@scenario
async def free_device_unplugged(rig: Rig) -> Steps:
    first, second = rig.scripts["toy"].devices
    rig.change("toy", [first])
    yield "a device is unplugged"
    rig.change("toy", [first, second])
    yield "it is back"


@scenario
async def held_device_unplugged(rig: Rig) -> Steps:
    first, second = rig.scripts["toy"].devices
    await rig.kubelet.admit("pod", "main", TOY, 1)
    yield "a container gets a device"
    rig.change("toy", [second])
    yield "the device is unplugged"
    rig.change("toy", [first, second])
    yield "it is back"
    rig.kubelet.release("pod")
    yield "the container ends"


@scenario
async def device_twice(rig: Rig) -> Steps:
    found = rig.scripts["toy"].devices
    rig.change("toy", [*found, found[0]])
    yield "the backend reports a device twice"
    rig.change("toy", found)
    yield "it reports it once"


@scenario
async def backend_fails(rig: Rig) -> Steps:
    """The next call waits, so that there is only one failure."""
    script, over = rig.scripts["toy"], threading.Event()

    def fail() -> None:
        script.on_discover = over.wait
        raise OSError(5, "the firmware does not answer")

    script.on_discover = fail
    rig.change("toy", script.devices)
    yield "a backend fails"
    over.set()
    yield "it answers"


@scenario
async def backend_hangs(rig: Rig) -> Steps:
    script, kind, over = rig.scripts["toy"], rig.classes["toy"], threading.Event()

    def hang() -> None:
        script.on_discover, kind.discover_deadline = over.wait, 60.0
        over.wait()

    script.on_discover, kind.discover_deadline = hang, 0.2
    rig.change("toy", script.devices)
    yield "a backend hangs"
    over.set()
    yield "it answers"


@scenario
async def no_device_matches(rig: Rig) -> Steps:
    rig.write(f"{LINE}, where: {{model: X100}}")
    yield "no device matches an entry"
    rig.write(LINE)
    yield "all match"


@scenario
async def earlier_entry(rig: Rig) -> Steps:
    rig.write("name: example.com/first, backend: toy", LINE)
    yield "an earlier entry takes all devices"
    rig.write(LINE)
    yield "the entry is removed"


@scenario
async def bad_file(rig: Rig) -> Steps:
    rig.write(f"{LINE}, wher: {{}}, prefer: packed")
    yield "the file has two errors"
    rig.write(LINE)
    yield "they are fixed"


@scenario
async def attribute_missing(rig: Rig) -> Steps:
    rig.write("name: 'example.com/toy-{model}', backend: toy")
    yield "a name is a template"
    rig.change("toy", [*devices(1), Device("bare")])
    yield "a device lacks the attribute"


@scenario
async def kubelet_restarts(rig: Rig) -> Steps:
    await rig.kubelet.stop()
    yield "the kubelet stops"
    await rig.kubelet.start()
    yield "it is back"


@scenario
async def rival(rig: Rig) -> Steps:
    async with OtherPlugin(rig.kubelet_dir, TOY, ["x"]):
        yield "another plugin registers the resource"
    yield "it ends"


@scenario
async def cordon(rig: Rig) -> Steps:
    directory = rig.config.parent / "state" / "verdicts"
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / ".a.json"
    part.write_text('{"devices": ["d0"], "kind": "cordon", "reason": "fan replaced", "by": "alice"}')
    file = part.rename(directory / "a.json")
    yield "a device is cordoned"
    file.unlink()
    yield "it is uncordoned"


@scenario
async def node_missing(rig: Rig) -> Steps:
    node = rig.config.parent / "node"
    rig.scripts["toy"].nodes = {"d0": str(node)}
    with pytest.raises(UnexpectedAdmissionError):
        await rig.kubelet.admit("pod", "main", TOY, 1)
    yield "a pod is refused because a device node is missing"
    node.touch()
    yield "it is there"


@scenario
async def specification_unwritable(rig: Rig) -> Steps:
    place = rig.config.parent / "place"
    place.touch()
    rig.config.write_text(
        f"cdi: {{directory: {place}/cdi}}\nresources: [{{{LINE}, inject: cdi}}]\nversion: 1\n"
    )
    yield "a file is where the CDI directory should be"
    place.unlink()
    yield "it is removed"


@scenario
async def holders_unknown(rig: Rig) -> Steps:
    socket = rig.kubelet.pod_resources
    await rig.kubelet.admit("pod", "main", TOY, 1)
    yield "a container gets a device"
    socket.rename(socket.with_name("aside"))
    yield "the kubelet does not report who holds what"
    socket.with_name("aside").rename(socket)
    yield "it does"


@scenario
async def event_source_fails(rig: Rig) -> Steps:
    over = asyncio.Event()

    async def watch(_: object) -> AsyncIterator[Event]:
        if opened:
            await over.wait()
            yield Event()
            await asyncio.Event().wait()
        opened.append(True)
        raise OSError(19, "netlink is gone")

    opened: list[bool] = []
    rig.classes["other"].watch = watch
    rig.write(LINE, "name: example.com/other, backend: other")
    yield "the event source of another backend fails"
    over.set()
    yield "it reports an event"


async def start(_: Rig) -> Steps:
    yield "two devices are allocatable"


@pytest.mark.parametrize("steps", SCENARIOS, ids=lambda steps: steps.__name__)
async def test_what_is_shown_of_a_breakage_and_its_end(steps, rig: Rig, tmp_path: Path) -> None:
    rig.timing = STILL
    metrics, log, state = Metrics(), Log(), tmp_path / "state"
    rig.kubelet = kubelet = KubeletSimulator(rig.kubelet_dir, "1.37", pod_resources=rig.pod_resources)
    options = {"metrics": metrics, "state_dir": state, "pod_resources": kubelet.pod_resources}
    with log.kept():
        async with kubelet, rig.running(LINE, allocatable={TOY: 2}, **options) as host:
            metrics.name_gauges(lambda: gauges(host.now(), pods=True))
            golden = Golden(lambda: chain(flat(status(host)), series(metrics)), log, tmp_path)
            for each in (start, steps):
                found, expected = await golden.follows(each.__name__, each(rig))
                assert found == expected
