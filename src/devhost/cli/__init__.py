"""The command line: arguments in, one call, a printed answer and an exit code out.

Each command is a module of this package and is imported only when it is used, so that ``devhost run``
does not carry the others in memory.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

import click

from devhost import __version__
from devhost.errors import ConfigError, DevhostError

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


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"devhost.cli.{COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="devhost")
def root() -> None:
    """Offers every special device of this node to Kubernetes, from one YAML file.

    Exit codes: 0 done, 1 it failed, 2 wrong configuration or usage, 3 the machine does not allow it.
    """


def main() -> None:
    """Entry point of the ``devhost`` program."""
    try:
        sys.exit(root(prog_name="devhost", standalone_mode=False))
    except ConfigError as error:
        for complaint in error.complaints:
            click.echo(complaint, err=True)
        sys.exit(error.exit_code)
    except DevhostError as error:
        click.echo(f"devhost: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of a pipe went away (`devhost discover | head`): nothing to say, and nothing
        # may be written at interpreter exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
