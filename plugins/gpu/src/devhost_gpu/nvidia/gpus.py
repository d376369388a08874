"""The vendor's code for NVIDIA: it finds GPUs and MIG instances, and reports their health and links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from devhost.backend import AllocationError, Context, Edits, Event, Health, NotYet, Usage, claim, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.sysfs import Sysfs, pci_path
from devhost_gpu.discovery import Adapter
from devhost_gpu.environment import STANDARD, Environment
from devhost_gpu.nvml import reports
from devhost_gpu.nvml.client import NvmlClient, Scope
from devhost_gpu.nvml.process import Message
from devhost_gpu.nvml.reports import NvLinks
from devhost_gpu.options import GpuOptions, Layout
from devhost_gpu.vendor import Change, ContainerRequest, Vendor

from .allocation import dev_root, edits, unallocatable
from .cards import (
    DRIVER,
    MIG_RECORD,
    DriverFiles,
    GpuState,
    NvidiaCard,
    engines_of,
    gpu_card,
    health_of,
    mig_card,
    profile,
)
from .health import HealthMonitor, XidRule
from .unloading import Unloading

if TYPE_CHECKING:
    from .layout import MigLayouts
    from .partitions import Partitions

CHANGED = Event(subsystem="nvidia", action="change")
"""Something that NVML reports has changed."""


@frozen
class _Reported:
    """The last report of NVML about a GPU; ``inode`` identifies the GPU among those at its address."""

    gpu: reports.Gpu
    inode: int


class Nvidia(Vendor):
    """NVIDIA's cards. NVML is asked through :class:`NvmlClient`, never directly.

    ``environment`` has durations, the clock, and how programs are found and killed.
    """

    def __init__(self, options: GpuOptions, context: Context, environment: Environment = STANDARD) -> None:
        self._options = options
        self._context = context
        self._timings, self._clock = environment.timings, environment.clock
        self._sysfs = Sysfs(context.root)
        self._driver_files = DriverFiles(self._sysfs)
        self.client = NvmlClient(context, options.driver_root, self._on_event, environment)
        rule = XidRule(options.ignore_xids, options.heed_xids)
        self.health = HealthMonitor(
            self.client, rule, options.checks, self._request_scan_if_changed, environment
        )
        self._partitions: Partitions | None = None
        if options.mig == "dynamic":
            from .partitions import Partitions

            self._partitions = Partitions(context, self.client, environment, self._request_scan)
        self._states: Mapping[str, GpuState] = {}
        self._unloading = Unloading(self._driver_files, options.driver_root, environment)
        self._why_closed = ""
        self._reported: Mapping[str, _Reported] = {}
        self._bound: frozenset[str] = frozenset()
        self._versions = ("", "")
        self._problem, self._problem_since = "", 0.0
        self._shown: tuple[object, ...] = ()
        self._logged = ""
        self._check_failure = Incident(most=1)
        self._links = NvLinks()
        self._links_until = 0.0
        self._layouts: MigLayouts | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scan_wanted = asyncio.Event()

    @property
    def problem(self) -> str:
        """Why the last scan could not ask NVML; empty if it could."""
        return self._problem

    @property
    def is_closed(self) -> bool:
        """Whether the driver was not to be opened at the last scan."""
        return bool(self._why_closed)

    @property
    def is_watched(self) -> bool:
        """Whether :meth:`watch` is running."""
        return self._loop is not None

    def scan(self, adapters: Sequence[Adapter]) -> list[NvidiaCard]:
        """Every GPU and MIG instance there is now, given NVIDIA's PCI functions."""
        self._why_closed = self._reason_to_close()
        self._update_gpus(adapters)
        self._read_inventory()
        cards: list[NvidiaCard] = []
        problem = self._lasting_problem()
        root = dev_root(self._options, self._sysfs.exists)
        states = [self._state(adapter, problem) for adapter in adapters]
        divided = self._partitions
        if divided is not None:
            self._states = {state.adapter.address: state for state in states}
            split = {at: one.gpu for at, one in self._states.items() if one.gpu and one.gpu.mig}
            off = [one.gpu.uuid for one in states if one.gpu and not one.gpu.mig]
            divided.scan({at: gpu.uuid for at, gpu in split.items() if at in self._bound}, off)
        for state in states:
            adapter = state.adapter
            cards.append(
                gpu_card(state, root, divided.why_whole_is_withheld(adapter.address) if divided else "")
            )
            if state.gpu and adapter.driver in (DRIVER, ""):
                cards += self._mig_cards(state, problem, root)
        if divided is None and self._sysfs.exists(MIG_RECORD):
            cards = self._without_claimed(cards)
        cards = [self._nameable(card) for card in cards]
        self._shown = self._visible_state()
        self._log_state(adapters, cards)
        return cards

    def _nameable(self, card: NvidiaCard) -> NvidiaCard:
        """The card, Unhealthy if the strategies cannot name it."""
        if card.device.withheld or not card.device.health:
            return card  # also a partition, which has a name once it exists
        why = unallocatable(card.facts, self._options)
        return replace(card, device=replace(card.device, health=unhealthy(why))) if why else card

    def _without_claimed(self, cards: Sequence[NvidiaCard]) -> list[NvidiaCard]:
        """Withholds the instances that claims have got with ``mig: dynamic``, which is not set any longer.

        The record has no UUIDs, so that one of an equal profile on the same GPU may be withheld as well.
        """
        from .partitions import Record

        held = self._context.held()
        kept = {
            (one.gpu, one.name.partition("+")[0]): one.device
            for one in Record(self._context.root).read()
            if held is None or claim.device("gpu", one.device) in held
        }
        found = []
        for card in cards:
            name = str(card.device.attributes.get("profile", "")).partition("+")[0]
            if device := kept.get((str(card.device.attributes.get("parent", "")), name)):
                why = f"it may be the instance of a claim, which got {device} before mig: dynamic was removed"
                card = _withheld(card, why)
            found.append(card)
        return found

    def notice(self, event: Event) -> None:
        """Releases the driver if a GPU is being taken away from it."""
        is_leaving = event.action in ("remove", "unbind") and event.subsystem in ("pci", "drm")
        if is_leaving and pci_path(event.sys_path).rpartition("/")[2] in self._bound:
            self.client.release()

    def probe(self, cards: Sequence[NvidiaCard]) -> Mapping[str, Health]:
        """Which cards are unhealthy; each GPU is asked again."""
        self.health.check(self._bound, everything=True)
        self._request_scan_if_changed()
        verdicts = {card.id: self.health.verdict(card.facts) for card in cards}
        return {name: health for name, health in verdicts.items() if not health}

    def change(self, cards: Sequence[NvidiaCard], layout: Layout) -> Change | None:
        """How a GPU gets the MIG instances of a layout.

        Raises ``NotYet`` if MIG will be on later, or the GPU cannot be asked now, and ``BackendError`` if MIG
        is off, or the instances are impossible.
        """
        address, wanted = cards[0].facts.address, layout.mig or ()
        if address not in self._bound or (last := self._reported.get(address)) is None:
            card = cards[0].device
            if card.attributes.get("driver") == DRIVER:
                raise NotYet(f"{address} gets its MIG instances later: {card.health.reason or card.withheld}")
            return None
        gpu = last.gpu
        if not gpu.mig:
            if not wanted:
                return None
            if gpu.mig_next:
                raise NotYet(f"{address} gets its MIG instances after its next reset, when MIG is on")
            name = address if gpu.index is None else gpu.index
            raise BackendError(f"MIG is off on {address} (run nvidia-smi -i {name} -mig 1)")
        if self._layouts is None:
            from .layout import MigLayouts

            self._layouts = MigLayouts(self.client, self._timings.alone)
        present = {(one.gi, one.ci): profile(one, gpu.memory) for one in gpu.instances}
        return self._layouts.change(address, present, wanted)

    def links(self, a: NvidiaCard, b: NvidiaCard) -> int:
        """How many NVLinks join two GPUs; none joins MIG instances, which cannot use them.

        Raises ``BackendError`` if it is not known yet.
        """
        if a.facts.is_mig or b.facts.is_mig or not self._reported:
            return 0
        return self._nvlinks().between(a.facts.address, b.facts.address)

    def usage(self, cards: Sequence[NvidiaCard]) -> Mapping[str, Usage]:
        """What NVML reports. A MIG instance has figures of its memory only."""
        if not cards or self._why_closed:
            return {}
        found = reports.usage(self.client.ask("usage", self._timings.answer).content)
        keys = {
            card.id: (card.facts.address, card.facts.uuid if card.facts.is_mig else "")
            for card in cards
            if card.facts.uuid
        }
        return {name: found[key] for name, key in keys.items() if key in found}

    def processes(self, cards: Sequence[NvidiaCard]) -> Mapping[str, Collection[int]]:
        """The processes with a context on each GPU or MIG instance."""
        if not cards or self._why_closed:
            return {}
        found = reports.processes(self.client.ask("processes", self._timings.answer).content)
        return {
            card.id: {
                pid
                for pid, gi, ci in found[card.facts.address]
                if card.facts.instance in (None, (gi, ci)) or gi is None
            }
            for card in cards
            if card.facts.address in found
            if card.facts.instance or not card.facts.is_mig  # a partition that does not exist is used by none
        }

    def edits(self, cards: Sequence[NvidiaCard], request: ContainerRequest) -> Edits:
        """What a container needs, by the strategies of the options. Creates partitions that do not exist."""
        return edits([self._existing(card) for card in cards] if self._partitions else cards, request)

    async def watch(self) -> AsyncIterator[Event]:
        """Events of NVML, and those of the checks of unhealthy GPUs."""
        self._scan_wanted = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self.client.reopen():
            self._scan_wanted.set()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._timings.check):
                        await self._scan_wanted.wait()
                if self.health.is_check_due or not self._scan_wanted.is_set():
                    await self._check_due()
                if self._scan_wanted.is_set():
                    self._scan_wanted.clear()
                    yield CHANGED
        finally:
            self._loop = None
            self.close()

    def settle(self) -> None:
        """Begins to destroy the partitions that no claim holds; does not block."""
        if self._partitions is not None and not self._why_closed:
            self._partitions.settle()

    def release(self) -> None:
        """Releases the driver, and waits until that is done.

        Raises ``BackendError`` if a process that uses NVML does not end.
        """
        self._bound = frozenset()
        self.client.ensure(Scope())
        if left := self.client.wait_released(self._timings.releases):
            pids = ", ".join(map(str, left))
            raise BackendError(
                f"devhost-nvml (pid {pids}) has not ended: a call into the kernel holds it (if it does not "
                "end, restart the node)"
            )

    def close(self) -> None:
        """Releases the driver."""
        self.client.close()

    def _reason_to_close(self) -> str:
        """Why the driver must not be opened now; empty if it may."""
        unloading = self._unloading.reason()
        if not self._driver_files.is_loaded:
            return "NVIDIA's driver is not loaded"
        return "NVIDIA's driver is released" if self._context.released else unloading

    def _update_gpus(self, adapters: Sequence[Adapter]) -> None:
        """Takes which GPUs exist, and ensures that a process for them runs."""
        usable = [one for one in adapters if one.driver == DRIVER and not one.is_virtual and one.address]
        if self._why_closed:
            usable = []
        inodes = {adapter.address: adapter.inode for adapter in adapters}
        bound = frozenset(adapter.address for adapter in usable)
        self._reported = {
            address: last for address, last in self._reported.items() if inodes.get(address) == last.inode
        }
        self.health.update_gpus(
            inodes, bound, self.client.pop_hung(), has_switches=self._driver_files.has_switches
        )
        self._bound = bound
        released = self.health.released
        gpus = tuple(sorted((one.address, one.inode) for one in usable if one.address not in released))
        if self.client.ensure(Scope(gpus, self._driver_files.version())):
            self.health.request_check()  # events may have been missed meanwhile

    def _read_inventory(self) -> None:
        inodes = dict(self.client.scope.gpus)
        if not inodes:
            self._problem = ""
            return
        is_first = not self._reported and not self._problem
        try:
            reply = self.client.ask(
                "inventory", self._timings.first_answer if is_first else self._timings.answer
            )
        except BackendError as error:
            if not self._problem:
                self._problem_since = self._clock()
            self._problem = error.message
            return
        self._problem = ""
        found = reports.inventory(reply.content)
        self._versions = found.driver, found.cuda
        errors = {at: gpu for at, gpu in found.gpus.items() if isinstance(gpu, reports.NvmlError)}
        gpus = {at: gpu for at, gpu in found.gpus.items() if isinstance(gpu, reports.Gpu)}
        self.health.add_checks(errors, reply.since)
        fresh = {at: _Reported(gpu, inodes.get(at, 0)) for at, gpu in gpus.items()}
        self._reported = {**self._reported, **fresh}

    def _state(self, adapter: Adapter, problem: str) -> GpuState:
        last = self._reported.get(adapter.address)
        information = self._driver_files.information(adapter.address)
        driver, cuda = self._versions
        if adapter.address not in self._bound:
            bound_to = f"it is bound to {adapter.driver}" if adapter.driver else "no driver is bound to it"
            health = health_of(self._why_closed if adapter.driver == DRIVER else bound_to)
        else:
            health = self.health.verdict_at(adapter.address) and health_of(problem)
            if health and not last:
                why = self._problem or "NVML has not answered yet when it was asked about it"
                health = unhealthy(why)
        return GpuState(
            adapter,
            last.gpu if last else None,
            information,
            health,
            driver or self._driver_files.version(),
            cuda,
        )

    def _mig_cards(self, state: GpuState, problem: str, root: str) -> list[NvidiaCard]:
        address, divided = state.adapter.address, self._partitions

        def health(instance: tuple[int, int] | None) -> Health:
            if address not in self._bound:
                return state.health
            return self.health.verdict_at(address, instance) and health_of(problem)

        capabilities = partial(self._driver_files.capabilities, state.minor)
        others = divided.others(address) if divided is not None else {}
        made = [
            _withheld(
                mig_card(
                    state,
                    one,
                    health((one.gi, one.ci)),
                    capabilities,
                    root,
                    engines_of(self._context, one.shape),
                ),
                others.get(one.gi, ""),
            )
            for one in (state.gpu.instances if state.gpu else ())
            if divided is None or one.gi in others
        ]
        return made if divided is None else [*made, *divided.cards(state, health, capabilities, root)]

    def _existing(self, card: NvidiaCard) -> NvidiaCard:
        """The card of a partition with its instance, which is created if it does not exist."""
        facts = card.facts
        if self._partitions is None or facts.placement is None:
            return card
        state = self._states.get(facts.address)
        if state is None or self._why_closed:
            raise AllocationError(f"{card.id}: {self._why_closed or 'its GPU is gone'}")
        capabilities = partial(self._driver_files.capabilities, state.minor)
        return replace(card, facts=self._partitions.ensure(facts, state, capabilities))

    def _lasting_problem(self) -> str:
        """Why no report of NVML can be believed any longer; empty while reports can."""
        is_stale = self._problem and self._clock() - self._problem_since >= self._timings.stale
        return self._problem if is_stale else ""

    async def _check_due(self) -> None:
        """Ends what hangs, tries again what failed, and asks unhealthy GPUs how they are."""
        if await self._context.run_blocking(self._reason_to_close) != self._why_closed:
            self._request_scan()
        self.settle()
        self.client.kill_if_hung()
        if self.client.is_due:
            self._request_scan()
        if self.health.is_needed:
            try:
                await self._context.run_blocking(self.health.check, self._bound)
            except BackendError as error:
                if self._check_failure.news(error.message):
                    self._context.log.warning("unhealthy GPUs cannot be checked: %s", error.message)
            else:
                if self._check_failure.over():
                    self._context.log.info("unhealthy GPUs can be checked again")
        self._request_scan_if_changed()

    def _on_event(self, message: Message) -> None:
        """Takes an event of the program's; on a thread of the process's."""
        if message["event"] == "unbind":
            self.client.release()
        else:
            self.health.add_event(message)
        self._request_scan()

    def _nvlinks(self) -> NvLinks:
        now = self._clock()
        if now >= self._links_until:
            self._links_until = now + self._timings.links
            try:
                self._links = reports.links(self.client.ask("links", self._timings.answer).content)
            except BackendError:
                self._links_until = now
                if not self._links.peers:
                    raise  # the core asks again, and would keep a 0; otherwise the known links stay
        return self._links

    def _visible_state(self) -> tuple[object, ...]:
        """Everything that a scan shows beside NVML's reports about GPUs."""
        return self.health.reasons(), self.health.released, self._lasting_problem()

    def _request_scan_if_changed(self) -> None:
        if self._visible_state() != self._shown:
            self._request_scan()

    def _request_scan(self) -> None:
        """Asks for a scan. May be called from any thread."""
        if (loop := self._loop) is not None:
            try:
                loop.call_soon_threadsafe(self._scan_wanted.set)
            except RuntimeError:
                return  # the loop has ended

    def _log_state(self, adapters: Sequence[Adapter], cards: Sequence[NvidiaCard]) -> None:
        """Logs what was found, when that has changed."""
        if not adapters:
            text = "NVIDIA's driver is loaded, but there is no GPU"
        elif self._problem:
            text = f"NVIDIA GPUs found, but NVML cannot be used: {self._problem}"
        elif not self._bound:
            return  # hardware without its driver is a problem, which the core logs
        else:
            parts = sum(bool(card.facts.instance) for card in cards)
            text = f"NVML reports {len(self._reported)} GPUs and {parts} MIG instances"
        if text != self._logged:
            self._logged = text
            self._context.log.info("%s", text)


def _withheld(card: NvidiaCard, why: str) -> NvidiaCard:
    """The card, which is not offered if there is a reason."""
    return replace(card, device=replace(card.device, withheld=why)) if why else card
