"""Hostile peers of a plugin socket: many connections, silent ones, and undecodable requests."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from conformance_node import TOY, TOY_LINE, WAIT
from devhost_testing.kubelet import events as ev
from kit.waiting import until

from devhost.kubelet.api import api_pb2 as pb
from devhost.kubelet.server import CONNECTIONS, STREAMS

pytestmark = pytest.mark.parametrize("kubelet", ["1.37"], indirect=True)

METHODS = (
    "GetDevicePluginOptions",
    "ListAndWatch",
    "GetPreferredAllocation",
    "Allocate",
    "PreStartContainer",
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client of HTTP/2 begins with, and its empty settings (RFC 9113, section 3.4)."""

NO_MESSAGE = b"\x0a\xff"
"""A field of 255 bytes or more, of which none follows."""


def descriptors() -> int:
    """Open descriptors of this process, which has both ends of each connection."""
    return len(os.listdir("/proc/self/fd"))


class Peers:
    """Connections of a hostile peer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sockets: list[socket.socket] = []

    async def connect(self, count: int, data: bytes = b"") -> None:
        """Opens so many connections and sends the same bytes on each."""
        for number in range(count):
            one = socket.socket(socket.AF_UNIX)
            one.connect(str(self.path))
            one.setblocking(False)
            self.sockets.append(one)
            if data:
                with suppress(BrokenPipeError):  # it was closed at once
                    one.send(data)
            if number % 20 == 0:
                await asyncio.sleep(0.01)

    def alive(self) -> int:
        """How many of them are still open."""
        return sum(map(_is_open, self.sockets))

    async def until_alive(self, most: int) -> None:
        """Waits until at most so many are open."""
        await until(lambda: self.alive() <= most)


def _is_open(one: socket.socket) -> bool:
    try:
        while one.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@asynccontextmanager
async def peers_of(host) -> AsyncIterator[Peers]:
    peers = Peers(host.services[TOY].registration.server.path)
    try:
        yield peers
    finally:
        for one in peers.sockets:
            one.close()


async def raw(host, method: str, data: bytes) -> grpc.aio.AioRpcError:
    """The error of a call with these bytes as request."""
    path = host.services[TOY].registration.server.path
    async with grpc.aio.insecure_channel(
        f"unix:{path}",
        options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)),
    ) as channel:
        name = f"/v1beta1.DevicePlugin/{method}"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            if method == "ListAndWatch":
                async for _ in channel.unary_stream(name)(data, timeout=WAIT):
                    pass
            else:
                await channel.unary_unary(name)(data, timeout=WAIT, wait_for_ready=True)
        return failed.value


async def serves_on(kubelet) -> None:
    """Checks that the kubelet's connection and stream are still the first ones and work."""
    assert len((await kubelet.admit("pod", "main", TOY, 1)).device_ids) == 1
    assert len(kubelet.events.of(ev.Registered, TOY)) == 1
    assert not kubelet.events.of(ev.StreamEnded)


@pytest.mark.parametrize("method", METHODS)
async def test_undecodable_requests_are_logged_once_and_refused_with_a_reason(rig, kubelet, caplog, method):
    """gRPC for Python logs a traceback for each of them and answers INTERNAL."""
    rig.write(TOY_LINE)
    with caplog.at_level(logging.INFO):
        async with rig.running(allocatable={TOY: 2}) as host:
            for _ in range(25):
                error = await raw(host, method, NO_MESSAGE)
            await serves_on(kubelet)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{TOY} {method}: the request is not a v1beta1.")
    (record,) = [one for one in caplog.records if one.getMessage() == "request cannot be decoded"]
    assert (record.fields["resource"], record.fields["method"]) == (TOY, method)
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000, b"\x16\x03\x01" * 100, PREFACE + b"\xff" * 400],
    ids=["http1", "zeros", "tls", "frames"],
)
async def test_bytes_that_are_not_http_2_close_the_connection_and_log_nothing(
    rig, kubelet, caplog, capfd, data
):
    rig.write(TOY_LINE)
    with caplog.at_level(logging.INFO):
        async with rig.running(allocatable={TOY: 2}) as host:
            logged = len(caplog.records)
            async with peers_of(host) as peers:
                for _ in range(10):
                    await peers.connect(5, data)
                    await peers.until_alive(0)
            messages = {record.getMessage() for record in caplog.records[logged:]}
            assert messages <= {"registered"}  # which may follow the list that the kubelet has
            await serves_on(kubelet)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_thousand_connections_use_descriptors_for_sixteen_and_do_not_affect_the_kubelet(rig, kubelet):
    rig.hurry(handshake=2 * WAIT, idle=2 * WAIT)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        before = descriptors()
        async with peers_of(host) as peers:
            for _ in range(10):
                await peers.connect(100)
                await peers.until_alive(CONNECTIONS)
                for one in [one for one in peers.sockets if not _is_open(one)]:
                    one.close()
                    peers.sockets.remove(one)
            assert peers.alive(), "those within the limit may still begin"
            assert descriptors() - before <= 2 * CONNECTIONS, "their end and ours"
            await serves_on(kubelet)


@pytest.mark.parametrize("data", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a preface", "no call"])
async def test_silent_connections_are_closed_except_the_kubelets(rig, kubelet, dial, data):
    rig.hurry(handshake=2.0, idle=2.0)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        async with peers_of(host) as peers:
            await peers.connect(CONNECTIONS * 2, data)
            await peers.until_alive(0)
            async with dial(host, TOY) as stub:
                await stub.GetDevicePluginOptions(pb.Empty(), timeout=WAIT)
        await serves_on(kubelet)  # although it has been silent for longer, with its stream open


async def test_endless_calls_on_one_connection_are_bounded_and_do_not_affect_the_kubelet(rig, kubelet, dial):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        registration = host.services[TOY].registration
        async with dial(host, TOY) as stub:
            calls = [stub.ListAndWatch(pb.Empty()) for _ in range(3 * STREAMS)]
            await rig.until(lambda: registration.streams == 1 + STREAMS)
            await serves_on(kubelet)
            assert registration.streams == 1 + STREAMS
            for call in calls:
                call.cancel()
        await rig.until(lambda: registration.streams == 1)
