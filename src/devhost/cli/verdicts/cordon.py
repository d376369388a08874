"""``devhost cordon``: takes devices out of service."""

from __future__ import annotations

from pathlib import Path

import click

from devhost.backend.errors import UsageError
from devhost.cli import options as shared

from . import place, targets


@click.command(
    "cordon",
    help="""
    Takes DEVICE out of service: no pod gets it until `devhost uncordon`.

    DEVICE is a name as for `devhost explain`. Pods that have the device keep it (see `devhost drain`). The
    cordon also holds after a restart and a reboot, and when the device is plugged in again.

    Writes a file, so devhost need not run. Another cordon of the same device replaces the earlier one. In the
    pod of devhost add `--root /host`.

    Exits with 2 if a name is unknown or is that of several devices; then nothing changes.
    """,
)
@targets.options
@click.option(
    "--reason", required=True, metavar="TEXT", help="Why. Everyone who looks at the device sees it."
)
@click.option("--for", "seconds", callback=shared.seconds, metavar="TIME", help="Ends after 90s, 30m or 2h.")
@click.option("--by", metavar="NAME", help="Who does it.  [default: your login]")
def command(
    devices: tuple[str, ...],
    maintenance: bool,
    config: Path | None,
    root: Path,
    state_dir: Path | None,
    reason: str,
    seconds: float | None,
    by: str | None,
) -> None:
    if seconds == 0:
        raise UsageError("the cordon would have no effect", "give --for a longer time")
    names = targets.given(devices, maintenance)
    directory = place.directory(root, state_dir)
    found = targets.meant(names, config, root).devices
    for verdict in targets.cordon(directory, found, by or targets.user(), reason, seconds):
        click.echo(f"{targets.called(verdict.names[0])}: {targets.shown(verdict)}")
