"""What is unknown is not free, what cannot be asked does no harm, and nothing is asked twice."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
import sriov_network as machines
from devhost_sriov import Sriov
from devhost_sriov.model import Facts
from devhost_sriov.netlink import Devlink, Switch
from devhost_sriov.network import UNSEEN, Interest
from devhost_sriov.options import SriovOptions
from devhost_sriov.scan import Scan
from devhost_sriov.watch import DevlinkSource, RouteSource, network_events
from devhost_testing.fixtures import BackendFixture, by_id
from kit.waiting import background
from sriov_backend import FakeKernel, answered_by, network_of

from devhost.backend import Event
from devhost.backend.sysfs import Sysfs
from devhost.backend.traffic import NODE_IP, Traffic
from devhost.discovery.runner import ServiceContext

DEADLINE = 60.0
NET = Event("net", "change", "/sys/class/net/lo")
PF = "0000:02:00.0"


@pytest.fixture
def kernel() -> FakeKernel:
    found = FakeKernel()
    found.macs = {"enp2s0": {1: "02:00:00:00:00:07"}}
    found.switches = Devlink({PF: Switch("switchdev", "DDP", {0: "rep0"})}, group=9)
    return found


@pytest.fixture
def looking(kernel) -> Iterator[BackendFixture[Sriov]]:
    """Makes backends on machines with that kernel."""
    with BackendFixture(answered_by(kernel)) as looking:
        yield looking


@pytest.fixture
def igb(looking, tmp_path) -> Sriov:
    backend = looking(machines.igb(tmp_path / "igb", 2))
    (tmp_path / "igb/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.2/net/enp2s0v1/address").unlink()
    return backend


def facts(igb: Sriov, kernel: FakeKernel, device: str) -> Facts:
    scanned = Scan(Sysfs(igb.context.root)).scan()
    return network_of(kernel, igb.context).facts(scanned)[device]


def test_netlink_adds_facts_that_sysfs_does_not_have(igb, kernel):
    assert facts(igb, kernel, PF).in_use == "it carries the IPv4 default route"
    first, second = facts(igb, kernel, "0000:02:10.0"), facts(igb, kernel, "0000:02:10.2")
    assert (first.representor, first.eswitch_mode, first.ddp_profile) == ("rep0", "switchdev", "DDP")
    assert (second.mac, second.representor, second.in_use) == ("02:00:00:00:00:07", "", "")


def test_a_function_without_an_interface_has_the_configured_address(igb):
    assert by_id(igb)["0000:02:10.2"].attributes["mac"] == "02:00:00:00:00:07"


def test_nothing_is_queried_again_without_an_event(igb, kernel):
    igb.discover()
    assert kernel.taken() == ["traffic", "macs", "devlink with profiles"]
    for event, asked in (
        (NET, ["traffic", "macs"]),
        (Event("infiniband", "add", "/sys/devices/x"), []),
        (Event("devlink", "change", "/sys/devices/x"), ["devlink with profiles"]),
        (Event(), ["traffic", "macs", "devlink with profiles"]),
    ):
        igb.notice(event)
        igb.discover()
        assert kernel.taken() == asked


def test_a_burst_is_one_request(igb, kernel):
    igb.discover()
    kernel.taken()
    for number in range(512):
        igb.notice(Event("net", "add", f"/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.0/net/n{number}"))
    igb.discover()
    assert kernel.taken() == ["traffic", "macs"]


def test_only_attributes_in_the_configuration_are_queried(looking, tmp_path, kernel):
    looking(machines.igb(tmp_path / "igb"), None, ("vendor",)).discover()
    assert kernel.taken() == ["traffic", "devlink"]


def test_a_refusal_is_logged_once_when_it_begins_and_once_when_it_ends(igb, kernel, caplog):
    caplog.set_level(logging.INFO)
    routes, kernel.routes = kernel.routes, PermissionError(errno.EPERM, "Operation not permitted")
    for _ in range(3):
        by_id(igb)
    kernel.routes = routes
    for _ in range(3):
        by_id(igb)
    logged = [message for message in caplog.messages if "routes (netlink)" in message]
    assert logged == [
        "cannot read routes (netlink): Operation not permitted",
        "can read routes (netlink) again",
    ]


def test_a_function_is_withheld_while_the_kernel_does_not_answer(igb, kernel, caplog):
    kernel.routes = TimeoutError("the kernel does not answer")
    assert by_id(igb)[PF].withheld
    assert "cannot read routes (netlink): the kernel does not answer" in caplog.messages


def test_without_functions_the_network_is_not_queried(looking, tmp_path, kernel):
    """On such a node the interfaces of pods come and go all the time, and concern no function."""
    (tmp_path / "bare/sys/bus/pci/devices").mkdir(parents=True)
    backend = looking(tmp_path / "bare", None, ("*",))
    assert backend.discover() == []
    backend.notice(NET)
    assert backend.discover() == []
    assert kernel.taken() == []


def test_closing_the_backend_ends_the_netlink_process(igb, kernel):
    igb.discover()
    kernel.taken()
    igb.close()
    assert kernel.taken() == ["the end"]


def test_files_are_used_if_netlink_describes_another_namespace(igb, kernel, tmp_path):
    kernel.hears = False
    directory = tmp_path / "igb/proc/1/net"
    directory.mkdir(parents=True)
    (directory / "route").write_text("enp2s0v1\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
    assert facts(igb, kernel, "0000:02:10.2").in_use == "it carries the IPv4 default route"
    assert facts(igb, kernel, PF).in_use == ""


def test_with_unknown_routes_every_function_with_a_network_driver_is_in_use(igb, kernel):
    kernel.hears = False
    assert {one.withheld.partition(";")[0] for name, one in by_id(igb).items() if name != PF} == {UNSEEN}


def test_a_function_whose_interface_is_hidden_counts_as_in_use(igb, kernel, tmp_path, caplog):
    kernel.is_initial = False
    shutil.rmtree(tmp_path / "igb/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.0/net")
    found = by_id(igb)
    assert found["0000:02:10.0"].withheld.startswith(UNSEEN)
    assert not found["0000:02:10.2"].withheld
    assert (
        "cannot read routes of the node: this process is not in the network namespace of the node"
        in caplog.messages
    )


def test_in_the_first_namespace_a_function_without_an_interface_is_in_a_pod(igb, tmp_path):
    shutil.rmtree(tmp_path / "igb/sys/devices/pci0000:00/0000:00:05.0/0000:02:10.0/net")
    assert not by_id(igb)["0000:02:10.0"].withheld


def test_a_function_for_programs_is_never_in_use(looking, tmp_path, kernel):
    kernel.hears = False
    found = by_id(looking(machines.i40e_with_vfio(tmp_path / "i40e")))
    bound = [one for one in found.values() if one.attributes.get("driver") == "vfio-pci"]
    assert bound and not any(one.withheld for one in bound)


def test_without_the_option_the_address_of_the_kubelet_comes_from_the_environment(
    looking, tmp_path, kernel, monkeypatch
):
    kernel.routes = Traffic(addresses=frozenset({("192.0.2.7", "enp2s0v0"), ("192.0.2.9", "enp2s0v1")}))
    monkeypatch.setenv(NODE_IP, "192.0.2.7, 2001:db8::7")
    machine = machines.igb(tmp_path / "igb", 2)
    by_environment = by_id(looking(machine))
    by_option = by_id(looking(machine, SriovOptions(node_addresses=("192.0.2.9",))))
    assert "192.0.2.7" in by_environment["0000:02:10.0"].reserved
    assert not by_environment["0000:02:10.2"].reserved
    assert "192.0.2.9" in by_option["0000:02:10.2"].reserved
    assert not by_option["0000:02:10.0"].reserved


# --- the event source


class Subject:
    """What the events are for: the interest of a backend that a test sets."""

    def __init__(self) -> None:
        self.interest = Interest()


async def heard(events: AsyncIterator[Event]) -> Event:
    async with asyncio.timeout(DEADLINE):
        return await anext(events)


def default_route() -> bytes:
    payload = bytes([2, 0, 0, 0, 254, 0, 0, 1]) + bytes(4)
    return (16 + len(payload)).to_bytes(4, "little") + (24).to_bytes(2, "little") + bytes(10) + payload


def link(index: int) -> bytes:
    payload = bytes(4) + index.to_bytes(4, "little") + (0x11043).to_bytes(4, "little") + bytes(4)
    return (16 + len(payload)).to_bytes(4, "little") + (16).to_bytes(2, "little") + bytes(10) + payload


def test_a_change_of_routes_reads_no_function_again():
    source = RouteSource(Subject())
    assert list(source.events(default_route())) == [NET]
    assert source.groups().mask


def test_devlink_is_watched_once_it_exists():
    subject = Subject()
    source = DevlinkSource(subject)
    assert source.groups() is None
    subject.interest = Interest(group=9)
    assert source.groups() == (0, (9,))


def test_lost_messages_make_every_link_count_as_changed():
    subject = Subject()
    subject.interest = Interest(frozenset({2}))
    source = RouteSource(subject)
    message = link(2)
    assert list(source.events(message))
    assert not list(source.events(message))
    source.lost()
    assert list(source.events(message))


async def test_a_recorded_tree_is_not_watched(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with closing(ServiceContext("sriov", tmp_path)) as context:
        events = network_events(context, Subject())
        async with background(heard(events)):
            await asyncio.sleep(0)
            assert "is a recorded tree" in caplog.messages[0]
