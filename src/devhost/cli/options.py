"""What several commands share, so that their help is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from devhost.runtime.text import duration

from .serve import CONFIG, ROOT

if TYPE_CHECKING:
    from devhost.discovery.catalog import Refusal

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SENTENCE = 1000
"""The most characters of a command's summary; none is as long."""


class _Path(click.Path):
    """A path that click does not check: the code that uses it reports problems, with how to fix them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuses an empty text, which would be the current directory: a variable was not set."""
        if value == "":
            self.fail("it is empty (give a path, or omit the option)", param, ctx)
        return super().convert(value, param, ctx)


path = _Path(path_type=Path, readable=False)

config = click.option(
    "--config",
    type=path,
    metavar="FILE",
    help=CONFIG,
)

root = click.option(
    "--root",
    type=path,
    default=Path("/"),
    metavar="DIR",
    help=ROOT,
)


class Group(click.Group):
    """A command with commands, whose help shows the whole summary of each."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument; for a misspelt one, the error has the nearest."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if close:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its first sentence, which click would cut at the end of the line."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_SENTENCE)) for name, one in commands if one])


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


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """The value of an option that is a duration, such as ``30m``; ``None`` if it is not given."""
    if value is None:
        return None
    if (found := duration(value)) is None:
        raise click.BadParameter(f"{value!r} is not a duration: write 90s, 30m or 2h")
    return found


def warn_of(refused: Iterable[Refusal]) -> None:
    for refusal in refused:
        click.echo(f"warning: plugin {refusal.origin} was refused: {refusal.reason}", err=True)
