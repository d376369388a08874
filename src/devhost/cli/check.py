"""``devhost check``: checks configuration files before anything starts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from devhost.backend.errors import ConfigError
from devhost.config import loads, read
from devhost.config.document import MAX_BYTES
from devhost.discovery import catalog
from devhost.planning.settings import Serve, Settings

from . import options as shared
from .importers.recognition import importers_of


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

    Prints one line for each valid file, and every error of the others with its line and column. For the file
    of another device plugin, it names the import that converts it. A plugin
    that cannot be loaded causes a warning, or an error if a resource needs it. A note names optional entries
    whose backend is not installed.
    """
    catalogs = _Catalogs()
    bad = False
    for file in files:
        data = b""
        try:
            data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else read(Path(file))
            settings = loads(data, _label(file), catalogs)
        except ConfigError as error:
            bad = True
            plugins = importers_of(data)
            for line in [_other(file, plugins)] if plugins else map(str, error.diagnostics):
                click.echo(line, err=True)
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


def _other(file: str, plugins: Sequence[str]) -> str:
    """The error for the configuration of another plugin."""
    commands = " or ".join(f"`devhost import {name} {shlex.quote(file)}`" for name in plugins)
    what = f"this is the configuration of {' and '.join(plugins)}, not of devhost"
    return f"{_label(file)}: {what} (run {commands})"


def _label(file: str) -> str:
    return "<stdin>" if file == "-" else file


def _count(settings: Settings) -> str:
    served = sum(entry.serve is Serve.DRA for entry in settings.resources)
    claims = f", {served} of them with serve: dra" if served else ""
    return f"{_of(len(settings.resources), 'resource')}{claims}, {_of(len(settings.backends), 'backend')}"


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
