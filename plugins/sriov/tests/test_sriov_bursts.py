"""The whole way from events to lists, with the core's discovery: a burst is one question and one list."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import sriov_network as machines
from devhost_sriov import Sriov
from devhost_sriov.bursts import BurstWait
from devhost_sriov.options import SriovOptions
from kit.waiting import background, until
from sriov_backend import FakeKernel, network_of
from sriov_tree import SriovTree

from devhost.backend import Context, Event
from devhost.backend.sysfs import Sysfs
from devhost.backend.traffic import DefaultRoute, Traffic
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.telemetry.metrics import Metrics

BUS = "pci0000:00/0000:00:05.0"
PF = f"{BUS}/0000:02:00.0"


class Node:
    """A node with one adapter, whose routes a test sets, and the lists that come of what happens."""

    def __init__(self, tree: SriovTree) -> None:
        self.tree = tree
        self.kernel = FakeKernel()
        self.kernel.routes = Traffic()
        self.lists: list[dict[str, str]] = []
        self.pauses = 0
        self.after_pauses: dict[int, Callable[[], object]] = {}
        """What happens when the backend has waited for the end of a burst so many times."""
        self.source = BackendRunner(self._kind(), SriovOptions(), tree.root, ("mac",))
        self.discovery = Scanner(self.source, Metrics(), self._found)

    def _kind(self) -> type[Sriov]:
        node = self

        class OnNode(Sriov):
            def __init__(self, options: SriovOptions, context: Context) -> None:
                bursts = BurstWait(Sysfs(context.root), ignore_ports=False, quiet=0.001, sleep=node.sleep)
                super().__init__(options, context, network=network_of(node.kernel, context), bursts=bursts)

        return OnNode

    @property
    def asked(self) -> int:
        """How often the routes were asked for."""
        return self.kernel.asked.count("traffic")

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self.after_pauses.get(self.pauses, bool)()
        time.sleep(seconds)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.discovery.request_scan(event)

    async def shows(self, condition: Callable[[dict[str, str]], bool]) -> None:
        """Waits for a list, as devices with the reason why each is withheld."""
        await until(lambda: bool(self.lists) and condition(self.lists[-1]))

    def _found(self, at: float | None) -> None:
        self.lists.append(
            {name: one.withheld or one.reserved or "" for name, one in self.discovery.devices.items()}
        )


@asynccontextmanager
async def node(tmp_path: Path, functions: int) -> AsyncIterator[Node]:
    """A node in service, whose first list is there."""
    made = Node(machines.igb(tmp_path / "node", functions))
    async with background(made.discovery.run()), background(made.discovery.probing.run()):
        await made.shows(lambda devices: len(devices) == functions + 1)
        yield made
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


async def test_a_burst_of_virtual_functions_is_one_list_and_few_requests(tmp_path):
    async with node(tmp_path, 0) as there:
        there.lists.clear()
        there.kernel.asked.clear()
        there.tell(*virtual_functions(there.tree, 16))
        await there.shows(lambda devices: len(devices) == 17)
        assert len(there.lists) == 1
        assert there.asked == 1
        assert "16 virtual functions" in there.lists[0]["0000:02:00.0"]


async def test_a_default_route_withholds_its_function_while_it_exists(tmp_path):
    async with node(tmp_path, 2) as there:
        news = Event("net", "change", "/sys/class/net/lo")
        there.kernel.routes = Traffic(frozenset({DefaultRoute(6, "enp2s0v1")}))
        there.tell(news)
        await there.shows(lambda devices: "IPv6 default route" in devices["0000:02:10.2"])
        assert not there.lists[-1]["0000:02:10.0"]
        there.kernel.routes = Traffic()
        there.tell(news)
        await there.shows(lambda devices: not devices["0000:02:10.2"])


async def test_messages_without_a_change_cause_no_list(tmp_path):
    async with node(tmp_path, 2) as there:
        there.lists.clear()
        asked = there.asked
        there.tell(*[Event("net", "change", f"/sys/class/net/enp2s0v{number % 2}") for number in range(100)])
        await until(lambda: there.asked > asked)
        there.tell(Event("net", "change", "/sys/class/net/lo"))
        await until(lambda: there.asked > asked + 1)
        assert there.lists == []


async def test_functions_whose_adapter_restarts_its_port_are_one_healthy_list(tmp_path):
    async with node(tmp_path, 0) as there:
        state = f"/sys/devices/{PF}/net/enp2s0/operstate"
        there.pauses = 0
        there.after_pauses = {4: lambda: there.tree.file(state, "up")}
        there.tree.file(state, "down")
        there.lists.clear()
        there.tell(*virtual_functions(there.tree, 4))
        await there.shows(lambda devices: len(devices) == 5)
        assert there.pauses == 4, "the port has its carrier after the fourth"
        assert len(there.lists) == 1
        assert all(device.health.healthy for device in there.discovery.devices.values())
