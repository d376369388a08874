"""The liveness probe calls devhost's own sockets and does not affect them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from kit.clock import FakeClock
from kit.waiting import background, until

from devhost.kubelet.self_check import MOST, SelfCheck
from devhost.kubelet.server import CONNECTIONS
from devhost.planning.timing import KubeletTiming
from devhost.runtime.http import probe

TOY, OTHER = "example.com/toy", "example.com/other"


@contextmanager
def put_in_place(path: Path, *, listening: bool):
    """Replaces a socket with one that accepts connections and never answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        aside = path.with_name("aside")
        mute.bind(str(aside))
        if listening:
            mute.listen()
        aside.rename(path)
        yield


@asynccontextmanager
async def checking(*args, **options):
    """A running self-check; its clock does not move unless another one is given."""
    check = SelfCheck(*args, **{"clock": FakeClock(), **options})
    async with background(check.run()):
        yield check


class Sockets:
    """Many sockets, of which those named in ``mute`` do not answer; keeps which ones are asked."""

    def __init__(self, count):
        self.paths = {f"a.b/{n:03}": Path(f"/{n:03}") for n in range(count)}
        self.asked, self.mute, self.gate = [], set(), asyncio.Event()
        self.gate.set()

    async def ask(self, path, deadline):
        self.asked.append(path.name)
        await self.gate.wait()
        return "silent" if path.name in self.mute else ""

    def checking(self, **options):
        return checking(lambda: self.paths, ask=self.ask, **options)


@pytest.fixture
async def host(rig, kubelet):
    rig.write(f"name: {TOY}, backend: toy", f"name: {OTHER}, backend: other")
    async with rig.running(allocatable={TOY: 2, OTHER: 1}) as host:
        await rig.until(lambda: all(registered == 1 for _, registered in standing(host).values()))
        yield host


def standing(host):
    return {
        name: (service.registration.streams, service.registration.condition.registrations)
        for name, service in host.services.items()
    }


async def test_working_sockets_answer_and_are_not_affected(host):
    before, files = standing(host), host.services.sockets()
    async with checking(host.services.sockets, timing=KubeletTiming(result_holds=0.0)) as sockets:
        for _ in range(20):
            assert await sockets.answer() == (True, "")
    assert (standing(host), host.services.sockets()) == (before, files)
    assert files.keys() == {TOY, OTHER}


@pytest.mark.parametrize(
    ("listening", "reason"), [(True, "no answer within 0.2 s"), (False, "no process listens on it")]
)
async def test_a_socket_that_was_replaced_is_named_and_fails_the_probe(host, listening, reason):
    with put_in_place(host.services.sockets()[TOY], listening=listening):
        async with checking(
            lambda: {TOY: host.services.sockets()[TOY]}, timing=KubeletTiming(self_check=0.2)
        ) as sockets:
            answer = await probe(sockets.answer)()
        failure = f"own socket does not answer: {TOY} ({reason})\n"
        assert (answer.status, answer.body.decode()) == (503, failure)
        async with checking(lambda: {OTHER: host.services.sockets()[OTHER]}) as others:
            assert await others.answer() == (True, "")
        assert standing(host)[TOY][0] == 1


async def test_a_registration_that_was_replaced_during_the_check_is_no_failure(host, tmp_path):
    answers = iter([{TOY: tmp_path / "old"}, {TOY: host.services.sockets()[TOY]}])
    async with checking(lambda: next(answers)) as sockets:
        assert await sockets.answer() == (True, "")


async def test_while_a_look_at_the_sockets_hangs_none_is_asked_and_no_other_look_begins():
    """gRPC would lose a thread to each connection whose path hangs."""
    sockets, looks, hung = Sockets(3), [], threading.Event()

    def look(paths):
        looks.append(paths)
        hung.wait()

    try:
        timing = KubeletTiming(self_check=0.01, result_holds=0.0)
        async with sockets.checking(timing=timing, look=look) as check:
            for _ in range(3):
                ok, reason = await check.answer()
                assert not ok and "a.b/000 (no answer within 0.01 s)" in reason
            assert (len(looks), sockets.asked) == (1, [])
    finally:
        hung.set()


async def test_sockets_are_looked_at_and_asked_again_once_a_look_at_them_has_ended():
    sockets, looks, hung = Sockets(3), [], threading.Event()

    def look(paths):
        looks.append(paths)
        hung.wait()

    timing = KubeletTiming(self_check=0.01, result_holds=0.0)
    async with sockets.checking(timing=timing, look=look) as check:
        assert not (await check.answer())[0]
        hung.set()
        async with asyncio.timeout(60):
            while not (await check.answer())[0] or len(looks) == 1:
                pass
    assert set(sockets.asked) == {"000", "001", "002"}


async def test_a_resource_that_is_not_registered_is_not_asked(rig):
    rig.write("name: example.com/none, backend: toy, where: {model: none}", f"name: {TOY}, backend: toy")
    async with rig.running() as host:
        await rig.until(lambda: TOY in host.services)
        assert host.services.sockets() == {}
        assert await host.self_check.answer() == (True, "")


async def test_of_many_sockets_each_is_asked_in_turn_and_a_silent_one_every_time():
    sockets, rounds = Sockets(100), []
    sockets.mute = {"007"}
    async with sockets.checking(timing=KubeletTiming(result_holds=0.0)) as check:
        for _ in range(8):
            sockets.asked.clear()
            ok, _reason = await check.answer()
            rounds.append((ok, list(sockets.asked)))
    assert max(len(asked) for _, asked in rounds) <= MOST
    assert {name for _, asked in rounds for name in asked} == {path.name for path in sockets.paths.values()}
    assert [ok for ok, _ in rounds] == [False] * 8


async def test_callers_at_one_time_or_soon_after_each_other_share_a_verdict():
    clock, sockets = FakeClock(), Sockets(3)
    sockets.gate.clear()
    async with sockets.checking(clock=clock) as check:
        asking = [asyncio.ensure_future(check.answer()) for _ in range(50)]
        await until(lambda: sockets.asked)
        asking[0].cancel()  # its client has left: the others still get their answer
        sockets.gate.set()
        assert await asyncio.gather(*asking[1:]) == [(True, "")] * 49
        await check.answer()
        assert len(sockets.asked) == 3
        await clock.advance(1.0)
        await check.answer()
        assert len(sockets.asked) == 6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
async def test_hundreds_of_probes_leave_no_memory_and_no_descriptors_behind(host):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async with checking(host.services.sockets, timing=KubeletTiming(result_holds=0.0)) as sockets:
        for _ in range(100):
            await sockets.answer()
        memory, descriptors = resident(), len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            await sockets.answer()
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 8
        assert resident() - memory < 8 << 20


async def test_a_silent_socket_is_asked_again_until_it_answers_however_many_callers_there_are():
    clock, sockets, failures = FakeClock(), Sockets(1), []
    sockets.mute = {"000"}
    again = KubeletTiming(result_holds=0.0, self_check_again=10.0)
    async with sockets.checking(
        changed=lambda: failures.append(check.failures.reason), timing=again, clock=clock
    ) as check:
        for _ in range(10):
            assert not (await check.answer())[0]
        assert len(sockets.asked) == 10
        await clock.advance(9.9)
        assert len(sockets.asked) == 10
        await clock.advance(0.1)
        await until(lambda: len(sockets.asked) == 11)  # a thread has looked at it before
        sockets.mute.clear()
        await clock.advance(10.0)
        await until(lambda: len(sockets.asked) == 12)
        await clock.advance(100.0)
        assert len(sockets.asked) == 12
    assert failures == ["own socket does not answer: a.b/000 (silent)", ""]


async def test_a_socket_whose_connections_are_all_in_use_is_no_failure(host):
    """gRPC closes the seventeenth connection at once, as if no process listened."""
    path = host.services.sockets()[TOY]
    before = standing(host)
    with ExitStack() as open_:
        for _ in range(2 * CONNECTIONS):
            peer = open_.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            await asyncio.to_thread(peer.connect, str(path))
        async with checking(lambda: {TOY: path}) as sockets:
            answer = await probe(sockets.answer)()
        assert (answer.status, answer.body) == (200, b"ok\n")
    assert standing(host) == before


async def test_a_socket_of_another_process_fails_the_probe(host):
    code = (
        "import socket, sys\n"
        "own = socket.socket(socket.AF_UNIX); own.bind(sys.argv[1]); own.listen()\n"
        "print('listens', flush=True)\n"
        "while True: own.accept()[0].close()\n"
    )
    path = host.services.sockets()[TOY]
    aside = path.with_name("aside")
    command = [sys.executable, "-c", code, str(aside)]
    other = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert await other.stdout.readline() == b"listens\n"
        aside.rename(path)
        async with checking(lambda: {TOY: path}) as sockets:
            ok, reason = await sockets.answer()
    finally:
        other.kill()
        await other.wait()
    assert (ok, reason) == (False, f"own socket does not answer: {TOY} (another process listens on it)")
