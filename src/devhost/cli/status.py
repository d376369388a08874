"""``devhost status``: shows the status of the running host."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from devhost.backend.errors import DevhostError
from devhost.telemetry import ask
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.unready import unready

from . import options as shared
from .ready import NOT_READY, UNKNOWN
from .status_report import SCREEN, show


@click.command(
    "status",
    help="""
    Shows the status of the devhost on this node: resources, devices, health, backends, refusals.

    Lists devices that containers hold and unhealthy devices. Healthy devices are listed as far as they fit on
    the screen: the rows of the terminal, or 24.

    Exits with 3 if no devhost runs on this node.
    """,
)
@shared.kubelet_dir
@shared.status_socket
@shared.output_of(
    "table",
    "json",
    help="Text for people, or the whole document; with --watch one JSON document per line.",
)
@click.option("--watch", is_flag=True, help="Show the status again after each change, until interrupted.")
@click.option("--all", "everything", is_flag=True, help="List every device, however many there are.")
@click.option(
    "--exit-code", is_flag=True, help="Exit with 1 or 2 if the node is not ready, as devhost ready does."
)
def command(
    kubelet_dir: Path | None,
    status_socket: Path | None,
    output: str,
    watch: bool,
    everything: bool,
    exit_code: bool,
) -> None:
    if watch and exit_code:
        raise click.UsageError("--watch has no --exit-code: it goes on until it is interrupted")
    screen = _Screen(output, watch, everything)
    try:
        shown = asyncio.run(_status(kubelet_dir, status_socket, screen, watch))
    except DevhostError as error:
        if not exit_code:
            raise
        click.echo(f"devhost: {error}", err=True)
        raise SystemExit(UNKNOWN) from None
    except KeyboardInterrupt:
        if not watch:
            raise
    else:
        if exit_code and shown is not None and unready(shown):
            raise SystemExit(NOT_READY)


async def _status(
    kubelet_dir: Path | None, socket: Path | None, screen: _Screen, watch: bool
) -> StatusDocument | None:
    """Shows the status; the document, unless it is watched."""
    path = await ask.find(kubelet_dir, socket)
    if not watch:
        answer = await ask.fetch(path)
        screen.draw(answer)
        return answer.document
    watching = asyncio.ensure_future(_watch(path, screen))
    _on_reader_gone(watching)
    with suppress(asyncio.CancelledError):
        await watching
    return None


async def _watch(path: Path, screen: _Screen) -> None:
    async with aclosing(ask.watch(path)) as answers:
        async for answer in answers:
            screen.draw(answer)
    click.echo(f"devhost: the host on {path} has stopped", err=True)


class _Screen:
    """Prints documents: on a terminal in place, otherwise one after the other."""

    def __init__(self, output: str, watch: bool, everything: bool) -> None:
        self._json = output == "json"
        self._watch = watch
        self._everything = everything
        self._drawn = False

    def draw(self, answer: ask.Received) -> None:
        if self._json:
            click.echo(json.dumps(answer.json, indent=None if self._watch else 2))
            return
        now = datetime.now(UTC)
        screen = shutil.get_terminal_size().lines if sys.stdout.isatty() else SCREEN
        text = show(answer.document, now, everything=self._everything, screen=screen)
        if self._watch and sys.stdout.isatty():
            click.clear()
            text = f"{text}\n\nas of {now.astimezone():%H:%M:%S}, press Ctrl-C to quit"
        elif self._drawn:
            text = f"\n{text}"
        click.echo(text)
        self._drawn = True


def _on_reader_gone(watching: asyncio.Future[None]) -> None:
    """Ends ``watching`` as soon as the reader of stdout is gone (``devhost status --watch | head -1``).

    Otherwise the process would notice only at the next change, which may be days later. The writing end of a
    pipe never becomes readable, but epoll reports that its reader is gone.
    """
    with suppress(OSError, ValueError):  # stdout is closed, or has no descriptor
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            asyncio.get_running_loop().add_reader(descriptor, watching.cancel)
