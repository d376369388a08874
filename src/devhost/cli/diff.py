"""``devhost diff``: what an edit of the configuration changes on one or several machines."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from devhost.backend.errors import UsageError, few
from devhost.backend.files import missing_host_reason
from devhost.backend.sysfs import natural
from devhost.config.loader import Loaded, load
from devhost.config.root_directory import check_root
from devhost.runtime.log import printable

from . import options as shared
from .options import table
from .scan_once import ScanResult, scan_once

LOST, UNUSABLE = 1, 2
"""Exit codes: a resource loses all of its devices; the machines cannot be compared."""


class Row(NamedTuple):
    """The devices of a resource on one machine before and after the edit, as ``backend/id``."""

    root: str
    resource: str
    before: frozenset[str]
    after: frozenset[str]

    @property
    def lost(self) -> bool:
        """Whether it loses all of its devices."""
        return bool(self.before and not self.after)

    def change(self) -> str:
        """In words, with a few of the devices."""
        removed = sorted(self.before - self.after, key=natural)
        added = sorted(self.after - self.before, key=natural)
        if self.lost:
            return f"loses all devices: {few(removed)}"
        parts = ((removed, "without"), (added, "with"))
        return "; ".join(f"{word} {few(devices)}" for devices, word in parts if devices) or "same"


@click.command(
    "diff",
    help="""
    Shows how many devices each resource has with the configuration OLD, and with NEW.

    Needs neither a kubelet nor root. --root names the tree of another machine, as `devhost record` makes it.

    Exits with 1 if a resource loses all of its devices on a machine, with 2 if something cannot be compared.
    """,
)
@click.argument("old", type=shared.path)
@click.argument("new", type=shared.path)
@click.option(
    "--root",
    "roots",
    type=shared.path,
    multiple=True,
    default=[Path("/")],
    metavar="DIR",
    help="Directory to use as /: a recorded tree. May be repeated.  [default: /]",
)
@shared.output
def command(old: Path, new: Path, roots: tuple[Path, ...], output: str) -> None:
    for root in roots:
        check_root(root)
    files = load(old), load(new)
    for path, loaded in zip((old, new), files, strict=True):
        for one in loaded.settings.skipped:
            reason = f"resources[{one.index}] is not compared: backend {one.backend} is not installed"
            click.echo(printable(f"devhost: {path}: {reason}"), err=True)
    rows, failures = asyncio.run(_compared(files, roots))
    if output == "json":
        click.echo(json.dumps([_document(row) for row in rows], indent=2))
    else:
        _print(rows, several=len(roots) > 1)
    for failure in failures:
        click.echo(printable(f"devhost: {failure}"), err=True)
    if failures:
        sys.exit(UNUSABLE)
    if any(row.lost for row in rows):
        sys.exit(LOST)


async def _compared(
    files: tuple[Loaded, Loaded], roots: Sequence[Path]
) -> tuple[Sequence[Row], Sequence[str]]:
    """All resources of all machines, and why some devices are unknown."""
    rows: list[Row] = []
    failures: dict[str, None] = {}
    for root in roots:
        before, after = [await scan_once(loaded, root) for loaded in files]
        rows += _rows(str(root), before, after)
        scanners = (*before.scanners.values(), *after.scanners.values())
        reasons = [one.condition.reason for one in scanners if one.condition.reason]
        failures |= dict.fromkeys(f"{root}: {reason}" for reason in reasons)
        found = reasons or before.devices() or after.devices()
        if not found and (nothing := missing_host_reason(root)):
            raise UsageError(nothing)
    return rows, [*failures]


def _rows(root: str, before: ScanResult, after: ScanResult) -> Iterator[Row]:
    for name in sorted({*before.resources(), *after.resources()}, key=natural):
        yield Row(root, name, _devices(before, name), _devices(after, name))


def _devices(found: ScanResult, resource: str) -> frozenset[str]:
    planned = found.plan.resources.get(resource)
    offers = planned.offers if planned else ()
    return frozenset(f"{planned.entry.backend}/{offer.device.id}" for offer in offers if planned)


def _print(rows: Sequence[Row], *, several: bool) -> None:
    changed = [row for row in rows if row.before != row.after]
    if changed:
        headers = ("ROOT", "RESOURCE", "BEFORE", "AFTER", "CHANGE")
        cells = [(row.root, row.resource, len(row.before), len(row.after), row.change()) for row in changed]
        first = 0 if several else 1
        click.echo(table(headers[first:], [row[first:] for row in cells]))
    same = len(rows) - len(changed)
    click.echo(f"{same} {'resource does' if same == 1 else 'resources do'} not change")


def _document(row: Row) -> dict[str, object]:
    return {
        "root": row.root,
        "resource": row.resource,
        "before": sorted(row.before, key=natural),
        "after": sorted(row.after, key=natural),
        "losesAll": row.lost,
    }
