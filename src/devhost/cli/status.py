"""``devhost status``: asks the running host and shows its answer."""

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

from devhost.telemetry import ask
from devhost.telemetry.document import StatusDocument

from . import options as shared
from .status_report import SCREEN, show


@click.command("status")
@click.option(
    "--kubelet-dir",
    type=shared.path,
    metavar="DIR",
    help="The kubelet directory of the host that is meant, where several run.",
)
@click.option("--socket", type=shared.path, metavar="PATH", help="The host's status socket itself.")
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Text for people, or the whole document; with --watch one JSON document a line.",
)
@click.option("--watch", is_flag=True, help="Show it again after each change, until interrupted.")
@click.option("--all", "everything", is_flag=True, help="List every device, however many there are.")
def command(
    kubelet_dir: Path | None, socket: Path | None, output: str, watch: bool, everything: bool
) -> None:
    """Asks the devhost that runs on this node: resources, devices, health, backends, refusals.

    Devices that containers hold and unhealthy ones are listed, and healthy ones up to a screenful: as many
    rows as the terminal has, 24 elsewhere.

    Exits with 3 if none runs here.
    """
    screen = _Screen(output, watch, everything)
    try:
        asyncio.run(_status(kubelet_dir, socket, screen, watch))
    except KeyboardInterrupt:
        if not watch:
            raise
    except BrokenPipeError:
        _leave_stdout()


async def _status(kubelet_dir: Path | None, socket: Path | None, screen: _Screen, watch: bool) -> None:
    path = await ask.find(kubelet_dir, socket)
    if not watch:
        screen.draw(await ask.fetch(path))
        return
    watching = asyncio.ensure_future(_watch(path, screen))
    _on_reader_gone(watching)
    with suppress(asyncio.CancelledError):
        await watching


async def _watch(path: Path, screen: _Screen) -> None:
    async with aclosing(ask.watch(path)) as documents:
        async for document in documents:
            screen.draw(document)
    click.echo(f"devhost: the host on {path} has stopped", err=True)


class _Screen:
    """Where documents go: redrawn in place on a terminal, one after the other elsewhere."""

    def __init__(self, output: str, watch: bool, everything: bool) -> None:
        self._json = output == "json"
        self._watch = watch
        self._everything = everything
        self._drawn = False

    def draw(self, document: StatusDocument) -> None:
        if self._json:
            click.echo(json.dumps(document, indent=None if self._watch else 2))
            return
        now = datetime.now(UTC)
        screen = shutil.get_terminal_size().lines if sys.stdout.isatty() else SCREEN
        text = show(document, now, everything=self._everything, screen=screen)
        if self._watch and sys.stdout.isatty():
            click.clear()
            text = f"{text}\n\nas of {now.astimezone():%H:%M:%S}, Ctrl-C ends"
        elif self._drawn:
            text = f"\n{text}"
        click.echo(text)
        self._drawn = True


def _on_reader_gone(watching: asyncio.Future[None]) -> None:
    """Ends ``watching`` as soon as nobody reads our output (``devhost status --watch | head -1``).

    Otherwise that would show only at the next change, which may be days away. A pipe's writing end
    never becomes readable, but epoll reports the loss of its reader to whoever waits for that.
    """
    with suppress(OSError, ValueError):  # stdout is closed or no file at all
        descriptor = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            asyncio.get_running_loop().add_reader(descriptor, watching.cancel)


def _leave_stdout() -> None:
    """Nobody reads stdout any more: what is still buffered must not fail at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
