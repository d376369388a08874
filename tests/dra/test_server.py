"""The DRA driver's sockets, as a kubelet uses them."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from devhost_testing.api import dra_v1_pb2_grpc, registration_pb2_grpc
from devhost_testing.dra.kubelet import HEALTH, claims_stub, health_stub
from kit.clock import FakeClock
from kit.dra import channel
from kit.waiting import until
from scraped_series import value

from devhost.allocation.claims import ClaimedDevice
from devhost.backend.errors import EnvironmentFailure
from devhost.backend.model import ClaimHolder
from devhost.dra.api import dra_v1_pb2, health_v1_pb2, registration_pb2
from devhost.dra.inventory import DeviceHealth
from devhost.dra.server import DraServer, Registration
from devhost.planning.settings import DraOptions
from devhost.telemetry.metrics import Metrics

DRIVER = "devhost.example.com"


class Claims:
    """Prepares one device for each claim, except for claims with the name ``bad``."""

    async def prepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, Sequence[ClaimedDevice] | str]:
        key, names = ("cards", "c0"), ("vendor.com/claim=x",)
        device = ClaimedDevice("req/sub", "pool", "card-0", "share", key, "example.com/card", names)
        return {claim.uid: "it is held" if claim.name == "bad" else [device] for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, str]:
        return {claim.uid: "" for claim in claims}


class OneDevice:
    def devices(self) -> Sequence[DeviceHealth]:
        return [DeviceHealth("pool", "card-0", False, "é" * 1000)]

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def at(place: Path, tag: str = "") -> DraOptions:
    return DraOptions(place / "registry", place / "plugins", "node-1", tag=tag)


def made(
    place: Path, claims: Claims | None = None, metrics: Metrics | None = None, **more: Callable[[], None]
) -> DraServer:
    return DraServer(claims or Claims(), OneDevice(), DRIVER, at(place), metrics or Metrics(), **more)


@asynccontextmanager
async def served(
    place: Path, claims: Claims | None = None, metrics: Metrics | None = None, **more: Callable[[], None]
) -> AsyncIterator[tuple[DraServer, grpc.aio.Channel, grpc.aio.Channel]]:
    server = made(place, claims, metrics, **more)
    await server.start()
    try:
        async with (
            channel(at(place).service_socket(DRIVER)) as calls,
            channel(at(place).registration_socket(DRIVER)) as registration,
        ):
            yield server, calls, registration
    finally:
        await server.stop()


@pytest.mark.conformance(63)
async def test_the_kubelet_learns_who_serves_where_and_what(place: Path) -> None:
    async with served(place) as (_, _, channel):
        info = await registration_pb2_grpc.RegistrationStub(channel).GetInfo(registration_pb2.InfoRequest())
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint == str(place / "plugins" / DRIVER / "dra.sock")
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


@pytest.mark.conformance(61)
async def test_claims_are_served_before_the_kubelet_can_find_the_driver(place: Path) -> None:
    server = made(place)
    start = asyncio.create_task(server.start())
    registrar, service = (
        at(place).registration_socket(DRIVER),
        at(place).service_socket(DRIVER),
    )
    await until(registrar.exists)
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.connect(str(service))
    await start
    await server.stop()


@pytest.mark.conformance(64)
async def test_a_refused_registration_is_shown_with_its_reason(place: Path) -> None:
    async with served(place) as (server, _, channel):
        stub = registration_pb2_grpc.RegistrationStub(channel)
        await stub.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(error="no\nversion"))
        assert (server.registration.registered, server.registration.error) == (False, "no version")
        await stub.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(plugin_registered=True))
        assert (server.registration.registered, server.registration.error) == (True, "")


async def test_each_report_of_the_kubelet_is_passed_on_and_a_new_refusal_logged_again(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[None] = []
    async with served(place, changed=lambda: reports.append(None)) as (_, _, channel):
        stub = registration_pb2_grpc.RegistrationStub(channel)
        for registered in (False, False, True, False):
            status = registration_pb2.RegistrationStatus(plugin_registered=registered, error="no version")
            await stub.NotifyRegistrationStatus(status)
    assert len(reports) == 4
    assert caplog.messages.count("DRA driver not registered") == 2


@pytest.mark.conformance(69)
async def test_both_versions_answer_the_same_and_only_v1_has_share_ids(place: Path) -> None:
    async with served(place) as (_, channel, _):
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[dra_v1_pb2.Claim(uid="u-1", name="c")])
        new = await claims_stub(channel, "v1.DRAPlugin").NodePrepareResources(request)
        old = await claims_stub(channel, "v1beta1.DRAPlugin").NodePrepareResources(request)
    device = new.claims["u-1"].devices[0]
    assert device.share_id == "share"
    assert list(device.request_names) == ["req"]
    device.ClearField("share_id")
    assert old.SerializeToString() == new.SerializeToString()


async def test_each_claim_has_its_own_answer_and_a_hostile_uid_an_error(place: Path) -> None:
    asked = [
        dra_v1_pb2.Claim(uid="u-1", name="good"),
        dra_v1_pb2.Claim(uid="u-2", name="bad"),
        dra_v1_pb2.Claim(uid="../u-3", name="good"),
    ]
    async with served(place) as (_, channel, _):
        answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
            dra_v1_pb2.NodePrepareResourcesRequest(claims=asked)
        )
    assert {uid: one.error for uid, one in answer.claims.items()} == {
        "u-1": "",
        "u-2": "it is held",
        "../u-3": "the claim's uid is not that of an object",
    }


async def test_each_claim_of_a_call_that_a_bug_ends_counts_as_failed(place: Path) -> None:
    class Buggy(Claims):
        async def prepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, Sequence[ClaimedDevice] | str]:
            raise RuntimeError("a bug")

    metrics = Metrics()
    metrics.begin("driver", DRIVER)
    async with served(place, Buggy(), metrics) as (_, channel, _):
        asked = [dra_v1_pb2.Claim(uid="u-1"), dra_v1_pb2.Claim(uid="u-2")]
        answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
            dra_v1_pb2.NodePrepareResourcesRequest(claims=asked)
        )
    assert {one.error for one in answer.claims.values()} == {"devhost failed; its log has the reason"}
    assert value(metrics, "devhost_dra_prepares_total", driver=DRIVER, result="failed") == 2


async def test_each_claim_that_is_answered_with_an_error_counts_as_failed(place: Path) -> None:
    metrics = Metrics()
    metrics.begin("driver", DRIVER)
    asked = [dra_v1_pb2.Claim(uid="u-1", name="good"), dra_v1_pb2.Claim(uid="../u-2", name="good")]
    async with served(place, metrics=metrics) as (_, channel, _):
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        await stub.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=asked))
        await stub.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=asked[1:]))
    counted = {
        result: value(metrics, "devhost_dra_prepares_total", driver=DRIVER, result=result)
        for result in ("done", "failed")
    }
    assert counted == {"done": 1, "failed": 2}


@pytest.mark.conformance(113)
async def test_both_health_services_begin_with_the_whole_list(place: Path) -> None:
    async with served(place) as (_, channel, _):
        for service in HEALTH:
            stream = health_stub(channel, service).NodeWatchResources(
                health_v1_pb2.NodeWatchResourcesRequest()
            )
            [device] = (await stream.read()).devices
            assert (device.device.device_name, device.health) == ("card-0", health_v1_pb2.UNHEALTHY)
            assert len(device.message.encode()) <= 1024
            assert device.health_check_timeout_seconds == 30


@pytest.mark.conformance(67)
async def test_a_stop_removes_both_sockets(place: Path) -> None:
    async with served(place):
        pass
    assert not [path for path in place.rglob("*") if path.is_socket()]


async def test_a_second_stop_leaves_the_sockets_of_another_process(place: Path) -> None:
    server = made(place)
    await server.start()
    path = at(place).service_socket(DRIVER)
    aside = path.with_name("aside")
    aside.hardlink_to(path)  # a file system may give the same number to the next file
    await server.stop()
    aside.rename(path)
    await server.stop()
    assert path.exists()


async def test_at_a_stop_the_kubelet_loses_the_driver_before_its_claims_do(place: Path) -> None:
    server = made(place)
    await server.start()
    registrar = at(place).registration_socket(DRIVER)
    stop = asyncio.create_task(server.stop())
    while registrar.exists():
        await asyncio.sleep(0)
    assert at(place).service_socket(DRIVER).exists()
    await stop


class SlowClaims(Claims):
    """Prepares claims once it may."""

    def __init__(self) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def prepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, Sequence[ClaimedDevice] | str]:
        self.began.set()
        await self.go.wait()
        return await super().prepare(claims)


async def test_beside_another_process_the_last_calls_end_before_the_kubelet_loses_the_driver(
    place: Path,
) -> None:
    claims, tag = SlowClaims(), "-abcdef"
    server = DraServer(claims, OneDevice(), DRIVER, at(place, tag), Metrics())
    await server.start()
    registrar = at(place, tag).registration_socket(DRIVER)
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(namespace="default", name="one", uid="uid-1")]
    )
    async with channel(at(place, tag).service_socket(DRIVER)) as calls:
        call = dra_v1_pb2_grpc.DRAPluginStub(calls).NodePrepareResources(request)
        await claims.began.wait()
        stop = asyncio.create_task(server.stop())
        await asyncio.sleep(0.2)
        assert registrar.exists()
        claims.go.set()
        assert not (await call).claims["uid-1"].error
        await stop
    assert not registrar.exists()


async def test_a_driver_that_the_kubelet_cannot_find_serves_no_claims(place: Path) -> None:
    registrar = at(place).registration_socket(DRIVER)
    registrar.parent.mkdir(parents=True)
    registrar.write_text("not a socket")
    with pytest.raises(EnvironmentFailure, match="is not a socket"):
        await made(place).start()
    assert registrar.read_text() == "not a socket"
    assert not at(place).service_socket(DRIVER).exists()


async def test_only_the_owner_can_connect_and_later_files_are_not_affected(place: Path) -> None:
    before = os.umask(0o022)
    try:
        async with served(place):
            modes = {stat.S_IMODE(path.stat().st_mode) for path in place.rglob("*.sock")}
            (place / "later").touch()
    finally:
        os.umask(before)
    assert modes == {0o600}
    assert stat.S_IMODE((place / "later").stat().st_mode) == 0o644


async def test_a_socket_of_another_process_in_its_place_is_not_the_drivers(place: Path) -> None:
    path = at(place).service_socket(DRIVER)
    async with served(place) as (server, _, _):
        assert server.exists()
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            assert not server.exists()


async def test_a_socket_of_a_busy_process_is_left_alone(place: Path) -> None:
    path = at(place).service_socket(DRIVER)
    path.parent.mkdir(parents=True)
    with ExitStack() as opened:
        busy = opened.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        with pytest.raises(BlockingIOError):
            for _ in range(16):
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(path))
        with pytest.raises(EnvironmentFailure, match="another process serves"):
            await made(place).start()
        assert path.is_socket()


@pytest.mark.conformance(66)
async def test_a_socket_that_a_process_serves_is_left_alone(place: Path) -> None:
    async with served(place):
        with pytest.raises(EnvironmentFailure, match="another process serves"):
            await made(place).start()
        assert at(place).service_socket(DRIVER).is_socket()


@pytest.mark.conformance(123)
@pytest.mark.parametrize(("other", "refused"), [("", True), ("-b", False)])
async def test_a_driver_of_another_pod_with_this_name_is_left_alone(
    place: Path, other: str, refused: bool
) -> None:
    """Drivers that are updated without a gap have the uid of their pod in the names of their sockets."""
    uid = "1b8e2e6e-5bd6-4c4e-9f5b-0242ac120002"
    path = at(place).registration_socket(f"{DRIVER}{other}-{uid}")
    path.parent.mkdir(parents=True, exist_ok=True)
    server = made(place)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        served.listen()
        if refused:
            with pytest.raises(EnvironmentFailure, match=f"another process serves {path}"):
                await server.start()
    if refused:  # its process is gone
        await server.start()
        await server.stop()


async def test_a_path_too_long_for_a_socket_is_refused(place: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"Linux allows 107 \(choose a shorter --plugins-dir"):
        await made(place / ("d" * 100)).start()


@pytest.mark.parametrize("above", [0, 1])
async def test_a_file_in_place_of_a_directory_is_left_alone(place: Path, above: int) -> None:
    file = [at(place).service_socket(DRIVER).parent, place / "plugins"][above]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("precious")
    with pytest.raises(EnvironmentFailure, match=rf"^{file} is not a directory \(remove it"):
        await made(place).start()
    assert file.read_text() == "precious"


async def test_a_file_that_is_no_socket_is_left_alone(place: Path) -> None:
    path = at(place).service_socket(DRIVER)
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with pytest.raises(EnvironmentFailure, match=r"is not a socket \(remove it"):
        await made(place).start()
    assert path.read_text() == "precious"


@pytest.mark.conformance(66, 68)
async def test_the_socket_of_a_killed_process_is_replaced(place: Path) -> None:
    path = at(place).service_socket(DRIVER)
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    async with served(place) as (_, channel, _):
        answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
            dra_v1_pb2.NodePrepareResourcesRequest()
        )
    assert not answer.claims


def test_the_kubelet_has_time_to_find_a_driver_whose_sockets_could_not_be_made_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    driver = Registration(DRIVER, at(tmp_path), lambda: None, 60.0, clock)
    clock.now += 1000  # without sockets
    driver.check()
    clock.now += 59
    driver.check()
    assert driver.error == ""
    clock.now += 1
    for _ in range(3):
        driver.check()
    assert driver.error and caplog.messages.count("DRA driver not registered") == 1
