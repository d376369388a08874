"""The DRA driver as the kubelet sees it: a service socket, and a registration socket that names it.

The service also has a stream on which the kubelet learns the health of devices that claims use.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import grpc

from devhost.allocation.claims import ClaimedDevice
from devhost.backend.errors import EnvironmentFailure
from devhost.backend.incident import Incident
from devhost.backend.model import ClaimHolder
from devhost.planning.settings import DraOptions
from devhost.runtime import rpc, sockets
from devhost.runtime.log import get, printable
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, sleep
from devhost.runtime.rpc import decoded
from devhost.telemetry.metrics import ClaimCall, Metrics

from .answers import cut
from .api import dra_v1_pb2 as api
from .api import health_v1_pb2 as health_api
from .api import registration_pb2 as registration
from .inventory import DeviceHealth, DraInventory
from .prepare import FAILED, Preparer

log = get(__name__)

Call = Literal["prepare", "unprepare"]

_METRICS: Mapping[Call, tuple[str, str]] = {
    "prepare": ("dra_prepare_seconds", "dra_prepares_total"),
    "unprepare": ("dra_unprepare_seconds", "dra_unprepares_total"),
}

SERVICE, FORMER = (f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin" for version in ("v1", "v1beta1"))
"""The former version has the same messages, without share ids."""

REGISTRATION = "pluginregistration.Registration"

HEALTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The services for the health of devices; both have the same messages."""

RESEND = 12.0
"""Seconds after which the health is sent again although nothing changed."""

TIMEOUT = 30
"""Seconds after which the kubelet shows the health of a device as unknown."""

TOGETHER = 0.2
"""Seconds for which changes are collected into one message."""

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH)
"""Served services. A kubelet uses the first one for claims that it knows, so the newest comes first."""

LONGEST_REASON = 1024
"""Most characters of a kubelet's reason that are shown."""

GRACE = 2.0
"""Seconds that calls in progress have at a stop."""

OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", 16),
    ("grpc.max_concurrent_streams", 512),
    ("grpc.http.overload_protection", 0),  # as in devhost.kubelet.server
)
"""Connections and calls are bounded. An idle connection stays: a kubelet removes the slices of a driver whose
connection is closed."""

TAG = "-" + 6 * "[0-9a-f]"
"""The pattern of a tag, which distinguishes processes that serve one driver. Kubelets since 1.33 use the one
that registered last."""

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
"""Uids become parts of file names, so nothing else is let in."""

_NO_UID = "the claim's uid is not that of an object"

_HINT = "run devhost as root, with the directory mounted writable"


class Registration:
    """Answers at once, also while the rest of devhost is still starting.

    ``options`` has the directories, as the kubelet sees them. ``changed`` is called when the kubelet has
    reported something: :attr:`registered` is ``None`` before its first report, :attr:`error` why it does not
    use the driver, empty otherwise. It should report within ``patience`` seconds.
    """

    def __init__(
        self,
        driver: str,
        options: DraOptions,
        changed: Callable[[], None],
        patience: float,
        clock: Clock,
    ) -> None:
        self.registered: bool | None = None
        self.error = ""
        self._driver = driver
        self._options = options
        self._changed = changed
        self._patience = patience
        self._clock = clock
        self._since: float | None = None
        """When the kubelet could first find the driver."""
        self._refused = Incident()

    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The methods of :data:`REGISTRATION`."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetInfo": unary(self._info, None, registration.PluginInfo.SerializeToString),
            "NotifyRegistrationStatus": unary(
                self._notified, None, registration.RegistrationStatusResponse.SerializeToString
            ),
        }

    async def _info(self, data: bytes, context: Any) -> registration.PluginInfo:
        await decoded(registration.InfoRequest, data, context)
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._options.service_socket(self._driver)),
            supported_versions=VERSIONS,
        )

    async def _notified(self, data: bytes, context: Any) -> registration.RegistrationStatusResponse:
        """Never fails: a kubelet that gets an error drops a registration that it had accepted."""
        status = await decoded(registration.RegistrationStatus, data, context)
        was = self.registered
        self.registered = status.plugin_registered
        if status.plugin_registered:
            self.error = ""
            self._refused.over()
            if not was:
                log.info("DRA driver registered", driver=self._driver)
        else:
            self._fails(" ".join(status.error.split())[:LONGEST_REASON] or "the kubelet gave no reason")
        self._changed()
        return registration.RegistrationStatusResponse()

    def check(self) -> None:
        """Call it now and then while the driver is served: a kubelet may look elsewhere for it."""
        now = self._clock.time()
        self._since = now if self._since is None else self._since
        if self.registered is None and not self.error and now >= self._since + self._patience:
            directory = self._options.registration_socket(self._driver).parent
            self._fails(
                f"the kubelet has not registered it in {self._patience:g} s"
                f" (--plugins-registry must be the directory in which the kubelet looks, not {directory})"
            )
            self._changed()

    def _fails(self, reason: str) -> None:
        self.error = reason
        if self._refused.news(reason):
            log.warning("DRA driver not registered", driver=self._driver, reason=reason)


class HealthStreams:
    """Sends the complete list first, then changes, and everything again before the kubelet's timeout."""

    def __init__(self, source: DraInventory, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._ending = asyncio.Event()
        self._open: set[asyncio.Event] = set()

    def services(self) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
        return {name: {"NodeWatchResources": self._method()} for name in HEALTH}

    def stop(self) -> None:
        self._ending.set()
        for wake in self._open:
            wake.set()

    def _method(self) -> grpc.RpcMethodHandler[Any, Any]:
        async def watch(data: bytes, context: Any) -> AsyncIterator[Any]:
            await decoded(health_api.NodeWatchResourcesRequest, data, context)
            async for devices in self._messages():
                yield self._message(devices)

        return grpc.unary_stream_rpc_method_handler(
            watch, None, health_api.NodeWatchResourcesResponse.SerializeToString
        )

    async def _messages(self) -> AsyncIterator[list[DeviceHealth]]:
        wake = asyncio.Event()
        self._open.add(wake)
        unsubscribe = self._source.subscribe(wake.set)
        try:
            everything = list(self._source.devices())
            sent = {(one.pool, one.device): one for one in everything}
            full_at = self._clock.time() + RESEND
            yield everything
            while not self._ending.is_set():
                timer = self._clock.call_at(full_at, wake.set)
                try:
                    await wake.wait()
                finally:
                    timer.cancel()
                if not self._ending.is_set() and self._clock.time() < full_at:
                    await sleep(TOGETHER, self._clock)
                wake.clear()
                if self._ending.is_set():
                    return
                full = self._clock.time() >= full_at
                current = {(one.pool, one.device): one for one in self._source.devices()}
                news = [
                    one for key, one in current.items() if not one.stale and (full or one != sent.get(key))
                ]
                if full:
                    full_at = self._clock.time() + RESEND
                sent = current
                if news:
                    yield news
        finally:
            unsubscribe()
            self._open.discard(wake)

    def _message(self, devices: Sequence[DeviceHealth]) -> Any:
        response = health_api.NodeWatchResourcesResponse()
        now = int(time.time())
        for one in devices:
            health = health_api.UNKNOWN
            if one.healthy is not None and not one.stale:
                health = health_api.HEALTHY if one.healthy else health_api.UNHEALTHY
            added = response.devices.add(
                health=health,
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT,
                message=cut(one.message),
            )
            added.device.pool_name, added.device.device_name = one.pool, one.device
        return response


class DraServer:
    """Serves one driver until stopped; :attr:`registration` is whether the kubelet uses it.

    ``health`` has the devices of prepared claims. The directories of ``options`` have the same paths in the
    kubelet's view. ``changed`` is called when the kubelet has reported whether it uses the driver,
    ``answered`` when its claims have been prepared or released. For ``patience`` see :class:`Registration`.
    """

    def __init__(
        self,
        preparer: Preparer,
        health: DraInventory,
        driver: str,
        options: DraOptions,
        metrics: Metrics,
        *,
        changed: Callable[[], None] = lambda: None,
        answered: Callable[[], None] = lambda: None,
        patience: float = math.inf,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        endpoint = options.service_socket(driver)
        self.registration = Registration(driver, options, changed, patience, clock)
        self._options = options
        self._metrics = metrics
        self._answered = answered
        self.calls: Counter[Call] = Counter()
        """Those that are not answered yet."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._preparer = preparer
        self._driver = driver
        self._health = HealthStreams(health, clock=clock)
        claims = {name: self._methods(shares=name == SERVICE) for name in (SERVICE, FORMER)}
        self._service = rpc.Server(endpoint, {**claims, **self._health.services()}, OPTIONS, "--plugins-dir")
        self._registrar = rpc.Server(
            options.registration_socket(driver),
            {REGISTRATION: self.registration.methods()},
            OPTIONS,
            "--plugins-registry",
        )

    async def start(self) -> None:
        """Serves, and only then lets the kubelet find it.

        Raises ``EnvironmentFailure`` if a socket is in use or cannot be made.
        """
        _refuse_other(self._options.plugins_registry, self._driver)
        tagged = replace(self._options, tag=TAG)
        for pattern in (tagged.service_socket(self._driver), tagged.registration_socket(self._driver)):
            for path in filter(sockets.refuses, pattern.parent.glob(pattern.name)):
                with suppress(OSError):  # of a killed process; it is in no one's way
                    path.unlink()
        await _replacing(self._service)
        try:
            await _replacing(self._registrar)
        except BaseException:
            await _stop(self._service, 0)
            raise

    async def stop(self) -> None:
        """Unlinks the registration socket first, so that no new call begins. Safe to call twice.

        The kubelet then cuts the connection. If it calls another process by now, the last calls end before.
        """
        if self._options.tag:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), GRACE)
        await _stop(self._registrar, GRACE)
        self._health.stop()
        await _stop(self._service, GRACE)

    def exists(self) -> bool:
        """Whether both sockets are still where the kubelet looks for them."""
        return self._service.exists() and self._registrar.exists()

    def _methods(self, *, shares: bool) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        async def prepare(data: bytes, context: Any) -> Any:
            request = await decoded(api.NodePrepareResourcesRequest, data, context)
            results = await self._results("prepare", request.claims, self._preparer.prepare)
            response = api.NodePrepareResourcesResponse()
            for uid, result in results.items():
                if isinstance(result, str):
                    response.claims[uid].error = printable(result) or FAILED
                    continue
                entry = response.claims[uid]
                for one in result:
                    added = entry.devices.add(
                        request_names=[one.base],
                        pool_name=one.pool,
                        device_name=one.device,
                        cdi_device_ids=one.cdi_ids,
                    )
                    if one.share and shares:
                        added.share_id = one.share
            return response

        async def unprepare(data: bytes, context: Any) -> Any:
            request = await decoded(api.NodeUnprepareResourcesRequest, data, context)
            results = await self._results("unprepare", request.claims, self._preparer.unprepare)
            response = api.NodeUnprepareResourcesResponse()
            for uid, error in results.items():
                response.claims[uid].error = printable(error)
            return response

        unary = grpc.unary_unary_rpc_method_handler
        return {
            "NodePrepareResources": unary(prepare, None, api.NodePrepareResourcesResponse.SerializeToString),
            "NodeUnprepareResources": unary(
                unprepare, None, api.NodeUnprepareResourcesResponse.SerializeToString
            ),
        }

    async def _results(
        self, call: Call, asked: Sequence[Any], work: Callable[[Sequence[ClaimHolder]], Any]
    ) -> Mapping[str, Any]:
        """The result for each requested uid and no other; a kubelet refuses any other answer."""
        claims = {claim.uid: ClaimHolder(claim.namespace, claim.name, claim.uid) for claim in asked}
        valid = [claim for uid, claim in claims.items() if _UID.fullmatch(uid)]
        results: dict[str, Sequence[ClaimedDevice] | str] = dict.fromkeys(claims, _NO_UID)
        seconds, total = _METRICS[call]
        if valid:
            found: Mapping[str, Sequence[ClaimedDevice] | str] = {}
            with self._measured(call, seconds):
                try:
                    found = await work(valid)
                except asyncio.CancelledError:
                    raise
                except Exception:
                    log.exception("claims failed", claims=", ".join(map(str, valid)))
            results |= {claim.uid: found.get(claim.uid, FAILED) for claim in valid}
        for result in results.values():
            # that of a claim that is released is the empty text
            outcome = ClaimCall.FAILED if isinstance(result, str) and result else ClaimCall.DONE
            self._metrics.add(total, self._driver, outcome)
        return results

    @contextmanager
    def _measured(self, call: Call, metric: str) -> Iterator[None]:
        """Measures a call, which a stop waits for."""
        began = time.monotonic()
        self._count(call, 1)
        try:
            yield
            self._metrics.observe(metric, self._driver, seconds=time.monotonic() - began)
        finally:
            self._count(call, -1)
            self._answered()

    def _count(self, call: Call, more: int) -> None:
        self.calls[call] += more
        if self.calls.total():
            self._idle.clear()
        else:
            self._idle.set()


def _refuse_other(registry: Path, driver: str) -> None:
    """Refuses to serve while another program does: its socket has the uid of its pod in the name.

    So do drivers that are updated without a gap (``kubeletplugin.RollingUpdate``).
    """
    name = re.compile(rf"{re.escape(driver)}-[0-9a-f-]{{36}}-reg\.sock")
    for path in sorted(registry.glob("*-reg.sock")):
        if name.fullmatch(path.name) and sockets.live(path):
            raise _in_use(path)


def _in_use(path: Path) -> EnvironmentFailure:
    return EnvironmentFailure(f"another process serves {path}", "stop it, or choose another dra.driver")


async def _replacing(server: rpc.Server) -> None:
    """Starts a server; the socket of a dead process is replaced, any other file is left alone."""
    path = server.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        there = next(one for one in path.parents if one.exists())
        raise EnvironmentFailure(f"{there} is not a directory", "remove it") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot use directory {path.parent}: {error.strerror}", _HINT) from None
    if sockets.is_other_file(path):
        raise EnvironmentFailure(f"{path} is not a socket", "remove it")
    try:
        sockets.clear(path)
    except FileExistsError:
        raise _in_use(path) from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot replace {path}: {error.strerror}", _HINT) from None
    await server.start()


async def _stop(server: rpc.Server, grace: float) -> None:
    """Removes the socket first, so that no new call begins."""
    if server.exists():
        with suppress(OSError):  # it stays as a dead socket, which the next start replaces
            server.path.unlink()
    await server.stop(grace)
