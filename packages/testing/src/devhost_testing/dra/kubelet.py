"""The simulated kubelet: drivers come and go, claims are prepared and released."""

from __future__ import annotations

import asyncio
import re
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import grpc
import grpc.aio

from devhost.backend.errors import DevhostError
from devhost.dra.api import dra_v1_pb2, health_v1_pb2, registration_pb2
from devhost_testing.api import dra_v1_pb2_grpc, health_v1_pb2_grpc, registration_pb2_grpc

from . import answers
from .answers import Claim, Prepared, Violation
from .health import DeviceState, HealthView

Profile = Literal["1.33", "1.37"]
"""The simulated version: up to 1.33, or from 1.34 on."""

KIND = "DRAPlugin"
CLAIMS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
PROFILES: Mapping[Profile, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "1.33": (("v1beta1.DRAPlugin",), ()),
    "1.37": (CLAIMS, HEALTH),
}
"""The services that a version knows: for claims, and for health."""

INFO_DEADLINE, NOTIFY_DEADLINE, CALL_DEADLINE = 1.0, 5.0, 45.0
"""Seconds. Source: ``pkg/kubelet/pluginmanager/operationexecutor`` and ``pkg/kubelet/cm/dra/plugin``."""

AGAIN = 0.1
"""Seconds between two requests to a task to end."""

_Sign = tuple[int, int]
"""Inode and time of the last change of a socket."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LONGEST_NAME = 63
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class Refused(DevhostError):
    """A driver refuses claims; ``errors`` has its texts by uid."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{uid}: {text}" for uid, text in sorted(errors.items())))
        self.errors = dict(errors)


@dataclass(slots=True)
class _Driver:
    """A registered driver."""

    name: str
    socket: Path
    sign: _Sign
    endpoint: str
    service: str
    channel: grpc.aio.Channel
    health: HealthView
    prepared: dict[str, tuple[Claim, list[Prepared]]] = field(default_factory=dict)
    following: asyncio.Task[None] | None = None
    violation: Violation | None = None


class _OfVersion:
    """A channel on which stubs of v1 call services of another version, whose messages are the same."""

    def __init__(self, channel: grpc.aio.Channel, version: str) -> None:
        self._channel = channel
        self._version = version

    def unary_unary(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_unary(self._renamed(path), *args, **kwargs)

    def unary_stream(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_stream(self._renamed(path), *args, **kwargs)

    def _renamed(self, path: str) -> str:
        return re.sub(r"\bv1\.", f"{self._version}.", path)


def claims_stub(channel: grpc.aio.Channel, service: str) -> Any:
    """Calls one of :data:`CLAIMS`, with the messages of v1."""
    of_version: Any = _OfVersion(channel, service.partition(".")[0])
    return dra_v1_pb2_grpc.DRAPluginStub(of_version)


def health_stub(channel: grpc.aio.Channel, service: str) -> Any:
    """Calls one of :data:`HEALTH`, with the messages of v1."""
    of_version: Any = _OfVersion(channel, service.partition(".")[0])
    return health_v1_pb2_grpc.DRAResourceHealthStub(of_version)


class DraKubelet:
    """The DRA part of a kubelet, for one event loop::

        async with DraKubelet(place / "plugins_registry") as kubelet:
            ...  # start the driver, which makes its sockets
            await kubelet.registered("gpu.example.com")
            await kubelet.prepare("gpu.example.com", Claim("default", "mine", uid, ("gpu",)))
            assert kubelet.container(uid, "gpu") == ["gpu.example.com/claim=…"]

    Every answer is checked; what a kubelet would refuse, or what would harm containers, is a
    :class:`Violation`.

    Args:
        registry: the directory with the registration sockets; made if it is missing.
        profile: the simulated version.
        interval: seconds between two looks at the directory.
        deadline: seconds that a driver has for claims.
        reconnect: seconds after which the health of a driver is followed again.
        clock: seconds, for the age of health reports.

    Attributes:
        refusals: why sockets are not used, by their path.
    """

    def __init__(
        self,
        registry: Path,
        profile: Profile = "1.37",
        *,
        interval: float = 0.1,
        deadline: float = CALL_DEADLINE,
        reconnect: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = registry
        self.refusals: dict[Path, str] = {}
        self._claims, self._health = PROFILES[profile]
        self._interval = interval
        self._deadline = deadline
        self._reconnect = reconnect
        self._clock = clock
        self._drivers: dict[Path, _Driver] = {}
        self._refused: dict[Path, _Sign] = {}
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begins to look for drivers. What was prepared before is no longer known."""
        self.registry.mkdir(parents=True, exist_ok=True)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Ends every connection; drivers are not notified, as with a kubelet that ends."""
        if self._watching is not None:
            await _cancelled(self._watching)
            self._watching = None
        for driver in self._drivers.values():
            await _end(driver)
        self._drivers.clear()
        self._refused.clear()
        self.refusals.clear()

    async def restart(self) -> None:
        """Ends and starts again: drivers are asked who they are, and claims are prepared again when asked."""
        await self.stop()
        await self.start()

    # drivers

    def drivers(self) -> Mapping[str, str]:
        """The registered drivers, each with the service that is used for claims."""
        return {driver.name: driver.service for driver in self._drivers.values()}

    async def registered(self, name: str, timeout: float = 60.0) -> None:
        """Waits until a driver is registered; else a ``TimeoutError`` has the refusals."""
        await self.until(lambda: name in self.drivers(), timeout)

    async def gone(self, name: str, timeout: float = 60.0) -> None:
        """Waits until a driver is no longer registered."""
        await self.until(lambda: name not in self.drivers(), timeout)

    async def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Waits until a condition is true; it is checked at each change and each look."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: bool(condition()))
        except TimeoutError:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in self.refusals.items())
            raise TimeoutError(f"not within {timeout:g} s; refusals: {reasons or 'none'}") from None

    # claims

    async def prepare(self, driver: str, *claims: Claim, again: bool = False) -> list[list[Prepared]]:
        """Prepares claims, in one call; returns the devices of each claim.

        Those that are prepared already are not named to the driver, except with ``again``, as after a timeout
        or a restart. Raises ``Refused`` if the driver refuses some, while the others are prepared,
        ``Violation`` if the answer is wrong, and ``TimeoutError`` if there is none in time.
        """
        found = self._find(driver)
        asked = [claim for claim in claims if again or claim.uid not in found.prepared]
        if asked:
            answer = await self._call(found, "NodePrepareResources", asked)
            devices, errors = answers.prepared(asked, answer)
            for claim in asked:
                if claim.uid in devices:
                    found.prepared[claim.uid] = claim, devices[claim.uid]
            if errors:
                raise Refused(errors)
        return [found.prepared[claim.uid][1] for claim in claims]

    async def unprepare(self, driver: str, *claims: Claim) -> None:
        """Releases claims, in one call, whether they are known or not. Raises the same as :meth:`prepare`."""
        found = self._find(driver)
        errors = answers.released(claims, await self._call(found, "NodeUnprepareResources", claims))
        for claim in claims:
            if claim.uid not in errors:
                found.prepared.pop(claim.uid, None)
        if errors:
            raise Refused(errors)

    def container(self, uid: str, request: str = "") -> list[str]:
        """The CDI names that a container gets for a prepared claim, or for one request of it."""
        names = []
        for driver in self._drivers.values():
            if uid in driver.prepared:
                names += answers.cdi_names(driver.prepared[uid][1], request)
        return names

    # health

    def health(self, driver: str) -> Mapping[tuple[str, str], DeviceState]:
        """The devices of a driver by pool and name, as the kubelet shows them.

        Raises ``Violation`` if a health report is wrong.
        """
        found = self._find(driver)
        if found.violation is not None:
            raise found.violation
        return found.health.devices()

    def _find(self, name: str) -> _Driver:
        """The newest driver of this name."""
        for driver in reversed(self._drivers.values()):
            if driver.name == name:
                return driver
        raise DevhostError(f"driver {name} is not registered", "; ".join(self.refusals.values()))

    async def _call(self, driver: _Driver, method: str, claims: Sequence[Claim]) -> Any:
        named = [dra_v1_pb2.Claim(namespace=one.namespace, uid=one.uid, name=one.name) for one in claims]
        request = getattr(dra_v1_pb2, f"{method}Request")(claims=named)
        stub = claims_stub(driver.channel, driver.service)
        try:
            return await getattr(stub, method)(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(f"{driver.name} did not answer within {self._deadline:g} s") from None
            raise Violation(
                f"{method} of {driver.name} failed: {error.code().name}: {error.details()}",
                "answer each claim with its own error",
            ) from None

    async def _watch(self) -> None:
        while True:
            await self._look()
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(self._interval)

    async def _look(self) -> None:
        """One pass over the directory."""
        present = dict(_sockets(self.registry))
        for path, driver in list(self._drivers.items()):
            if present.get(path) != driver.sign:
                del self._drivers[path]
                await _end(driver)
        for path in [path for path, sign in self._refused.items() if present.get(path) != sign]:
            del self._refused[path]
            self.refusals.pop(path, None)
        for path, sign in present.items():
            if path not in self._drivers and path not in self._refused:
                await self._register(path, sign)

    async def _register(self, path: Path, sign: _Sign) -> None:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            try:
                info = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=INFO_DEADLINE)
            except grpc.aio.AioRpcError as error:
                self.refusals[path] = f"GetInfo failed: {error.code().name}: {error.details()}"
                return  # it is asked again
            if info.type != KIND:
                self._refused[path] = sign
                self.refusals[path] = f"its type is {info.type!r}, not {KIND!r}"
                return
            reason = self._objection(info)
            try:
                await stub.NotifyRegistrationStatus(
                    registration_pb2.RegistrationStatus(plugin_registered=not reason, error=reason),
                    timeout=NOTIFY_DEADLINE,
                )
            except grpc.aio.AioRpcError as error:
                self.refusals[path] = (
                    f"NotifyRegistrationStatus failed: {error.code().name}: {error.details()}"
                )
                return
        if reason:
            self._refused[path] = sign
            self.refusals[path] = reason
            return
        self.refusals.pop(path, None)
        self._drivers[path] = self._made(path, sign, info)

    def _objection(self, info: Any) -> str:
        """Why a kubelet does not use a driver; empty if it does."""
        if len(info.name) > _LONGEST_NAME or not _NAME.fullmatch(info.name):
            return f"the driver name {info.name!r} is no DNS subdomain of at most {_LONGEST_NAME} characters"
        if not any(version in self._claims for version in info.supported_versions):
            known = ", ".join(self._claims)
            offered = ", ".join(info.supported_versions) or "it is empty"
            return f"supported_versions has none of {known}: {offered}"
        if info.endpoint and not info.endpoint.startswith("/"):
            return f"the endpoint {info.endpoint!r} is no absolute path"
        if any(info.endpoint and info.endpoint == other.endpoint for other in self._drivers.values()):
            return f"the endpoint {info.endpoint} is already registered"
        return ""

    def _made(self, path: Path, sign: _Sign, info: Any) -> _Driver:
        endpoint = info.endpoint or str(path)
        service = next(version for version in info.supported_versions if version in self._claims)
        channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=_OPTIONS)
        driver = _Driver(info.name, path, sign, endpoint, service, channel, HealthView(self._clock))
        health = next((one for one in self._health if one in info.supported_versions), "")
        if health:
            driver.following = asyncio.create_task(self._follow(driver, health))
        return driver

    async def _follow(self, driver: _Driver, service: str) -> None:
        """Follows the health of a driver's devices; again some time after a stream has ended."""
        stub = health_stub(driver.channel, service)
        while True:
            driver.health.begin()
            stream: AsyncIterator[Any] = stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest())
            try:
                async for message in stream:
                    driver.health.take(message)
                    async with self._changed:
                        self._changed.notify_all()
            except Violation as error:
                driver.violation = error
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            driver.health.begin()
            await asyncio.sleep(self._reconnect)


def _sockets(directory: Path) -> list[tuple[Path, _Sign]]:
    """The sockets in a directory and below, each with what distinguishes it from a later one of its name.

    Names that begin with a dot are left out.
    """
    found = []
    for path in sorted(directory.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode):
                found.append((path, (status.st_ino, status.st_ctime_ns)))
    return found


async def _end(driver: _Driver) -> None:
    if driver.following is not None:
        await _cancelled(driver.following)
    await driver.channel.close(None)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Ends a task, which has to be asked again if gRPC ends a call at the same moment."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
