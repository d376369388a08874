"""USB ports: each has one name, which does not depend on the numbers that the kernel assigns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from devhost_udev import Udev

from devhost.backend import Device

from .conftest import Machine, NamingNode, Versioned

XHCI = "pci0000:00/0000:00:14.0"
DWC3 = tuple(f"platform/soc/{address}.usb" for address in ("fe800000", "fe900000"))
USB2, USB3 = ("480", "2.00"), ("5000", "3.00")
STICK = ("090c", "1000")


def hub(machine: Machine, controller: str, bus: int, side: tuple[str, str], *, told: bool = True) -> None:
    """A root hub; ``told`` is whether sysfs has the files that tell its side, as any kernel's has."""
    files = {
        "idVendor": "1d6b",
        "idProduct": f"000{side[1][0]}",
        "devpath": "0",
        "serial": controller.rpartition("/")[2],
        "manufacturer": "Linux 6.12.0 xhci-hcd",
        "product": "xHCI Host Controller",
    }
    if told:
        files |= {"speed": side[0], "version": f" {side[1]}"}
    machine.device(
        f"{controller}/usb{bus}",
        "usb",
        f"bus/usb/{bus:03}/001",
        f"189:{(bus - 1) * 128}",
        files,
        DEVTYPE="usb_device",
        DRIVER="usb",
    )


def xhci(machine: Machine, first: int = 1, controller: str = XHCI, *, told: bool = True) -> None:
    """A controller with its two root hubs, on the buses ``first`` and the next."""
    if controller.startswith("pci"):
        machine.pci(controller, driver="xhci_hcd")
    else:
        machine.device(controller, "platform", DRIVER="xhci-hcd")
    hub(machine, controller, first, USB2, told=told)
    hub(machine, controller, first + 1, USB3, told=told)


def plug(
    machine: Machine,
    bus: int,
    port: str,
    name: str,
    ids: tuple[str, str] = STICK,
    controller: str = XHCI,
    files: Mapping[str, str] = {},
) -> str:
    """A device with one serial port, plugged in below the root hub of a bus; its path."""
    path = f"{controller}/usb{bus}"
    for depth in range(1, port.count(".") + 2):
        path += f"/{bus}-{'.'.join(port.split('.')[:depth])}"
    number = int(name.removeprefix("ttyUSB"))
    known = {"idVendor": ids[0], "idProduct": ids[1], "devpath": port, **files}
    node, dev = f"bus/usb/{bus:03}/{number + 2:03}", f"189:{(bus - 1) * 128 + number + 1}"
    machine.device(path, "usb", node, dev, known, DEVTYPE="usb_device", DRIVER="usb")
    machine.device(f"{machine.interface(path, driver='ch341')}/tty/{name}", "tty", name, f"188:{number}")
    return path


def ttys(backend: Udev) -> dict[str, Device]:
    found = (one for one in backend.discover() if one.attributes["subsystem"] == "tty")
    return {str(one.attributes["devNode"]): one for one in found}


def ids(backend: Udev) -> dict[str, str]:
    """Node → id of the serial ports that are offered."""
    return {node: one.id for node, one in ttys(backend).items() if not one.withheld}


@pytest.mark.parametrize("told", [True, False], ids=["with", "without"])
def test_equal_devices_on_the_same_port_of_both_sides_are_both_offered(machine: Machine, told: bool) -> None:
    """Also in a recorded tree without the speed and version of the root hubs."""
    xhci(machine, told=told)
    plug(machine, 1, "2", "ttyUSB0", files={"version": " 2.10"})
    plug(machine, 2, "2", "ttyUSB1", files={"version": " 3.00"})
    found = ttys(machine.backend())
    first, second = found["/dev/ttyUSB0"], found["/dev/ttyUSB1"]
    assert (first.withheld, second.withheld) == (None, None)
    assert first.attributes["usbPort"] == "0000:00:14.0-usb2"
    assert second.attributes["usbPort"] == "0000:00:14.0-ss2"
    assert second.id == "tty-090c:1000-0000:00:14.0-ss2-00"


def test_different_devices_on_the_same_port_of_both_sides_claim_different_ports(machine: Machine) -> None:
    xhci(machine)
    plug(machine, 1, "4", "ttyUSB0", ("046d", "0825"))
    plug(machine, 2, "4", "ttyUSB1", ("8086", "0b07"))
    whole = [one for one in machine.backend().discover() if one.attributes.get("devType") == "usb_device"]
    claims = [claim for one in whole for claim in one.claims if claim.startswith("usb:")]
    assert len(claims) == len(set(claims)) == 4  # the two devices and the two root hubs


def test_a_port_does_not_depend_on_the_number_of_its_bus(tmp_path: Path) -> None:
    other = "pci0000:00/0000:00:1c.0/0000:01:00.0"
    found: list[dict[str, str]] = []
    for boot, (first, second) in enumerate(((1, 3), (3, 1))):
        booted = Machine(tmp_path / str(boot))
        booted.pci("pci0000:00/0000:00:1c.0", driver="pcieport")
        where = {}
        for controller, bus in ((XHCI, first), (other, second)):
            xhci(booted, bus, controller)
            for side, port in enumerate(("2", "2.3")):
                plug(booted, bus + side, port, f"ttyUSB{bus + side}", controller=controller)
                where[f"/dev/ttyUSB{bus + side}"] = f"{controller} {side}"
        found.append({where[node]: name for node, name in ids(booted.backend()).items()})
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 4


def test_a_device_that_cannot_have_been_on_the_other_side_keeps_its_id(machine: Machine) -> None:
    """Only a device with USB 2.1 or later may be on the SuperSpeed side."""
    xhci(machine)
    plug(machine, 1, "1.4", "ttyUSB0", ("1a86", "7523"), files={"version": " 1.10"})
    assert ids(machine.backend()) == {"/dev/ttyUSB0": "tty-1a86:7523-0000:00:14.0-usb1.4-00"}


def test_a_controller_with_one_root_hub_keeps_its_ids(machine: Machine) -> None:
    machine.pci(XHCI, driver="ehci-pci")
    hub(machine, XHCI, 1, USB2)
    plug(machine, 1, "1.4", "ttyUSB0", ("1a86", "7523"), files={"version": " 2.10"})
    assert ids(machine.backend()) == {"/dev/ttyUSB0": "tty-1a86:7523-0000:00:14.0-usb1.4-00"}


def test_equal_devices_with_one_serial_number_are_named_by_the_sides_of_their_ports(machine: Machine) -> None:
    xhci(machine)
    for bus, node in ((1, "ttyUSB0"), (2, "ttyUSB1")):
        plug(machine, bus, "2", node, files={"serial": "A10B", "version": " 3.00"})
    found = ids(machine.backend())
    assert len(set(found.values())) == 2
    assert found["/dev/ttyUSB1"] == "tty-090c:1000-A10B-0000:00:14.0-ss2-00"


def test_usbip_ports_are_named_by_the_virtual_controller_and_the_side(machine: Machine) -> None:
    for number, first in ((0, 5), (1, 7)):
        controller = f"platform/vhci_hcd.{number}"
        xhci(machine, first, controller)
        plug(machine, first, "1", f"ttyUSB{2 * number}", controller=controller, files={"version": " 2.00"})
        plug(machine, first + 1, "1", f"ttyUSB{2 * number + 1}", controller=controller)
    assert ids(machine.backend()) == {
        "/dev/ttyUSB0": "tty-090c:1000-vhci_hcd.0-usb1-00",
        "/dev/ttyUSB1": "tty-090c:1000-vhci_hcd.0-ss1-00",
        "/dev/ttyUSB2": "tty-090c:1000-vhci_hcd.1-usb1-00",
        "/dev/ttyUSB3": "tty-090c:1000-vhci_hcd.1-ss1-00",
    }


def boards(tmp_path: Path, name: str = "xhci-hcd.{}.auto") -> Iterator[tuple[Machine, dict[str, str]]]:
    """Two controllers of a board whose names the kernel counts in both orders: node → controller."""
    for numbers in itertools.permutations((4, 5)):
        machine = Machine(tmp_path / str(numbers[0]))
        where = {}
        for above, number in zip(DWC3, numbers, strict=True):
            controller = f"{above}/{name.format(number)}"
            machine.device("platform/soc", "platform")
            machine.device(above, "platform", DRIVER="dwc3")
            bus = 1 + 2 * (number - 4)
            xhci(machine, bus, controller)
            plug(machine, bus, "1", f"ttyUSB{number}", controller=controller)
            where[f"/dev/ttyUSB{number}"] = above
        yield machine, where


@pytest.mark.parametrize("name", ["xhci-hcd.{}.auto", "ci_hdrc.{}"])
def test_ports_of_a_board_do_not_depend_on_the_order_of_probing(tmp_path: Path, name: str) -> None:
    found = []
    for machine, where in boards(tmp_path, name):
        found.append({where[node]: one for node, one in ids(machine.backend()).items()})
        every = [one.id for one in machine.backend().discover()]
        assert not [one for one in every if "hcd." in one or "hdrc." in one]
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 2


def test_other_devices_of_a_board_do_not_depend_on_the_order_of_probing(machine: Machine) -> None:
    for n, chip in enumerate(("fd000000.isp", "fd100000.isp")):
        machine.device(f"platform/{chip}", "platform")
        cell = f"platform/{chip}/isp-video.{7 - n}.auto"
        machine.device(cell, "platform")
        machine.device(f"{cell}/media{n}", "media", f"media{n}", f"240:{n}")
    machine.pci("pci0000:05/0000:05:00.0", driver="foo")
    for n in (11, 9):
        cell = f"pci0000:05/0000:05:00.0/HID-SENSOR-200073.{n}.auto"
        machine.device(cell, "platform")
        machine.device(f"{cell}/iio:device{n}", "iio", f"iio:device{n}", f"241:{n}")
    found = {str(one.attributes["devNode"]): one for one in machine.backend().discover()}
    assert {node: one.id for node, one in found.items()} == {
        "/dev/media0": "media-fd000000.isp.isp-video",
        "/dev/media1": "media-fd100000.isp.isp-video",
        "/dev/iio:device9": "iio-0000:05:00.0-HID-SENSOR-200073",
        "/dev/iio:device11": "iio-0000:05:00.0-HID-SENSOR-200073.1",
    }
    assert "media-isp-video.7.auto" in found["/dev/media0"].former_ids
    assert "iio-0000:05:00.0-HID-SENSOR-200073.9.auto" in found["/dev/iio:device9"].former_ids


RESOURCE = "example.com/stick"


@pytest.fixture
def node(naming_node: NamingNode) -> NamingNode:
    naming_node.configure(f"resources: [{{name: {RESOURCE}, backend: udev, where: {{subsystem: tty}}}}]")
    return naming_node


async def test_pods_with_equal_devices_on_both_sides_keep_them_over_a_restart(node: NamingNode) -> None:
    machine = Machine(node.root)
    xhci(machine)
    for bus, name in ((1, "ttyUSB0"), (2, "ttyUSB1")):
        plug(machine, bus, "2", name, files={"version": " 3.00"})
    async with node.served({RESOURCE: 2}):
        (first,) = (await node.kubelet.admit("one", "main", RESOURCE, 1)).device_ids
    async with node.served({RESOURCE: 2}):
        assert node.reasons() == {}
        (second,) = (await node.kubelet.admit("two", "main", RESOURCE, 1)).device_ids
        assert first != second


@pytest.mark.parametrize("holds", [1, 2], ids=["usb2", "superspeed"])
async def test_a_port_that_a_pod_holds_under_its_former_id_is_free_when_that_pod_ends(
    node: NamingNode, holds: int
) -> None:
    """The former id may mean either side, so neither is given to another pod meanwhile."""
    machine = Machine(node.root)
    xhci(machine)
    plug(machine, holds, "2", f"ttyUSB{holds}", files={"version": " 3.00"})
    before = "tty-090c:1000-0000:00:14.0-usb2-00"
    Versioned.ids = {f"/dev/ttyUSB{holds}": before}
    async with node.served({RESOURCE: 1}):
        assert (await node.kubelet.admit("one", "main", RESOURCE, 1)).device_ids == (before,)
    Versioned.ids = {}
    plug(machine, 3 - holds, "2", f"ttyUSB{3 - holds}", files={"version": " 3.00"})
    async with node.served():
        await node.until(lambda: len(node.reasons()) == 2)
        assert set(node.reasons().values()) == {f"held by a pod under its former id {before}"}
        assert await node.refused("two", RESOURCE)
        node.kubelet.release("one")
        await node.offers({RESOURCE: 2})
        await node.container({RESOURCE: 2})


async def test_a_device_of_a_board_stays_with_its_pod_over_an_upgrade_and_a_reboot(node: NamingNode) -> None:
    """The kubelet names the device by the number that its controller had before the reboot."""
    controller = f"{DWC3[0]}/xhci-hcd.5.auto"
    machine = Machine(node.root)
    machine.device("platform/soc", "platform")
    machine.device(DWC3[0], "platform", DRIVER="dwc3")
    xhci(machine, 1, controller)
    plug(machine, 1, "1", "ttyUSB0", controller=controller)
    before = "tty-090c:1000-xhci-hcd.4.auto-usb1-00"
    Versioned.ids = {"/dev/ttyUSB0": before}
    async with node.served({RESOURCE: 1}):
        await node.kubelet.admit("one", "main", RESOURCE, 1)
    Versioned.ids = {}
    async with node.served():
        await node.until(
            lambda: list(node.reasons().values()) == [f"held by a pod under its former id {before}"]
        )
        assert await node.refused("two", RESOURCE)
        node.kubelet.release("one")
        await node.offers({RESOURCE: 1})
