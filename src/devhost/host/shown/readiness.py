"""Readiness: whether every wanted resource has an open list stream, and why not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from devhost.backend.errors import ConfigError, DevhostError
from devhost.backend.threads import elsewhere
from devhost.config.loader import Loaded
from devhost.discovery.scanner import Scanner
from devhost.planning.settings import Settings

from .entries import EntryOutcomes
from .now import Now

if TYPE_CHECKING:
    from devhost.config.rollout import Found, Rollout


def readiness(now: Now) -> tuple[bool, str]:
    """Whether every wanted resource has an open list stream or a published pool; if not, which, and why.

    Until a backend has listed its devices, the wanted resources are unknown. A host that runs on a copy,
    because the file was refused at the start, is not ready either, so that a rollout stops; nor is one whose
    new file left entries without devices.
    """
    if not now.planned:
        return False, "looking for devices"
    wanted = now.settings.backend_names()
    unknown = sorted(
        f"{name} ({backend.condition.reason or backend.condition.state})"
        for name, backend in now.backends.items()
        if name in wanted and not backend.listed
    )
    waiting = [f"{name} ({one.missing})" for name, one in sorted(now.resources.items()) if one.missing]
    drivers = [f"{name} ({reason})" for name, reason in now.dra.missing().items()]
    failing = [f"{name} ({one.reason})" for name, one in sorted(now.failing.items())]
    found = (
        ("no devices listed yet", unknown),
        ("no list stream yet", waiting),
        ("DRA driver", drivers),
        ("failing tasks", failing),
    )
    reasons = [f"{what}: {', '.join(names)}" for what, names in found if names]
    if now.rollout:
        reasons.insert(0, now.rollout.reason)
    if now.configuration.copied is not None:
        copy = f"running on the copy of {now.configuration.copied.at}"
        reasons.insert(0, f"configuration refused, {copy}: {_first(now.last_reload.complaints)}")
    return not reasons, "; ".join(reasons)


class Look(Protocol):
    """What was found by one look at the devices, and the plan for it."""

    @property
    def scanners(self) -> Mapping[str, Scanner]:
        """The backends, by name."""
        ...

    def entries(self) -> EntryOutcomes:
        """What each entry would serve."""
        ...


async def rehearsed(
    load: Callable[[], Loaded],
    look: Callable[[Loaded, Path], Awaitable[Look]],
    root: Path,
    rollout: Rollout | None,
) -> str:
    """Why a devhost that waits for its turn would not be ready; empty if it would. It changes nothing.

    ``load`` reads the configuration, or raises ``ConfigError``; ``look`` looks at the devices below ``root``
    once.
    """
    try:
        loaded = await elsewhere(load)
    except ConfigError as error:
        return f"configuration refused: {_first(error.diagnostics)}"
    except DevhostError as error:
        return str(error)
    looked = await look(loaded, root)
    failed = [f"{name} ({one.condition.reason})" for name, one in looked.scanners.items() if not one.listed]
    if failed:
        return f"no devices listed: {', '.join(failed)}"
    if rollout is None:
        return ""
    await rollout.read()
    rollout.follow(loaded.digest, found_by(loaded.settings, looked.entries()))
    return rollout.reason


def found_by(settings: Settings, outcomes: EntryOutcomes) -> Sequence[Found]:
    """What each entry has found, for a rollout."""
    from devhost.config.rollout import Found

    return [
        Found(identity, outcomes.count(entry), not outcomes.waits(entry))
        for identity, entry in settings.identified()
    ]


def _first(complaints: Sequence[object]) -> str:
    first, *more = complaints
    rest = f" and {len(more)} more" if more else ""
    return f"{first}{rest}"
