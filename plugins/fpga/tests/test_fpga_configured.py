"""What becomes of a configuration on a node with Intel's cards: edits, missing nodes, replugged cards."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_fpga.backend import Fpga
from devhost_testing.kubelet import UnexpectedAdmissionError, events
from devhost_testing.node import Node
from fpga_tree import ARRIA, NLB, OTHER

from devhost.kubelet.api import api_pb2 as pb

NAME = "example.com/fpga"
PORTS = ["/dev/dfl-port.0", "/dev/dfl-port.1"]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Fpga) as made:
        yield made


def made_real(root: Path) -> None:
    """Replaces the files that represent nodes, from which devhost reads their numbers, by real nodes."""
    for uevent in (root / "sys/devices").rglob("uevent"):
        facts = dict(line.split("=", 1) for line in uevent.read_text().splitlines())
        if "DEVNAME" in facts:
            node = root / "dev" / facts["DEVNAME"]
            node.unlink()
            os.mknod(node, 0o020600, os.makedev(int(facts["MAJOR"]), int(facts["MINOR"])))


def entry(where: str, more: str = "") -> str:
    return f"resources: [{{name: {NAME}, backend: fpga, where: {{{where}}}{more and ', '}{more}}}]"


def nodes(started: pb.ContainerAllocateResponse) -> list[str]:
    return sorted(device.host_path for device in started.devices)


async def test_an_edited_entry_holds_for_the_next_container(node: Node) -> None:
    cards.two_ports(node.root)
    node.configure(entry("kind: region"))
    async with node.served({NAME: 1}):
        assert nodes(await node.container({NAME: 1})) == PORTS
        node.configure(entry("kind: region", "development: true"))
        assert await node.reload() == ()
        assert nodes(await node.container({NAME: 1})) == ["/dev/dfl-fme.0", *PORTS]
        node.configure(entry("kind: region", "development: tru"))
        assert "must be true or false" in (await node.reload())[0]
        assert nodes(await node.container({NAME: 1})) == ["/dev/dfl-fme.0", *PORTS]
        node.configure(entry("kind: region"))
        assert await node.reload() == ()
        assert nodes(await node.container({NAME: 1})) == PORTS


async def test_the_kubelet_calls_before_a_container_only_where_an_entry_programs(node: Node) -> None:
    cards.two_ports(node.root)

    def wanted() -> bool:
        told = [one for one in node.kubelet.events if isinstance(one, events.OptionsRead)]
        return bool(told) and told[-1].pre_start_required

    node.configure(entry("kind: region"))
    async with node.served({NAME: 1}):
        assert not wanted()
        node.configure(entry("kind: region", "program: {bitstream: /srv/fpga/crypto.gbs}"))
        assert await node.reload() == ()
        await node.until(wanted)
        node.configure(entry("kind: region"))
        assert await node.reload() == ()
        await node.until(lambda: not wanted())
        await node.offers({NAME: 1})


async def test_a_missing_node_refuses_all_of_a_container_and_no_other(node: Node) -> None:
    cards.two_ports(node.root)
    node.configure(entry("kind: af"))
    async with node.served({NAME: 2}):
        (node.root / "dev/dfl-port.1").unlink()
        with pytest.raises(UnexpectedAdmissionError, match=r"/dev/dfl-port\.1 does not exist"):
            await node.container({NAME: 2})
        node.look("fpga")
        await node.offers({NAME: 1})
        assert nodes(await node.container({NAME: 1})) == PORTS[:1]
        (node.root / "dev/dfl-port.1").touch()
        node.look("fpga")
        await node.offers({NAME: 2})


async def test_a_reinserted_card_keeps_its_ids(node: Node) -> None:
    """The kernel numbers its devices on, and a driver may find the ports in another order."""
    tree = cards.two_ports(node.root)
    node.configure(entry("kind: af"))
    async with node.served({NAME: 2}):
        before = node.devices("fpga").keys()
        tree.remove(f"/{next((node.root / 'sys/devices').rglob('0000:3f:00.0')).relative_to(node.root)}")
        node.look("fpga")
        await node.offers({NAME: 0})
        card = tree.function("0000:3f:00.0", cards.N3000, below="0000:3a:00.0/0000:3b:00.0/0000:3c:09.0")
        container = tree.container(card)
        tree.port(container, 1, OTHER)
        tree.port(container, 0, NLB)
        tree.engine(container, ports=2)
        node.look("fpga")
        await node.offers({NAME: 2})
        assert node.devices("fpga").keys() == before
        assert nodes(await node.container({NAME: 2})) == ["/dev/dfl-port.2", "/dev/dfl-port.3"]


async def test_an_entry_for_both_kinds_offers_regions(node: Node) -> None:
    cards.mixed(node.root)
    node.configure(entry("vendor: intel"))
    async with node.served({NAME: 2}, only=True):
        assert nodes(await node.container({NAME: 2})) == [*PORTS, "/dev/intel-fpga-port.2"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
async def test_nothing_opens_a_device_node(node: Node) -> None:
    """A process that opens a node blocks all others, and can crash the kernel when the card is removed."""
    cards.mixed(node.root)
    made_real(node.root)
    bitstream = "program: {bitstream: /srv/fpga/crypto.gbs}"
    node.configure(
        f"""
resources:
- {{name: {NAME}, backend: fpga, where: {{kind: region, driver: dfl-pci}}, development: true}}
- {{name: example.com/programmed, backend: fpga, where: {{interfaceId: {ARRIA}}}, {bitstream}}}
"""
    )
    with opened_below(node.root / "dev") as opened:
        async with node.served({NAME: 1, "example.com/programmed": 1}):
            await node.container({NAME: 1})
            with pytest.raises(UnexpectedAdmissionError, match="does not exist on the node"):
                await node.container({"example.com/programmed": 1})
            node.look("fpga")
            await node.offers({NAME: 1})
    assert opened == []


_listening: list[tuple[str, list[str]]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        for place, opened in _listening:
            if os.fsdecode(arguments[0]).startswith(f"{place}/"):
                opened.append(os.fsdecode(arguments[0]))


@contextmanager
def opened_below(place: Path) -> Iterator[list[str]]:
    """The files below a directory that this process opens meanwhile, in all of its threads."""
    if not _HOOKED:
        sys.addaudithook(_hear)  # for ever: there is no way to take it back
        _HOOKED.append(True)
    opened: list[str] = []
    _listening.append((os.fspath(place), opened))
    try:
        yield opened
    finally:
        _listening.clear()


_HOOKED: list[bool] = []
