"""The program: its commands, and the exit code for each way in which a command can end.

A command is imported only when it is used, so that ``devhost run`` has no other command in memory.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from devhost import __version__
from devhost.backend import descriptors
from devhost.backend.errors import ConfigError, DevhostError, EnvironmentFailure

COMMANDS = {
    "check": "check",
    "demo": "demo",
    "discover": "discover",
    "dra": "dra",
    "explain": "explain",
    "import": "import_",
    "kubelet": "kubelet",
    "plugins": "plugins",
    "record": "record",
    "release": "releases.release",
    "resume": "releases.resume",
    "run": "run",
    "schema": "schema",
    "status": "status",
}
"""Command name → module of this package; the module's ``command`` is the click command."""


CANNOT_WRITE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to standard output, for any kind of file."""


NOT_ON_NODES = ("devhost.cli.importers", "devhost.testing")
"""Packages that are not in the node's image, because no command for nodes needs them."""


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
        try:
            module = importlib.import_module(f"devhost.cli.{COMMANDS[cmd_name]}")
        except ModuleNotFoundError as error:
            return _absent(cmd_name, not_on_nodes(cmd_name, error))
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


def not_on_nodes(name: str, error: ModuleNotFoundError) -> EnvironmentFailure:
    """The error of a command whose code is not in the node's image.

    Raises:
        ModuleNotFoundError: something else is missing.
    """
    if not (error.name or "").startswith(NOT_ON_NODES):
        raise error
    return EnvironmentFailure(
        f"devhost {name} is not part of the node's image",
        f"run it where devhost is installed as a package: pip install devhost && devhost {name}",
    )


def _absent(name: str, reason: EnvironmentFailure) -> click.Command:
    """Replaces a command whose code is not installed."""

    def refuse() -> None:
        raise reason

    return click.Command(
        name,
        callback=refuse,
        short_help="Not part of the node's image.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


@contextmanager
def _output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in CANNOT_WRITE and error.filename is None:
            raise OutputFailed(error) from error  # click would exit with 1 if the pipe's reader is gone
        raise


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="devhost")
def root() -> None:
    """Offers the devices of this node to Kubernetes, configured by one YAML file.

    Exit codes: 0 success, 1 failure, 2 wrong configuration or usage, 3 the machine does not allow it.
    """


def call() -> NoReturn:
    """Runs the command of ``sys.argv`` and ends the process."""
    try:
        match sys.argv[1:2]:
            case ["run"]:
                pass  # it does the same, and reports a failure in its log's format
            case ["kubelet" | "demo"]:
                descriptors.provide(descriptors.SERVING)
            case _:
                descriptors.provide(descriptors.COMMAND)
        sys.exit(root(prog_name="devhost", standalone_mode=False))
    except ConfigError as error:
        for diagnostic in error.diagnostics:
            click.echo(diagnostic, err=True)
        sys.exit(error.exit_code)
    except DevhostError as error:
        click.echo(f"devhost: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if (failed := descriptors.exhausted(error)) is None:
            raise
        click.echo(f"devhost: {failed}", err=True)
        sys.exit(failed.exit_code)
    except OutputFailed as failure:
        # Otherwise the interpreter writes what is still buffered when it exits, and fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if failure.error.errno == errno.EPIPE:  # the reader closed the pipe (`devhost discover | head`)
            sys.exit(0)
        click.echo(f"devhost: cannot write the output: {failure.error.strerror}", err=True)
        sys.exit(1)
