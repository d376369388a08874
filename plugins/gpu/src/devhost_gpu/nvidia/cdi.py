"""The strategy ``cdi``: NVIDIA cards with the names that CDI specifications give them.

A card that no specification names is Unhealthy with the reason, since no container could start with it. The
names are those of devhost's own specification where nvidia-ctk can write one, else those of a specification
that another program maintains, as the toolkit's own service does.

GPUDirect Storage, network devices, GDRCopy and IMEX channels get names in the same way: nvidia-ctk finds
their files by a mode for each, as the library in NVIDIA's device plugin does (``internal/cdi/cdi.go``). Cards
are Unhealthy while such a name that was asked for is missing. Where the node has nothing of a kind, there is
no name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from devhost.backend import Context, Edits, Event, Health, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import Sysfs
from devhost_gpu.discovery import Adapter
from devhost_gpu.options import GpuOptions
from devhost_gpu.vendor import CanLink, Card, ContainerRequest, Family, Following

from .allocation import CHANNEL, dev_root
from .cards import NvidiaFacts
from .specifications import Specifications, Toolkit, Written, devices

ALL = "all"
"""The name of the device that represents everything of a kind."""

_EMPTY = "empty device edits"
"""How nvidia-ctk says that it found nothing: it does not write a specification that gives nothing."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One kind: the option that asks for it, the mode of nvidia-ctk that finds it, its CDI class."""

    option: str
    mode: str
    cdi_class: str

    @property
    def command(self) -> str:
        """What is run for it, as a message names it."""
        return f"nvidia-ctk cdi generate --mode={self.mode}"


IMEX = Extra("imexChannelIDs", "imex", "imex-channel")
GDRCOPY = Extra("gdrcopyEnabled", "gdrcopy", "gdrcopy")
GDS = Extra("gdsEnabled", "gds", "gds")
MOFED = Extra("mofedEnabled", "mofed", "mofed")


class _Kept:
    """The specification of one kind, and what is known of it."""

    def __init__(self, extra: Extra, options: GpuOptions, context: Context) -> None:
        self.extra = extra
        self.own = Written(
            context.root, options, extra.cdi_class, f"toolkit.devhost-nvidia-{extra.mode}.json"
        )
        self._theirs = Specifications(
            context.root, options.cdi_directories, f"nvidia.com/{extra.cdi_class}", lambda name: True
        )
        self._directories = " or ".join(options.cdi_directories)
        self._program = options.nvidia_CTK_path
        self._driver = ""
        self._accepted: frozenset[str] = frozenset()
        self.trouble = ""
        self.nothing = False

    def names(self, wanted: Collection[str]) -> tuple[str, ...]:
        """The qualified names of the devices, devhost's own before anybody else's; none if one is missing."""
        own = self.own.devices()
        found = self._theirs.names() | {name: f"{self.own.kind}={name}" for name in own}
        return tuple(found[name] for name in sorted(wanted)) if found.keys() >= set(wanted) else ()

    def lacking(self, wanted: Collection[str]) -> str:
        """Why a name is missing, as one sentence; empty if none is, or there is nothing to name."""
        if self.nothing or self.names(wanted):
            return ""
        if self.trouble:
            return self.trouble
        return "its CDI specification is not written yet" if self.own.is_installed() else self._nobody(wanted)

    def fits(self, wanted: Collection[str], driver: str) -> bool:
        """Whether the file is right."""
        same = not self._driver or not driver or self._driver == driver
        document = self.own.document()
        there = devices(document, self.own.kind) >= set(wanted)
        if same and there and self.own.absent(document) <= self._accepted:
            self._driver = driver or self._driver
            return True
        return False

    async def bring(
        self, wanted: Collection[str], driver: str, call: Callable[..., Any], log: logging.Logger
    ) -> bool:
        """Writes the file if it must be; whether it is another now.

        Raises:
            BackendError: a name is missing, and why.
        """
        if not await call(self.own.is_installed):
            if not await call(self.names, wanted):
                raise BackendError(self._nobody(wanted))
            self.trouble = ""
            return False
        if await call(self.fits, wanted, driver):
            self.trouble, self.nothing = "", False
            return False
        before = self.nothing
        try:
            text = await self.own.run((f"--mode={self.extra.mode}",))
            document = self.own.parsed(text)
            self.nothing = not any(map(_gives, _listed(document)))
            if not self.nothing:
                await call(self.own.save, text)
        except BackendError as error:
            self.nothing = _EMPTY in error.message
            if not self.nothing:
                raise BackendError(f"{self.extra.option}: {self.extra.command}: {error.message}") from None
        self.trouble = ""
        if self.nothing:
            if not before:
                found = f"{self.extra.command} found nothing on this node, so containers get nothing"
                log.warning("%s: %s", self.extra.option, found)
            return not before
        self._driver, self._accepted = driver, await call(self.own.absent, document)
        if missing := set(wanted) - devices(document, self.own.kind):
            left_out = f"left out {', '.join(sorted(missing))}"
            raise BackendError(f"{self.extra.option}: {self.extra.command} {left_out}")
        log.info("CDI specification written: %s", self.own.file)
        return True

    def _nobody(self, wanted: Collection[str]) -> str:
        names = ", ".join(f"nvidia.com/{self.extra.cdi_class}={name}" for name in sorted(wanted))
        return (
            f"{self.extra.option}: there is no {self._program} on this machine, and no CDI specification in "
            f"{self._directories} has {names}"
        )


class Extras:
    """Those that the options ask for. :meth:`names` and :meth:`lacking` are for looks."""

    def __init__(self, options: GpuOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._sysfs = Sysfs(context.root)
        self._kept = {extra: _Kept(extra, options, context) for extra in (IMEX, GDRCOPY, GDS, MOFED)}

    def names(self) -> tuple[str, ...]:
        """The qualified names that a container gets beside those of its GPUs."""
        found: list[str] = []
        for extra, devices_of in self._wanted().items():
            kept = self._kept[extra]
            found += () if kept.nothing else kept.names(devices_of)
        return tuple(found)

    def asked(self) -> frozenset[tuple[str, str]]:
        """What is asked for now, by CDI class and name."""
        return frozenset((extra.cdi_class, name) for extra, names in self._wanted().items() for name in names)

    def lacking(self) -> str:
        """Why a name is missing that a container must have; empty while none is."""
        reasons = (self._kept[extra].lacking(names) for extra, names in self._wanted().items())
        return next(filter(None, reasons), "")

    async def bring(self, driver: str, *, free: bool) -> bool:
        """Brings all files to what they should be; whether any is another now.

        Args:
            driver: its version; empty while it is not known.
            free: whether no container has any of NVIDIA's GPUs, so that files may go.

        Raises:
            BackendError: names are missing, and why.
        """
        call = self._context.run_blocking
        wanted = await call(self._wanted)
        changed, troubles = False, []
        for extra, kept in self._kept.items():
            if extra not in wanted:
                if free:
                    await call(kept.own.remove)
                continue
            try:
                changed |= await kept.bring(wanted[extra], driver, call, self._context.log)
            except BackendError as error:
                kept.trouble = error.message
                troubles.append(error.message)
        if troubles:
            raise BackendError("; ".join(troubles))
        return changed

    def remove(self) -> None:
        """Removes all files.

        Raises:
            BackendError: one cannot be removed.
        """
        for kept in self._kept.values():
            kept.own.remove()

    def _wanted(self) -> Mapping[Extra, frozenset[str]]:
        """The names of the devices that are asked for, those of channels as far as the node has them."""
        options = self._options
        whole = {
            GDRCOPY: options.gdrcopy_enabled,
            GDS: options.gds_enabled,
            MOFED: options.mofed_enabled,
        }
        found = {extra: frozenset((ALL,)) for extra, asked in whole.items() if asked}
        root = dev_root(options, self._sysfs.exists)
        channels = [
            str(number)
            for number in options.imex_channel_IDs
            if self._sysfs.exists(f"{root}{CHANNEL}{number}")
        ]
        return ({IMEX: frozenset(channels)} if channels else {}) | found


def _listed(document: Mapping[str, Any]) -> list[Any]:
    found = document.get("devices")
    common = {"containerEdits": document.get("containerEdits")}
    return [common, *(found if isinstance(found, list) else ())]


def _gives(device: Any) -> bool:
    """Whether a container gets anything by this."""
    edits = device.get("containerEdits") if isinstance(device, dict) else None
    return isinstance(edits, dict) and any(edits.values())


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

    def __init__(self, options: GpuOptions, context: Context) -> None:
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


class Specified:
    """The cards of another family with their names; all else is that family's affair."""

    def __init__(self, family: Family, options: GpuOptions, context: Context) -> None:
        self._family = family
        self._writing = Writing(options, context)
        self._following = Following()
        self._following.begin({"cards": family, "specification": self._writing})

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """The family's cards, each with the name it has."""
        cards = self._family.scan(adapters)
        uuids = {card.id: card.facts.uuid for card in cards if isinstance(card.facts, NvidiaFacts)}
        well = {card.id for card in cards if card.device.health and not card.device.withheld}
        wanted = {uuid for name, uuid in uuids.items() if name in well}
        names = self._writing.names()
        drivers = {str(card.device.attributes.get("driverVersion", "")) for card in cards}
        known = frozenset(uuids.values())
        of_extras = self._writing.extras
        driver = max(drivers, default="")
        self._writing.need(Need(frozenset(wanted - {""}), known - {""}, driver, of_extras.asked()))
        extras, lacking = of_extras.names(), of_extras.lacking()
        return [self._named(card, names, extras, lacking) for card in cards]

    def notice(self, event: Event) -> None:
        """Hears an event."""
        self._family.notice(event)

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Which cards are ill."""
        return self._family.probe(cards)

    def links(self, a: Card, b: Card) -> int:
        """How closely two cards are joined."""
        return self._family.links(a, b) if isinstance(self._family, CanLink) else 0

    async def watch(self) -> AsyncIterator[Event]:
        """What the family hears beside uevents, and that there are other names."""
        async with aclosing(self._following.events()) as events:
            async for event in events:
                yield event

    def edits(self, cards: Sequence[Card], request: ContainerRequest) -> Edits:
        """What a container needs."""
        return self._family.edits(cards, request)

    def close(self) -> None:
        """Lets go of whatever the family holds."""
        self._family.close()

    def _named(self, card: Card, names: Mapping[str, str], extras: tuple[str, ...], lacking: str) -> Card:
        facts = card.facts
        if not isinstance(facts, NvidiaFacts):
            return card
        name = names.get(facts.uuid, "")
        device = card.device
        if (lacking or not name) and device.health and not device.withheld:
            reason = lacking if name else self._writing.lacking()
            device = replace(device, health=unhealthy(reason))
        return replace(card, device=device, facts=replace(facts, cdi=name, cdi_extras=extras))
