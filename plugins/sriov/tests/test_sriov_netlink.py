"""Netlink messages about functions: real ones where the kernel allows it, else encoded by pyroute2."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from devhost_sriov import netlink_child
from devhost_sriov.netlink_child import (
    INTERRUPTED,
    TRIES,
    Unresolved,
    complete_list,
    default_routes,
    profile_in,
    switches,
    vf_macs_in,
)
from devhost_sriov.network import Interest
from devhost_sriov.watch import ROUTES, DevlinkSource, RouteSource
from kit.command import completed

from devhost.backend import Event
from devhost.backend.traffic import WIDEST

NAMES = {2: "eth0", 3: "eth1"}
NEWLINK, DELLINK, NEWADDR, NEWROUTE, DELROUTE = 16, 17, 20, 24, 25
UP, RUNNING, LOWER_UP = 0x1, 0x40, 0x10000
PROMISCUOUS = 0x100


def made(message: Any, kind: int = 0, attributes: Collection[tuple[str, Any]] = (), **fields: Any) -> Any:
    """A message as the kernel would send it: encoded by pyroute2, and decoded from the bytes."""
    for name, value in fields.items():
        message[name] = value
    message["header"]["type"] = kind
    message["attrs"] = [list(pair) for pair in attributes]
    message.encode()
    again = type(message)(bytes(message.data))
    again.decode()
    return again


def raw(message: Any) -> bytes:
    return bytes(message.data)


def route(**more: Any) -> Any:
    from pyroute2.netlink.rtnl.rtmsg import rtmsg  # 0.9 s: only in the processes that run these tests

    attributes = more.pop("attributes", [("RTA_OIF", 2), ("RTA_TABLE", 254)])
    fields = {"family": 2, "dst_len": 0, "type": 1, "table": 254} | more
    return made(rtmsg(), fields.pop("kind", NEWROUTE), attributes, **fields)


def link(index: int = 2, flags: int = UP | RUNNING | LOWER_UP, kind: int = NEWLINK, **more: Any) -> bytes:
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    attributes = {"IFLA_IFNAME": NAMES.get(index, f"if{index}"), "IFLA_OPERSTATE": "UP", "IFLA_MTU": 1500}
    for name, value in more.items():
        attributes[f"IFLA_{name.upper()}"] = value
    return raw(made(ifinfmsg(), kind, list(attributes.items()), family=0, index=index, flags=flags))


# --- routes, addresses and virtual functions


def test_a_default_route_has_its_full_table_number() -> None:
    assert list(default_routes(route())) == [(4, 2, 254)]
    wide = route(family=10, table=252, attributes=[("RTA_OIF", 3), ("RTA_TABLE", 4711)])
    assert list(default_routes(wide)) == [(6, 3, 4711)]


def test_other_and_rejecting_routes_do_not_count() -> None:
    for other in ({"dst_len": 24}, {"type": 7}, {"type": 2}):
        assert not list(default_routes(route(**other)))


def test_a_route_to_half_of_all_addresses_is_a_default_route() -> None:
    assert list(default_routes(route(dst_len=WIDEST))) == [(4, 2, 254)]
    assert not list(default_routes(route(dst_len=WIDEST + 1)))


def test_a_next_hop_with_only_an_id_is_an_error() -> None:
    with pytest.raises(Unresolved):
        list(default_routes(route(attributes=[("RTA_TABLE", 254)])))


class Attributes:
    """A decoded message, by the name of its attributes."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def get_attr(self, name: str) -> Any:
        return self.get_attrs(name)[0] if self.get_attrs(name) else None

    def get_attrs(self, name: str) -> list[Any]:
        value = self.values.get(name)
        return value if isinstance(value, list) else [] if value is None else [value]


async def test_a_list_that_changed_meanwhile_is_requested_again() -> None:
    def listing(*flags: int) -> Callable[[], Any]:
        rest = iter(flags)

        async def message(flag: int) -> AsyncIterator[Any]:
            yield {"header": {"flags": flag}}

        async def dump() -> AsyncIterator[Any]:
            return message(next(rest))

        return dump

    assert await complete_list(listing(INTERRUPTED, 0)) == [{"header": {"flags": 0}}]
    with pytest.raises(Unresolved, match="keeps changing"):
        await complete_list(listing(*[INTERRUPTED] * TRIES))


def test_each_virtual_function_has_the_address_that_was_set_for_it() -> None:
    entries = [
        Attributes(IFLA_VF_MAC={"vf": 0, "mac": "02:00:00:00:00:01"}),
        Attributes(IFLA_VF_MAC={"vf": 1, "mac": "00:00:00:00:00:00"}),
        Attributes(),
    ]
    message = Attributes(IFLA_VFINFO_LIST=[Attributes(IFLA_VF_INFO=entries)])
    assert vf_macs_in(message) == {0: "02:00:00:00:00:01"}
    assert vf_macs_in(Attributes()) == {}


# --- embedded switches


def port(device: str, flavour: int, interface: str, **numbers: int) -> Attributes:
    external = numbers.pop("external", None)
    values = {f"PORT_PCI_{name.upper()}_NUMBER": value for name, value in numbers.items()}
    return Attributes(
        BUS_NAME="pci",
        DEV_NAME=device,
        PORT_FLAVOUR=flavour,
        PORT_NETDEV_NAME=interface,
        PORT_EXTERNAL=external,
        **values,
    )


def test_ports_are_listed_by_the_function_they_represent() -> None:
    pf = "0000:3b:00.1"
    ports = [
        port(pf, 0, "p1"),
        port(pf, 4, "pf1vf0", pf=1, vf=0),
        port(pf, 4, "pf0vf0", pf=0, vf=0),
        port(pf, 4, "c1pf1vf3", pf=1, vf=3, external=1),
        port(pf, 4, "", pf=1, vf=4),
        port(pf, 7, "pf1sf88", pf=1, sf=88),
    ]
    found = switches([pf, "0000:5e:00.0"], {pf: 1}, {pf: "ICE COMMS Package"}, ports)
    assert found[pf] == {
        "mode": 1,
        "profile": "ICE COMMS Package",
        "virtual": [(0, "pf1vf0")],
        "scalable": [(88, "pf1sf88")],
    }
    assert found["0000:5e:00.0"] == {"mode": None, "profile": "", "virtual": [], "scalable": []}


def test_the_profile_is_the_name_of_the_running_application() -> None:
    names = {"fw.mgmt": "7.1", "fw.app.name": "ICE OS Default Package"}
    versions = [Attributes(INFO_VERSION_NAME=key, INFO_VERSION_VALUE=value) for key, value in names.items()]
    assert profile_in(Attributes(INFO_VERSION_RUNNING=versions)) == "ICE OS Default Package"
    assert profile_in(Attributes(INFO_VERSION_RUNNING=versions[:1])) == ""


def test_the_messages_of_devlink_are_read_by_their_numbers() -> None:
    _, message = netlink_child.devlink_classes()
    attributes = [("BUS_NAME", "pci"), ("DEV_NAME", "0000:3b:00.0"), ("ESWITCH_MODE", 1)]
    found = made(message(), 30, [*attributes, ("PORT_PCI_SF_NUMBER", 88)], cmd=29, version=1)
    assert [found.get_attr(name) for name in ("DEV_NAME", "ESWITCH_MODE")] == ["0000:3b:00.0", 1]
    assert found.get_attr("PORT_PCI_SF_NUMBER") == 88


# --- which messages matter


@pytest.fixture
def news() -> RouteSource:
    interest = Interest(frozenset({2}), frozenset({"192.0.2.7", "2001:DB8::7"}))
    found = RouteSource(SimpleNamespace(interest=interest))
    list(found.events(link()))
    return found


def test_a_link_causes_an_event_only_when_it_changes(news: RouteSource) -> None:
    eth0 = [Event("net", "change", "/sys/class/net/eth0")]
    assert list(news.events(link())) == []
    assert list(news.events(link(flags=UP | RUNNING | LOWER_UP | PROMISCUOUS))) == []
    assert list(news.events(link(flags=UP, operstate="DOWN"))) == eth0
    assert list(news.events(link())) == eth0
    assert list(news.events(link(master=7))) == eth0
    assert list(news.events(link())) == eth0
    assert list(news.events(link(kind=DELLINK))) == eth0


def test_links_of_pods_cause_no_event(news: RouteSource) -> None:
    assert [event for index in range(10, 300) for event in news.events(link(index))] == []


def test_only_default_routes_cause_events(news: RouteSource) -> None:
    assert list(news.events(raw(route()))) == [ROUTES]
    assert list(news.events(raw(route(kind=DELROUTE, family=10)))) == [ROUTES]
    assert list(news.events(raw(route(dst_len=24)))) == []


@pytest.mark.parametrize(
    ("family", "address", "matters"),
    [(2, "192.0.2.7", True), (2, "192.0.2.8", False), (10, "2001:db8::7", True), (10, "fe80::1", False)],
)
def test_only_addresses_of_the_kubelet_cause_events(
    news: RouteSource, family: int, address: str, matters: bool
) -> None:
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

    message = made(ifaddrmsg(), NEWADDR, [("IFA_ADDRESS", address)], family=family, prefixlen=24, index=9)
    assert list(news.events(raw(message))) == ([ROUTES] if matters else [])


def test_truncated_datagrams_cause_no_event(news: RouteSource) -> None:
    whole = link(flags=0)
    assert [event for end in range(len(whole)) for event in news.events(whole[:end])] == []


@pytest.mark.parametrize(("command", "matters"), [(7, True), (8, True), (3, True), (61, False), (53, False)])
def test_devlink_notifications_about_switches_cause_events(command: int, matters: bool) -> None:
    _, message = netlink_child.devlink_classes()
    interest = Interest(places={"0000:3b:00.0": "/sys/devices/pci0000:3a/0000:3b:00.0"})
    for device, known in (("0000:3b:00.0", True), ("0000:99:00.0", False)):
        named = [("BUS_NAME", "pci"), ("DEV_NAME", device)]
        datagram = raw(made(message(), 30, named, cmd=command, version=1))
        events = [Event("devlink", "change", "/sys/devices/pci0000:3a/0000:3b:00.0")]
        source = DevlinkSource(SimpleNamespace(interest=interest))
        assert list(source.events(datagram)) == (events if matters and known else [])


# --- the kernel itself

_SETUP = (
    "ip link add br0 type bridge && ip link add br1 type bridge && ip link set br0 up && ip link set br1 up "
    "&& ip addr add 10.0.0.1/24 dev br0 && ip addr add 10.1.0.1/24 dev br1 "
    "&& ip route add default nexthop via 10.0.0.2 dev br0 nexthop via 10.1.0.2 dev br1 "
    "&& ip route add default via 10.1.0.2 dev br1 table 1000 && ip route add unreachable default metric 4000"
)
_ASK = """
import json, socket, sys
from devhost.backend.process import Worker, python
from devhost_sriov.netlink import PROGRAM, Kernel
kernel = Kernel(Worker(python(PROGRAM), deadline=60))
found = kernel.traffic(dict(socket.if_nameindex()))
switches = kernel.devlink(profiles=True).switches
macs = kernel.vf_macs()
kernel.close()
routes = sorted([route.family, route.interface, route.table] for route in found.routes)
imported = "pyroute2" in sys.modules
print(json.dumps([routes, sorted(found.addresses), len(switches), len(macs), imported]))
"""
_LISTEN = """
import asyncio, subprocess
from pathlib import Path
from types import SimpleNamespace
from devhost.discovery.runner import ServiceContext
from devhost.backend.sysfs import Sysfs
from devhost_sriov.network import Network
from devhost_sriov.watch import network_events

async def listen():
    context = ServiceContext("sriov", Path("/"))
    network = Network(Sysfs(Path("/")), context, ())
    events = network_events(context, network)
    first = asyncio.ensure_future(anext(events))
    while not first.done():
        for action in ("add", "del"):
            subprocess.run(["ip", "route", action, "default", "via", "10.1.0.2", "dev", "br1", "table", "77"])
        await asyncio.wait([first], timeout=0.05)
    print(first.result())
    await events.aclose()
    context.close()

asyncio.run(asyncio.wait_for(listen(), 60))
"""


def in_a_namespace(script: str) -> str:
    """What a program prints in a network namespace that :data:`_SETUP` set up."""
    program = f'{_SETUP} || exit 77; exec "$0" -c "$1"'
    ran = completed("unshare", "-n", "sh", "-c", program, sys.executable, script)
    if ran.returncode == 77:
        pytest.skip(f"this kernel cannot be set up so: {ran.stderr.strip()[:100]}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
@pytest.mark.skipif(not shutil.which("unshare") or not shutil.which("ip"), reason="needs unshare and ip")
def test_the_real_kernel_reports_a_change_of_routes() -> None:
    assert "sys_path='/sys/class/net/lo'" in in_a_namespace(_LISTEN)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
@pytest.mark.skipif(not shutil.which("unshare") or not shutil.which("ip"), reason="needs unshare and ip")
def test_the_facts_of_a_real_network_namespace_are_right() -> None:
    routes, addresses, count, macs, imported = json.loads(in_a_namespace(_ASK))
    assert routes == [[4, "br0", 254], [4, "br1", 254], [4, "br1", 1000]]
    assert ["10.0.0.1", "br0"] in addresses
    assert (count, macs) == (0, 0)
    assert not imported, "pyroute2 is in the process that asked"
