"""``devhost accept``: ends the waiting for entries that a new file left without devices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click

from devhost.cli import options as shared
from devhost.runtime.log import printable
from devhost.telemetry import ask

DEADLINE = 10.0
"""Seconds that the host has to answer; it does so at once."""


@click.command(
    "accept",
    help="""
    Accepts that the new configuration of this node has left entries without devices.

    With `devhost run --patience`, the node is not ready while an entry has no devices that had some before
    the file changed. This makes it ready, so that the rollout goes on.

    Exits with 3 if no devhost runs on this node.
    """,
)
@shared.kubelet_dir
@shared.status_socket
def command(kubelet_dir: Path | None, status_socket: Path | None) -> None:
    names = asyncio.run(_accepted(kubelet_dir, status_socket))
    listed = ", ".join(map(printable, names))
    click.echo(
        f"accepted: no devices of {listed}" if names else "nothing to accept: devhost waits for no entry"
    )


async def _accepted(kubelet_dir: Path | None, status_socket: Path | None) -> Sequence[str]:
    path = await ask.find(kubelet_dir, status_socket)
    return cast("Sequence[str]", (await ask.request(path, "accept", {}, deadline=DEADLINE))["accepted"])
