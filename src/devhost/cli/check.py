"""``devhost check``: checks configuration files before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from devhost.backend.errors import ConfigError
from devhost.config import load, loads
from devhost.config.diagnostics import Diagnostics
from devhost.config.document import read_standard_input
from devhost.discovery import catalog
from devhost.planning.settings import Serve, Settings

from . import options as shared


class _Catalogs:
    """Makes the catalog for each file, and keeps the plugins that were refused."""

    def __init__(self) -> None:
        self.refused: dict[catalog.Refusal, None] = {}

    def __call__(self, paths: Sequence[Path], _wanted: Collection[str]) -> catalog.Catalog:
        found = catalog.load(paths)
        self.refused.update(dict.fromkeys(found.refused))
        return found


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def command(files: tuple[str, ...]) -> None:
    """Checks configuration files. "-" reads standard input.

    Prints one line for each valid file, and every error of the others with its line and column. A plugin
    that cannot be loaded causes a warning, or an error if a resource needs it. A note names optional entries
    whose backend is not installed.
    """
    catalogs = _Catalogs()
    bad = False
    for file in files:
        try:
            settings = _read(file, catalogs)
        except ConfigError as error:
            bad = True
            for diagnostic in error.diagnostics:
                click.echo(str(diagnostic), err=True)
        else:
            click.echo(f"{_label(file)}: ok ({_count(settings)})")
            for backend, hint in settings.not_installed().items():
                count = sum(entry.backend == backend for entry in settings.skipped)
                entries = "1 optional entry is" if count == 1 else f"{count} optional entries are"
                click.echo(
                    f"note: {entries} not served: backend {backend} is not installed ({hint})", err=True
                )
    shared.warn_of(catalogs.refused)
    if bad:
        sys.exit(ConfigError.exit_code)


def _read(file: str, catalogs: _Catalogs) -> Settings:
    if file == "-":
        return loads(read_standard_input(Diagnostics(_label(file))), _label(file), catalogs)
    return load(Path(file), catalogs)


def _label(file: str) -> str:
    return "<stdin>" if file == "-" else file


def _count(settings: Settings) -> str:
    served = sum(entry.serve is Serve.DRA for entry in settings.resources)
    claims = f", {served} of them with serve: dra" if served else ""
    return f"{_of(len(settings.resources), 'resource')}{claims}, {_of(len(settings.backends), 'backend')}"


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
