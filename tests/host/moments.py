"""Values of what is true of a host at one moment, for tests without a host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from devhost.allocation.inventory import Snapshot
from devhost.backend.model import Device
from devhost.discovery.scanner import BackendCondition, BackendNow, BackendState
from devhost.host.reload import LastReload
from devhost.host.shown.entries import EntryOutcomes
from devhost.host.shown.now import (
    ConfigurationNow,
    EntriesNow,
    KubeletNow,
    Now,
    PodsNow,
    ResourceNow,
    Step,
)
from devhost.host.shown.publication import step_between
from devhost.kubelet.podresources_poller import KubeletCondition
from devhost.kubelet.registration import RegistrationCondition
from devhost.planning.plan import Plan
from devhost.planning.settings import ResourceSettings, Settings

TOY = "example.com/toy"
ENTRY = ResourceSettings(0, TOY, "toy", ())
CONFIG = Path("/etc/devhost.yaml")
PLUGINS = Path("/plugins")
SOCKET = Path("/pods.sock")
RELOAD = LastReload(1.0)
NO_LIST = Snapshot()


def backend(*devices: str, **state: Any) -> BackendNow:
    condition = BackendCondition(state.pop("state", BackendState.OK), **state)
    return BackendNow(condition, True, {one: Device(one) for one in devices})


def served(snapshot: Snapshot = NO_LIST, **others: Any) -> dict[str, ResourceNow]:
    return {TOY: ResourceNow(TOY, ENTRY, snapshot, RegistrationCondition(), streams=1, **others)}


def now(**others: Any) -> Now:
    """A host that serves one resource, with nothing wrong."""
    settings = Settings((ENTRY,))
    usual: dict[str, Any] = {
        "started": 1.0,
        "root": Path("/"),
        "planned": True,
        "generation": 1,
        "configuration": ConfigurationNow(CONFIG),
        "settings": settings,
        "last_reload": RELOAD,
        "plan": Plan(),
        "shortages": EntriesNow(EntryOutcomes(settings, None, {})),
        "backends": {"toy": backend("d0")},
        "resources": served(),
        "kubelet": KubeletNow(PLUGINS),
        "pod_resources": PodsNow(SOCKET, KubeletCondition("")),
    }
    return Now(**{**usual, **others})


class Steps:
    """Moments one after another, each of which remembers the one before; what has changed is shown."""

    def __init__(self, show: Callable[[Step], None], first: Now) -> None:
        self.shown = first
        self._show = show

    def step(self, **true: Any) -> None:
        """The next moment."""
        memory, known = self.shown.memory, self.shown.shortages
        step = step_between(self.shown, now(memory=memory, shortages=known, **true))
        self.shown = step.now
        self._show(step)
