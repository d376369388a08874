"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.telemetry.log import printable

if TYPE_CHECKING:
    from devhost.discovery.catalog import Refusal

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


def warn_of(refused: Iterable[Refusal]) -> None:
    """Prints a warning for each plugin that cannot be used."""
    for refusal in refused:
        click.echo(f"warning: plugin {refusal.origin} was refused: {refusal.reason}", err=True)


def check_root(directory: Path) -> None:
    """Whether ``--root`` can stand for ``/``.

    Raises:
        UsageError: there is no such directory, or the one to give is above or below it.
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
    from devhost.backend.files import hostless  # it imports hashlib, which `devhost run` must do first

    if hostless(directory) and (inner := _roots_in(directory)):
        paths = " or ".join(f"--root {printable(str(path))}" for path in inner[:3])
        raise UsageError(
            f"--root {directory} is one level too high: it has no sys directory", f"give {paths}"
        )
    real = Path(os.path.realpath(directory))
    if real.name in _TOP and not (real / "sys").is_dir() and _is_root(real.parent):
        fault = f"--root {directory} is one level too low: it is the {real.name} directory of a root"
        raise UsageError(fault, f"give --root {printable(str(real.parent))}")


_TOP = ("dev", "etc", "proc", "run", "sys", "var")
"""Directories right below a root."""


def _roots_in(directory: Path) -> list[Path]:
    """The directories right below one that look like a root."""
    try:
        return sorted(path for path in directory.iterdir() if _is_root(path))
    except OSError:
        return []


def _is_root(directory: Path) -> bool:
    """Whether a directory has what the kernel shows of devices below ``/sys``."""
    return any(os.access(directory / "sys" / one, os.F_OK) for one in ("bus", "class", "dev", "devices"))
