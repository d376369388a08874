"""What several commands share, so that their help and their tables are the same everywhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from devhost.backend import errors
from devhost.runtime.log import duration, printable

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


_GAP = "  "

CELL = 2000
"""Most characters of a cell: a value may be one that hardware reports."""

VALUE = 200
"""Most characters of an attribute's value among others in one cell. JSON has the whole value."""


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None) -> str:
    """Headers and rows as aligned columns, without a final line end; only the headers if there are no rows.

    Columns that contain only numbers are aligned right; ``None`` and ``""`` appear as ``-``, and the missing
    last cells of a shorter row are blank. Cells are cut at :data:`CELL`, and lines at ``width`` columns. By
    default that is the terminal's width; without a terminal they are not cut.
    """
    source = [tuple(row) for row in rows]
    cells = [(*map(_text, row), *[""] * (len(headers) - len(row))) for row in source]
    columns = range(len(headers))
    widths = [max([len(headers[i]), *(len(row[i]) for row in cells)]) for i in columns]
    numeric = [
        bool(source) and all(i < len(row) and isinstance(row[i], int | float) for row in source)
        for i in columns
    ]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    lines = []
    for row in [tuple(headers), *cells]:
        padded = [row[i].rjust(widths[i]) if numeric[i] else row[i].ljust(widths[i]) for i in columns]
        lines.append(cut(_GAP.join(padded).rstrip(), width))
    return "\n".join(lines)


def cut(line: str, width: int | None) -> str:
    """``line``, with an ellipsis in its last column if it is longer than ``width``."""
    return line if width is None else errors.cut(line, width)


def _text(value: object) -> str:
    return "-" if value is None or value == "" else cut(printable(str(value)), CELL)
