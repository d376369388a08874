"""Where a kubelet can be made to misbehave, and how.

A fault is an action that runs at a named point before the kubelet goes on there. What it raises as
:class:`Fault` becomes the failure of that step; an action that never returns makes the step hang.
What happens to the kubelet's directory, or from outside, is in :mod:`.disturbances`.
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
    """Register has come in and nothing is checked yet; a fault refuses it with its text."""

    OPTIONS = "options"
    """Before GetDevicePluginOptions; a fault stands for the plugin's error."""

    STREAM = "stream"
    """ListAndWatch has just been opened; a fault ends the stream with its text."""

    LIST = "list"
    """A list has been read and not been applied yet; a fault ends the stream with its text."""

    PREFERENCE = "preference"
    """Before GetPreferredAllocation."""

    ALLOCATE = "allocate"
    """Before Allocate."""

    PRE_START = "pre-start"
    """Before PreStartContainer."""

    POD_RESOURCES = "pod-resources"
    """Somebody asks podresources for the list of pods; a fault refuses it. It belongs to no resource."""

    ALLOCATABLE = "allocatable"
    """Podresources is asked for the allocatable devices; a fault refuses it. It belongs to no resource."""


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
    """The faults that are waiting for their point to be reached."""

    def __init__(self) -> None:
        self._injected: list[_Injected] = []

    def inject(self, point: Point, action: Action, resource: str = "", times: int | None = 1) -> None:
        """Runs ``action`` the next ``times`` times (``None``: always) that ``point`` is reached.

        Args:
            resource: only for this resource; any by default.
        """
        self._injected.append(_Injected(point, action, resource, times))

    def clear(self) -> None:
        """Forgets every fault. A step that hangs already goes on hanging."""
        self._injected.clear()

    async def reached(self, point: Point, resource: str) -> None:
        """Runs the first fault that is waiting for this.

        Raises:
            Fault: the step is to fail.
        """
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
    """The step goes on after ``seconds``."""

    async def action() -> None:
        await asyncio.sleep(seconds)

    return action


async def hang() -> None:
    """The step never goes on, until the kubelet stops or its caller gives up."""
    await asyncio.get_running_loop().create_future()


class Gate:
    """A hang with an end: steps that reach it wait until it is opened.

    ``inject(Point.STREAM, gate.wait)`` … ``gate.open()``.
    """

    def __init__(self) -> None:
        self._opened = asyncio.Event()

    async def wait(self) -> None:
        """The step waits; it goes on at once where the gate stands open."""
        await self._opened.wait()

    def open(self) -> None:
        """Lets everything through, now and from now on."""
        self._opened.set()


def refuse(code: grpc.StatusCode, text: str) -> Action:
    """List of podresources is refused with this code: ``RESOURCE_EXHAUSTED`` for asking too often."""

    async def action() -> None:
        raise Refusal(code, text)

    return action


def answer(reply: bytes) -> Action:
    """Register, or List of podresources, is answered OK with ``reply`` for a message, and does nothing.

    No bytes are the answer of a kubelet that knows no pods.
    """

    async def action() -> None:
        raise WrongAnswer(reply)

    return action


cut = fail("EOF")
"""The stream ends as if the plugin had closed it."""
