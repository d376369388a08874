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
from typing import Any

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
    "record": "recording.command",
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


_SENTENCE = 1000
"""The most characters of a command's summary; none is as long."""


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its first sentence, which click would cut at the end of the line."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_SENTENCE)) for name, one in commands if one])

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
@click.version_option(__version__, "-V", "--version", prog_name="devhost")
def root() -> None:
    """Offers the devices of this node to Kubernetes, configured by one YAML file.

    Exit codes: 0 success, 1 failure, 2 wrong configuration or usage, 3 the machine does not allow it.
    """


def call() -> int:
    """Runs the command of ``sys.argv``; the exit code.

    Raises:
        ImportError: a package is missing.
    """
    try:
        code = _run()
    except ImportError:
        raise
    except BaseException as error:  # noqa: BLE001 - a fault of the program, or Ctrl-C at its end
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or _without_output(error)
    return code


def _run() -> int:
    """Runs the command; its exit code."""
    try:
        match sys.argv[1:2]:
            case ["run"]:
                pass  # it does the same, and reports a failure in its log's format
            case ["kubelet" | "demo"]:
                descriptors.provide(descriptors.SERVING)
            case _:
                descriptors.provide(descriptors.COMMAND)
        result = root(prog_name="devhost", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except ConfigError as error:
        for diagnostic in error.diagnostics:
            click.echo(diagnostic, err=True)
        return error.exit_code
    except DevhostError as error:
        click.echo(f"devhost: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except MemoryError:
        click.echo("devhost: the process has no memory left (raise its limit, such as ulimit -v)", err=True)
        return EnvironmentFailure.exit_code
    except OSError as error:
        if (failed := descriptors.exhausted(error)) is None:
            raise
        click.echo(f"devhost: {failed}", err=True)
        return failed.exit_code
    except OutputFailed as failure:
        return _without_output(failure.error)


def _without_output(error: OSError) -> int:
    """Reports that the output could not be written; the exit code."""
    # What is still buffered would be written again, and fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # the reader closed the pipe (`devhost discover | head`)
        return 0
    click.echo(f"devhost: cannot write the output: {error.strerror}", err=True)
    return 1
