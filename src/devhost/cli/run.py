"""``devhost run``, for its help and its errors: see :mod:`.serve`."""

from __future__ import annotations

from typing import Any

import click

from . import options as shared
from .serve import OPTIONS, TEXT, Option, serve


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


command = click.Command("run", callback=serve, params=[_as_click(one) for one in OPTIONS], help=TEXT)
