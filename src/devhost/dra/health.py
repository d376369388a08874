"""The stream on which the kubelet learns the health of devices that claims use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from devhost.backend.errors import cut_bytes, printable
from devhost.runtime.reconciler import Clock
from devhost.runtime.rpc import decoded

from .api import health_v1_pb2 as api
from .inventory import DeviceHealth, DraInventory

SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Both have the same messages."""

RESEND = 12.0
"""Seconds after which the health is sent again although nothing changed."""

TIMEOUT = 30
"""Seconds after which the kubelet shows the health of a device as unknown."""

TOGETHER = 0.2
"""Seconds for which changes are collected into one message."""

MESSAGE = 1024
"""Most bytes of a message; the kubelet cuts it there."""


class HealthStreams:
    """Sends the complete list first, then changes, and everything again before the kubelet's timeout."""

    def __init__(self, source: DraInventory, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._ending = asyncio.Event()
        self._open: set[asyncio.Event] = set()

    def services(self) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
        return {name: {"NodeWatchResources": self._method()} for name in SERVICES}

    def stop(self) -> None:
        self._ending.set()
        for wake in self._open:
            wake.set()

    def _method(self) -> grpc.RpcMethodHandler[Any, Any]:
        async def watch(data: bytes, context: Any) -> AsyncIterator[Any]:
            await decoded(api.NodeWatchResourcesRequest, data, context)
            async for devices in self._messages():
                yield self._message(devices)

        return grpc.unary_stream_rpc_method_handler(
            watch, None, api.NodeWatchResourcesResponse.SerializeToString
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
                    await self._pause()
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

    async def _pause(self) -> None:
        over = asyncio.Event()
        timer = self._clock.call_at(self._clock.time() + TOGETHER, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def _message(self, devices: Sequence[DeviceHealth]) -> Any:
        response = api.NodeWatchResourcesResponse()
        now = int(time.time())
        for one in devices:
            health = api.UNKNOWN
            if one.healthy is not None and not one.stale:
                health = api.HEALTHY if one.healthy else api.UNHEALTHY
            added = response.devices.add(
                health=health,
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT,
                message=cut_bytes(printable(one.message), MESSAGE),
            )
            added.device.pool_name, added.device.device_name = one.pool, one.device
        return response
