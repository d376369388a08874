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
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from devhost.backend import Context, Event, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import Sysfs
from devhost_gpu.environment import DEFAULT, Timings
from devhost_gpu.options import GpuOptions
from devhost_gpu.vendor import Card

from .allocation import CHANNEL, dev_root
from .cards import NvidiaFacts
from .specifications import (
    Access,
    GeneratedSpecification,
    GpuSpecification,
    Specifications,
    Wanted,
    devices,
)

ALL = "all"
"""The name of the device that represents everything of a kind."""

_EMPTY = "empty device edits"
"""nvidia-ctk's error when it found nothing: it does not write a specification without edits."""


@frozen
class AdditionalKind:
    """A kind of device that containers can get in addition to GPUs.

    ``option`` requests it, ``mode`` of nvidia-ctk finds it, and ``cdi_class`` is its CDI class.
    """

    option: str
    mode: str
    cdi_class: str

    @property
    def command(self) -> str:
        """The command that finds it, for messages."""
        return f"nvidia-ctk cdi generate --mode={self.mode}"


IMEX = AdditionalKind("imexChannelIDs", "imex", "imex-channel")
GDRCOPY = AdditionalKind("gdrcopyEnabled", "gdrcopy", "gdrcopy")
GDS = AdditionalKind("gdsEnabled", "gds", "gds")
MOFED = AdditionalKind("mofedEnabled", "mofed", "mofed")


class _AdditionalSpecification:
    """The specification of one additional kind, and its state."""

    def __init__(self, kind: AdditionalKind, options: GpuOptions, context: Context, timings: Timings) -> None:
        self.kind = kind
        self.own = GeneratedSpecification(
            context.root, options, kind.cdi_class, f"toolkit.devhost-nvidia-{kind.mode}.json", timings
        )
        self._others = Specifications(
            context.root, options.cdi_directories, f"nvidia.com/{kind.cdi_class}", lambda name: True
        )
        self._directories = " or ".join(options.cdi_directories)
        self._program = options.nvidia_CTK_path
        self._driver = ""
        self._accepted: frozenset[str] = frozenset()
        self.error = ""
        self.is_absent = False

    def names(self, wanted: Collection[str]) -> tuple[str, ...]:
        """The qualified names of the devices, preferably devhost's; none if one is missing."""
        own = self.own.devices()
        found = self._others.names() | {name: f"{self.own.kind}={name}" for name in own}
        return tuple(found[name] for name in sorted(wanted)) if found.keys() >= set(wanted) else ()

    def missing_reason(self, wanted: Collection[str]) -> str:
        """Why a name is missing, in one sentence; empty if none is, or the node has no such device."""
        if self.is_absent or self.names(wanted):
            return ""
        if self.error:
            return self.error
        return (
            "its CDI specification is not written yet" if self.own.is_installed() else self._unnamed(wanted)
        )

    def fits(self, wanted: Collection[str], driver: str) -> bool:
        """Whether the file names what is wanted and matches the driver."""
        same = not self._driver or not driver or self._driver == driver
        document = self.own.document()
        there = devices(document, self.own.kind) >= set(wanted)
        if same and there and self.own.absent_paths(document) <= self._accepted:
            self._driver = driver or self._driver
            return True
        return False

    async def update(
        self, wanted: Collection[str], driver: str, call: Callable[..., Any], log: logging.Logger
    ) -> bool:
        """Writes the file if it must be written; whether it has changed.

        Raises ``BackendError`` if a name is missing, with the reason.
        """
        if not await call(self.own.is_installed):
            if not await call(self.names, wanted):
                raise BackendError(self._unnamed(wanted))
            self.error = ""
            return False
        if await call(self.fits, wanted, driver):
            self.error, self.is_absent = "", False
            return False
        before = self.is_absent
        present = await call(self.own.present)
        try:
            text = await self.own.run((f"--mode={self.kind.mode}",))
            document = self.own.parsed(text)
            self.is_absent = not any(map(_has_edits, _sources_of_edits(document)))
            if not self.is_absent:
                await call(self.own.save, text)
        except BackendError as error:
            self.is_absent = _EMPTY in error.message
            if not self.is_absent:
                raise BackendError(f"{self.kind.option}: {self.kind.command}: {error.message}") from None
        self.error = ""
        if self.is_absent:
            if not before:
                found = f"{self.kind.command} found nothing on this node, so containers get nothing"
                log.warning("%s: %s", self.kind.option, found)
            return not before
        self._driver, self._accepted = driver, await call(self.own.absent_paths, document) - present
        if missing := set(wanted) - devices(document, self.own.kind):
            left_out = f"left out {', '.join(sorted(missing))}"
            raise BackendError(f"{self.kind.option}: {self.kind.command} {left_out}")
        log.info("CDI specification written: %s", self.own.file)
        return True

    def _unnamed(self, wanted: Collection[str]) -> str:
        names = ", ".join(f"nvidia.com/{self.kind.cdi_class}={name}" for name in sorted(wanted))
        return (
            f"{self.kind.option}: there is no {self._program} on this machine, and no CDI specification in "
            f"{self._directories} has {names}"
        )


class AdditionalDevices:
    """The additional devices that the options request.

    Scans call :meth:`names` and :meth:`missing_reason`.
    """

    def __init__(self, options: GpuOptions, context: Context, timings: Timings = DEFAULT) -> None:
        self._options = options
        self._context = context
        self._sysfs = Sysfs(context.root)
        self._specifications = {
            kind: _AdditionalSpecification(kind, options, context, timings)
            for kind in (IMEX, GDRCOPY, GDS, MOFED)
        }

    def names(self) -> tuple[str, ...]:
        """The qualified names that a container gets in addition to those of its GPUs."""
        found: list[str] = []
        for kind, devices_of in self._wanted().items():
            specification = self._specifications[kind]
            found += () if specification.is_absent else specification.names(devices_of)
        return tuple(found)

    def requested(self) -> frozenset[tuple[str, str]]:
        """The requested devices, by CDI class and name."""
        return frozenset((kind.cdi_class, name) for kind, names in self._wanted().items() for name in names)

    def missing_reason(self) -> str:
        """Why a name that a container needs is missing; empty if none is."""
        reasons = (self._specifications[kind].missing_reason(names) for kind, names in self._wanted().items())
        return next(filter(None, reasons), "")

    async def update(self, driver: str, *, is_unused: bool) -> bool:
        """Updates all files; whether any has changed.

        ``driver`` is its version; empty while it is not known. ``is_unused`` is whether no container has an
        NVIDIA GPU, so that files may be removed. Raises ``BackendError`` if names are missing, with the
        reason.
        """
        call = self._context.run_blocking
        wanted = await call(self._wanted)
        changed, errors = False, []
        for kind, specification in self._specifications.items():
            if kind not in wanted:
                if is_unused:
                    await call(specification.own.remove)
                continue
            try:
                changed |= await specification.update(wanted[kind], driver, call, self._context.log)
            except BackendError as error:
                specification.error = error.message
                errors.append(error.message)
        if errors:
            raise BackendError("; ".join(errors))
        return changed

    def remove(self) -> None:
        for specification in self._specifications.values():
            specification.own.remove()

    def _wanted(self) -> Mapping[AdditionalKind, frozenset[str]]:
        """The names of the requested devices; only the channels that the node has."""
        options = self._options
        whole = {
            GDRCOPY: options.gdrcopy_enabled,
            GDS: options.gds_enabled,
            MOFED: options.mofed_enabled,
        }
        found = {kind: frozenset((ALL,)) for kind, asked in whole.items() if asked}
        root = dev_root(options, self._sysfs.exists)
        channels = [
            str(number)
            for number in options.imex_channel_IDs
            if self._sysfs.exists(f"{root}{CHANNEL}{number}")
        ]
        return ({IMEX: frozenset(channels)} if channels else {}) | found


def _sources_of_edits(document: Mapping[str, Any]) -> list[Any]:
    found = document.get("devices")
    common = {"containerEdits": document.get("containerEdits")}
    return [common, *(found if isinstance(found, list) else ())]


def _has_edits(device: Any) -> bool:
    """Whether a container gets anything from this."""
    edits = device.get("containerEdits") if isinstance(device, dict) else None
    return isinstance(edits, dict) and any(edits.values())


TOOLKIT_KIND = "nvidia.com/gpu"
"""The kind that NVIDIA's toolkit uses by default."""

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
        self._gpus = GpuSpecification(context.root, options, timings)
        self._additional = AdditionalDevices(options, context, timings)
        self._others = Specifications(context.root, options.cdi_directories, TOOLKIT_KIND)
        self._unnamed = (
            f"there is no {options.nvidia_CTK_path} on this machine, and no CDI specification in "
            f"{' or '.join(options.cdi_directories)} names it"
        )
        self._named: frozenset[str] = frozenset()
        self._driver = ""
        self._program = options.nvidia_CTK_path
        self._idle = threading.Event()
        self._idle.set()
        # Replaced whole, never changed: scans set it on another thread.
        self._wanted: Wanted | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    def named(self, cards: Sequence[Card], *, is_closed: bool) -> list[Card]:
        """The cards of a scan with their names; those without one are Unhealthy, unless they are anyway.

        ``is_closed`` is whether the driver must not be opened.
        """
        facts = {card.id: card.facts for card in cards if isinstance(card.facts, NvidiaFacts)}
        uuids = {
            card.id: facts[card.id].uuid
            for card in cards
            if card.id in facts and not card.device.reserved  # nvidia-ctk omits these
        }
        usable = {card.id for card in cards if card.device.health and not card.device.withheld}
        access = frozenset((one.uuid, node) for one in facts.values() if one.uuid for node in one.access)
        # a MIG instance without its capability nodes counts as not named
        names = self._others.names(access) | self._gpus.names(access)
        self._named = frozenset(names)
        self._want(
            Wanted(
                frozenset(uuid for name, uuid in uuids.items() if name in usable) - {""},
                frozenset(uuids.values()) - {""},
                access,
                max((str(card.device.attributes.get("driverVersion", "")) for card in cards), default=""),
                self._additional.requested(),
                is_closed,
            )
        )
        additional, missing = self._additional.names(), self._additional.missing_reason()
        found = []
        for card in cards:
            device, own = card.device, facts.get(card.id)
            if own is not None:
                name = names.get(own.uuid, "")
                if (missing or not name) and device.health and not device.withheld:
                    reason = missing if name else self._missing_reason(own.uuid, access)
                    device = replace(device, health=unhealthy(reason))
                card = replace(card, device=device, facts=replace(own, cdi=name, cdi_additional=additional))
            found.append(card)
        return found

    def _missing_reason(self, uuid: str, access: Access) -> str:
        """Why a card has no name, as one sentence."""
        if reason := self._gpus.inaccessible(uuid, access):
            return reason
        if self.error:
            return self.error
        return "its CDI specification is not written yet" if self._gpus.is_installed() else self._unnamed

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
            raise BackendError(f"{self._program} still runs: try again in {self._timings.nvidia_ctk:.0f} s")

    async def _write(self, wanted: Wanted) -> bool:
        """Whether a file has changed. Raises ``BackendError`` if cards have no name, with the reason."""
        call = self._context.run_blocking
        if self._context.released or wanted.is_closed:
            return False  # nvidia-ctk opens the driver
        if not wanted.known:
            if self._is_unused():
                await call(self._gpus.remove)
                await call(self._additional.remove)
            return False
        written = await self._write_gpus(wanted)
        return await self._additional.update(wanted.driver, is_unused=self._is_unused()) or written

    def _is_unused(self) -> bool:
        """Whether it is certain that no container has an NVIDIA GPU."""
        held = self._context.held()
        return held is not None and not any(name.startswith(_NVIDIA_HELD) for name in held)

    async def _write_gpus(self, wanted: Wanted) -> bool:
        call = self._context.run_blocking
        if not await call(self._gpus.is_installed):
            if wanted.uuids - self._named:
                raise BackendError(self._unnamed)
            return False
        same = not self._driver or not wanted.driver or self._driver == wanted.driver
        if same and await call(self._gpus.fits, wanted):
            self._driver = wanted.driver or self._driver
            return False
        present = await call(self._gpus.present)
        text = await self._gpus.generate(wanted.uuids)
        self._driver = wanted.driver
        await call(self._gpus.write, text, wanted, present)
        self._context.log.info("CDI specification written: %s", self._gpus.file)
        return True
