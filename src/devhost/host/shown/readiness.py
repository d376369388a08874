"""Readiness: whether every wanted resource has an open list stream, and why not."""

from __future__ import annotations

from devhost.discovery.manager import BackendManager
from devhost.host.dra_side import DraSide
from devhost.host.reload import Configuration
from devhost.host.replanner import Replanner
from devhost.host.services import Services
from devhost.runtime.tasks import Tasks


def readiness(
    configuration: Configuration,
    backends: BackendManager,
    replanner: Replanner,
    services: Services,
    dra: DraSide,
    tasks: Tasks,
    rollout: str,
) -> tuple[bool, str]:
    """Whether every wanted resource has an open list stream or a published pool; if not, which, and why.

    Until a backend has listed its devices, the wanted resources are unknown. A host that runs on a copy,
    because the file was refused at the start, is not ready either, so that a rollout stops; nor is one whose
    new file left entries without devices, for the reason ``rollout``.
    """
    if not replanner.started:
        return False, "looking for devices"
    wanted = configuration.settings.backend_names()
    unknown = sorted(
        f"{name} ({scanner.condition.reason or scanner.condition.state})"
        for name, scanner in backends.scanners.items()
        if name in wanted and not scanner.listed
    )
    streams = ((name, service.missing()) for name, service in sorted(services.items()))
    waiting = [f"{name} ({reason})" for name, reason in streams if reason]
    driver = [f"{dra.driver} ({missing})"] if (missing := dra.missing()) else []
    failing = [f"{name} ({one.reason})" for name, one in sorted(tasks.failing.items())]
    found = (
        ("no devices listed yet", unknown),
        ("no list stream yet", waiting),
        ("DRA driver", driver),
        ("failing tasks", failing),
    )
    reasons = [f"{what}: {', '.join(names)}" for what, names in found if names]
    if rollout:
        reasons.insert(0, rollout)
    if configuration.copied is not None:
        first, *more = configuration.last_reload.complaints
        rest = f" and {len(more)} more" if more else ""
        copy = f"running on the copy of {configuration.copied.at}"
        reasons.insert(0, f"configuration refused, {copy}: {first}{rest}")
    return not reasons, "; ".join(reasons)
