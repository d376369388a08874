"""What people request of the devhost on this node: ``devhost accept``, ``release`` and ``resume``."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.runtime.log import printable
from devhost.telemetry import ask

from . import options as shared

ACCEPTED = 10.0
"""Seconds that the host has to answer; it does so at once."""

RELEASED = 30.0
"""Seconds that the host has to answer: ten more than a backend has to release a driver."""


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
def accept(kubelet_dir: Path | None, status_socket: Path | None) -> None:
    answer = asyncio.run(_request(kubelet_dir, status_socket, "accept", ACCEPTED))
    names = cast("Sequence[str]", answer["accepted"])
    listed = ", ".join(map(printable, names))
    click.echo(
        f"accepted: no devices of {listed}" if names else "nothing to accept: devhost waits for no entry"
    )


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
    callback=shared.seconds,
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
def release(
    backend: str, seconds: float, when_stopped: bool, kubelet_dir: Path | None, status_socket: Path | None
) -> None:
    released = _when_stopped if when_stopped else _release
    asyncio.run(released(backend, seconds, kubelet_dir, status_socket))


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
def resume(backend: str, kubelet_dir: Path | None, status_socket: Path | None) -> None:
    answer = asyncio.run(_request(kubelet_dir, status_socket, "resume", RELEASED, backend=backend))
    click.echo(f"the driver of {backend} {'is used again' if answer['resumed'] else 'was not released'}")


async def _request(
    kubelet_dir: Path | None, status_socket: Path | None, what: str, deadline: float, **parameters: str
) -> Any:
    """The answer of the running host. Raises ``DevhostError`` if none runs, or it refuses."""
    path = await ask.find(kubelet_dir, status_socket)
    return await ask.request(path, what, parameters, deadline=deadline)


async def _release(
    backend: str, seconds: float, kubelet_dir: Path | None, status_socket: Path | None
) -> None:
    parameters = {"backend": backend, "seconds": str(seconds)}
    answer = await _request(kubelet_dir, status_socket, "release", RELEASED, **parameters)
    click.echo(f"released the driver of {backend} until {answer['until']} at the latest")


async def _when_stopped(
    backend: str, seconds: float, kubelet_dir: Path | None, status_socket: Path | None
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        await _request(kubelet_dir, status_socket, "resume", RELEASED, backend=backend)
    except DevhostError as error:  # devhost may start later, and then has released nothing
        click.echo(f"devhost: {error}", err=True)
    click.echo(f"releases the driver of {backend} when this command is stopped")
    await stopped.wait()
    try:
        await _release(backend, seconds, kubelet_dir, status_socket)
    except EnvironmentFailure as error:  # without devhost nothing has to be released
        click.echo(f"devhost: {error}", err=True)
