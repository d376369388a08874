"""What metrics and systemd show of a host."""

from __future__ import annotations

from collections.abc import Iterator

from devhost.runtime.systemd import line
from devhost.telemetry.metrics import Held, Scraped

from .entries import place
from .now import Now
from .problems import problems


def scraped(now: Now, *, pods: bool) -> Scraped:
    """What a scrape shows besides the counters; ``pods`` is whether it names pods."""
    found = problems(now)
    count = now.shortages.outcomes.count
    return Scraped(
        found.counts,
        [(one.kind, one.subject, one.reason) for one in found.shown],
        [
            (name, one.reason.text)
            for name, removals in now.memory.removals.items()
            for one in removals.recent(now.at)
        ],
        [(one.kind, one.by, one.reason, one.since) for one in now.verdicts.in_force],
        [(place(one), one.name, one.backend, one.may_be_empty, count(one)) for one in now.settings.resources],
        now.configuration.sha256,
        now.dra.shared(),
        _held(now) if pods else None,
    )


def _held(now: Now) -> Iterator[Held]:
    from .status import holders  # only if metrics name pods

    for resource, device, one in holders(now):
        yield resource, device, (one.namespace, one.pod, one.container) if one else None


def status_line(now: Now) -> str:
    """The state of the host in one line, for ``systemctl status``."""
    found = problems(now)
    first = next((f"{problem.subject}: {problem.reason}" for problem in found.shown), "")
    waits = now.shortages.outcomes.waits
    waiting = (one.backend for one in now.settings.resources if not one.may_be_empty and waits(one))
    return line(len(now.resources), sum(found.counts.values()), first, sorted(set(waiting)))
