"""Changes without a uevent are noticed: links, RDMA notifications, and polled states."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from descriptors import open_descriptors
from devhost_rdma.netlink import LINK, PORT, Links, RdmaCore
from devhost_rdma.watch import PortWatch
from kit.command import completed
from kit.files import replace
from kit.netlink import Netlink
from kit.waiting import background, until
from rdma_messages import DELLINK, LOWER_UP, NEWLINK, PROMISC, RUNNING, UP, attribute, link, message

from devhost.backend import Event
from devhost.backend import netlink as nl
from devhost.backend.netlink import NetlinkWatcher

DEADLINE = 60.0
NEWADDR = 20
MONITOR = 5 << 10 | 28


# --- which messages matter


@pytest.fixture
def links() -> Links:
    """Links of a machine with one interface that is up."""
    found = Links()
    assert found.events(link(2, name="eth0", operstate=6, carrier=1))
    return found


def test_a_repeated_message_changes_nothing(links: Links) -> None:
    assert not links.events(link(2, name="eth0", operstate=6, carrier=1))


@pytest.mark.parametrize(
    "changed",
    [
        link(2, 0, name="eth0", operstate=2, carrier=0),
        link(2, name="eth0", operstate=2, carrier=1),
        link(2, name="eth0", operstate=6, carrier=0),
        link(2, name="ens1", operstate=6, carrier=1),
        link(2, UP, name="eth0", operstate=6, carrier=1),
    ],
)
def test_a_link_that_goes_down_loses_carrier_or_is_renamed_matters(links: Links, changed: bytes) -> None:
    assert links.events(changed)
    assert not links.events(changed)


def test_statistics_promiscuous_mode_and_queue_lengths_do_not_matter(links: Links) -> None:
    noise = (
        attribute(4, struct.pack("=I", 1400)) + attribute(13, struct.pack("=I", 77)) + attribute(7, bytes(96))
    )
    flags = UP | RUNNING | LOWER_UP | PROMISC
    assert not links.events(link(2, flags, name="eth0", operstate=6, carrier=1, more=noise))


def test_a_wireless_event_without_the_state_does_not_matter(links: Links) -> None:
    assert not links.events(link(2, name="eth0", more=attribute(11, bytes(32))))
    assert not links.events(link(2, name="eth0", operstate=6, carrier=1))


def test_a_link_that_leaves_a_bridge_does_not_count_as_removed(links: Links) -> None:
    assert not links.events(link(2, kind=DELLINK, family=7))
    assert not links.events(link(2, name="eth0", operstate=6, carrier=1))


def test_a_new_or_removed_link_matters(links: Links) -> None:
    assert links.events(link(3, name="eth1"))
    assert links.events(link(3, kind=DELLINK))


def test_lost_messages_make_all_links_unknown(links: Links) -> None:
    links.lost()
    assert links.events(link(2, name="eth0", operstate=6, carrier=1))


def test_one_change_among_many_messages_is_found(links: Links) -> None:
    same = link(2, name="eth0", operstate=6, carrier=1)
    assert links.events(same * 50 + link(2, 0, name="eth0", operstate=2) + same)


def test_other_and_malformed_messages_do_not_matter(links: Links) -> None:
    assert not links.events(link(2, 0, kind=NEWADDR))
    assert not links.events(message(NEWLINK, payload=b"short"))
    assert not links.events(link(9)[:-3])
    assert not links.events(b"")


# --- the event source


class FakeContext:
    """What the core gives a backend. It counts the readings of polled files, and lets them fail."""

    log = logging.getLogger("devhost.backend.rdma")
    wanted = ()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.readings = 0
        self.error: OSError | None = None

    def held(self) -> frozenset[str] | None:
        return None

    async def run_blocking(self, call: Callable[..., object], *args: object, **kwargs: object) -> object:
        self.readings += 1
        if self.error is not None:
            raise self.error
        return await asyncio.to_thread(call, *args, **kwargs)


QUICK: dict[str, Any] = {
    "settle": 0.001,
    "pause": 0.001,
    "repeat": 3600.0,
    "recheck": 0.005,
    "retry": (0.001, 0.002),
}
"""Options of the watcher of netlink."""


class Kernel(Netlink):
    """A kernel with the RDMA core, which has a directory."""

    def __init__(self, core: Path) -> None:
        super().__init__()
        self.core = core
        core.mkdir()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    with contextlib.closing(Kernel(tmp_path / "core")) as found:
        yield found


@dataclass
class Watched:
    """A watch that runs: the events that it reported, in order, and what it reads."""

    events: asyncio.Queue[Event]
    context: FakeContext
    ports: PortWatch

    async def next(self) -> Event:
        async with asyncio.timeout(DEADLINE):
            return await self.events.get()


@contextlib.asynccontextmanager
async def watching(
    kernel: Kernel, root: Path = Path("/"), files: Sequence[str] = (), **times: float
) -> AsyncIterator[Watched]:
    """Runs a watch, from when its sockets are open."""
    context = FakeContext(root)
    watcher: Callable[..., Any] = partial(NetlinkWatcher, subscribe=kernel.subscribe, **QUICK | times)
    core = RdmaCore(str(kernel.core))
    ports = PortWatch(context, core=core, watcher=watcher, poll=0.005, poll_after_failure=0.005)
    ports.follow(files)
    seen = Watched(asyncio.Queue(), context, ports)

    async def follow() -> None:
        async with contextlib.aclosing(ports.events()) as events:
            async for event in events:
                seen.events.put_nowait(event)

    async with background(follow()):
        # the sockets are opened as soon as the task runs for the first time
        await asyncio.sleep(0)
        yield seen


async def test_a_link_that_goes_down_is_an_event(kernel: Kernel) -> None:
    async with watching(kernel) as seen:
        kernel.send(link(2, name="eth0", operstate=6))
        assert await seen.next() == LINK
        kernel.send(link(2, 0, name="eth0", operstate=2))
        assert await seen.next() == LINK


async def test_a_notification_of_the_rdma_core_is_an_event(kernel: Kernel) -> None:
    async with watching(kernel) as seen:
        kernel.send(message(MONITOR, payload=attribute(102, b"\0")), nl.RDMA)
        assert await seen.next() == PORT


async def test_irrelevant_messages_cause_no_event(kernel: Kernel) -> None:
    async with watching(kernel) as seen:
        kernel.send(link(2, name="eth0", operstate=6))
        assert await seen.next() == LINK
        for _ in range(20):
            kernel.send(link(2, name="eth0", operstate=6))
        kernel.send(message(MONITOR, payload=attribute(102, b"\0")), nl.RDMA)
        # the only event after twenty repetitions is that of the other source
        assert await seen.next() == PORT
        assert seen.events.empty()


async def test_hundreds_of_messages_are_few_events(kernel: Kernel) -> None:
    async with watching(kernel, settle=0.2) as seen:
        for round_ in range(3):
            for index in range(100):
                kernel.send(link(index, round_ % 2))
                if index % 8 == 0:
                    await asyncio.sleep(0)  # the loop's turn: a datagram socket holds few messages
        assert await seen.next() == LINK
        while not seen.events.empty():
            seen.events.get_nowait()
        kernel.send(message(MONITOR), nl.RDMA)
        events = [await seen.next()]
        while events[-1] != PORT:
            events.append(await seen.next())
        assert len(events) <= 2


async def test_ports_are_read_once_more_after_a_change(
    kernel: Kernel,
) -> None:
    loop, repeat = asyncio.get_running_loop(), 0.05
    async with watching(kernel, repeat=repeat) as seen:
        sent = loop.time()
        kernel.send(link(2, 0, name="eth0"))
        events = [await seen.next()]
        while loop.time() < sent + repeat:  # on a busy machine both are one
            events.append(await seen.next())
    assert set(events) == {LINK}


async def test_lost_messages_cause_a_full_scan(
    kernel: Kernel,
) -> None:
    async with watching(kernel) as seen:
        kernel.send(link(2, name="eth0"))
        assert await seen.next() == LINK
        kernel.fail(errno.ENOBUFS)
        assert await seen.next() == Event()
        # it listens on, and knows nothing of what it knew
        kernel.send(link(2, name="eth0"))
        assert await seen.next() == LINK
        assert kernel.opened.count((nl.ROUTE, 1, ())) == 1


async def test_a_failed_socket_is_opened_again(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with watching(kernel) as seen:
        kernel.fail(errno.EIO)
        assert await seen.next() == Event()
        await until(lambda: kernel.opened.count((nl.ROUTE, 1, ())) == 2)
        kernel.send(link(2, name="eth0"))
        assert await seen.next() == LINK
    assert caplog.messages == [
        "listening to link changes failed: Input/output error",
        "listening to link changes again",
    ]


async def test_a_refused_socket_is_logged_once_and_retried_while_the_other_works(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.refuses[nl.ROUTE] = 1000
    async with watching(kernel) as seen:
        await until(lambda: kernel.opened.count((nl.ROUTE, 1, ())) >= 3)
        kernel.send(message(MONITOR), nl.RDMA)
        assert await seen.next() == PORT
    assert caplog.messages == [
        "cannot listen to link changes (Operation not permitted): changes are seen at the resync"
    ]


async def test_the_rdma_core_is_watched_once_it_is_loaded_and_never_loaded_by_devhost(kernel: Kernel) -> None:
    kernel.core.rmdir()
    async with watching(kernel) as seen:
        assert kernel.opened == [(nl.ROUTE, 1, ())]
        kernel.core.mkdir()
        await until(lambda: (nl.RDMA, 8, ()) in kernel.opened)
        kernel.send(message(MONITOR), nl.RDMA)
        assert await seen.next() == PORT


async def test_a_recorded_tree_opens_no_netlink_socket(
    kernel: Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with watching(kernel, tmp_path) as seen:
        assert seen.events.empty()
    assert kernel.opened == []
    assert caplog.messages == [f"{tmp_path} is a recorded tree: link changes are not watched"]


def state_file(root: Path, device: str, state: str) -> str:
    """Changes a port's state in one step, as the kernel does; gives the path as the kernel has it."""
    path = f"/sys/class/infiniband/{device}/ports/1/state"
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, f"{state}\n")
    return path


async def test_a_polled_state_that_changes_is_an_event(kernel: Kernel, tmp_path: Path) -> None:
    path = state_file(tmp_path, "mlx5_0", "4: ACTIVE")
    async with watching(kernel, tmp_path, [path]) as seen:
        await until(lambda: seen.context.readings >= 3)
        assert seen.events.empty()
        state_file(tmp_path, "mlx5_0", "1: DOWN")
        assert await seen.next() == PORT
        (tmp_path / path.lstrip("/")).unlink()
        assert await seen.next() == PORT


async def test_a_newly_polled_port_causes_no_event(kernel: Kernel, tmp_path: Path) -> None:
    one = state_file(tmp_path, "mlx5_0", "4: ACTIVE")
    async with watching(kernel, tmp_path, [one]) as seen:
        await until(lambda: seen.context.readings >= 2)
        seen.ports.follow([one, state_file(tmp_path, "mlx5_1", "4: ACTIVE")])
        await until(lambda: seen.context.readings >= 5)
        assert seen.events.empty()


async def test_a_failed_reading_is_logged_once_and_retried(
    kernel: Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = state_file(tmp_path, "mlx5_0", "4: ACTIVE")
    async with watching(kernel, files=[path]) as seen:
        seen.context.error = OSError(errno.EIO, "Input/output error")
        await until(lambda: seen.context.readings >= 3)
        kernel.send(link(2, name="eth0"))
        assert await seen.next() == LINK
        seen.context.error = None
        await until(lambda: len(caplog.records) == 2)
    assert caplog.messages == [
        "cannot read the state of RDMA ports: [Errno 5] Input/output error",
        "the state of RDMA ports can be read again",
    ]


async def test_nothing_stays_open_after_the_end(kernel: Kernel) -> None:
    before = open_descriptors()
    async with watching(kernel):
        assert open_descriptors() - before
    kernel.close()
    assert open_descriptors() <= before


# --- a real kernel, in separate network namespaces

REAL = """
import asyncio, fcntl, logging, socket, struct, sys
from pathlib import Path
from devhost_rdma.netlink import LINK
from devhost_rdma.watch import PortWatch

class Context:
    log, root, wanted = logging.getLogger("rdma"), Path("/"), ()

def loopback(up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh22x", b"lo", int(up))
        fcntl.ioctl(any_socket, 0x8914, asked)  # SIOCSIFFLAGS

async def main():
    events = PortWatch(Context()).events()
    async with asyncio.timeout(60):
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        for up in (True, False, True):
            loopback(up)
            assert await waiting == LINK
            waiting = asyncio.ensure_future(anext(events))
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await events.aclose()
    print("watched, without pyroute2:", "pyroute2" not in sys.modules)

asyncio.run(main())
"""


def in_namespace(*flags: str) -> subprocess.CompletedProcess[str]:
    """Runs :data:`REAL` in a separate network namespace; skips if that is not possible."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare (util-linux) is not installed")
    if subprocess.run([unshare, *flags, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"unshare {' '.join(flags)} is not allowed here")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return completed(unshare, *flags, sys.executable, "-c", REAL, env=environment)


def test_a_real_kernel_is_watched_without_privileges() -> None:
    done = in_namespace("-Urn")
    assert (done.stdout, done.stderr) == ("watched, without pyroute2: True\n", "")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_a_real_kernel_is_watched_as_root() -> None:
    done = in_namespace("-n")
    assert (done.stdout, done.stderr) == ("watched, without pyroute2: True\n", "")
