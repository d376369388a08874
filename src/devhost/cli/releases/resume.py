"""``devhost resume``: ends ``devhost release``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from devhost.cli import options as shared

from .release import resume


@click.command(
    "resume",
    help="""
    Makes the devhost on this node use the driver of BACKEND again, after `devhost release`.

    Exits with 3 if no devhost runs on this node.
    """,
)
@click.argument("backend")
@shared.kubelet_dir
@shared.status_socket
def command(backend: str, kubelet_dir: Path | None, status_socket: Path | None) -> None:
    ended = asyncio.run(resume(backend, kubelet_dir, status_socket))
    click.echo(f"the driver of {backend} {'is used again' if ended else 'was not released'}")
