"""The simulated DRA kubelet, with devhost's own server and with drivers that do something wrong."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from devhost_testing.api import dra_v1_pb2_grpc, health_v1_pb2_grpc, registration_pb2_grpc
from devhost_testing.dra import Claim, DeviceState, DraKubelet, Prepared, Refused, Violation

from devhost.allocation.claims import ClaimedDevice
from devhost.backend.errors import DevhostError
from devhost.backend.model import ClaimHolder
from devhost.dra.api import dra_v1_pb2, health_v1_pb2, registration_pb2
from devhost.dra.inventory import DeviceHealth
from devhost.dra.server import DraServer
from devhost.planning.settings import DraOptions
from devhost.telemetry.metrics import Metrics

DRIVER = "gpu.example.com"
CLAIM = Claim("default", "mine", "uid-1", ("gpu", "nic"))
OTHER = Claim("default", "other", "uid-2")
NAME = "gpu.example.com/claim"


class Claims:
    """Prepares one device for each claim, except for claims with the name ``bad``; counts the calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def prepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, Sequence[ClaimedDevice] | str]:
        self.calls.append([claim.uid for claim in claims])
        return {claim.uid: "it is held" if claim.name == "bad" else [self._device(claim)] for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, str]:
        return {claim.uid: "it is busy" if claim.name == "bad" else "" for claim in claims}

    def _device(self, claim: ClaimHolder) -> ClaimedDevice:
        key, names = ("cards", "c0"), (f"{NAME}={claim.uid}",)
        return ClaimedDevice("gpu/big", "pool", "card-0", "", key, "example.com/card", names)


class OneDevice:
    """The health of one device."""

    def __init__(self) -> None:
        self.healthy = True
        self._callbacks: list[Callable[[], None]] = []

    def devices(self) -> Sequence[DeviceHealth]:
        return [DeviceHealth("pool", "card-0", self.healthy, "" if self.healthy else "it is hot")]

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def fall_ill(self) -> None:
        self.healthy = False
        for callback in self._callbacks:
            callback()


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is too long for a socket
        yield Path(directory)


def server(place: Path, claims: Claims, health: OneDevice) -> DraServer:
    return DraServer(claims, health, DRIVER, at(place), Metrics())


def at(place: Path) -> DraOptions:
    return DraOptions(place / "registry", place / "plugins", "node-1")


@pytest.fixture
async def kubelet(place: Path) -> AsyncIterator[DraKubelet]:
    async with DraKubelet(place / "registry", interval=0.01, deadline=60.0, reconnect=0.01) as kubelet:
        yield kubelet


async def test_a_driver_registers_and_its_claims_are_prepared_once(place: Path, kubelet: DraKubelet) -> None:
    claims, health = Claims(), OneDevice()
    driver = server(place, claims, health)
    await driver.start()
    await kubelet.registered(DRIVER)
    assert kubelet.drivers() == {DRIVER: "v1.DRAPlugin"}
    assert driver.registration.registered
    [[device], [other]] = await kubelet.prepare(DRIVER, CLAIM, OTHER)
    assert device == Prepared("pool", "card-0", ("gpu",), (f"{NAME}=uid-1",))
    assert kubelet.container("uid-1", "gpu") == [f"{NAME}=uid-1"]
    assert kubelet.container("uid-1", "nic") == []
    assert kubelet.container("uid-2") == [f"{NAME}=uid-2"] == list(other.cdi_names)
    await kubelet.prepare(DRIVER, CLAIM)
    await kubelet.prepare(DRIVER, CLAIM, again=True)
    assert claims.calls == [["uid-1", "uid-2"], ["uid-1"]]
    await kubelet.unprepare(DRIVER, CLAIM)
    assert kubelet.container("uid-1") == []
    await driver.stop()
    await kubelet.gone(DRIVER)
    with pytest.raises(DevhostError, match="is not registered"):
        await kubelet.prepare(DRIVER, CLAIM)


async def test_a_refused_claim_is_refused_alone(place: Path, kubelet: DraKubelet) -> None:
    driver = server(place, Claims(), OneDevice())
    await driver.start()
    await kubelet.registered(DRIVER)
    bad = Claim("default", "bad", "uid-3")
    with pytest.raises(Refused) as refused:
        await kubelet.prepare(DRIVER, CLAIM, bad)
    assert refused.value.errors == {"uid-3": "it is held"}
    assert kubelet.container("uid-1") == [f"{NAME}=uid-1"]
    with pytest.raises(Refused, match="it is busy"):
        await kubelet.unprepare(DRIVER, CLAIM, bad)
    assert kubelet.container("uid-1") == []
    await driver.stop()


async def test_after_a_restart_claims_are_prepared_again(place: Path, kubelet: DraKubelet) -> None:
    claims = Claims()
    driver = server(place, claims, OneDevice())
    await driver.start()
    await kubelet.registered(DRIVER)
    await kubelet.prepare(DRIVER, CLAIM)
    await kubelet.restart()
    await kubelet.registered(DRIVER)
    assert kubelet.container("uid-1") == []
    await kubelet.prepare(DRIVER, CLAIM)
    assert claims.calls == [["uid-1"], ["uid-1"]]
    await driver.stop()


async def test_an_older_kubelet_uses_the_older_service(place: Path) -> None:
    driver = server(place, Claims(), OneDevice())
    await driver.start()
    async with DraKubelet(place / "registry", "1.33", interval=0.01) as kubelet:
        await kubelet.registered(DRIVER)
        assert kubelet.drivers() == {DRIVER: "v1beta1.DRAPlugin"}
        [[device]] = await kubelet.prepare(DRIVER, CLAIM)
        assert device.device == "card-0"
        assert kubelet.health(DRIVER) == {}
    await driver.stop()


async def test_health_is_followed_and_becomes_unknown_when_it_is_too_old(place: Path) -> None:
    now, health = [1000.0], OneDevice()
    driver = server(place, Claims(), health)
    await driver.start()
    async with DraKubelet(place / "registry", interval=0.01, clock=lambda: now[0]) as kubelet:
        await kubelet.registered(DRIVER)
        key = ("pool", "card-0")
        await kubelet.until(lambda: kubelet.health(DRIVER) == {key: DeviceState("Healthy")})
        health.fall_ill()
        await kubelet.until(lambda: kubelet.health(DRIVER) == {key: DeviceState("Unhealthy", "it is hot")})
        now[0] += 31
        assert kubelet.health(DRIVER) == {key: DeviceState("Unknown")}
    await driver.stop()


class Wrong(dra_v1_pb2_grpc.DRAPluginServicer, health_v1_pb2_grpc.DRAResourceHealthServicer):
    """A driver with given answers."""

    def __init__(self, answer: Any = None, health: Any = None, pause: float = 0.0) -> None:
        self._answer = answer
        self._health = health
        self._pause = pause

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(self._pause)
        if self._answer is None:
            await context.abort(grpc.StatusCode.INTERNAL, "it is broken")
        return self._answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        return dra_v1_pb2.NodeUnprepareResourcesResponse()

    async def NodeWatchResources(self, request: Any, context: Any) -> Any:
        yield self._health or health_v1_pb2.NodeWatchResourcesResponse()
        await asyncio.Event().wait()

    async def GetInfo(self, request: Any, context: Any) -> Any:
        raise NotImplementedError


class Registrar(registration_pb2_grpc.RegistrationServicer):
    """Answers with given information, and keeps what the kubelet reports."""

    def __init__(self, **info: Any) -> None:
        self._info = info
        self.told: list[tuple[bool, str]] = []

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return registration_pb2.PluginInfo(**self._info)

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.told.append((request.plugin_registered, request.error))
        return registration_pb2.RegistrationStatusResponse()


@asynccontextmanager
async def serving(place: Path, driver: Wrong | None = None, **info: Any) -> AsyncIterator[Registrar]:
    """A driver of another vendor."""
    service = at(place).service_socket(DRIVER)
    service.parent.mkdir(parents=True, exist_ok=True)
    (place / "registry").mkdir(exist_ok=True)
    usual = {
        "type": "DRAPlugin",
        "name": DRIVER,
        "endpoint": str(service),
        "supported_versions": ["v1.DRAPlugin", "v1.DRAResourceHealth"],
    }
    registrar = Registrar(**(usual | info))
    calls, registration = grpc.aio.server(), grpc.aio.server()
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(driver or Wrong(), calls)
    health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(driver or Wrong(), calls)
    registration_pb2_grpc.add_RegistrationServicer_to_server(registrar, registration)
    calls.add_insecure_port(f"unix:{service}")
    registration.add_insecure_port(f"unix:{place / 'registry' / 'driver-reg.sock'}")
    await calls.start()
    await registration.start()
    try:
        yield registrar
    finally:
        await registration.stop(None)
        await calls.stop(None)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"name": "Gpu_1"}, "no DNS subdomain"),
        ({"name": "g" * 64}, "at most 63 characters"),
        (
            {"supported_versions": []},
            "supported_versions has none of v1.DRAPlugin, v1beta1.DRAPlugin: it is empty",
        ),
        ({"supported_versions": ["1.0.0"]}, "supported_versions has none of"),
        ({"endpoint": "dra.sock"}, "no absolute path"),
    ],
)
async def test_a_driver_that_a_kubelet_refuses_learns_why(
    place: Path, kubelet: DraKubelet, info: Any, reason: str
) -> None:
    async with serving(place, **info) as registrar:
        await kubelet.until(lambda: kubelet.refusals)
        [(path, text)] = kubelet.refusals.items()
        assert path.name == "driver-reg.sock" and reason in text
        assert registrar.told == [(False, text)]
        assert kubelet.drivers() == {}
    await kubelet.until(lambda: not kubelet.refusals)


async def test_a_plugin_of_another_kind_is_not_notified(place: Path, kubelet: DraKubelet) -> None:
    async with serving(place, type="CSIPlugin") as registrar:
        await kubelet.until(lambda: kubelet.refusals)
        assert "its type is 'CSIPlugin'" in "".join(kubelet.refusals.values())
        assert registrar.told == []


async def test_a_driver_that_does_not_come_is_an_error_with_the_refusals(
    place: Path, kubelet: DraKubelet
) -> None:
    async with serving(place, name="Gpu_1"):
        await kubelet.until(lambda: kubelet.refusals)
        with pytest.raises(TimeoutError, match=r"driver-reg\.sock: the driver name 'Gpu_1' is no DNS"):
            await kubelet.registered(DRIVER, timeout=0.05)


def answer(*devices: Any, uid: str = "uid-1") -> Any:
    found = dra_v1_pb2.NodePrepareResourcesResponse()
    found.claims[uid].devices.extend(devices)
    return found


def device(**fields: Any) -> Any:
    usual = {
        "request_names": ["gpu"],
        "pool_name": "pool",
        "device_name": "card-0",
        "cdi_device_ids": [f"{NAME}=a"],
    }
    return dra_v1_pb2.Device(**(usual | fields))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (dra_v1_pb2.NodePrepareResourcesResponse(), "the answer skips ResourceClaim default/mine"),
        (answer(uid="uid-9"), "the answer skips"),
        (answer(device(pool_name="")), "has no pool name"),
        (answer(device(device_name="")), "has no device name"),
        (answer(device(request_names=["gpu/big"])), "name the request without its subrequest"),
        (answer(device(request_names=["fpga"])), "'fpga', which the claim does not have"),
        (answer(device(cdi_device_ids=["card"])), "the CDI name 'card'"),
        (answer(device(), device(device_name="card-1")), "begin with the CDI name gpu.example.com/claim=a"),
        (
            answer(device(), device(device_name="card-1", cdi_device_ids=[f"{NAME}=b", f"{NAME}=a"])),
            "request 'gpu' of ResourceClaim default/mine has the CDI name gpu.example.com/claim=a twice",
        ),
        (None, "NodePrepareResources of gpu.example.com failed: INTERNAL: it is broken"),
    ],
)
async def test_an_answer_that_a_kubelet_refuses_is_a_violation(
    place: Path, kubelet: DraKubelet, wrong: Any, reason: str
) -> None:
    async with serving(place, Wrong(wrong)):
        await kubelet.registered(DRIVER)
        with pytest.raises(Violation) as caught:
            await kubelet.prepare(DRIVER, CLAIM)
        assert reason in str(caught.value)
        assert kubelet.container("uid-1") == []


async def test_an_answer_for_another_claim_is_a_violation(place: Path, kubelet: DraKubelet) -> None:
    both = answer(device())
    both.claims["uid-9"].error = "unknown"
    async with serving(place, Wrong(both)):
        await kubelet.registered(DRIVER)
        with pytest.raises(Violation, match="the uid 'uid-9', which was not in the call"):
            await kubelet.prepare(DRIVER, CLAIM)


async def test_an_unprepare_that_skips_a_claim_is_a_violation(place: Path, kubelet: DraKubelet) -> None:
    async with serving(place, Wrong(answer(device()))):
        await kubelet.registered(DRIVER)
        with pytest.raises(Violation, match="the answer skips ResourceClaim default/mine"):
            await kubelet.unprepare(DRIVER, CLAIM)


async def test_a_driver_that_hangs_is_given_up(place: Path) -> None:
    async with (
        serving(place, Wrong(answer(device()), pause=600.0)),
        DraKubelet(place / "registry", interval=0.01, deadline=1.0) as kubelet,
    ):
        await kubelet.registered(DRIVER)
        with pytest.raises(TimeoutError, match=r"gpu\.example\.com did not answer within 1 s"):
            await kubelet.prepare(DRIVER, CLAIM)


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"message": "é" * 600}, "longer than 1024 bytes"),
        ({"device": health_v1_pb2.DeviceIdentifier(pool_name="pool")}, "without pool or name"),
    ],
)
async def test_a_wrong_health_report_is_a_violation(
    place: Path, kubelet: DraKubelet, report: Any, reason: str
) -> None:
    usual = {"device": health_v1_pb2.DeviceIdentifier(pool_name="pool", device_name="card-0")}
    message = health_v1_pb2.NodeWatchResourcesResponse(
        devices=[health_v1_pb2.DeviceHealth(**(usual | report))]
    )
    async with serving(place, Wrong(health=message)):
        await kubelet.registered(DRIVER)

        def wrong() -> bool:
            with pytest.raises(Violation, match=reason):
                kubelet.health(DRIVER)
            return True

        async with asyncio.timeout(60):
            while True:
                try:
                    if kubelet.health(DRIVER) == {}:
                        await asyncio.sleep(0.01)
                except Violation:
                    break
        assert wrong()
