"""``devhost release``: makes the running host release a driver."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.cli import options as shared
from devhost.runtime.text import duration
from devhost.telemetry import ask

DEADLINE = 30.0
"""Seconds that the host has to answer: ten more than a backend has to release a driver."""


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    if (seconds := duration(value)) is None:
        raise click.BadParameter(f"{value!r} is not a duration: write 90s, 30m or 2h")
    return seconds


@click.command(
    "release",
    help="""
    Makes the devhost on this node release the driver of BACKEND, so that it can be unloaded.

    Returns when devhost has closed all of it. The devices of the backend are Unhealthy until the driver was
    loaded again, `devhost resume BACKEND`, or the time is over. Containers keep their devices.

    Exits with 1 if something cannot be closed, with 3 if no devhost runs on this node.
    """,
)
@click.argument("backend")
@click.option(
    "--for",
    "seconds",
    callback=_seconds,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="After which the driver is used again in any case: 90s, 30m, at most 24h.",
)
@click.option(
    "--when-stopped",
    is_flag=True,
    help="Resume now, wait for SIGTERM, and release then: for a pod that an operator removes first.",
)
@shared.kubelet_dir
@shared.status_socket
def command(
    backend: str, seconds: float, when_stopped: bool, kubelet_dir: Path | None, status_socket: Path | None
) -> None:
    if when_stopped:
        asyncio.run(_when_stopped(backend, seconds, kubelet_dir, status_socket))
        return
    until = asyncio.run(_release(backend, seconds, kubelet_dir, status_socket))
    click.echo(f"released the driver of {backend} until {until} at the latest")


async def _release(
    backend: str, seconds: float, kubelet_dir: Path | None, status_socket: Path | None
) -> object:
    path = await ask.find(kubelet_dir, status_socket)
    parameters = {"backend": backend, "seconds": str(seconds)}
    return (await ask.request(path, "release", parameters, deadline=DEADLINE))["until"]


async def _when_stopped(
    backend: str, seconds: float, kubelet_dir: Path | None, status_socket: Path | None
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        await resume(backend, kubelet_dir, status_socket)
    except DevhostError as error:  # devhost may start later, and then has released nothing
        click.echo(f"devhost: {error}", err=True)
    click.echo(f"releases the driver of {backend} when this command is stopped")
    await stopped.wait()
    try:
        until = await _release(backend, seconds, kubelet_dir, status_socket)
    except EnvironmentFailure as error:
        click.echo(f"devhost: {error}", err=True)
        return  # without devhost nothing has to be released
    click.echo(f"released the driver of {backend} until {until} at the latest")


async def resume(backend: str, kubelet_dir: Path | None, status_socket: Path | None) -> bool:
    """Ends a release; whether there was one. Raises ``DevhostError`` if no devhost runs, or it refuses."""
    path = await ask.find(kubelet_dir, status_socket)
    answer = await ask.request(path, "resume", {"backend": backend}, deadline=DEADLINE)
    return bool(answer["resumed"])
