"""``devhost ready``: whether pods can request the devices that the file of a node asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import click

from devhost.backend.errors import DevhostError
from devhost.runtime.log import printable
from devhost.telemetry import ask
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.unready import unready

from . import options as shared

READY, NOT_READY, UNKNOWN = 0, 1, 2
"""Exit codes, as node-problem-detector reads them (its docs/custom_plugin_monitor.md)."""


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
def command(
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
        document = asyncio.run(_fetched(kubelet_dir, status_socket))
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


async def _fetched(kubelet_dir: Path | None, socket: Path | None) -> StatusDocument:
    return (await ask.fetch(await ask.find(kubelet_dir, socket))).document


def _line(wrong: Sequence[tuple[str, str]]) -> str:
    """The first reason, and the number of the others."""
    (name, reason), *more = wrong
    rest = f" (and {len(more)} more)" if more else ""
    return printable(f"not ready: {name}: {reason}{rest}")
