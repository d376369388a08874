"""The commands of ``devhost``: each a module of this package, imported only when it is used.

So ``devhost run`` does not carry the others in memory.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from devhost import __version__

COMMANDS = {
    "check": "check",
    "demo": "demo",
    "discover": "discover",
    "explain": "explain",
    "import": "import_",
    "kubelet": "kubelet",
    "plugins": "plugins",
    "record": "record",
    "run": "run",
    "schema": "schema",
    "status": "status",
}
"""Command name → module of this package; the module's ``command`` is the click command."""


CANNOT_WRITE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to standard output may fail with, whatever it is."""


class OutputFailed(Exception):
    """The command's output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"devhost.cli.{COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _output():  # --help is printed here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _output():
            return super().invoke(ctx)


@contextmanager
def _output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in CANNOT_WRITE and error.filename is None:
            raise OutputFailed(error) from error  # click would make exit code 1 of a pipe without a reader
        raise


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="devhost")
def root() -> None:
    """Offers every special device of this node to Kubernetes, from one YAML file.

    Exit codes: 0 done, 1 it failed, 2 wrong configuration or usage, 3 the machine does not allow it.
    """
