"""What is unknown is not free, what cannot be asked does no harm, and nothing is asked twice."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import sriov_network as machines
from devhost_sriov import network, watch
from devhost_sriov.backend import Sriov
from devhost_sriov.in_use import DefaultRoute, Traffic
from devhost_sriov.netlink import Devlink, Switch, VfMacs
from devhost_sriov.network import UNSEEN, Interest, Network
from devhost_sriov.options import SriovOptions
from devhost_sriov.watch import ANYTHING, network_events

from devhost.backend import Event, netlink
from devhost.backend.sysfs import Sysfs
from devhost.discovery.runner import ServiceContext
from devhost.testing.fixtures import by_id

DEADLINE = 60.0
NET = Event("net", "change", "/sys/class/net/lo")
PF = "0000:02:00.0"


class Kernel:
    """What the kernel answers, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.asked: list[str] = []
        self.hears = True
        self.routes: Traffic | Exception = Traffic(frozenset({DefaultRoute(4, "enp2s0")}))
        self.macs: VfMacs = {"enp2s0": {1: "02:00:00:00:00:07"}}
        self.switches = Devlink({PF: Switch("switchdev", "DDP", {0: "rep0"})}, group=9)
        self.initial = tmp_path / "initial"
        self.initial.touch()
        monkeypatch.setattr(network, "INITIAL", str(self.initial))
        monkeypatch.setattr(network, "is_live", lambda root: True)
        monkeypatch.setattr(network, "hears_links", lambda sysfs: self.hears)
        monkeypatch.setattr(network, "Kernel", lambda: self)

    def taken(self) -> list[str]:
        """What was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked

    def traffic(self, names: object) -> Traffic:
        self.asked.append("traffic")
        if isinstance(self.routes, Exception):
            raise self.routes
        return self.routes

    def vf_macs(self) -> VfMacs:
        self.asked.append("macs")
        return self.macs

    def devlink(self, *, profiles: bool) -> Devlink:
        self.asked.append("devlink with profiles" if profiles else "devlink")
        return self.switches

    def close(self) -> None:
        self.asked.append("the end")


@pytest.fixture
def kernel(monkeypatch, tmp_path) -> Kernel:
    return Kernel(monkeypatch, tmp_path)


@pytest.fixture
def igb(looking, tmp_path, kernel) -> Sriov:
    backend = looking(machines.igb(tmp_path / "igb", 2))
    (tmp_path / "igb/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.2/net/enp2s0v1/address").unlink()
    return backend


def facts(backend: Sriov, device: str) -> network.Facts:
    backend.discover()
    return backend._made[device][0].facts


def test_netlink_adds_what_sysfs_does_not_tell(igb):
    assert facts(igb, PF).in_use == "it carries the IPv4 default route"
    first, second = facts(igb, "0000:02:10.0"), facts(igb, "0000:02:10.2")
    assert (first.representor, first.eswitch_mode, first.ddp_profile) == ("rep0", "switchdev", "DDP")
    assert (second.mac, second.representor, second.in_use) == ("02:00:00:00:00:07", "", "")


def test_nothing_is_asked_again_before_something_happened(igb, kernel):
    igb.discover()
    assert kernel.taken() == ["traffic", "macs", "devlink with profiles"]
    for event, asked in (
        (NET, ["traffic", "macs"]),
        (Event("infiniband", "add", "/sys/devices/x"), []),
        (Event("devlink", "change", "/sys/devices/x"), ["devlink with profiles"]),
        (ANYTHING, ["traffic", "macs", "devlink with profiles"]),
    ):
        igb.notice(event)
        igb.discover()
        assert kernel.taken() == asked


def test_a_burst_is_one_question(igb, kernel):
    igb.discover()
    kernel.taken()
    for number in range(512):
        igb.notice(Event("net", "add", f"/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.0/net/n{number}"))
    igb.discover()
    assert kernel.taken() == ["traffic", "macs"]


def test_only_what_the_configuration_looks_at_is_asked(looking, tmp_path, kernel):
    looking(machines.igb(tmp_path / "igb"), None, ("vendor",)).discover()
    assert kernel.taken() == ["traffic", "devlink"]


def test_a_refusal_is_said_once_when_it_begins_and_once_when_it_ends(igb, kernel, caplog):
    caplog.set_level(logging.INFO)
    well, kernel.routes = kernel.routes, PermissionError(errno.EPERM, "Operation not permitted")
    for _ in range(3):
        by_id(igb)
    kernel.routes = well
    for _ in range(3):
        by_id(igb)
    said = [message for message in caplog.messages if message.startswith("netlink's routes")]
    assert said == [
        "netlink's routes cannot be read: Operation not permitted",
        "netlink's routes can be read again",
    ]


def test_a_function_is_withheld_while_the_kernel_does_not_answer(igb, kernel, caplog):
    kernel.routes = TimeoutError("the kernel does not answer")
    assert by_id(igb)[PF].withheld
    assert "netlink's routes cannot be read: the kernel does not answer" in caplog.messages


def test_a_node_without_functions_is_not_asked_about_its_network(looking, tmp_path, kernel):
    """On such a node the interfaces of pods come and go all the time, and concern no function."""
    (tmp_path / "bare/sys/bus/pci/devices").mkdir(parents=True)
    backend = looking(tmp_path / "bare", None, ("*",))
    assert backend.discover() == []
    backend.notice(NET)
    assert backend.discover() == []
    assert kernel.taken() == []


def test_closing_the_backend_ends_the_process_that_asks_netlink(igb, kernel):
    igb.discover()
    kernel.taken()
    igb.close()
    assert kernel.taken() == ["the end"]


def test_files_tell_of_the_node_where_netlink_speaks_of_another_namespace(igb, kernel, tmp_path):
    kernel.hears = False
    directory = tmp_path / "igb/proc/1/net"
    directory.mkdir(parents=True)
    (directory / "route").write_text("enp2s0v1\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
    assert facts(igb, "0000:02:10.2").in_use == "it carries the IPv4 default route"
    assert facts(igb, PF).in_use == ""


def test_where_nothing_tells_of_routes_every_function_with_a_network_driver_counts_as_in_use(igb, kernel):
    kernel.hears = False
    assert {one.withheld.partition(";")[0] for name, one in by_id(igb).items() if name != PF} == {UNSEEN}


def test_a_function_whose_interface_a_foreign_namespace_hides_counts_as_in_use(igb, kernel, tmp_path, caplog):
    kernel.initial.unlink()
    shutil.rmtree(tmp_path / "igb/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.0/net")
    found = by_id(igb)
    assert found["0000:02:10.0"].withheld.startswith(UNSEEN)
    assert not found["0000:02:10.2"].withheld
    assert (
        "the node's routes cannot be read: this process is in a network namespace of its own"
        in caplog.messages
    )


def test_in_the_first_namespace_a_function_without_an_interface_is_in_a_pod(igb, tmp_path):
    shutil.rmtree(tmp_path / "igb/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.0/net")
    assert not by_id(igb)["0000:02:10.0"].withheld


def test_a_function_that_programs_drive_is_never_unknown(looking, tmp_path, kernel):
    kernel.hears = False
    found = by_id(looking(machines.i40e_with_vfio(tmp_path / "i40e")))
    bound = [one for one in found.values() if one.attributes.get("driver") == "vfio-pci"]
    assert bound and not any(one.withheld for one in bound)


def test_the_kubelets_address_comes_from_the_pod_where_no_option_gives_it(
    looking, tmp_path, kernel, monkeypatch
):
    kernel.routes = Traffic(addresses=frozenset({("192.0.2.7", "enp2s0v0"), ("192.0.2.9", "enp2s0v1")}))
    monkeypatch.setenv(network.NODE_IP, "192.0.2.7, 2001:db8::7")
    machine = machines.igb(tmp_path / "igb", 2)
    by_environment = by_id(looking(machine))
    by_option = by_id(looking(machine, SriovOptions(node_addresses=("192.0.2.9",))))
    assert "192.0.2.7" in by_environment["0000:02:10.0"].withheld
    assert not by_environment["0000:02:10.2"].withheld
    assert "192.0.2.9" in by_option["0000:02:10.2"].withheld
    assert not by_option["0000:02:10.0"].withheld


# --- the event source


class Line:
    """The kernel's ends of the subscriptions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[tuple[int, tuple[int, ...]]] = []
        self.refuses: OSError | None = None
        self.ends: list[socket.socket] = []
        monkeypatch.setattr(watch, "subscribe", self.subscribe)
        monkeypatch.setattr(watch, "is_live", lambda root: True)
        for name in ("SETTLE", "PAUSE", "REOPEN"):
            monkeypatch.setattr(watch, name, 0.001)

    def subscribe(self, protocol: int, groups: int, members: tuple[int, ...]) -> socket.socket:
        self.opened.append((protocol, tuple(members)))
        if self.refuses:
            raise self.refuses
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.ends.append(ends[1])
        return ends[0]


@pytest.fixture
def line(monkeypatch) -> Iterator[Line]:
    found = Line(monkeypatch)
    yield found
    for end in found.ends:
        end.close()


@pytest.fixture
def node(tmp_path) -> Iterator[tuple[ServiceContext, Network]]:
    context = ServiceContext("sriov", tmp_path)
    yield context, Network(Sysfs(tmp_path), context, ())
    context.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - what it asks has no event
            await asyncio.sleep(0.001)


async def heard(events: AsyncIterator[Event]) -> Event:
    async with asyncio.timeout(DEADLINE):
        return await anext(events)


def default_route() -> bytes:
    payload = bytes([2, 0, 0, 0, 254, 0, 0, 1]) + bytes(4)
    return (16 + len(payload)).to_bytes(4, "little") + (24).to_bytes(2, "little") + bytes(10) + payload


async def test_a_change_of_routes_is_an_event_and_many_are_one(line, node):
    events = network_events(*node)
    first = asyncio.ensure_future(heard(events))
    await until(lambda: bool(line.ends))
    for _ in range(100):
        line.ends[0].send(default_route())
    assert await first == NET
    await events.aclose()


async def test_more_changes_than_can_be_told_apart_are_anything(line, node, monkeypatch):
    monkeypatch.setattr(watch, "MOST_EVENTS", 8)
    monkeypatch.setattr(
        watch.RouteNews, "take", lambda self, datagram: [Event("net", "change", datagram.decode())]
    )
    events = network_events(*node)
    first = asyncio.ensure_future(heard(events))
    await until(lambda: bool(line.ends))
    for number in range(20):
        line.ends[0].send(f"/sys/class/net/eth{number}".encode())
    assert await first == ANYTHING
    await events.aclose()


async def test_devlink_is_listened_to_once_it_is_there(line, node):
    node[1].interest = Interest()
    events = network_events(*node)
    waiting = asyncio.ensure_future(heard(events))
    await until(lambda: bool(line.ends))
    node[1].interest = Interest(group=9)
    await until(lambda: (netlink.GENERIC, (9,)) in line.opened)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_lost_messages_mean_that_anything_may_have_changed(line, node, monkeypatch):
    class Overflowing(netlink.Listener):
        def __init__(self, link, take, lost):
            super().__init__(link, take, lost)
            asyncio.get_running_loop().call_soon(lost, OSError(errno.ENOBUFS, "No buffer space available"))

    monkeypatch.setattr(watch, "Listener", Overflowing)
    events = network_events(*node)
    assert await heard(events) == ANYTHING
    assert len(line.opened) == 1
    await events.aclose()


async def test_a_broken_subscription_is_opened_again(line, node, monkeypatch, caplog):
    class Breaking(netlink.Listener):
        def __init__(self, link, take, lost):
            super().__init__(link, take, lost)
            self.close()
            asyncio.get_running_loop().call_soon(lost, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(watch, "Listener", Breaking)
    events = network_events(*node)
    assert await heard(events) == ANYTHING
    await until(lambda: len(line.opened) >= 2)
    assert "listening to links and routes failed: Input/output error" in caplog.messages
    await events.aclose()


async def test_a_refusal_is_said_once_and_the_watch_goes_on(line, node, caplog):
    line.refuses = PermissionError(errno.EPERM, "Operation not permitted")
    events = network_events(*node)
    waiting = asyncio.ensure_future(heard(events))
    node[1].interest = Interest(group=9)
    await until(lambda: len(line.opened) == 2)
    await asyncio.sleep(0.02)
    assert not waiting.done()
    assert caplog.messages == [
        f"cannot listen to {what} (Operation not permitted): changes are seen at the resync"
        for what in ("links and routes", "devlink")
    ]
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_recorded_tree_is_not_listened_to(node, caplog):
    caplog.set_level(logging.INFO)
    events = network_events(*node)
    waiting = asyncio.ensure_future(heard(events))
    await until(lambda: bool(caplog.messages))
    assert "is a recorded tree" in caplog.messages[0]
    waiting.cancel()
    await asyncio.wait([waiting])
