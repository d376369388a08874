"""The backend for SR-IOV, with a network card and a disk that have virtual functions behind an IOMMU."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from devhost_sriov import netlink_child
from devhost_sriov.bursts import QUIET, ROUNDS
from lab.burst import Burst
from lab.functions import Physical, bind, driver_of, is_viable
from lab.kernel import run, settle, text
from lab.lists import changed, check
from lab.node import Node
from lab.waiting import until

from devhost.backend.errors import DevhostError
from devhost.backend.process import Worker, python

NET = "example.com/vf"
DPDK = "example.com/dpdk"
DISK = "example.com/disk"
KERNEL = {
    "name": NET,
    "backend": "sriov",
    "where": {"kind": "vf", "pciClass": "02*", "driver": "igbvf"},
    "whenEmpty": "register",
}
PASSED_ON = {
    "name": DPDK,
    "backend": "sriov",
    "where": {"kind": "vf", "pciClass": "02*", "driver": "vfio-pci"},
    "whenEmpty": "register",
}
DISKS = {
    "name": DISK,
    "backend": "sriov",
    "where": {"kind": "vf", "pciClass": "0108*"},
    "whenEmpty": "register",
}
CARD = {"netdev": "wire", "mac": "52:54:00:00:00:01"}
"""The card's properties, as ``machine/hardware.py`` has them."""

MEASURED = Path("/out/sriov.txt")
"""Numbers for the documentation; they are no promises."""


@pytest.fixture
async def node(tmp_path):
    """A kubelet that says who holds what, and devhost."""
    async with Node(tmp_path, tells=True) as node:
        yield node


@pytest.fixture
async def card(slots, links):
    """The network card, up, without virtual functions; also after a test that pulled it out."""
    card = Physical("igb")
    if "igb0" not in slots.names():
        await slots.plug("igb", "igb0", "nic", keep=True, **CARD)
    card.reset()
    links.up(await named(card))
    run("modprobe", "-a", "vfio-pci", "igbvf")
    await linked(card)
    yield card
    card.reset()
    settle()


@pytest.fixture
def disk():
    """The disk that can have virtual functions."""
    disk = Physical("nvme")
    disk.reset()
    yield disk
    disk.reset()
    settle()


async def named(card):
    """The interface of a card that may just have been plugged, once udev has named it."""

    def interface():
        try:
            return card.interface
        except (ValueError, OSError):  # no driver has it yet, or it has no interface yet
            return ""

    await until("the card has an interface", interface)
    settle()
    return card.interface


async def linked(card):
    """Waits until the card has its link: it starts its port anew each time it gets virtual functions."""
    await until("the card has its link", lambda: text(card.link / "operstate") == "up")


def measured(what, seconds):
    noted(f"{what}: {seconds * 1000:.0f} ms")


def noted(line):
    print(line)
    with MEASURED.open("a") as file:
        file.write(f"{line}\n")


@pytest.fixture(autouse=True, scope="session")
def compiled():
    """Compiles pyroute2 before a look needs it: where a processor is emulated, that takes minutes."""
    command = [sys.executable, "-P", netlink_child.__file__]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=280)


async def test_any_number_of_functions_shows_as_one_list(node, card):
    await node.serve(KERNEL)
    for count in (4, 0, 7):
        before = set(card.virtual)
        with Burst(card.link) as burst:
            lists = await changed(node, NET, lambda: set(card.virtual), lambda count=count: card.make(count))
            await linked(card)
        after = set(card.virtual)
        assert len(after) == count
        check(lists, before, after)
        is_one = burst.is_one(QUIET, ROUNDS * QUIET)
        noted(f"{count} functions: {len(lists)} lists{'' if is_one else ' of more than one burst'}")
        if is_one:
            # All at once: those that come, and those that go, unhealthy for two seconds before they
            # are no more. There are more lists only if the link falls for a moment when nobody looks,
            # or the machine stood still between an event and devhost's look: nobody gets a device of these.
            assert all(not well or (count and ids in (before, after)) for ids, well in lists), lists
            assert len(lists) <= 3, lists


async def test_attributes_are_those_of_the_machine(node, card):
    card.make(2)
    await linked(card)
    settle()
    node.write(KERNEL)
    await until("both have their driver", lambda: {driver_of(a) for a in card.virtual} == {"igbvf"})
    settle()
    found = await node.look()
    whole = found[card.address]
    assert (whole.attributes["kind"], whole.attributes["totalVfs"], whole.attributes["numVfs"]) == (
        "pf",
        7,
        2,
    )
    for number, address in enumerate(card.virtual):
        attributes = found[address].attributes
        assert (attributes["kind"], attributes["vfIndex"]) == ("vf", number)
        assert (attributes["pfName"], attributes["pfPciBusID"]) == (card.interface, card.address)
        assert (attributes["vendor"], attributes["device"], attributes["driver"]) == ("8086", "10ca", "igbvf")
        assert attributes["linkType"] == "ether" and len(attributes["netDevs"]) == 1
        assert found[address].part_of == {f"pci:{card.address}"}


async def test_a_function_bound_to_vfio_moves_to_the_other_resource_and_its_group_is_viable(node, card):
    card.make(4)
    await linked(card)
    await node.serve(KERNEL, PASSED_ON)
    await node.shows(NET, healthy=4)
    address = card.virtual[1]
    bind(address, "vfio-pci")
    await node.shows(DPDK, healthy=1)
    await node.shows(NET, healthy=3)
    assert node.kubelet.healthy(DPDK) == {address}
    assert node.kubelet.healthy(NET) == set(card.virtual) - {address}

    allocation = await node.admit("pod", DPDK)
    given = {spec.container_path: spec.host_path for spec in allocation.response.devices}
    group = f"/dev/vfio/{(card.path.parent / address / 'iommu_group').resolve().name}"
    assert {"/dev/vfio/vfio", group} <= given.keys()
    assert all(Path(path).is_char_device() for path in given.values())
    assert is_viable(given[group])
    assert allocation.response.envs["PCIDEVICE_EXAMPLE_COM_DPDK"] == address
    info = json.loads(allocation.response.envs["PCIDEVICE_EXAMPLE_COM_DPDK_INFO"])
    assert info[address]["vfio"]
    await node.released("pod", DPDK, address)

    bind(address, "")
    await node.shows(NET, healthy=4)
    await node.shows(DPDK, healthy=0)


async def admissions(node, started):
    """Pods that come and go one after another, for as long as there is something for them; notes each."""
    with suppress(DevhostError):
        while True:
            name = f"guest{len(started)}"
            await node.admit(name, NET)
            started.append(name)
            node.kubelet.release(name)


async def test_a_card_pulled_while_pods_come_and_go_empties_every_list_and_comes_back(node, card, slots):
    card.make(4)
    await linked(card)
    await node.serve(KERNEL, PASSED_ON)
    await node.shows(NET, healthy=4)
    bind(card.virtual[0], "vfio-pci")
    await node.shows(DPDK, healthy=1)
    await node.shows(NET, healthy=3)
    before = node.kubelet.healthy(NET)
    (held,) = (await node.admit("pod", NET)).device_ids
    started = []
    load = asyncio.create_task(admissions(node, started))
    await until("pods come and go", lambda: started, seen=node.said)

    await slots.pull("igb0")
    await node.shows(DPDK, healthy=0)
    await until("nothing is left", lambda: node.kubelet.allocatable()[NET] == 0, seen=node.said)
    await load
    assert (await node.device(NET, held))["allocated"]  # a pod has it still

    await slots.plug("igb", "igb0", "nic", keep=True, **CARD)
    run("ip", "link", "set", await named(card), "up")
    card.make(4)
    await linked(card)
    await node.shows(NET, healthy=4)
    assert before < node.kubelet.healthy(NET)
    await node.admit("next", NET)


async def test_functions_of_a_disk_are_listed_as_they_are_made_and_well_once_a_driver_has_them(node, disk):
    await node.serve(DISKS)
    for count in (4, 0, 2):
        await asyncio.to_thread(disk.make, count, bound=False)
        await node.shows(DISK, healthy=0, total=count)
        assert set(node.kubelet.capacity()) == {DISK}
    reason = (await node.device(DISK, disk.virtual[0]))["reason"]
    assert "driver" in reason
    for address in disk.virtual:
        bind(address, "vfio-pci")
    await node.shows(DISK, healthy=2)
    assert node.kubelet.healthy(DISK) == set(disk.virtual)
    allocation = await node.admit("pod", DISK)
    (group,) = (spec.host_path for spec in allocation.response.devices if Path(spec.host_path).name.isdigit())
    assert is_viable(group)


async def test_a_function_whose_interface_is_in_a_pod_stays_healthy_and_listed(node, card, links):
    card.make(2)
    await linked(card)
    await node.serve(KERNEL)
    await node.shows(NET, healthy=2)
    (address,) = (await node.admit("pod", NET)).device_ids
    (interface,) = (path.name for path in (card.path.parent / address / "net").iterdir())
    pod = links.namespace("pod")
    run("ip", "link", "set", interface, "netns", pod)
    (other,) = (one for one in card.virtual if one != address)
    bind(other, "vfio-pci")  # once that is seen, devhost has looked after the move
    await node.shows(NET, healthy=1)
    assert node.kubelet.healthy(NET) == {address}
    found = (await node.status())["resources"][0]["devices"]
    assert [(one["id"], one["health"]) for one in found] == [(address, "Healthy")]
    run("ip", "-n", pod, "link", "set", interface, "netns", "1")
    links.remove_namespace(pod)


async def provisioning(node):
    (backend,) = (await node.status())["backends"]
    return backend["provisioning"]


async def stands(node, state, words=""):
    """Waits until provisioning stands so, and its reason has these words."""
    seen = {}
    for _ in range(1200):
        with suppress(DevhostError):  # it has not started yet
            seen = await provisioning(node)
            if seen["state"] == state and words in seen["reason"]:
                return
        await asyncio.sleep(0.2)
    raise TimeoutError(f"provisioning is not {state} ({words}): {seen}; {node.said()[-3000:]}")


def wanted(card, count, driver="vfio-pci"):
    return {"sriov": {"virtualFunctions": [{"pf": card.interface, "count": count, "driver": driver}]}}


async def test_devhost_makes_binds_and_removes_functions_and_leaves_those_of_pods(node, card):
    await node.serve(KERNEL, PASSED_ON, backends=wanted(card, 4))
    await node.shows(DPDK, healthy=4)
    await stands(node, "ok")
    assert {driver_of(address) for address in card.virtual} == {"vfio-pci"}
    assert text(card.path / "sriov_drivers_autoprobe") == "1"

    (held,) = (await node.admit("pod", DPDK)).device_ids
    await node.serve(KERNEL, PASSED_ON, backends=wanted(card, 2))
    await stands(node, "waiting", held)
    assert card.count == 4
    await node.serve(KERNEL, PASSED_ON, backends=wanted(card, 4, "igbvf"))
    await stands(node, "waiting", held)
    await node.shows(NET, healthy=3)
    assert driver_of(held) == "vfio-pci"

    assert await node.stop() == 0
    assert card.count == 4
    await node.serve(KERNEL, PASSED_ON, backends=wanted(card, 2))  # it knows its own again
    await stands(node, "waiting", held)
    await node.released("pod", DPDK, held)
    await node.shows(DPDK, healthy=2)
    await node.shows(NET, healthy=0)
    await stands(node, "ok")

    await node.serve(KERNEL, PASSED_ON)
    await node.shows(DPDK, healthy=0)
    await stands(node, "ok")
    assert card.count == 0


async def test_functions_that_another_program_created_are_not_changed(node, card):
    card.make(3)
    await linked(card)
    settle()
    await node.serve(KERNEL, backends=wanted(card, 2, ""))
    await stands(node, "failed", "did not create")
    await node.serve(KERNEL, backends=wanted(card, 3, "vfio-pci"))
    await stands(node, "failed", "did not create")
    await node.shows(NET, healthy=3)
    await node.serve(KERNEL, backends=wanted(card, 0, ""))
    await stands(node, "failed", "did not create")
    assert card.count == 3
    await node.serve(KERNEL, backends=wanted(card, 8, ""))
    await stands(node, "failed", "at most 7 virtual functions")


async def test_netlink_reports_the_mode_of_a_switch_and_the_representors():
    """netdevsim has a switch as adapters have; it is not on PCI, so no function of it is listed."""
    netlink = pytest.importorskip("devhost_sriov.netlink")
    kernel = netlink.Kernel(Worker(python(netlink.PROGRAM), deadline=60))
    run("modprobe", "netdevsim")
    bus = Path("/sys/bus/netdevsim")
    (bus / "new_device").write_text("10 1")
    try:
        (bus / "devices/netdevsim10/sriov_numvfs").write_text("3")
        for mode, count in (("legacy", 0), ("switchdev", 3), ("legacy", 0)):
            run("devlink", "dev", "eswitch", "set", "netdevsim/netdevsim10", "mode", mode)
            settle()
            switch = kernel.devlink(profiles=False).switches["netdevsim10"]
            assert (switch.mode, sorted(switch.virtual)) == (mode, [*range(count)])
            ports = {name: text(f"/sys/class/net/{name}/phys_port_name") for name in switch.virtual.values()}
            assert list(ports.values()) == [f"pf0vf{number}" for number in switch.virtual]
    finally:
        kernel.close()
        (bus / "del_device").write_text("10")
        settle()


async def test_how_long_it_takes(node, card):
    """For the documentation; Python is some fifteen times slower here than on a machine."""
    await node.serve(KERNEL)
    for count in (1, 7):
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(card.make, count)
        written = asyncio.get_running_loop().time()
        await node.shows(NET, healthy=count)
        shown = asyncio.get_running_loop().time()
        measured(f"{count} functions, the kernel's part", written - began)
        measured(f"{count} functions, from there to the list", shown - written)
        await asyncio.to_thread(card.make, 0)
        await node.shows(NET, healthy=0)
