"""The strategy ``cdi``: NVIDIA cards with the names that CDI specifications give them.

A card that no specification names is Unhealthy with the reason, since no container could start with it. The
names are those of devhost's specification if nvidia-ctk can write one, else those of a specification of
another program, such as the service of the NVIDIA toolkit.

GPUDirect Storage, network devices, GDRCopy and IMEX channels get names in the same way: nvidia-ctk finds
their files, with a mode for each, as the library in NVIDIA's device plugin does (``internal/cdi/cdi.go``).
Cards are Unhealthy while a requested name of these is missing. If the node has no device of a kind, there is
no name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from devhost.backend import Context, Event, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import Sysfs
from devhost_gpu.environment import DEFAULT, Timings
from devhost_gpu.options import GpuOptions

from .allocation import CHANNEL, dev_root
from .cards import NvidiaCard
from .specifications import GeneratedSpecification, GpuSpecification, Wanted

ALL = "all"
"""The name of the device that represents everything of a kind."""


class AdditionalKind(NamedTuple):
    """A kind of device that containers can get in addition to GPUs.

    ``option`` requests it, ``mode`` of nvidia-ctk finds it, and ``cdi_class`` is its CDI class.
    """

    option: str
    mode: str
    cdi_class: str


IMEX = AdditionalKind("imexChannelIDs", "imex", "imex-channel")
GDRCOPY = AdditionalKind("gdrcopyEnabled", "gdrcopy", "gdrcopy")
GDS = AdditionalKind("gdsEnabled", "gds", "gds")
MOFED = AdditionalKind("mofedEnabled", "mofed", "mofed")

_EMPTY = "empty device edits"
"""nvidia-ctk's error when it found nothing: it does not write a specification without edits."""


class NothingFound(BackendError):
    """The node has no device of a kind."""


class AdditionalSpecification(GeneratedSpecification):
    """The specification of an additional kind, and whether the node has no such device."""

    def __init__(self, kind: AdditionalKind, root: Path, options: GpuOptions, timings: Timings) -> None:
        super().__init__(root, options, kind.cdi_class, f"toolkit.devhost-nvidia-{kind.mode}.json", timings)
        self.is_absent = False
        self._kind = kind

    @property
    def command(self) -> str:
        return f"{self._kind.option}: nvidia-ctk cdi generate --mode={self._kind.mode}"

    def requested(self, wanted: Wanted) -> frozenset[str]:
        return frozenset(name for cdi_class, name in wanted.additional if cdi_class == self._kind.cdi_class)

    def given(self, wanted: Wanted) -> tuple[tuple[str, ...], str]:
        """The qualified names that a container gets, and why one is missing; empty for an absent kind."""
        requested = self.requested(wanted)
        if self.is_absent or not requested:
            return (), ""
        found = self.names()
        if requested <= found.keys():
            return tuple(found[name] for name in sorted(requested)), ""
        return (), self.why_missing(wanted)

    def unnamed(self, wanted: Wanted) -> str:
        names = ", ".join(
            f"nvidia.com/{self._kind.cdi_class}={name}" for name in sorted(self.requested(wanted))
        )
        return f"{self._kind.option}: {super().unnamed(wanted)}: {names}"

    async def update(self, wanted: Wanted, call: Callable[..., Any], log: logging.Logger) -> bool:
        was_absent = self.is_absent
        try:
            changed = await super().update(wanted, call, log)
        except NothingFound:
            self.is_absent = True
            if not was_absent:
                log.warning("%s found nothing on this node, so containers get nothing", self.command)
            return not was_absent
        except BackendError:
            self.is_absent = False
            raise
        self.is_absent = False
        return changed

    async def generate(self, wanted: Wanted) -> str:
        try:
            text = await self.run((f"--mode={self._kind.mode}",))
            document = self.parsed(text)
        except BackendError as error:
            if _EMPTY in error.message:
                raise NothingFound(error.message) from None
            raise BackendError(f"{self.command}: {error.message}") from None
        if not any(map(_has_edits, _sources_of_edits(document))):
            raise NothingFound(_EMPTY)
        return text


def _sources_of_edits(document: Mapping[str, Any]) -> list[Any]:
    found = document.get("devices")
    common = {"containerEdits": document.get("containerEdits")}
    return [common, *(found if isinstance(found, list) else ())]


def _has_edits(device: Any) -> bool:
    """Whether a container gets anything from this."""
    edits = device.get("containerEdits") if isinstance(device, dict) else None
    return isinstance(edits, dict) and any(edits.values())


_NVIDIA_HELD = ("device:gpu/GPU-", "device:gpu/MIG-")
"""Prefixes of the NVIDIA devices that containers hold (``Context.held``)."""


class CdiNames:
    """The CDI names of NVIDIA cards.

    Writes devhost's specifications when that is necessary, never while a pod waits.
    """

    def __init__(self, options: GpuOptions, context: Context, timings: Timings = DEFAULT) -> None:
        self.error = ""
        """Why the last update failed, as one sentence; empty if it did not."""
        self._context = context
        self._timings = timings
        self._options = options
        self._sysfs = Sysfs(context.root)
        self._gpus = GpuSpecification(context.root, options, timings)
        self._additional = [
            AdditionalSpecification(kind, context.root, options, timings)
            for kind in (IMEX, GDRCOPY, GDS, MOFED)
        ]
        self._idle = threading.Event()
        self._idle.set()
        # Replaced whole, never changed: scans set it on another thread.
        self._wanted: Wanted | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    def named(self, cards: Sequence[NvidiaCard], *, is_closed: bool) -> list[NvidiaCard]:
        """The cards of a scan with their names; those without one are Unhealthy, unless they are anyway.

        ``is_closed`` is whether the driver must not be opened.
        """
        facts = [card.facts for card in cards]
        uuids = {
            card.id: card.facts.uuid
            for card in cards
            if not card.device.reserved  # nvidia-ctk omits these
        }
        usable = {card.id for card in cards if card.device.health and not card.device.withheld}
        access = frozenset((one.uuid, node) for one in facts if one.uuid for node in one.access)
        # a MIG instance without its capability nodes counts as not named
        names = self._gpus.names(access)
        wanted = Wanted(
            frozenset(uuid for name, uuid in uuids.items() if name in usable) - {""},
            frozenset(uuids.values()) - {""},
            access,
            max((str(card.device.attributes.get("driverVersion", "")) for card in cards), default=""),
            self._requested(),
            is_closed,
        )
        self._want(wanted)
        given = [one.given(wanted) for one in self._additional]
        additional = tuple(name for own, _ in given for name in own)
        missing = next((why for _, why in given if why), "")
        found = []
        for card in cards:
            device, own = card.device, card.facts
            name = names.get(own.uuid, "")
            if (missing or not name) and device.health and not device.withheld:
                why = self._gpus.inaccessible(own.uuid, access) or self._gpus.why_missing(wanted)
                device = replace(device, health=unhealthy(missing if name else why))
            own = replace(own, cdi=name, cdi_additional=additional)
            found.append(replace(card, device=device, facts=own))
        return found

    def _requested(self) -> frozenset[tuple[str, str]]:
        """The requested additional devices, by CDI class and name; only the channels that the node has."""
        options = self._options
        root = dev_root(options, self._sysfs.exists)
        channels = (n for n in options.imex_channel_IDs if self._sysfs.exists(f"{root}{CHANNEL}{n}"))
        asked = {GDRCOPY: options.gdrcopy_enabled, GDS: options.gds_enabled, MOFED: options.mofed_enabled}
        whole = {(kind.cdi_class, ALL) for kind, is_asked in asked.items() if is_asked}
        return frozenset(whole | {(IMEX.cdi_class, str(n)) for n in channels})

    def _want(self, wanted: Wanted) -> None:
        """Sets what the last scan has found."""
        before, self._wanted = self._wanted, wanted
        if wanted != before and (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wake.set)

    async def watch(self) -> AsyncIterator[Event]:
        """Writes when necessary; yields an event when names, or the reason for missing ones, have changed."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        delay = self._timings.specification_retry
        while True:
            self._wake.clear()
            if await self._update():
                yield Event("nvidia", "change")
            if not self.error:
                delay = self._timings.specification_retry
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._timings.specification_check):
                        await self._wake.wait()
            else:
                await asyncio.sleep(delay)  # events do not shorten it: the same would fail again
                delay = min(2 * delay, self._timings.specification_check)

    async def _update(self) -> bool:
        """Writes what must be written; whether a scan would have a different result."""
        if (wanted := self._wanted) is None:
            return False
        before = self.error
        try:
            self._idle.clear()
            written = await self._write(wanted)
        except BackendError as error:
            written = False
            self.error = error.message
            if before != self.error:
                self._context.log.warning("CDI names of NVIDIA GPUs are missing: %s", self.error)
        else:
            if self.error:
                self._context.log.info("CDI names of NVIDIA GPUs are complete again")
            self.error = ""
        finally:
            self._idle.set()
        return written or self.error != before

    def wait_idle(self) -> None:
        """Waits until nvidia-ctk does not run. Raises ``BackendError`` if it runs for too long."""
        if not self._idle.wait(self._timings.releases):
            raise BackendError(
                f"{self._options.nvidia_CTK_path} still runs: try again in {self._timings.nvidia_ctk:.0f} s"
            )

    async def _write(self, wanted: Wanted) -> bool:
        """Whether a file has changed. Raises ``BackendError`` if cards have no name, with the reason."""
        call = self._context.run_blocking
        if self._context.released or wanted.is_closed:
            return False  # nvidia-ctk opens the driver
        is_unused, changed, errors = self._is_unused(), False, []
        for one in (self._gpus, *self._additional):
            if not wanted.known or (one is not self._gpus and not one.requested(wanted)):
                if is_unused:
                    await call(one.remove)
                continue
            try:
                changed |= await one.update(wanted, call, self._context.log)
                one.error = ""
            except BackendError as error:
                one.error = error.message
                errors.append(error.message)
        if errors:
            raise BackendError("; ".join(errors))
        return changed

    def _is_unused(self) -> bool:
        """Whether it is certain that no container has an NVIDIA GPU."""
        held = self._context.held()
        return held is not None and not any(name.startswith(_NVIDIA_HELD) for name in held)
