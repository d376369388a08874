"""Changes of the kubelet's directory while a host runs, and the kubelet's answers to Register."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from devhost_testing.kubelet import KubeletSimulator
from devhost_testing.kubelet.faults import Gate, Point

from devhost.backend.errors import MAX_REASON
from devhost.host.shown.problems import problems
from devhost.kubelet.api import KUBELET_SOCKET
from devhost.kubelet.api import api_pb2 as pb
from devhost.kubelet.kubelet_socket import NOT_A_DIRECTORY
from devhost.kubelet.registration import RegistrationState
from devhost.kubelet.server import SOCKET_PREFIX, PluginServer
from devhost.telemetry.metrics import Metrics

TOY = "example.com/toy"
LINE = f"name: {TOY}, backend: toy"


@pytest.fixture
def hurried(rig):
    """Polls and tries again a hundred times as often as on a node."""
    rig.hurry(poll=0.05, back_off=(0.05, 0.05), refused=(0.05, 0.05))


def standing(host):
    return host.services[TOY].registration.condition


def own_sockets(directory):
    return sorted(path.name for path in directory.glob(f"{SOCKET_PREFIX}*"))


async def served(kubelet, count=2):
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == count)


async def test_a_socket_that_cannot_be_removed_is_removed_later_without_a_traceback(
    rig, kubelet, hurried, monkeypatch, caplog
):
    def refuse(self, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    async with rig.running(LINE) as host:
        await served(kubelet)
        behind = host.services[TOY].registration.server.path
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refuse)
            kubelet.kill_stream(TOY)
            await rig.until(lambda: standing(host).registrations == 2)
            behind.touch()  # as if it had stayed: gRPC removes it, too, if it can
            await served(kubelet)

        def cleared():
            kubelet.kill_stream(TOY)  # each time: there may be no stream at the moment
            return not behind.exists()

        await rig.until(cleared)  # a registration removes the sockets of earlier ones
        await rig.until(lambda: len(own_sockets(rig.kubelet_dir)) == 1)
        await served(kubelet)
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_file_in_place_of_the_directory_is_reported_and_the_host_recovers(rig, hurried, caplog):
    kubelet = KubeletSimulator(rig.kubelet_dir, pod_resources=rig.pod_resources)
    await kubelet.start()
    async with rig.running(LINE) as host:
        await served(kubelet)
        await kubelet.stop(crash=True)
        aside = rig.kubelet_dir.with_name("aside")
        rig.kubelet_dir.rename(aside)
        rig.kubelet_dir.touch()
        await rig.until(lambda: host.kubelet.failure == NOT_A_DIRECTORY)
        await rig.until(lambda: standing(host).state is RegistrationState.WAITING)
        rig.kubelet_dir.unlink()
        await kubelet.start()
        await served(kubelet)
    await kubelet.stop()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("place", "cause"), [("file", "Not a directory"), ("none", "No such file or directory")]
)
async def test_a_socket_that_cannot_be_made_is_reported_with_cause_and_fix(
    rig, kubelet, tmp_path, place, cause
):
    (tmp_path / "file").touch()
    async with rig.running(LINE) as host:
        await served(kubelet)
        server = PluginServer(host.services[TOY].allocator, tmp_path / place, Metrics(), lambda: None)
        with pytest.raises(
            Exception, match=f"^cannot make a socket in .*/{place}: {cause} \\(run devhost as root"
        ):
            await server.start()
        await server.stop()


async def test_a_directory_without_write_access_is_reported_until_it_is_writable(
    rig, kubelet, hurried, monkeypatch
):
    def closed(self, address):
        raise RuntimeError("Failed to bind to address")

    def read_only(self, address):
        raise OSError(errno.EROFS, "Read-only file system")

    async with rig.running(LINE) as host:
        await served(kubelet)
        with monkeypatch.context() as patched:
            patched.setattr(type(grpc.aio.server()), "add_insecure_port", closed)
            patched.setattr(socket.socket, "bind", read_only)
            kubelet.kill_stream(TOY)
            message = f"cannot make a socket in {rig.kubelet_dir}: Read-only file system (run devhost as root"
            await rig.until(lambda: message in standing(host).error)
            await rig.until(lambda: message in host.ready()[1])
            assert [message in problem.reason for problem in problems(host.now()).shown] == [True]
        await served(kubelet)
        await rig.until(lambda: standing(host).error == "")


async def test_a_kubelet_that_is_slow_to_answer_is_the_reason_at_once(rig, kubelet, hurried, caplog):
    rig.hurry(unanswered=0.2)
    async with rig.running(LINE) as host:
        await served(kubelet)
        await rig.until(lambda: standing(host).registrations == 1)
        caplog.clear()  # on a busy machine this registration may have been slow, too
        gate = Gate()
        kubelet.faults.inject(Point.REGISTER, gate.wait)
        kubelet.kill_stream(TOY)
        message = "the kubelet has not answered Register within 0.2 s"
        await rig.until(lambda: standing(host).error == message)
        assert standing(host).state is RegistrationState.REGISTERING
        assert host.ready() == (False, f"no list stream yet: {TOY} (registering: {message})")
        assert [problem.reason for problem in problems(host.now()).shown] == [message]
        gate.open()
        await rig.until(lambda: standing(host).error == "")
        await served(kubelet)
    logged = [record for record in caplog.records if getattr(record, "fields", {}).get("reason") == message]
    assert len(logged) <= 1


@asynccontextmanager
async def answering(directory, code, details):
    """A kubelet with this answer to Register; without a code, it does not serve it."""

    async def register(_request, context):
        await context.abort(code, details)

    server = grpc.aio.server()
    if code is not None:
        method = grpc.unary_unary_rpc_method_handler(
            register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": method}),)
        )
    server.add_insecure_port(f"unix:{directory / KUBELET_SOCKET}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_a_kubelet_that_disconnects_during_register_is_the_reason(rig, hurried):
    rig.write(LINE)

    async def hang_up(_reader, writer):
        writer.close()

    server = await asyncio.start_unix_server(hang_up, rig.kubelet_dir / KUBELET_SOCKET)
    async with server, rig.running() as host:
        await rig.until(lambda: TOY in host.services)
        begins = ("the kubelet disconnected during Register:", "no process answers on the kubelet's socket:")
        await rig.until(lambda: standing(host).error.startswith(begins))


@pytest.mark.parametrize(
    ("code", "details", "message"),
    [
        (None, "", "the kubelet does not serve Register of v1beta1: Method not found!"),
        (grpc.StatusCode.UNKNOWN, "disk\nis  full", "the kubelet did not register it: disk is full"),
        (
            grpc.StatusCode.UNKNOWN,
            "x" * (MAX_REASON + 1),
            f"the kubelet did not register it: {'x' * (MAX_REASON - 1)}…",
        ),
        (grpc.StatusCode.INVALID_ARGUMENT, "bad name", "the kubelet did not register it: bad name"),
        (grpc.StatusCode.INTERNAL, "", "the kubelet did not register it: it gave no reason (INTERNAL)"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "not ready: error: checkpoint",
            "the kubelet did not register it: not ready: error: checkpoint",
        ),
    ],
)
async def test_a_refusal_of_register_is_shown_with_the_kubelets_message(rig, hurried, code, details, message):
    rig.write(LINE)
    async with answering(rig.kubelet_dir, code, details), rig.running() as host:
        await rig.until(lambda: TOY in host.services)
        await rig.until(lambda: standing(host).error == message)
