"""The whole way from events to lists, with the core's discovery: a burst is one question and one list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sriov_network as machines
from devhost_sriov import Sriov, bursts, network, watch
from devhost_sriov.in_use import DefaultRoute, Traffic
from devhost_sriov.netlink import Devlink, VfMacs
from devhost_sriov.options import SriovOptions
from sriov_tree import SriovTree

from devhost.backend import Event
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.telemetry.metrics import Metrics

BUS = "pci0000:00/0000:00:05.0"
PF = f"{BUS}/0000:02:00.0"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it asks has no event
            await asyncio.sleep(0.005)


class Node:
    """A node with one adapter, whose routes a test sets, and the lists that come of what happens."""

    def __init__(self, tree: SriovTree, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = tree
        self.routes: frozenset[DefaultRoute] = frozenset()
        self.asked = 0
        self.lists: list[dict[str, str]] = []
        initial = tree.root / "initial"
        initial.touch()
        monkeypatch.setattr(network, "INITIAL", str(initial))
        monkeypatch.setattr(network, "is_live", lambda root: True)
        monkeypatch.setattr(network, "hears_links", lambda sysfs: True)
        monkeypatch.setattr(watch, "is_live", lambda root: False)
        monkeypatch.setattr(bursts, "QUIET", 0.001)
        monkeypatch.setattr(network, "Kernel", lambda: self)
        self.source = BackendRunner(Sriov, SriovOptions(), tree.root, ("mac",))
        self.discovery = Scanner(self.source, Metrics(), self._found)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.discovery.request_scan(event)

    async def shows(self, condition: Callable[[dict[str, str]], bool]) -> None:
        """Waits for a list, as devices with the reason why each is withheld."""
        await until(lambda: bool(self.lists) and condition(self.lists[-1]))

    def _found(self, at: float | None) -> None:
        self.lists.append({name: one.withheld for name, one in self.discovery.devices.items()})

    def traffic(self, names: object) -> Traffic:
        self.asked += 1
        return Traffic(self.routes)

    def vf_macs(self) -> VfMacs:
        return {}

    def devlink(self, *, profiles: bool) -> Devlink:
        return Devlink()

    def close(self) -> None:
        """Nothing was started."""


@asynccontextmanager
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, functions: int) -> AsyncIterator[Node]:
    """A node in service, whose first list is there."""
    made = Node(machines.igb(tmp_path / "node", functions), monkeypatch)
    tasks = [asyncio.create_task(made.discovery.run()), asyncio.create_task(made.discovery.probe())]
    await made.shows(lambda devices: len(devices) == functions + 1)
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    made.source.close()


def virtual_functions(tree: SriovTree, count: int) -> Iterable[Event]:
    """Makes them, with the events that the kernel and rtnetlink send of each."""
    for number in range(count):
        address = f"0000:02:{16 + number // 8:02x}.{number % 8}"
        path = tree.virtual(PF, address, "8086:10ca", "igbvf", group=20 + number)
        tree.netdev(path, f"v{number}", up=False)
        yield Event("pci", "add", f"/sys/devices/{path}")
        yield Event("net", "add", f"/sys/devices/{path}/net/v{number}")
        yield Event("pci", "bind", f"/sys/devices/{path}")
        yield Event("net", "change", f"/sys/class/net/v{number}")


async def test_a_burst_of_virtual_functions_is_one_list_and_a_few_questions(tmp_path, monkeypatch):
    async with node(tmp_path, monkeypatch, 0) as there:
        there.lists.clear()
        there.asked = 0
        there.tell(*virtual_functions(there.tree, 64))
        await there.shows(lambda devices: len(devices) == 65)
        assert len(there.lists) == 1
        assert there.asked == 1
        assert "64 virtual functions" in there.lists[0]["0000:02:00.0"]


async def test_a_route_that_comes_and_goes_takes_a_function_away_and_gives_it_back(tmp_path, monkeypatch):
    async with node(tmp_path, monkeypatch, 2) as there:
        news = Event("net", "change", "/sys/class/net/lo")
        there.routes = frozenset({DefaultRoute(6, "enp2s0v1")})
        there.tell(news)
        await there.shows(lambda devices: "IPv6 default route" in devices["0000:02:10.2"])
        assert not there.lists[-1]["0000:02:10.0"]
        there.routes = frozenset()
        there.tell(news)
        await there.shows(lambda devices: not devices["0000:02:10.2"])


async def test_messages_that_change_nothing_make_no_list(tmp_path, monkeypatch):
    async with node(tmp_path, monkeypatch, 2) as there:
        there.lists.clear()
        asked = there.asked
        there.tell(*[Event("net", "change", f"/sys/class/net/enp2s0v{number % 2}") for number in range(100)])
        await until(lambda: there.asked > asked)
        there.tell(Event("net", "change", "/sys/class/net/lo"))
        await until(lambda: there.asked > asked + 1)
        assert there.lists == []


async def test_functions_whose_adapter_starts_its_port_anew_are_one_list_of_healthy_ones(
    tmp_path, monkeypatch
):
    lack, asked = bursts.Settling._lack_carrier, []
    async with node(tmp_path, monkeypatch, 0) as there:
        state = f"/sys/devices/{PF}/net/enp2s0/operstate"

        def lacks(self: bursts.Settling, paths: Iterable[str]) -> bool:
            asked.append(lack(self, paths))
            if len(asked) == 3:
                there.tree.file(state, "up")
            return asked[-1]

        monkeypatch.setattr(bursts.Settling, "_lack_carrier", lacks)
        there.tree.file(state, "down")
        there.lists.clear()
        there.tell(*virtual_functions(there.tree, 4))
        await there.shows(lambda devices: len(devices) == 5)
        assert asked == [True, True, True, False]
        assert len(there.lists) == 1
        assert all(device.health.healthy for device in there.discovery.devices.values())
