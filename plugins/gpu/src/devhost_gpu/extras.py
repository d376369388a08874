"""What goes with NVIDIA's GPUs, as CDI names: GPUDirect Storage, network devices, GDRCopy, IMEX channels.

``nvidia-ctk`` finds their files by a mode for each and writes a specification for each, as the library in
NVIDIA's device plugin does; names and classes are those of that plugin (``internal/cdi/cdi.go``). A container
gets the names beside those of its GPUs. A card is Unhealthy while a name that was asked for is missing, or
containers would miss what they need without notice. Where the node has nothing of a kind, there is no name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from devhost.backend import Context
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import Sysfs

from .giving_nvidia import CHANNEL, dev_root
from .giving_options import GivingOptions
from .specifications import Specifications, devices
from .toolkit import Written

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

    def __init__(self, extra: Extra, options: GivingOptions, context: Context) -> None:
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

    def __init__(self, options: GivingOptions, context: Context) -> None:
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
