"""The backend for FPGAs, with an emulated card that the kernel's own drivers serve (``lab/dfl.py``)."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from lab import dfl
from lab.kernel import run, text, unload
from lab.lists import check, quiet, shown
from lab.node import Node
from lab.waiting import until

AF, REGION, BENCH = "example.com/af", "example.com/region", "example.com/bench"
GET_API_VERSION = 0xB600
"""``DFL_FPGA_GET_API_VERSION`` (kernel, include/uapi/linux/fpga-dfl.h): ``_IO(0xB6, 0)``; the answer is 0."""

CYCLES = 10


def entry(name, kind, **more):
    where = {"kind": kind, "driver": "dfl-pci"}
    return {"name": name, "backend": "fpga", "where": where, "whenEmpty": "register", **more}


FUNCTIONS, REGIONS = entry(AF, "af"), entry(REGION, "region")


@pytest.fixture
async def node(tmp_path):
    """A kubelet that says who holds what, and devhost."""
    async with Node(tmp_path, tells=True) as node:
        yield node


def ids(card):
    """What devhost calls the card's ports."""
    return {f"{card.address}-port{number}" for number in range(card.ports)}


def nodes(*directories):
    """The nodes of devices by their directories in sysfs: path and number."""
    return {f"/dev/{path.name}": text(path / "dev") for path in directories}


def given(allocation):
    """The nodes that a container got, with their numbers; each can be read and written and keeps its name."""
    found = {}
    for spec in allocation.response.devices:
        assert (spec.container_path, spec.permissions) == (spec.host_path, "rw")
        assert Path(spec.host_path).is_char_device()
        number = Path(spec.host_path).stat().st_rdev
        found[spec.host_path] = f"{os.major(number)}:{os.minor(number)}"
    return found


def held(node):
    """The nodes of cards that devhost, or a process of its own, has open."""
    children = run("ps", "-o", "pid=", "--ppid", str(node.pid), "-p", str(node.pid)).split()
    found = []
    for pid in children:
        with suppress(FileNotFoundError):  # it ended, or closed one meanwhile
            found += [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return [path for path in found if path.startswith("/dev/dfl-")]


async def well(node, resource, wanted):
    """Waits until exactly these devices are healthy."""
    await until(
        f"{resource} has {wanted} healthy",
        lambda: node.kubelet.healthy(resource) == frozenset(wanted),
        seen=lambda: f"{set(node.kubelet.healthy(resource))}, {node.said()[-4000:]}",
    )


async def test_attributes_are_those_of_the_card(node, card):
    node.write(FUNCTIONS, REGIONS)
    found = await node.look()
    for number in range(card.ports):
        one = found[f"{card.address}-port{number}"].attributes
        assert (one["vendor"], one["kind"], one["driver"]) == ("intel", "af", "dfl-pci")
        assert one["afuId"] == text(card.port(number) / "afu_id") == card.functions[number]
        assert one["interfaceId"] == dfl.INTERFACE
        assert one["intelName"].startswith(f"af-{dfl.INTERFACE[:3]}.{card.functions[number][:3]}.")
        assert len(one["intelName"]) == 54
        assert (one["pciBusID"], one["isVf"]) == (card.address, False)
        assert one["regionState"] == "ready"
    region = found[f"{card.address}-fme"]
    assert (region.attributes["kind"], region.attributes["ports"]) == ("region", card.ports)
    assert region.attributes["interfaceId"] == dfl.INTERFACE
    assert region.attributes["intelName"] == f"region-{dfl.INTERFACE}"
    assert int(text(card.engine / "bitstream_id"), 0) == dfl.BITSTREAM
    assert region.attributes["bitstreamId"] == f"{dfl.BITSTREAM:x}"
    (manager,) = card.engine.glob("dfl-fme-mgr.*/fpga_manager/fpga*")
    assert region.attributes["managerState"] == text(manager / "state")
    numa = text(card.path / "numa_node")
    assert region.numa_nodes == (() if numa == "-1" else (int(numa),))
    assert region.pcie_path[-1] == card.address
    # the generic classes show its parts too: they are not listed again
    own = {name for name, device in found.items() if str(device.attributes.get("pciBusID")) == card.address}
    assert own == {*ids(card), f"{card.address}-fme"}
    assert not [name for name in found if name.startswith(("fpga", "region", "br"))]


async def test_a_container_gets_the_nodes_of_its_mode(node, card):
    ports = [card.port(number) for number in range(card.ports)]
    await node.serve(FUNCTIONS)
    await well(node, AF, ids(card))
    one = await node.admit("one", AF)
    (token,) = one.device_ids
    number = int(token.removeprefix(f"{card.address}-port"))
    assert given(one) == nodes(ports[number])
    await node.known(AF, token)

    await node.serve(REGIONS)  # a region is all of its ports, and one of them is taken
    await node.shows(REGION, healthy=0)
    with pytest.raises(UnexpectedAdmissionError):
        await node.admit("early", REGION)
    node.kubelet.release("one")
    await node.shows(REGION, healthy=1)
    whole = await node.admit("whole", REGION)
    assert given(whole) == nodes(*ports)
    await node.released("whole", REGION, *whole.device_ids)

    await node.serve(entry(BENCH, "region", development=True))
    await node.shows(BENCH, healthy=1)
    developer = await node.admit("developer", BENCH)
    assert given(developer) == nodes(*ports, card.engine)
    for path in given(developer):  # they are the drivers' own, and open to one program
        descriptor = os.open(path, os.O_RDWR | os.O_EXCL)
        try:
            assert fcntl.ioctl(descriptor, GET_API_VERSION) == 0
        finally:
            os.close(descriptor)
    assert held(node) == []


async def test_a_card_that_is_pulled_and_plugged_shows_in_sound_lists(node, card):
    await node.serve(FUNCTIONS)
    await well(node, AF, ids(card))
    await quiet(node, AF)
    since = node.kubelet.events.position
    await card.pull()
    await node.shows(AF, healthy=0)
    check([(one, set()) for one, _ in shown(node.lists(AF, since))], ids(card), set())
    await card.plug()
    await card.ready()
    await well(node, AF, ids(card))
    assert held(node) == []


@pytest.mark.timeout(480)
async def test_ten_times_leave_nothing_behind(node, card):
    await node.serve(FUNCTIONS)
    await well(node, AF, ids(card))

    async def once(*, seen):
        await card.pull()
        if seen:
            await node.shows(AF, healthy=0)
        await card.plug()
        await card.ready()
        if seen:
            await well(node, AF, ids(card))

    await once(seen=True)
    files, threads = node.open_files(), node.threads()
    for number in range(CYCLES):
        await once(seen=number % 3 == 0)  # the others go and come while devhost still looks
    await well(node, AF, ids(card))
    assert node.kubelet.capacity()[AF] == card.ports
    await until("no more files are open", lambda: len(node.open_files()) <= len(files), seen=node.open_files)
    assert held(node) == []
    assert node.threads() < threads + CYCLES  # gRPC has more or fewer; each time leaving one would be as many
    (resource,) = (await node.status())["resources"]
    assert (resource["capacity"], resource["registrations"]) == (card.ports, 1)
    assert node.complaints() == []


async def test_modules_that_are_loaded_later_and_removed_are_followed(node, card):
    await card.pull()
    await asyncio.to_thread(dfl.unload)
    await node.serve(FUNCTIONS)
    await card.plug()
    assert node.kubelet.capacity()[AF] == 0

    run("modprobe", "dfl-pci")  # udev loads the others, for what this one makes
    await card.ready()
    await well(node, AF, ids(card))

    await asyncio.to_thread(unload, "dfl-afu")
    await well(node, AF, set())
    run("modprobe", "dfl-afu")
    await card.ready()
    await well(node, AF, ids(card))

    await node.serve(REGIONS)
    await node.shows(REGION, healthy=1)
    await asyncio.to_thread(dfl.unload)
    await node.shows(REGION, healthy=0)
    dfl.load()
    await card.ready()
    await node.shows(REGION, healthy=1)


async def test_another_function_without_an_event_is_followed(node, card):
    first = entry(AF, "af")
    first["where"]["afuId"] = dfl.FUNCTION
    await node.serve(first)
    await well(node, AF, {f"{card.address}-port0"})
    card.set_function(dfl.FUNCTION, port=1)
    await well(node, AF, ids(card))
    card.set_function(dfl.OTHER_FUNCTION, port=0)
    await well(node, AF, {f"{card.address}-port1"})


@pytest.mark.timeout(480)
async def test_errors_make_a_device_unhealthy_until_they_are_cleared(node, card):
    await node.serve(FUNCTIONS)
    await well(node, AF, ids(card))
    one, other = sorted(ids(card))

    async def reason(token):
        return (await node.device(AF, token))["reason"]

    card.set_port_error(0x4, port=1)
    await well(node, AF, {one})  # one bad port never hides the other
    assert "errors" in await reason(other)
    assert not (await node.look())[f"{card.address}-fme"].health.healthy
    card.set_port_error(0, port=1)
    card.set_hot(True)
    await well(node, AF, set())
    assert "temp1_crit_alarm" in await reason(one)
    card.set_hot(False)
    await well(node, AF, ids(card))

    for name in ("catfatal_errors", "pcie0_errors"):  # the second is read under a lock: a probe finds it
        card.set_engine_error(name, 0x1)
        await well(node, AF, set())
        assert name in await reason(one)
        card.set_engine_error(name, 0)
        await well(node, AF, ids(card))
    assert held(node) == []


async def test_a_card_that_reads_as_ones_is_unhealthy_and_keeps_its_name_until_it_is_back(node, card):
    await node.serve(FUNCTIONS)
    await well(node, AF, ids(card))
    card.fall_silent()
    await node.shows(AF, healthy=0, total=2)
    assert {device.id for device in node.kubelet.devices(AF)} == ids(card)
    card.speak()
    await well(node, AF, ids(card))
