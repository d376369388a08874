"""HTML as Python values: text that is not from :func:`tag` is escaped when it is added."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime

from markupsafe import Markup, escape

from devhost.backend.frozen import frozen
from devhost.runtime.log import printable
from devhost.telemetry.tables import age

_VOID = {"input", "link", "meta"}
"""Elements without an end tag."""

LONGEST = 24
"""Characters of the longest word that a line never breaks, which fits the narrowest screen."""

_BREAKS = re.compile(rf"[/:_,=@~+](?=\w)|\.(?=[^\W\d])|[^\W_]{{{LONGEST}}}(?=[^\W_])")
"""What a line may end after, beside white space and hyphens: separators, and a part of what is no word."""


Content = Markup | str | int | None
"""``None`` and the empty string add nothing."""


def escaped(text: object) -> Markup:
    """``text`` escaped for content and quoted attributes, on one line."""
    return text if isinstance(text, Markup) else escape(printable(str(text)))


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """One element.

    In names of attributes ``_`` becomes ``-``; those with ``None`` or ``False`` are omitted.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


def joined(parts: Iterable[Content]) -> Markup:
    """The parts one after another. Lines may end in their texts only at separators."""
    return Markup("".join(_breakable(part) for part in parts if part is not None))


def _breakable(part: Content) -> Markup:
    if isinstance(part, Markup):
        return part
    return Markup("<wbr>").join(map(escape, _BREAKS.sub(r"\g<0>\n", printable(str(part))).split("\n")))


def since(time: str | None, now: datetime, after: str = "") -> Markup | None:
    """The age of ``time``, which the page's script updates; ``after`` follows it."""
    if not time:
        return None
    shown = tag("time", age(time, now), datetime=time, title=time)
    return joined([shown, after]) if after else shown


@frozen
class Row:
    """One row of a table; its first cell is its heading. ``attributes`` are those of the row."""

    cells: Sequence[Content]
    attributes: Mapping[str, object] = field(default_factory=dict)


def table(
    caption: str,
    headers: Sequence[str],
    rows: Sequence[Row],
    *,
    wide: Sequence[str] = (),
    optional: Sequence[str] = ("Reason",),
    style: str | None = None,
    headed: bool = False,
) -> Markup | None:
    """A table; ``None`` without rows. ``optional`` columns that are empty in every row are omitted.

    On a narrow screen each row is a card, in which the columns in ``wide`` have the whole width. Roles are
    explicit although the elements imply them, because browsers drop them when CSS turns rows into cards.
    ``style`` is a class of the style sheet. ``headed`` is whether a heading has the same text as the caption,
    which is then only for screen readers.
    """
    if not rows:
        return None
    filled = {n for row in rows for n, cell in enumerate(row.cells) if cell not in (None, "")}
    columns = [n for n, header in enumerate(headers) if n in filled or header not in optional]
    head = (
        tag("th", headers[n], scope="col", role="columnheader", class_="wide" if headers[n] in wide else None)
        for n in columns
    )
    body = (tag("tr", *_cells(row, columns, headers, wide), role="row", **row.attributes) for row in rows)
    return tag(
        "table",
        tag("caption", caption, class_="unseen" if headed else None),
        tag("thead", tag("tr", *head, role="row"), role="rowgroup"),
        tag("tbody", *body, role="rowgroup"),
        role="table",
        class_=style,
        data_key=caption,
    )


def _cells(row: Row, columns: Sequence[int], headers: Sequence[str], wide: Sequence[str]) -> Iterable[Markup]:
    for n in columns:
        cell = row.cells[n]
        if n == 0:
            yield tag("th", cell, scope="row", role="rowheader")
        elif cell in (None, ""):
            yield tag("td", role="cell", class_="none")
        else:
            classes = "wide" if headers[n] in wide else None
            yield tag("td", cell, role="cell", data_label=headers[n], class_=classes)
