"""What netlink tells of functions, asked of a real kernel: embedded switches, addresses, routes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from devhost_sriov import Sriov
from devhost_sriov.netlink import PROGRAM, Kernel
from devhost_sriov.network import Interest
from devhost_sriov.options import SriovOptions
from devhost_sriov.watch import DevlinkSource
from lab.functions import Physical
from lab.kernel import run, settle
from lab.waiting import until

from devhost.backend import netlink
from devhost.backend.process import Worker, python
from devhost.discovery.runner import ServiceContext

NAME = "netdevsim10"
BUS = Path("/sys/bus/netdevsim")


@pytest.fixture
def simulated():
    """An adapter of netdevsim with two virtual functions."""
    run("modprobe", "netdevsim")
    (BUS / "new_device").write_text("10 1")
    settle()
    (BUS / f"devices/{NAME}/sriov_numvfs").write_text("2")
    yield NAME
    (BUS / "del_device").write_text("10")
    settle()


@pytest.fixture
def kernel():
    """What asks netlink, through the process that has pyroute2. Python is slow here."""
    asking = Kernel(Worker(python(PROGRAM), deadline=60))
    yield asking
    asking.close()


@pytest.fixture
def sriov():
    """The backend on this machine."""
    context = ServiceContext("sriov", Path("/"), ("*",))
    backend = Sriov(SriovOptions(), context)
    yield backend
    backend.close()
    context.close()


async def test_a_switch_reports_its_mode_and_the_representor_of_each_function(simulated, kernel):
    before = kernel.devlink(profiles=True).switches[simulated]
    assert (before.mode, dict(before.virtual)) == ("legacy", {})
    run("devlink", "dev", "eswitch", "set", f"netdevsim/{simulated}", "mode", "switchdev")
    settle()
    after = kernel.devlink(profiles=True).switches[simulated]
    assert after.mode == "switchdev"
    assert set(after.virtual) == {0, 1}
    assert all(Path("/sys/class/net", name).exists() for name in after.virtual.values())


async def test_a_change_of_mode_causes_an_event(simulated, kernel):
    group = kernel.devlink(profiles=False).group
    assert group is not None
    heard: list[bytes] = []
    link = netlink.subscribe(netlink.GENERIC, 0, (group,))
    listener = netlink.Listener(link, heard.append, lambda error: None)
    run("devlink", "dev", "eswitch", "set", f"netdevsim/{simulated}", "mode", "switchdev")
    await until("something is heard", lambda: heard)
    listener.close()
    source = DevlinkSource(SimpleNamespace(interest=Interest()))
    assert [datagram for datagram in heard if list(source.events(datagram))] == []


async def test_the_address_set_for_a_virtual_function_is_reported(simulated, kernel):
    interface = next((BUS / f"devices/{simulated}/net").iterdir()).name
    run("ip", "link", "set", interface, "vf", "1", "mac", "02:00:00:00:00:07")
    assert kernel.vf_macs()[interface] == {1: "02:00:00:00:00:07"}


async def test_a_function_below_a_bond_with_the_default_route_is_reserved_until_it_is_gone(sriov):
    card = Physical("igb")
    card.reset()
    settle()

    def reserved() -> str | None:
        return {device.id: device.reserved for device in sriov.discover()}[card.address]

    assert await asyncio.to_thread(reserved) is None
    run("ip", "link", "add", "bond7", "type", "bond")
    try:
        run("ip", "link", "set", card.interface, "down")
        run("ip", "link", "set", card.interface, "master", "bond7")
        run("ip", "link", "set", "bond7", "up")
        run("ip", "link", "add", "link", "bond7", "name", "bond7.5", "type", "vlan", "id", "5")
        run("ip", "link", "set", "bond7.5", "up")
        run("ip", "addr", "add", "192.0.2.7/24", "dev", "bond7.5")
        run("ip", "route", "add", "default", "via", "192.0.2.1", "dev", "bond7.5")
        reason = await asyncio.to_thread(reserved)
        assert reason.startswith("it carries the IPv4 default route, through bond7 and bond7.5")
    finally:
        run("ip", "link", "delete", "bond7")
    assert await asyncio.to_thread(reserved) is None


async def test_the_node_is_seen_as_it_is(sriov, caplog):
    caplog.set_level("INFO", "devhost.backend.sriov")
    await asyncio.to_thread(sriov.discover)
    assert [record.getMessage() for record in caplog.records] == []
