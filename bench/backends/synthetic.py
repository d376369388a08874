"""A drop-in backend for measurements: any number of devices, and events from a datagram socket.

A datagram is ``ACTION NUMBER``: ``unhealthy 7`` and ``healthy 7`` change the health of a device, ``touch 7``
only causes a scan.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from devhost.backend import (
    HEALTHY,
    AllocateRequest,
    Attribute,
    Backend,
    Context,
    Device,
    DeviceNode,
    Edits,
    Event,
    hookimpl,
    option,
    unhealthy,
)


@dataclass(frozen=True)
class SyntheticOptions:
    """The keys under ``backends.synthetic``."""

    socket: str = option(meaning="Path of the datagram socket to listen on.")
    devices: int = option(100, "The number of devices.")
    slices: int = option(10, "The number of values of the attribute `slice`.")
    fresh: bool = option(False, "Whether each scan makes new device objects.")
    lasting: bool = option(True, "Whether an answer counts for the next container too.")
    parts: int = option(0, "The number of devices with `slice` 0 that are parts of the one before them.")


class Synthetic(Backend):
    """Numbered devices."""

    name = "synthetic"
    Options = SyntheticOptions
    claim_kinds = ("synthetic",)
    attributes = {  # noqa: RUF012 - the base class declares it as a class variable
        "index": Attribute(int, "number of the device", 7),
        "slice": Attribute(int, "number modulo the option `slices`", 3),
        "model": Attribute(str, "always the same", "x100"),
    }

    def __init__(self, options: SyntheticOptions, context: Context) -> None:
        super().__init__(options, context)
        self._devices = [self._device(number) for number in range(options.devices)]
        self._unhealthy: frozenset[int] = frozenset()

    def discover(self) -> list[Device]:
        """All devices."""
        if self.options.fresh:
            return [self._device(number, number in self._unhealthy) for number in range(self.options.devices)]
        return self._devices.copy()

    def allocate(self, request: AllocateRequest) -> Edits:
        """A node that every machine has."""
        return Edits(
            nodes=(DeviceNode("/dev/null"),),
            env={"DEVICES": ",".join(d.id for d in request.devices)},
            lasting=self.options.lasting,
        )

    async def watch(self) -> AsyncIterator[Event]:
        """An event for each datagram."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.setblocking(False)
            listener.bind(self.options.socket)
            while True:
                action, _, number = (await loop.sock_recv(listener, 64)).decode().partition(" ")
                self._change(action, int(number))
                yield Event("synthetic", action, f"/sys/devices/virtual/synthetic/{number}")

    def _change(self, action: str, number: int) -> None:
        if action == "touch":
            return
        unhealthy_now = action == "unhealthy"
        self._unhealthy = self._unhealthy | {number} if unhealthy_now else self._unhealthy - {number}
        self._devices[number] = self._device(number, unhealthy_now)

    def _device(self, number: int, unhealthy_now: bool = False) -> Device:
        step, each = self.options.slices, self.options.parts + 1
        place = number // step % each if number % step == 0 else 0
        whole = frozenset((f"synthetic:{number - place * step}",))
        divided = each > 1 and number % step == 0
        return Device(
            id=f"synthetic-{number:05}",
            attributes={"index": number, "slice": number % step, "model": "x100"},
            claims=frozenset((f"synthetic:{number}",)),
            part_of=whole if place else frozenset(),
            counters={"memory": each - 1} if divided and not place else {},
            consumes={"memory": 1} if place else {},
            numa_nodes=(number % 2,),
            health=unhealthy("by request") if unhealthy_now else HEALTHY,
        )


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    """The backend of this file."""
    return [Synthetic]
