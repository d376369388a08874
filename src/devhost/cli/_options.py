"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

from pathlib import Path

import click

config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration.  [default: /etc/devhost/devhost.yaml]",
)

root = click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    metavar="DIR",
    help="Directory that stands for /: a recorded tree, or the host's root mounted in a container.",
)

output = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Text for people, or everything for programs.",
)
