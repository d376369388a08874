"""``devhost demo``: gives this machine's devices to a container, with a simulated kubelet."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import click

from devhost.backend import threads
from devhost.cli import options as shared
from devhost.runtime import log


@click.command(
    "demo",
    help="""
    Serves this machine's devices to a simulated kubelet and shows what a pod would get.

    The machine is not changed, with one exception: as root, if the kernel has zram, one zram device is added
    and removed again. On a terminal the demo shows changes until Ctrl-C; otherwise it ends by itself.
    """,
)
@click.option(
    "--config",
    type=shared.path,
    metavar="FILE",
    help="Configuration file.  [default: the one that is part of devhost]",
)
def command(config: Path | None) -> None:
    log.configure("text", "warning")  # before gRPC is imported, which reads its verbosity then
    from .demonstration import bundled_config, show

    threads.provide()
    with suppress(KeyboardInterrupt):
        asyncio.run(show(config or bundled_config()))
