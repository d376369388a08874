"""NVIDIA's GPUs and MIG instances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from devhost.backend import Context, Edits, Event, Health, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import Sysfs, pci_path
from devhost_gpu.discovery import Adapter
from devhost_gpu.nvml import reports
from devhost_gpu.nvml.keeper import Footing, Keeper
from devhost_gpu.nvml.reports import NvLinks
from devhost_gpu.nvml.session import Message
from devhost_gpu.options import GpuOptions
from devhost_gpu.vendor import Card, ContainerRequest

from .allocation import edits
from .cards import DRIVER, Knowledge, NvidiaFacts, Proc, part, whole
from .health import Care, XidRule

FIRST_PATIENCE = 8.0
"""Seconds the first look waits for NVML, which has to wake up the GPUs."""

PATIENCE = 4.0
"""Seconds any other question waits for its answer; a later one does not wait where this one did in vain."""

STALE = 30.0
"""Seconds without an answer after which what NVML told last is not believed any more."""

TICK = 2.0
"""Seconds between two glances at what is ill, hangs, or is due."""

LINKS_FOR = 60.0
"""Seconds for which the links that were read are believed: they come up some time after the driver."""

CHANGED = Event(subsystem="nvidia", action="change")
"""Something that NVML tells of is another."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What NVML last told of a GPU; ``inode`` tells the GPU from another one at its address."""

    gpu: reports.Gpu
    inode: int


class Nvidia:
    """NVIDIA's cards. NVML is asked through :class:`~.nvml.keeper.Keeper`, and never in here."""

    def __init__(
        self, options: GpuOptions, context: Context, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._clock = clock
        self._proc = Proc(Sysfs(context.root))
        self._keeper = Keeper(context, options.driver_root, self._hear)
        rule = XidRule(options.ignore_xids, options.heed_xids)
        self._care = Care(self._keeper, rule, clock, self._ring_if_changed, options.checks)
        self._told: Mapping[str, _Told] = {}
        self._bound: frozenset[str] = frozenset()
        self._versions = ("", "")
        self._trouble, self._trouble_since = "", 0.0
        self._shown: tuple[object, ...] = ()
        self._said = ""
        self._unasked = False
        self._links = NvLinks()
        self._links_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell = asyncio.Event()

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """Every GPU and MIG instance there is now, given NVIDIA's PCI functions."""
        self._meet(adapters)
        self._take_inventory()
        cards: list[Card] = []
        problem = self._problem()
        for adapter in adapters:
            known = self._known(adapter, problem)
            cards.append(whole(known))
            if known.gpu and adapter.driver in (DRIVER, ""):
                cards += self._parts(known, problem)
        self._shown = self._state()
        self._say(adapters, cards)
        return cards

    def notice(self, event: Event) -> None:
        """Lets the driver go if a GPU is being taken away from it."""
        is_leaving = event.action in ("remove", "unbind") and event.subsystem in ("pci", "drm")
        if is_leaving and pci_path(event.sys_path).rpartition("/")[2] in self._bound:
            self._keeper.release()

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Which cards are ill, each GPU asked anew."""
        self._care.check(self._bound, everything=True)
        self._ring_if_changed()
        reasons = {
            card.id: self._care.reason(card.facts) for card in cards if isinstance(card.facts, NvidiaFacts)
        }
        return {name: unhealthy(text) for name, text in reasons.items() if text}

    def links(self, a: Card, b: Card) -> int:
        """How many NVLinks join two GPUs; none joins MIG instances, which cannot use them.

        Raises:
            BackendError: it is not known yet.
        """
        if not (isinstance(a.facts, NvidiaFacts) and isinstance(b.facts, NvidiaFacts)):
            return 0
        if a.facts.is_mig or b.facts.is_mig or not self._told:
            return 0
        return self._nvlinks().between(a.facts.address, b.facts.address)

    async def watch(self) -> AsyncIterator[Event]:
        """Whatever NVML tells of, and what is found out by looking after those that are ill."""
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._keeper.reopen():
            self._bell.set()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK):
                        await self._bell.wait()
                if self._care.is_urgent or not self._bell.is_set():
                    await self._look_after()
                if self._bell.is_set():
                    self._bell.clear()
                    yield CHANGED
        finally:
            self._loop = None
            self.close()

    def edits(self, cards: Sequence[Card], request: ContainerRequest) -> Edits:
        """What a container needs, by the strategies of the options."""
        return edits(cards, request)

    def close(self) -> None:
        """Lets the driver go."""
        self._keeper.close()

    def _meet(self, adapters: Sequence[Adapter]) -> None:
        """Takes note of which GPUs there are, and has a process that fits them."""
        usable = [one for one in adapters if one.driver == DRIVER and not one.is_virtual and one.address]
        if not self._proc.is_loaded:
            usable = []
        inodes = {adapter.address: adapter.inode for adapter in adapters}
        bound = frozenset(adapter.address for adapter in usable)
        self._told = {
            address: told for address, told in self._told.items() if inodes.get(address) == told.inode
        }
        self._care.meet(inodes, bound, self._keeper.take_hung())
        self._bound = bound
        away = self._care.away
        gpus = tuple(sorted((one.address, one.inode) for one in usable if one.address not in away))
        if self._keeper.fit(Footing(gpus, self._proc.version())):
            self._care.doubt()  # nobody listened for a moment

    def _take_inventory(self) -> None:
        inodes = dict(self._keeper.footing.gpus)
        if not inodes:
            self._trouble = ""
            return
        try:
            reply = self._keeper.ask("inventory", PATIENCE if self._told or self._trouble else FIRST_PATIENCE)
        except BackendError as error:
            if not self._trouble:
                self._trouble_since = self._clock()
            self._trouble = error.message
            return
        self._trouble = ""
        found = reports.inventory(reply.content)
        self._versions = found.driver, found.cuda
        troubles = {at: gpu for at, gpu in found.gpus.items() if isinstance(gpu, reports.Trouble)}
        gpus = {at: gpu for at, gpu in found.gpus.items() if isinstance(gpu, reports.Gpu)}
        self._care.take(troubles, reply.since)
        self._told = {**self._told, **{at: _Told(gpu, inodes.get(at, 0)) for at, gpu in gpus.items()}}

    def _known(self, adapter: Adapter, problem: str) -> Knowledge:
        told = self._told.get(adapter.address)
        information = self._proc.information(adapter.address)
        driver, cuda = self._versions
        versions = driver or self._proc.version(), cuda
        if adapter.address not in self._bound:
            bound_to = f"it is bound to {adapter.driver}" if adapter.driver else "no driver is bound to it"
            why = "NVIDIA's driver is not loaded" if adapter.driver == DRIVER else bound_to
            return Knowledge(adapter, told.gpu if told else None, information, why, *versions)
        why = self._care.reason_at(adapter.address) or problem
        if not why and not told:
            why = self._trouble or "NVML has not answered yet when it was asked about it"
        return Knowledge(adapter, told.gpu if told else None, information, why, *versions)

    def _parts(self, known: Knowledge, problem: str) -> list[Card]:
        def capabilities(gi: int, ci: int) -> tuple[int, ...]:
            return self._proc.capabilities(known.minor, gi, ci)

        made = []
        for instance in known.gpu.instances if known.gpu else ():
            if known.adapter.address in self._bound:
                why = self._care.reason_at(known.adapter.address, (instance.gi, instance.ci)) or problem
            else:
                why = known.reason
            made.append(part(known, instance, why, capabilities))
        return made

    def _problem(self) -> str:
        """Why nothing NVML told can be believed any more; empty while it can."""
        is_stale = self._trouble and self._clock() - self._trouble_since >= STALE
        return self._trouble if is_stale else ""

    async def _look_after(self) -> None:
        """Now and then: what hangs, what is due, who is ill."""
        self._keeper.hurry()
        if self._keeper.is_due:
            self._ring()
        if self._care.is_needed:
            try:
                await self._context.run_blocking(self._care.check, self._bound)
            except BackendError as error:
                if not self._unasked:
                    self._context.log.warning("ill GPUs cannot be asked: %s", error.message)
                self._unasked = True
            else:
                if self._unasked:
                    self._context.log.info("ill GPUs can be asked again")
                self._unasked = False
        self._ring_if_changed()

    def _hear(self, message: Message) -> None:
        """An event of the program's; on a thread of the session's."""
        if message["event"] == "unbind":
            self._keeper.release()
        else:
            self._care.hear(message)
        self._ring()

    def _nvlinks(self) -> NvLinks:
        now = self._clock()
        if now >= self._links_until:
            self._links_until = now + LINKS_FOR
            try:
                self._links = reports.links(self._keeper.ask("links", PATIENCE).content)
            except BackendError:
                self._links_until = now
                if not self._links.peers:
                    raise  # the core asks again, and would keep a 0; else what was known stays
        return self._links

    def _state(self) -> tuple[object, ...]:
        """All that a look shows beside what NVML tells of GPUs."""
        return self._care.told(), self._care.away, self._problem()

    def _ring_if_changed(self) -> None:
        if self._state() != self._shown:
            self._ring()

    def _ring(self) -> None:
        """Asks for a look. May be called from any thread."""
        if (loop := self._loop) is not None:
            try:
                loop.call_soon_threadsafe(self._bell.set)
            except RuntimeError:
                return  # the loop has ended

    def _say(self, adapters: Sequence[Adapter], cards: Sequence[Card]) -> None:
        """Tells the log how things stand, when that is news."""
        if not adapters:
            text = "NVIDIA's driver is loaded, and there is no GPU of NVIDIA's"
        elif self._trouble:
            text = f"GPUs of NVIDIA's are here, but NVML cannot be used: {self._trouble}"
        elif not self._bound:
            return  # hardware without its driver is a problem, which the core logs
        else:
            parts = sum(isinstance(card.facts, NvidiaFacts) and card.facts.is_mig for card in cards)
            text = f"NVML tells of {len(self._told)} GPUs and {parts} MIG instances"
        if text != self._said:
            self._said = text
            self._context.log.info("%s", text)
