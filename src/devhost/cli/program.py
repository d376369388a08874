"""The program: its commands.

A command is imported only when it is used, so that ``devhost run`` has no other command in memory.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from devhost import __version__
from devhost.backend.errors import EnvironmentFailure
from devhost.runtime import descriptors
from devhost.telemetry.ending import ended, output

from .options import Group

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


NOT_ON_NODES = ("devhost.cli.importers", "devhost.testing")
"""Packages that are not in the node's image, because no command for nodes needs them."""


class _Lazy(Group):
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
        with output():  # --help is printed here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with output():
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


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""
    Offers the devices of this node to Kubernetes, configured by one YAML file.

    Exit codes: 0 success, 1 failure, 2 wrong configuration or usage, 3 the machine does not allow it.
    """,
)
@click.version_option(__version__, "-V", "--version", prog_name="devhost")
def root() -> None:
    pass


def call() -> int:
    """Runs the command of ``sys.argv``; the exit code."""
    return ended(_command)


def _command() -> object:
    match sys.argv[1:2]:
        case ["run"]:
            pass  # it does the same, and reports a failure in its log's format
        case ["kubelet" | "demo"]:
            descriptors.provide(descriptors.SERVING)
        case _:
            descriptors.provide(descriptors.COMMAND)
    try:
        return root(prog_name="devhost", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
