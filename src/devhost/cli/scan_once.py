"""Scans every backend of a configuration once, and makes the plan that follows: without a kubelet or root."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from devhost.allocation.allocations import Allocations, Listing
from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder, Device, Health
from devhost.backend.sysfs import natural
from devhost.config.loader import Loaded
from devhost.discovery.health import in_resource, worst
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import BackendNow, Scanner
from devhost.discovery.unserved import dead_links
from devhost.host.shown.entries import EntryOutcomes
from devhost.planning.claims import Key
from devhost.planning.plan import Plan
from devhost.planning.planner import plan_devices
from devhost.planning.settings import ResourceSettings, Settings
from devhost.telemetry.metrics import Metrics


@frozen
class ScanResult:
    """The devices of a machine, or of a recorded one, and the plan of a configuration for them."""

    settings: Settings
    plan: Plan
    scanners: Mapping[str, Scanner]
    holders: Mapping[Key, Sequence[tuple[str, AnyHolder | None]]] = field(default_factory=dict)
    """The resources and containers that hold a device, as far as the plan knows them."""
    dead_links: Mapping[int, str] = field(default_factory=dict)
    """The links that entries name and that lead to nothing, by the index of the entry."""

    @property
    def backends(self) -> Mapping[str, BackendNow]:
        """The backends as they are now, by name."""
        return {name: one.now() for name, one in self.scanners.items()}

    def entries(self) -> EntryOutcomes:
        return EntryOutcomes(self.settings, self.plan, self.backends, dead_links=self.dead_links)

    def resources(self) -> list[str]:
        """The name of every resource, also of those without devices or without an installed backend."""
        names = {entry.name for entry in self.settings.resources} | {
            one.name for one in self.settings.skipped
        }
        return sorted(names | self.plan.resources.keys(), key=natural)

    def skipped(self, resource: str | None = None) -> list[dict[str, str]]:
        """The entries without an installed backend: all, or those of a resource."""
        return [
            {
                "entry": f"resources[{one.index}]",
                "name": one.name,
                "backend": one.backend,
                "reason": f"backend {one.backend} is not installed ({one.hint})",
            }
            for one in self.settings.skipped
            if resource in (None, one.name)
        ]

    def devices(self) -> list[tuple[str, Device]]:
        """Every device with the name of its backend, in an order that depends only on their ids."""
        return [
            (name, device)
            for name, scanner in self.scanners.items()
            for device in sorted(scanner.devices.values(), key=lambda device: natural(device.id))
        ]

    def health(self, backend: str, device: Device) -> Health:
        return self.scanners[backend].health.of(device, time.monotonic())

    def health_in(self, entry: ResourceSettings, device: Device) -> Health:
        health = in_resource(device, self.health(entry.backend, device), entry.uses)
        absent = self.scanners[entry.backend].health.absent
        return worst(health, entry.condition(device), entry.given(absent, device))


async def scan_once(
    loaded: Loaded,
    root: Path,
    *,
    everything: bool = False,
    links: bool = False,
    listing: Listing | None = None,
) -> ScanResult:
    """Scans and probes once, all backends at the same time.

    A configuration without resources means every installed backend. ``everything`` asks for all attributes,
    not only those that the configuration uses, and ``links`` for the links between devices, too. ``listing``
    is what containers hold; the plan gives it to no other.
    """
    scanners: dict[str, Scanner] = {}
    settings = loaded.settings
    for name in settings.backend_names() or loaded.catalog.installed:
        if backend := loaded.catalog.get(name):
            wanted = settings.wanted(name) | ({"*"} if everything else set())
            entries = settings.resource_options(name)
            source = BackendRunner(backend, settings.backends.get(name), root, wanted, entries=entries)
            scanners[name] = Scanner(source, Metrics(), lambda caused_at: None)
            scanners[name].paths.given = settings.given(name)
    await asyncio.gather(*(_ask(scanner, links=links) for scanner in scanners.values()))
    found = {name: scanner.devices for name, scanner in scanners.items()}
    for scanner in scanners.values():
        scanner.runner.close()
    allocations = Allocations(time.monotonic)
    if listing is not None:
        allocations.apply(listing)
    plan = plan_devices(found, settings, allocations)
    holders: dict[Key, dict[tuple[str, AnyHolder | None], None]] = {}
    for held in allocations.held():
        holders.setdefault(held.key, {})[held.resource, held.holder] = None
    held_by = {key: tuple(found) for key, found in holders.items()}
    return ScanResult(settings, plan, scanners, held_by, dead_links(root, settings, plan))


async def _ask(scanner: Scanner, *, links: bool) -> None:
    await scanner.paths.once()
    await scanner.scan_once()
    if scanner.probing:
        await scanner.probing.once()
    if links and scanner.runner.link_cache:
        with suppress(BackendError):  # preferences do without them
            await scanner.runner.link_cache.refresh()
