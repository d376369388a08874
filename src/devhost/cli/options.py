"""Options that several commands share, so that their help is the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.telemetry.log import printable

if TYPE_CHECKING:
    from devhost.discovery.catalog import Refusal

_Command = TypeVar("_Command", bound=Callable[..., Any])

path = click.Path(path_type=Path, readable=False)
"""A path that click does not check: the code that uses it reports problems, with a hint how to fix them."""

config = click.option(
    "--config",
    type=path,
    metavar="FILE",
    help="Configuration file.  [default: /etc/devhost/devhost.yaml]",
)

ROOT_HINT = "give the directory to use as /, or omit --root"

root = click.option(
    "--root",
    type=path,
    default=Path("/"),
    metavar="DIR",
    help="Directory to use as /: a recorded tree, or the host's root mounted in a container.",
)


def output_of(*forms: str, help: str) -> Callable[[_Command], _Command]:
    """The option ``--output`` of a command; the first form is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help=help
    )


output = output_of("table", "json", help="Text for people, or JSON with every detail for programs.")

status_socket = click.option(
    "--status-socket",
    "--socket",
    type=path,
    metavar="PATH",
    help="Status socket of the devhost to ask.  [default: the one on this node]",
)


kubelet_dir = click.option(
    "--kubelet-dir",
    type=path,
    metavar="DIR",
    help="The kubelet directory of the host to ask, if several run.",
)


def warn_of(refused: Iterable[Refusal]) -> None:
    """Prints a warning for each plugin that cannot be used."""
    for refusal in refused:
        click.echo(f"warning: plugin {refusal.origin} was refused: {refusal.reason}", err=True)


def check_root(directory: Path) -> None:
    """Checks whether ``--root`` can be used as ``/``.

    Raises:
        UsageError: there is no such directory, or the right one is above or below it.
        EnvironmentFailure: it cannot be read.
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
    from devhost.backend.files import (
        missing_host_reason,
    )  # it imports hashlib, which `devhost run` must import first (see memory.py)

    if missing_host_reason(directory) and (inner := _roots_in(directory)):
        paths = " or ".join(f"--root {printable(str(path))}" for path in inner[:3])
        raise UsageError(
            f"--root {directory} is one level too high: it has no sys directory", f"give {paths}"
        )
    real = Path(os.path.realpath(directory))
    if real.name in _TOP and not (real / "sys").is_dir() and _is_root(real.parent):
        fault = f"--root {directory} is one level too low: it is the {real.name} directory of a root"
        raise UsageError(fault, f"give --root {printable(str(real.parent))}")


_TOP = ("dev", "etc", "proc", "run", "sys", "var")
"""Directories directly below a root."""


def _roots_in(directory: Path) -> list[Path]:
    """The directories directly below a directory that look like a root."""
    try:
        return sorted(path for path in directory.iterdir() if _is_root(path))
    except OSError:
        return []


def _is_root(directory: Path) -> bool:
    """Whether a directory has the part of ``/sys`` in which the kernel shows devices."""
    return any(os.access(directory / "sys" / one, os.F_OK) for one in ("bus", "class", "dev", "devices"))
