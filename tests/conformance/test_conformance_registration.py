"""Registration: what a kubelet must find when devhost registers for the first time."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from dataclasses import replace

import grpc.aio
import pytest
from conformance_node import OTHER, OTHER_LINE, TOY, TOY_LINE, WAIT
from devhost_testing.api import api_pb2_grpc
from devhost_testing.kubelet import Point, fail, hang
from devhost_testing.kubelet import events as ev
from scraped_series import value
from status_values import status

from devhost.backend.errors import ConfigError
from devhost.kubelet import registration
from devhost.kubelet.api import api_pb2 as pb
from devhost.kubelet.kubelet_socket import NO_DIRECTORY
from devhost.kubelet.server import socket_name
from devhost.planning.timing import KUBELET as NODE
from devhost.telemetry.metrics import Metrics


@pytest.mark.conformance(1)
@pytest.mark.field_failure("F1")
async def test_the_socket_is_served_before_register_is_sent(rig, kubelet):
    accepted: list[bool] = []

    def look(event: ev.Event) -> None:
        if isinstance(event, ev.RegisterReceived):
            with socket.socket(socket.AF_UNIX) as probe:
                accepted.append(probe.connect_ex(str(kubelet.directory / event.endpoint)) == 0)

    kubelet.events.listen(look)
    async with rig.running(TOY_LINE, OTHER_LINE):
        await rig.offers({TOY: 2, OTHER: 1})
    assert accepted == [True, True]
    assert not kubelet.events.of(ev.RegisterRefused)


@pytest.mark.conformance(2)
@pytest.mark.parametrize("prepares", [False, True])
async def test_register_has_version_socket_resource_and_the_servers_options(rig, kubelet, prepares):
    if prepares:
        rig.classes["toy"].prepare = lambda self, request: None
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        path = host.services[TOY].registration.server.path
    (sent,) = kubelet.events.of(ev.RegisterReceived)
    (answered,) = kubelet.events.of(ev.OptionsRead)
    assert (sent.version, sent.endpoint, sent.resource) == ("v1beta1", path.name, TOY)
    assert (sent.pre_start_required, sent.preferred_allocation) == (prepares, True)
    assert (answered.pre_start_required, answered.preferred_allocation) == (prepares, True)


@pytest.mark.conformance(3)
async def test_the_options_are_answered_while_register_is_pending(rig, kubelet, dial):
    go_on = asyncio.Event()
    kubelet.faults.inject(Point.REGISTER, go_on.wait)
    async with rig.running(TOY_LINE) as host:
        await kubelet.wait_for(lambda: kubelet.events.of(ev.RegisterReceived), WAIT)
        async with dial(host, TOY) as stub:
            options = await stub.GetDevicePluginOptions(pb.Empty(), timeout=WAIT)
        assert options.get_preferred_allocation_available
        assert host.services[TOY].registration.condition.state == registration.RegistrationState.REGISTERING
        go_on.set()
        await rig.offers({TOY: 2})


@pytest.mark.conformance(4)
@pytest.mark.field_failure("F10")
async def test_a_refused_registration_is_shown_counted_and_tried_again(rig, kubelet, hurried):
    refusal = 'requested API version "v1beta1" is not supported by kubelet. Supported version is "v2"'
    kubelet.faults.inject(Point.REGISTER, fail(refusal), TOY, times=None)
    metrics = Metrics()
    async with rig.running(TOY_LINE, OTHER_LINE, metrics=metrics) as host:
        await kubelet.wait_for(lambda: len(kubelet.events.of(ev.RegisterRefused, TOY)) >= 3, WAIT)
        await rig.offers({OTHER: 1})
        shown = {resource["name"]: resource for resource in status(host)["resources"]}
        assert refusal in shown[TOY]["lastError"]
        assert shown[OTHER]["lastError"] == ""
        failures = "devhost_registration_failures_total"
        await rig.until(lambda: (value(metrics, failures, resource=TOY) or 0) >= 3, WAIT)
        assert value(metrics, failures, resource=OTHER) == 0
        kubelet.faults.clear()
        await rig.offers({TOY: 2, OTHER: 1})
    assert len(kubelet.events.of(ev.Registered, OTHER)) == 1


@pytest.mark.conformance(5, 12)
async def test_devhost_waits_for_a_kubelet_and_does_not_create_its_directory(rig, kubelet):
    await kubelet.stop()
    for path in rig.kubelet_dir.iterdir():
        path.unlink()
    rig.kubelet_dir.rmdir()
    async with rig.running(TOY_LINE) as host:
        await rig.until(lambda: TOY in host.services, WAIT)
        assert host.ready() == (False, f"no list stream yet: example.com/toy (waiting: {NO_DIRECTORY})")
        assert not rig.kubelet_dir.exists()
        await kubelet.start()
        await rig.offers({TOY: 2})
        await rig.until(lambda: host.ready() == (True, ""), WAIT)  # once Register is answered
        assert stat.S_IMODE(rig.kubelet_dir.stat().st_mode) & 0o027 == 0
    assert len(kubelet.events.of(ev.Registered)) == 1


@pytest.mark.conformance(6)
async def test_a_kubelet_socket_without_a_listener_is_tried_again(rig, kubelet):
    await kubelet.stop(crash=True)
    async with rig.running(TOY_LINE) as host:
        await rig.until(lambda: TOY in host.services, WAIT)
        toy = host.services[TOY].registration
        await rig.until(lambda: toy.condition.error == f"no process listens on {kubelet.socket}", WAIT)
        await kubelet.start()
        await rig.offers({TOY: 2})
        # the list may come before the answer to Register
        await rig.until(lambda: toy.condition.error == "", WAIT)


@pytest.mark.conformance(7)
async def test_an_unanswered_register_ends_at_its_deadline_and_leaks_no_task(rig, kubelet, hurried):
    assert NODE.register > 10, "the kubelet itself may take ten seconds to dial back"
    rig.hurry(register=0.3)
    kubelet.faults.inject(Point.REGISTER, hang, times=2)
    before = asyncio.all_tasks()
    async with rig.running(TOY_LINE) as host:
        await rig.until(lambda: TOY in host.services, WAIT)
        toy = host.services[TOY].registration
        await rig.until(lambda: "has not answered Register within 0.3 s" in toy.condition.error, WAIT)
        await rig.offers({TOY: 2})
        # the list may come before the answer to Register
        await rig.until(lambda: toy.condition.error == "", WAIT)
    await kubelet.stop()
    await rig.until(lambda: not asyncio.all_tasks() - before)


NAMES = {
    "example.com/toy": True,
    "example.com/Toy_1.x": True,
    f"example.com/{'n' * 63}": True,
    "toy": False,
    "kubernetes.io/toy": False,
    "x.kubernetes.io/toy": False,
    "requests.example.com/toy": False,
    f"example.com/{'n' * 64}": False,
    "Example.com/toy": False,
    "example.com/toy/1": False,
    "example.com/-toy": False,
    f"{'d' * 245}/toy": False,
}


@pytest.mark.conformance(8)
@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_refused_by_the_config_exactly_when_the_kubelet_refuses_it(rig, kubelet, name):
    rig.write(f"name: '{name}', backend: toy")
    try:
        rig.load()
        taken = True
    except ConfigError:
        taken = False
    # A server without methods: a kubelet that accepts the name reports that it cannot get the options.
    empty = grpc.aio.server()
    empty.add_insecure_port(f"unix:{rig.kubelet_dir / 'empty.sock'}")
    await empty.start()
    request = pb.RegisterRequest(version="v1beta1", endpoint="empty.sock", resource_name=name)
    async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=WAIT)
    await empty.stop(None)
    invalid = refusal.value.details() == f'the ResourceName "{name}" is invalid'
    assert (taken, not invalid) == (NAMES[name], NAMES[name])


@pytest.mark.conformance(9)
@pytest.mark.field_failure("F19")
async def test_every_resource_has_its_own_server_socket_and_registration(rig, kubelet):
    template = rig.scripts["toy"].devices[0]
    rig.scripts["toy"].devices = [
        replace(template, id=f"d{n}", attributes={"model": f"m{n % 5}", "index": n}) for n in range(15)
    ]
    rig.write("name: 'example.com/{model}', backend: toy")
    async with rig.running(allocatable={f"example.com/m{n}": 3 for n in range(5)}):
        listed = {
            name: {int(device.id[1:]) % 5 for device in kubelet.devices(name)}
            for name in kubelet.allocatable()
        }
        sockets = [path for path in rig.kubelet_dir.glob("*.sock") if path != kubelet.socket]
    assert listed == {f"example.com/m{n}": {n} for n in range(5)}
    assert len(sockets) == 5
    assert len({event.endpoint for event in kubelet.events.of(ev.Registered)}) == 5


@pytest.mark.conformance(10)
async def test_the_longest_resource_names_get_short_and_distinct_sockets(rig, kubelet):
    names = [f"{'d' * 60}.{'d' * 60}.{'d' * 60}.example.com/{'n' * 62}{last}" for last in "ab"]
    rig.write(f"name: {names[0]}, backend: toy, where: {{index: 0}}", f"name: {names[1]}, backend: toy")
    async with rig.running():
        await kubelet.wait_for(lambda: kubelet.allocatable() == dict.fromkeys(names, 1), WAIT)
    sockets = {event.endpoint for event in kubelet.events.of(ev.Registered)}
    assert len(sockets) == 2
    assert {len(name) for name in sockets} == {len(socket_name("a/b"))}
    assert len(f"/var/lib/kubelet/device-plugins/{sockets.pop()}") < 108


@pytest.mark.conformance(11)
@pytest.mark.field_failure("F9")
async def test_stale_devhost_sockets_are_removed_and_other_sockets_stay(rig, kubelet):
    def leave(name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(rig.kubelet_dir / name))
        listener.listen()
        return listener

    leave("dh-stale.sock").close()
    leave("foreign-stale.sock").close()
    with leave("dh-live.sock"):
        async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
            own = host.services[TOY].registration.server.path.name
            left = {path.name for path in rig.kubelet_dir.glob("*.sock")}
    assert left == {own, "kubelet.sock", "foreign-stale.sock", "dh-live.sock"}


@pytest.mark.field_failure("F9")
async def test_failed_registrations_leave_no_sockets_behind(rig, kubelet, hurried):
    kubelet.faults.inject(Point.REGISTER, fail("not now"), times=4)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        assert len(kubelet.events.of(ev.RegisterRefused)) == 4
        assert len(list(rig.kubelet_dir.glob("dh-*"))) == 1
    assert not list(rig.kubelet_dir.glob("dh-*"))


@pytest.mark.conformance(12)
async def test_only_the_owner_can_connect_to_a_socket(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        found = host.services[TOY].registration.server.path.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o600)


class Wiretap:
    """A proxy in front of a kubelet's socket that keeps what devhost sends on each connection."""

    def __init__(self, kubelet) -> None:
        self.sent: list[bytearray] = []
        self.closed = 0
        self._socket = kubelet.socket
        self._real = kubelet.socket.with_name("real")

    async def __aenter__(self) -> Wiretap:
        self._socket.rename(self._real)
        self._server = await asyncio.start_unix_server(self._talk, self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        up_reader, up_writer = await asyncio.open_unix_connection(self._real)
        answers = asyncio.create_task(self._copy(up_reader, writer, bytearray()))
        await self._copy(reader, up_writer, sent)
        await answers
        if sent:  # a connection without data only checks whether a process listens
            self.sent.append(sent)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while chunk := await reader.read(65536):
            kept.extend(chunk)
            writer.write(chunk)
        writer.close()


def http2_frames(sent: bytes) -> list[tuple[int, int]]:
    """Type and flags of each frame a client sent (RFC 9113: 24 bytes of preface, 9 of header)."""
    frames, at = [], 24
    while at < len(sent):
        frames.append((sent[at + 3], sent[at + 4]))
        at += 9 + int.from_bytes(sent[at : at + 3])
    return frames


PING, ACK = 6, 1


@pytest.mark.conformance(13, 14)
@pytest.mark.field_failure("F18")
async def test_register_uses_localhost_never_pings_and_closes_its_channel(rig, kubelet):
    async with Wiretap(kubelet) as tap, rig.running(TOY_LINE, allocatable={TOY: 2}):
        await rig.until(lambda: tap.sent, WAIT)  # kept when the connection is closed
        (sent,) = tap.sent
    assert b"/v1beta1.Registration/Register" in sent
    assert b"localhost" in sent
    assert b"kubelet.sock" not in sent
    assert b"%2F" not in sent
    assert [frame for frame in http2_frames(sent) if frame[0] == PING and not frame[1] & ACK] == []


@pytest.mark.conformance(13)
@pytest.mark.field_failure("F18")
@pytest.mark.parametrize("authority", ["localhost", "any.example:1", "%2Fvar%2Flib%2Fkubelet"])
async def test_a_caller_may_use_any_authority(rig, kubelet, dial, authority):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host, dial(host, TOY, authority) as stub:
        assert (await stub.GetDevicePluginOptions(pb.Empty(), timeout=WAIT)) is not None
