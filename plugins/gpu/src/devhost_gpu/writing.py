"""When devhost's own CDI specification of NVIDIA's GPUs is written: off every call that a pod waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from devhost.backend import Context, Event
from devhost.backend.errors import BackendError

from .extras import Extras
from .giving_options import GivingOptions
from .specifications import Specifications
from .toolkit import Toolkit

THEIRS = "nvidia.com/gpu"
"""The kind that NVIDIA's toolkit uses unless it is told another one."""

CHECK = 60.0
"""Seconds between looks whether the file still fits the driver's files, and the longest until what failed is
tried again."""

FIRST = 1.0
"""Seconds until what failed is tried again for the first time."""

_OURS = ("device:gpu/GPU-", "device:gpu/MIG-")
"""How what containers hold of NVIDIA's begins (``Context.held``)."""


@dataclass(frozen=True, slots=True)
class Need:
    """The UUIDs that must have a name, and all that may have one: those of cards that are ill too.

    ``driver`` is the driver's version; empty while it is not known. ``extras`` are the names that are asked
    for beside those of cards, by their CDI class.
    """

    wanted: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    driver: str = ""
    extras: frozenset[tuple[str, str]] = frozenset()


class Writing:
    """Keeps the specification in step with what is needed. :meth:`need` and :meth:`names` are for looks."""

    def __init__(self, options: GivingOptions, context: Context) -> None:
        self.trouble = ""
        """Why a card has no name, as one sentence; empty while none is known to lack one for a reason."""
        self._context = context
        self._toolkit = Toolkit(context.root, options)
        self.extras = Extras(options, context)
        self._theirs = Specifications(context.root, options.cdi_directories, THEIRS)
        self._nobody = (
            f"there is no {options.nvidia_CTK_path} on this machine, and no CDI specification in "
            f"{' or '.join(options.cdi_directories)} names it"
        )
        self._named: frozenset[str] = frozenset()
        self._driver = ""
        # Replaced whole, never changed: the look sets it on another thread.
        self._need: Need | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    def names(self) -> dict[str, str]:
        """The qualified name of each card, by its UUID; devhost's own before anybody else's."""
        names = self._theirs.names() | self._toolkit.names()
        self._named = frozenset(names)
        return names

    def lacking(self) -> str:
        """Why a card that has no name has none, as one sentence; also where nothing is being written."""
        if self.trouble:
            return self.trouble
        return "its CDI specification is not written yet" if self._toolkit.is_installed() else self._nobody

    def need(self, need: Need) -> None:
        """Takes what the last look has seen."""
        before, self._need = self._need, need
        if need != before and (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wake.set)

    async def watch(self) -> AsyncIterator[Event]:
        """Writes when it must; an event says that names, or the reason why there are none, are others."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        delay = FIRST
        while True:
            self._wake.clear()
            if await self._brought():
                yield Event("nvidia", "change")
            if not self.trouble:
                delay = FIRST
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK):
                        await self._wake.wait()
            else:
                await asyncio.sleep(delay)  # events do not shorten it: what failed would fail again
                delay = min(2 * delay, CHECK)

    async def _brought(self) -> bool:
        """Does what there is to do; whether a look would show something else."""
        if (need := self._need) is None:
            return False
        before = self.trouble
        try:
            written = await self._bring(need)
        except BackendError as error:
            written = False
            self.trouble = error.message
            if before != self.trouble:
                self._context.log.warning("CDI names of NVIDIA GPUs are missing: %s", self.trouble)
        else:
            if self.trouble:
                self._context.log.info("CDI names of NVIDIA GPUs are complete again")
            self.trouble = ""
        return written or self.trouble != before

    async def _bring(self, need: Need) -> bool:
        """Whether the file is another one now.

        Raises:
            BackendError: cards are without a name, and why.
        """
        call = self._context.run_blocking
        if not need.known:
            if self._is_free():
                await call(self._toolkit.remove)
                await call(self.extras.remove)
            return False
        written = await self._bring_gpus(need)
        return await self.extras.bring(need.driver, free=self._is_free()) or written

    def _is_free(self) -> bool:
        """Whether no container has any of NVIDIA's GPUs, for certain."""
        held = self._context.held()
        return held is not None and not any(name.startswith(_OURS) for name in held)

    async def _bring_gpus(self, need: Need) -> bool:
        call = self._context.run_blocking
        if not await call(self._toolkit.is_installed):
            if need.wanted - self._named:
                raise BackendError(self._nobody)
            return False
        same = not self._driver or not need.driver or self._driver == need.driver
        if same and await call(self._toolkit.fits, need.wanted, need.known):
            self._driver = need.driver or self._driver
            return False
        text = await self._toolkit.generate(need.wanted)
        self._driver = need.driver
        await call(self._toolkit.write, text, need.wanted, need.known)
        self._context.log.info("CDI specification written: %s", self._toolkit.file)
        return True
