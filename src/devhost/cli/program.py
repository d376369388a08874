"""The program: its commands.

A command is imported only when it is used, so that ``devhost run`` has no other command in memory.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

import click

from devhost import __version__
from devhost.backend.errors import EnvironmentFailure, typed
from devhost.discovery.entry_points import EntryPoint, entry_points
from devhost.missing import missing_package
from devhost.runtime import descriptors
from devhost.telemetry.ending import ended, output

from . import options as shared
from .serve import OPTIONS, TEXT, Option, serve

COMMANDS = {
    "accept": "requests:accept",
    "check": "check",
    "cordon": "cordon:cordon",
    "diff": "diff",
    "discover": "discover",
    "dra": "dra",
    "drain": "cordon:drain",
    "explain": "explain",
    "plugins": "plugins:plugins",
    "ready": "status:ready",
    "record": "recording",
    "release": "requests:release",
    "resume": "requests:resume",
    "run": "program:run",
    "schema": "plugins:print_schema",
    "status": "status:status",
    "uncordon": "cordon:uncordon",
}
"""Command name → module of this package, and the name of the click command in it: ``command`` by default."""


GROUP = "devhost.commands"
"""The entry points of other packages: the name of a command, and the click command."""

ELSEWHERE = {"demo": "devhost-testing", "import": "devhost-import", "kubelet": "devhost-testing"}
"""The package of each command that nodes do not need."""


class _Lazy(shared.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *ELSEWHERE, *(entry.name for entry in _installed(ctx))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name].partition(":")
            found = importlib.import_module(f"devhost.cli.{module}")
            return cast("click.Command", getattr(found, name or "command"))
        for entry in _installed(ctx):
            if entry.name == cmd_name:
                return _loaded(entry)
        if cmd_name in ELSEWHERE:
            package = ELSEWHERE[cmd_name]
            return _absent(
                cmd_name,
                f"devhost {cmd_name} is not installed: it is in the package {package}",
                f"nodes do not need it; on another machine: pip install {package} && devhost {cmd_name}",
                f"Not installed: it is in the package {package}.",
            )
        return None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with output():  # --help is printed here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with output():
            return super().invoke(ctx)


def _installed(ctx: click.Context) -> list[EntryPoint]:
    """The commands of other packages, which are looked for once in each run of the program."""
    if GROUP not in ctx.meta:
        ctx.meta[GROUP] = entry_points(GROUP)
    found: list[EntryPoint] = ctx.meta[GROUP]
    return found


def _loaded(entry: EntryPoint) -> click.Command:
    """The command of another package."""
    try:
        command = entry.load()
        why = "" if isinstance(command, click.Command) else f"{entry.value} is no click command"
    except Exception as error:
        if missing_package(error):
            raise
        why = typed(error)
    if not why:
        return cast("click.Command", command)
    package = entry.dist.name
    return _absent(
        entry.name,
        f"devhost {entry.name}, of the package {package}, cannot be used: {why}",
        f"run `{sys.executable} -m pip install --force-reinstall {package}`",
        f"Cannot be used: see `devhost {entry.name}`.",
    )


def _absent(name: str, reason: str, hint: str, short: str) -> click.Command:
    """Replaces a command whose code is not there."""

    def refuse() -> None:
        raise EnvironmentFailure(reason, hint)

    return click.Command(
        name,
        callback=refuse,
        short_help=short,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""
    Offers the devices of this node to Kubernetes, configured by one YAML file.

    Exit codes: 0 success, 1 failure, 2 wrong configuration or usage, 3 the machine does not allow it, 5 the
    output could not be written.
    """,
)
@click.version_option(__version__, "-V", "--version", prog_name="devhost")
def root() -> None:
    pass


def _as_click(option: Option) -> click.Option:
    kinds = {"Path": shared.path, "str": click.STRING, "bool": None}
    more: dict[str, Any] = {
        "type": click.Choice(option.choices) if option.choices else kinds[option.type.__name__]
    }
    return click.Option(
        list(option.names),
        is_flag=option.type is bool,
        metavar=option.metavar,
        default=option.default,
        show_default=bool(option.choices),
        help=option.help,
        **more,
    )


run = click.Command("run", callback=serve, params=[_as_click(one) for one in OPTIONS], help=TEXT)
"""``devhost run``, for its help and its errors: see :mod:`.serve`."""


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
