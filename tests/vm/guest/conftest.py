"""Runs inside the machine that ``make vm`` boots; elsewhere everything here skips."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from lab import dfl, kernel
from lab.hotplug import Slots
from lab.kernel import Messages, Udevd
from lab.links import Links
from lab.node import Node
from lab.record import Record

SWITCH = "DEVHOST_VM"
ENDED = Path("/out/ended")
"""In the machine: which tests have ended, also before it crashed."""

TIMEOUT = 600
"""Seconds for one test."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vm: needs the virtual machine (make vm, as root)")
    if os.environ.get(SWITCH) == "1" and ENDED.parent.exists():
        config.pluginmanager.register(Record(ENDED))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.vm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT))
            if os.environ.get(SWITCH) != "1":
                item.add_marker(pytest.mark.skip(reason="needs a virtual machine (run make vm)"))


@pytest.fixture(autouse=True)
def calm_kernel() -> Iterator[Messages]:
    """The kernel has nothing to complain of during a test."""
    messages = Messages()
    try:
        yield messages
        assert messages.complaints() == []
    finally:
        messages.close()


@pytest.fixture
async def slots() -> AsyncIterator[Slots]:
    """Plugs PCI devices; they are gone after the test."""
    async with Slots() as slots:
        yield slots


@pytest.fixture
async def card(slots: Slots) -> dfl.Card:
    """An FPGA card with two ports, with all its drivers and two functions; it goes with ``slots``."""
    dfl.load()
    card = dfl.Card(slots, functions=(dfl.FUNCTION, dfl.OTHER_FUNCTION))
    await card.plug()
    await card.ready()
    return card


@pytest.fixture
def links() -> Iterator[Links]:
    """Makes network links, RDMA devices and namespaces; they are gone after the test."""
    with Links() as links:
        yield links
    kernel.settle()


@pytest.fixture
def udevd() -> Iterator[Udevd]:
    """The device daemon; it runs again after the test."""
    udevd = Udevd()
    yield udevd
    if not Path("/run/udev/control").exists():
        udevd.start()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A kubelet; ``node.serve(…)`` starts devhost. Both have ended after the test."""
    async with Node(tmp_path) as node:
        yield node
