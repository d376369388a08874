"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import click

from devhost.errors import EnvironmentFailure, UsageError

path = click.Path(path_type=Path, readable=False)
"""A path that click does not judge: whoever uses it says what is wrong with it, where, and how to mend it."""

config = click.option(
    "--config",
    type=path,
    metavar="FILE",
    help="The configuration.  [default: /etc/devhost/devhost.yaml]",
)

ROOT_HINT = "give the directory that stands for /, or leave --root out"

root = click.option(
    "--root",
    type=path,
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


def check_root(directory: Path) -> None:
    """Whether ``--root`` can stand for ``/``.

    Raises:
        UsageError: there is no such directory.
        EnvironmentFailure: it may not be read.
    """
    try:
        os.scandir(directory).close()
    except FileNotFoundError:
        raise UsageError(f"--root {directory} does not exist", ROOT_HINT) from None
    except NotADirectoryError:
        raise UsageError(f"--root {directory} is not a directory", ROOT_HINT) from None
    except OSError as error:
        raise EnvironmentFailure(
            f"--root {directory} cannot be read: {error.strerror or error}", "check its mode and owner"
        ) from None
