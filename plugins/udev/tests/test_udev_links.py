"""``devNode`` names a node by any symbolic link to it, with or without udevd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from devhost_testing.node import Node
from devhost_udev import Udev
from devhost_udev.nodes import MAX_LINKS
from status_values import status

from devhost.backend import Event

from .conftest import Machine

BY_ID = "/dev/serial/by-id/usb-1a86_USB2.0-Serial-if00-port0"
RESOURCE = "example.com/serial"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Udev) as made:
        machine = Machine(made.root)
        machine.usb_serial("ttyUSB0", "1", "A10B")
        machine.usb_serial("ttyUSB1", "2", "B20C")
        yield made


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def links(backend: Udev) -> dict[str, object]:
    return {str(one.attributes["devNode"]): one.attributes.get("devLinks") for one in backend.discover()}


async def selects_the_second(node: Node, where: str) -> None:
    """A pattern for ``devNode`` selects ``/dev/ttyUSB1`` alone."""
    node.configure(f'resources: [{{name: {RESOURCE}, backend: udev, where: {{devNode: "{where}"}}}}]')
    async with node.served({RESOURCE: 1}):
        started = await node.container({RESOURCE: 1})
        assert [one.host_path for one in started.devices] == ["/dev/ttyUSB1"]


@pytest.mark.parametrize(
    ("path", "target", "where"),
    [
        (BY_ID, "../../ttyUSB1", BY_ID),
        (BY_ID, "../../ttyUSB1", "/dev/serial/by-id/usb-1a86*"),
        ("/dev/modem", "ttyUSB1", "/dev/modem"),
        ("/dev/modem", "/dev/ttyUSB1", "/dev/modem"),
    ],
)
async def test_a_link_selects_the_node_that_it_leads_to(
    node: Node, path: str, target: str, where: str
) -> None:
    link(node.root, path, target)
    await selects_the_second(node, where)


@pytest.mark.parametrize(
    "where",
    ["/dev/ports/by-id/usb-1a86*", "/dev/also/by-id/usb-1a86_USB2.0-Serial-if00-port0", "/dev/all/*1"],
)
async def test_a_linked_directory_selects_the_node_like_a_link_to_it(node: Node, where: str) -> None:
    link(node.root, BY_ID, "../../ttyUSB1")
    link(node.root, "/dev/ports", "serial")
    link(node.root, "/dev/also", "/dev/ports")
    link(node.root, "/dev/all", ".")
    await selects_the_second(node, where)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"/dev/modem": "ttyUSB9"}, "/dev/modem leads to /dev/ttyUSB9, which does not exist"),
        (
            {"/dev/modem": "ports/a", "/dev/ports": "/dev/bus"},
            "/dev/modem leads to /dev/bus/a, which does not exist",
        ),
        (
            {"/dev/modem": "b", "/dev/b": "modem"},
            "/dev/modem leads nowhere: its symbolic links form a loop",
        ),
    ],
)
async def test_a_link_that_leads_to_nothing_is_the_reason(
    node: Node, made: dict[str, str], reason: str
) -> None:
    for path, target in made.items():
        link(node.root, path, target)
    node.configure(f"resources: [{{name: {RESOURCE}, backend: udev, where: {{devNode: /dev/modem}}}}]")
    async with node.served():
        await node.until(lambda: status(node.host)["entries"][0]["reason"] == f"0 devices; {reason}")


async def test_a_link_that_leads_to_nothing_is_found_by_the_next_plan_and_not_before(node: Node) -> None:
    node.configure(f"resources: [{{name: {RESOURCE}, backend: udev, where: {{devNode: /dev/modem}}}}]")
    async with node.served():
        await node.until(lambda: status(node.host)["entries"][0]["state"] == "none")
        before = node.host.now()
        link(node.root, "/dev/modem", "ttyUSB9")
        for outcomes in (before.shortages.outcomes, node.host.now().shortages.outcomes):
            assert "leads to" not in outcomes.all()[0].reason
        node.host.replan()
        dead = "0 devices; /dev/modem leads to /dev/ttyUSB9, which does not exist"
        assert node.host.now().shortages.outcomes.all()[0].reason == dead


async def test_a_link_in_the_records_of_udevd_selects_the_node(node: Node) -> None:
    Machine(node.root).udev_record("c188:1", f"S:{BY_ID.removeprefix('/dev/')}")
    node.configure(f"resources: [{{name: {RESOURCE}, backend: udev, where: {{devNode: {BY_ID}}}}}]")
    async with node.served():
        await node.offers({RESOURCE: 1})


async def test_a_link_that_is_almost_right_is_named_in_the_reason(node: Node) -> None:
    link(node.root, BY_ID, "../../ttyUSB1")
    wrong = BY_ID.replace("port0", "port1")
    node.configure(
        f"resources: [{{name: {RESOURCE}, backend: udev, where: {{subsystem: tty, devNode: {wrong}}}}}]"
    )
    async with node.served():
        await node.until(lambda: BY_ID in status(node.host)["entries"][0]["reason"])


def test_a_link_that_is_made_later_counts_at_once(machine: Machine) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    backend = machine.backend(wanted=("devLinks",))
    assert links(backend)["/dev/ttyUSB0"] is None
    link(machine.root, "/dev/modem", "ttyUSB0")
    backend.notice(Event(dev_node="/dev/modem"))
    assert links(backend)["/dev/ttyUSB0"] == ("/dev/modem",)
    (machine.root / "dev/modem").unlink()
    backend.notice(Event(dev_node="/dev/modem"))
    assert links(backend)["/dev/ttyUSB0"] is None


def test_a_link_that_two_disks_claim_belongs_to_the_one_that_it_leads_to(machine: Machine) -> None:
    for number, name in enumerate(("sda", "sdb")):
        machine.disk(f"pci0000:00/0000:00:05.0/block/{name}", f"8:{16 * number}")
        machine.udev_record(f"b8:{16 * number}", "S:disk/by-label/data")
    link(machine.root, "/dev/disk/by-label/data", "../../sdb")
    found = links(machine.backend())
    assert (found["/dev/sda"], found["/dev/sdb"]) == (None, ("/dev/disk/by-label/data",))


def test_links_to_links_and_in_a_circle_do_no_harm(machine: Machine) -> None:
    machine.misc("fuse", 229)
    for path, target in (
        ("a", "b"),
        ("b", "fuse"),
        ("c", "d"),
        ("d", "c"),
        ("e", "../etc/passwd"),
        ("f", "g"),
    ):
        link(machine.root, f"/dev/{path}", target)
    assert links(machine.backend()) == {"/dev/fuse": ("/dev/a", "/dev/b")}


def test_a_node_has_at_most_so_many_links(machine: Machine) -> None:
    machine.misc("fuse", 229)
    for number in range(MAX_LINKS + 1):
        link(machine.root, f"/dev/fuse-{number}", "fuse")
    (found,) = links(machine.backend()).values()
    assert found == tuple(f"/dev/fuse-{number}" for number in range(MAX_LINKS))


def test_a_node_that_only_exists_in_dev_has_links(machine: Machine) -> None:
    machine.node("/dev/net/tun", "c10:200")
    link(machine.root, "/dev/tun", "net/tun")
    assert links(machine.backend()) == {"/dev/net/tun": ("/dev/tun",)}
