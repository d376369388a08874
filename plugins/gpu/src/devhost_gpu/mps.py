"""NVIDIA's Multi-Process Service: what its clients need of a server that another program runs.

Two forms are known. NVIDIA's mps-control-daemon runs a server for each resource: ``<root>/<resource>/pipe``
and ``<root>/shm``, which clients see as ``/mps/<resource>/pipe`` and ``/dev/shm``; it sets limits itself
(NVIDIA/k8s-device-plugin, ``internal/plugin/mps.go``). GKE has one server for the node, and its device plugin
gives each container limits by two variables (GoogleCloudPlatform/container-engine-accelerators,
``pkg/gpu/nvidia/manager.go``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from devhost.backend import Context, Edits, Event, Mount
from devhost.backend.sysfs import Sysfs

from .card import NVIDIA, Card
from .nvml.facts import NvidiaFacts
from .use import GpuUse

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where devices are shared

DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""What a client reads of its server, and of its own limits (NVIDIA's MPS documentation)."""

USUAL = "/tmp/nvidia-mps"
"""The directory of pipes that CUDA takes without a variable."""

SHM = "/dev/shm"
"""Where a client expects the memory that it shares with the server."""

CONTROL = "control"
"""The control daemon's socket in the directory of pipes: it exists while the daemon runs."""

TICK = 2.0
"""Seconds between two looks for sockets that came or went."""


def edits(use: GpuUse, cards: Sequence[Card], shares: Mapping[str, Fraction]) -> Edits:
    """What a container needs to be a client of the server; nothing where it has no whole GPU.

    Args:
        cards: NVIDIA's, in the order in which CUDA numbers them.
        shares: how much of each card the container asks for, by id.
    """
    whole = [card for card in cards if _is_whole(card)]
    if use.mps is None or not whole:
        return Edits()
    pipes, seen_as = _pipes(use), _pipes_in_container(use)
    mounts = [Mount(pipes, seen_as, read_only=False)]
    if shm := f"{use.mps.root.rstrip('/')}/shm" if use.mps.root else use.mps.shm_directory:
        mounts.append(Mount(shm, SHM, read_only=False))
    env = {} if seen_as == USUAL else {DIRECTORY: seen_as}
    return Edits(mounts=tuple(mounts), env=env | ({} if use.mps.root else _limits(whole, shares)))


def _limits(cards: Sequence[Card], shares: Mapping[str, Fraction]) -> dict[str, str]:
    """Of several cards the smallest share decides about threads; memory is limited on each by itself."""
    parts = [shares.get(card.id, 1) for card in cards]
    sizes = [card.device.attributes.get("memory") for card in cards]
    memory = ",".join(
        f"{number}={int(size * part)}M"
        for number, (size, part) in enumerate(zip(sizes, parts, strict=True))
        if isinstance(size, int)
    )
    threads = {THREADS: str(max(1, int(100 * min(parts))))}
    return threads | ({MEMORY: memory} if memory else {})


def _pipes(use: GpuUse) -> str:
    """The directory of pipes on the host."""
    assert use.mps is not None
    root = use.mps.root.rstrip("/")
    return f"{root}/{use.resource}/pipe" if use.mps.root else use.mps.pipe_directory.rstrip("/")


def _pipes_in_container(use: GpuUse) -> str:
    assert use.mps is not None
    return f"/mps/{use.resource}/pipe" if use.mps.root else use.mps.pipe_directory.rstrip("/")


def _is_whole(card: Card) -> bool:
    return card.vendor == NVIDIA and isinstance(card.facts, NvidiaFacts) and not card.facts.is_mig


class Servers:
    """Whether the servers run that the entries of the file name."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sysfs = Sysfs(context.root)
        # Replaced whole, never changed: the look sets it on another thread.
        self._shown: Mapping[str, str] = {}

    def look(self) -> Mapping[str, str]:
        """Why cards cannot be used through MPS, by what the uses are called; nothing for those that can."""
        self._shown = self._silent()
        return self._shown

    def judged(self, card: Card) -> Card:
        """A card with what the last look found, where that concerns it."""
        if not self._shown or not _is_whole(card):
            return card
        reasons = {**card.device.unusable_for, **self._shown}
        return replace(card, device=replace(card.device, unusable_for=reasons))

    async def watch(self) -> AsyncIterator[Event]:
        """An event when a server has come or gone."""
        while True:
            await asyncio.sleep(TICK)
            named = uses(self._context.entries)
            if named and await self._context.run_blocking(self._silent) != self._shown:
                yield Event("nvidia", "change")

    def _silent(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for use in uses(self._context.entries):
            if not self._sysfs.exists(socket := f"{_pipes(use)}/{CONTROL}"):
                found[use.mps_use] = (
                    f"the MPS server of {use.resource} is not running: {socket} does not exist"
                )
        return found


def uses(entries: Collection[object]) -> list[GpuUse]:
    """Those of the entries that name an MPS server."""
    return [entry for entry in entries if isinstance(entry, GpuUse) and entry.mps]
