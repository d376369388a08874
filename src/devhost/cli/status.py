"""``devhost status`` and ``ready``: the status of the running host, and whether pods can use its devices."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from devhost.backend.errors import DevhostError
from devhost.runtime.log import printable
from devhost.telemetry import ask
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.tables import unready

from . import options as shared
from .status_report import SCREEN, show

READY, NOT_READY, UNKNOWN = 0, 1, 2
"""Exit codes, as node-problem-detector reads them (its docs/custom_plugin_monitor.md)."""


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
def status(
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
    if not watch:
        answer = await _fetched(kubelet_dir, socket)
        screen.draw(answer)
        return answer.document
    watching = asyncio.ensure_future(_watch(await ask.find(kubelet_dir, socket), screen))
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


@click.command(
    "ready",
    help="""
    Shows in one line whether pods can request the devices that the configuration of this node asks for.

    They can if every entry that is not optional has devices, as many as its `expect`, and the kubelet reads
    their list.

    Exits with 1 if an entry lacks something, with 2 if no devhost answers: what node-problem-detector
    expects of a custom plugin.
    """,
)
@click.option(
    "--entry",
    "entries",
    multiple=True,
    metavar="NAME",
    help="Only this entry, also an optional one: its name, its place, or a resource. May be repeated.",
)
@click.option(
    "--probe",
    type=click.Choice(("healthz", "readyz")),
    help="Exit as this path of `devhost run --listen` answers instead, for a probe with exec.",
)
@shared.kubelet_dir
@shared.status_socket
@shared.output_of("text", "json", help="One line for people, or JSON with every reason for programs.")
def ready(
    entries: tuple[str, ...],
    probe: str | None,
    kubelet_dir: Path | None,
    status_socket: Path | None,
    output: str,
) -> None:
    if probe is not None:
        click.echo(asyncio.run(_probed(probe, kubelet_dir, status_socket)))
        return
    try:
        document = asyncio.run(_fetched(kubelet_dir, status_socket)).document
        wrong = unready(document, entries)
    except DevhostError as error:
        code, said, wrong = UNKNOWN, printable(f"unknown: {error}"), []
    else:
        code, said = (NOT_READY, _line(wrong)) if wrong else (READY, "ready")
    if output == "json":
        reasons = [{"entry": entry, "reason": reason} for entry, reason in wrong]
        answer = {"ready": None if code == UNKNOWN else code == READY, "message": said, "entries": reasons}
        said = json.dumps(answer, indent=2)
    click.echo(said)
    raise SystemExit(code)


async def _probed(probe: str, kubelet_dir: Path | None, socket: Path | None) -> str:
    return await ask.probe(await ask.find(kubelet_dir, socket), probe)


async def _fetched(kubelet_dir: Path | None, socket: Path | None) -> ask.Received:
    return await ask.fetch(await ask.find(kubelet_dir, socket))


def _line(wrong: Sequence[tuple[str, str]]) -> str:
    """The first reason, and the number of the others."""
    (name, reason), *more = wrong
    rest = f" (and {len(more)} more)" if more else ""
    return printable(f"not ready: {name}: {reason}{rest}")
