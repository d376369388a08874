"""Diagnostics about a configuration: collected with their places, each limited to one printable line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from devhost.backend.errors import ConfigError, Diagnostic, printable
from devhost.backend.frozen import frozen

MAX_DIAGNOSTICS = 200
"""A file with more errors than this is not read further: no user fixes more at once."""

_SHOWN = 60
"""Longest piece of the user's own text in a message, in characters."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.*/-]{1,64}")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A position in the file, counted from 1; line 0 means the whole file."""

    line: int
    column: int


WHOLE_FILE = Mark(0, 0)


class Located(Protocol):
    """Anything with a position in the file."""

    @property
    def mark(self) -> Mark: ...


def one_line(text: str, limit: int = 500) -> str:
    """``text`` on one line: what does not print is escaped, what exceeds ``limit`` characters is cut."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return printable(text)


def shown(text: str) -> str:
    """The user's own text, cut short, in double quotes."""
    return '"' + one_line(text, _SHOWN).replace('"', '\\"') + '"'


MEANT = "did you mean"
"""What :func:`suggest` begins with if it has a suggestion."""


def suggest(word: str, known: Iterable[str], what: str) -> str:
    """A hint for a misspelt ``word``: the nearest of ``known``, or a short list of them."""
    names = sorted(known)
    if not names:
        return f"there are no {what} to choose from"
    import difflib  # 0.2 MB, needed only for a misspelt word

    folded = {_fold(name): name for name in names}
    close = difflib.get_close_matches(_fold(word[:_SHOWN]), folded, n=1, cutoff=0.6)
    if close:
        return f"{MEANT} {folded[close[0]]}?"
    more = f" and {len(names) - 16} more" if len(names) > 16 else ""
    return f"known {what}: {', '.join(names[:16])}{more}"


def _fold(word: str) -> str:
    """Makes ``driver_root``, ``driver-root`` and ``DriverRoot`` equal."""
    return re.sub(r"[-_]", "", word).lower()


@dataclass(slots=True)
class Diagnostics:
    """Everything found wrong in one file so far."""

    file: str
    found: list[tuple[Mark, str, str, str]] = field(default_factory=list)

    def add(self, mark: Mark, path: str, message: str, hint: str = "") -> None:
        """Adds a diagnostic. Raises ``ConfigError`` if there are :data:`MAX_DIAGNOSTICS` now."""
        self.found.append((mark, path, message, hint))
        if len(self.found) >= MAX_DIAGNOSTICS:
            self.found.append((Mark(mark.line + 1, 1), "", "the rest was not read: too many errors", ""))
            raise self.error()

    def fail(self, mark: Mark, message: str, hint: str = "") -> NoReturn:
        """Adds a diagnostic after which the file cannot be read further, and raises ``ConfigError``."""
        self.found.append((mark, "", message, hint))
        raise self.error()

    def error(self) -> ConfigError:
        """All diagnostics in file order."""
        file = one_line(self.file)
        ordered = sorted(self.found, key=lambda one: one[0])
        return ConfigError(
            tuple(
                Diagnostic(file, mark.line, mark.column, one_line(path), one_line(message), one_line(hint))
                for mark, path, message, hint in ordered
            )
        )


@frozen
class KeyPath:
    """The path of keys to what is being read, and where to report what is wrong with it."""

    diagnostics: Diagnostics
    path: str = ""

    def key(self, name: str) -> KeyPath:
        step = name if _PLAIN_KEY.fullmatch(name) else f"[{shown(name)}]"
        joint = "." if self.path and not step.startswith("[") else ""
        return KeyPath(self.diagnostics, f"{self.path}{joint}{step}")

    def item(self, index: int) -> KeyPath:
        """The place of a list's member, counted from 0."""
        return KeyPath(self.diagnostics, f"{self.path}[{index}]")

    def report(self, at: Located, message: str, hint: str = "") -> None:
        self.diagnostics.add(at.mark, self.path, message, hint)
