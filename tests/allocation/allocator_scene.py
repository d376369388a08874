"""An allocator of one resource without a host: what it reports to the scanner is noted."""

from __future__ import annotations

from collections.abc import Sequence

from devhost.allocation.allocator import Allocator
from devhost.allocation.device_info import DeviceInfoFiles
from devhost.allocation.inventory import Inventory
from devhost.allocation.resource_backend import ResourceBackend
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.planning.settings import ResourceSettings
from devhost.telemetry.metrics import Metrics


class NotingScanner(Scanner):
    """Notes which devices lack something, and how often it is asked to look again."""

    def __init__(self, runner: BackendRunner) -> None:
        super().__init__(runner, Metrics(), lambda caused_at: None)
        self.denied: dict[str, list[str]] = {}
        self.rechecks = 0

    def report_missing(self, device: str, paths: Sequence[str]) -> None:
        self.denied[device] = list(paths)

    def recheck(self) -> None:
        self.rechecks += 1


def backend_of(resource: str, runner: BackendRunner) -> ResourceBackend:
    return ResourceBackend(resource, NotingScanner(runner), ResourceSettings(0, resource, runner.name))


def allocator_of(
    resource: str, inventory: Inventory, scanner: Scanner, device_info: DeviceInfoFiles | None = None
) -> Allocator:
    entry = ResourceSettings(0, resource, scanner.runner.name)
    backend = ResourceBackend(resource, scanner, entry)
    return Allocator(inventory, backend, entry, device_info=device_info)
