"""``devhost demo``: the whole way from this machine's devices to a container, with a simulated kubelet."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import click

from devhost.telemetry import log

from . import _options


@click.command("demo")
@click.option(
    "--config",
    type=_options.path,
    metavar="FILE",
    help="The configuration to show.  [default: the one that comes with devhost]",
)
def command(config: Path | None) -> None:
    """Serves this machine's devices to a simulated kubelet and shows what a pod would get.

    Nothing on the machine is changed, except that as root, where zram exists, one zram device is added
    and removed again. On a terminal it goes on showing changes until Ctrl-C; elsewhere it ends by itself.
    """
    log.configure("text", "warning")  # before gRPC is imported: it reads its verbosity then
    from ._show import bundled_config, show

    with suppress(KeyboardInterrupt):
        asyncio.run(show(config or bundled_config()))
