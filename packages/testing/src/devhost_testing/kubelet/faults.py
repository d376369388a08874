"""Makes a kubelet misbehave at certain points.

A fault is an action that runs at a named point before the kubelet continues. If it raises :class:`Fault`, the
step fails; if it never returns, the step hangs. Disturbances of the kubelet's directory, or from outside, are
in :mod:`.disturbances`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import grpc

Action = Callable[[], Awaitable[None]]


class Point(StrEnum):
    """The steps of a kubelet that can be disturbed."""

    REGISTER = "register"
    """A Register call arrived and is not checked yet; a fault refuses it with its text."""

    OPTIONS = "options"
    """Before GetDevicePluginOptions; a fault replaces an error of the plugin."""

    STREAM = "stream"
    """ListAndWatch was just opened; a fault ends the stream with its text."""

    LIST = "list"
    """A list was read but is not applied yet; a fault ends the stream with its text."""

    PREFERENCE = "preference"
    """Before GetPreferredAllocation."""

    ALLOCATE = "allocate"
    """Before Allocate."""

    PRE_START = "pre-start"
    """Before PreStartContainer."""

    POD_RESOURCES = "pod-resources"
    """A client requests the list of pods from podresources; a fault refuses it. It belongs to no resource."""

    ALLOCATABLE = "allocatable"
    """A client requests the allocatable devices from podresources; a fault refuses it. It belongs to no
    resource."""


class Fault(Exception):
    """A step fails with this text."""


class Refusal(Fault):
    """A call is refused with this code; only at the points of podresources, elsewhere it is any fault."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class WrongAnswer(Exception):
    """The answer is these bytes; only for :attr:`Point.REGISTER` and :attr:`Point.POD_RESOURCES`."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(f"an answer of {len(reply)} bytes")
        self.reply = reply


@dataclass(slots=True)
class _Injected:
    point: Point
    action: Action
    resource: str
    times: int | None


class Faults:
    """The faults that wait until their point is reached."""

    def __init__(self) -> None:
        self._injected: list[_Injected] = []

    def inject(self, point: Point, action: Action, resource: str = "", times: int | None = 1) -> None:
        """Runs ``action`` the next ``times`` times (``None``: always) that ``point`` is reached.

        With ``resource``, only for this one.
        """
        self._injected.append(_Injected(point, action, resource, times))

    def clear(self) -> None:
        """Removes every fault. A step that hangs already stays hung."""
        self._injected.clear()

    async def reached(self, point: Point, resource: str) -> None:
        """Runs the first matching fault, which may raise :class:`Fault`."""
        for fault in self._injected:
            if fault.point is point and fault.resource in ("", resource):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._injected.remove(fault)
                await fault.action()
                return


def fail(text: str) -> Action:
    """The step fails with ``text``."""

    async def action() -> None:
        raise Fault(text)

    return action


def delay(seconds: float) -> Action:
    """The step continues after ``seconds``."""

    async def action() -> None:
        await asyncio.sleep(seconds)

    return action


async def hang() -> None:
    """The step hangs until the kubelet stops or its caller cancels it."""
    await asyncio.get_running_loop().create_future()


class Gate:
    """A hang that can be ended: steps that reach it wait until it is opened.

    ``inject(Point.STREAM, gate.wait)`` … ``gate.open()``.
    """

    def __init__(self) -> None:
        self._opened = asyncio.Event()

    async def wait(self) -> None:
        """The step waits until the gate is open."""
        await self._opened.wait()

    def open(self) -> None:
        """Opens the gate permanently."""
        self._opened.set()


def refuse(code: grpc.StatusCode, text: str) -> Action:
    """List of podresources is refused with this code, for example ``RESOURCE_EXHAUSTED``."""

    async def action() -> None:
        raise Refusal(code, text)

    return action


def answer(reply: bytes) -> Action:
    """Register, or List of podresources, does nothing and is answered OK with ``reply`` as the message.

    Empty bytes are the answer of a kubelet without pods.
    """

    async def action() -> None:
        raise WrongAnswer(reply)

    return action


cut = fail("EOF")
"""The stream ends as if the plugin closed it."""
