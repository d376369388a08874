"""Diagnostics about a configuration: collected with their places, each limited to one printable line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NamedTuple, NoReturn, Protocol

from devhost.backend import Attribute
from devhost.backend.errors import MAX_REASON, ConfigError, Diagnostic, cut, printable
from devhost.backend.frozen import frozen, mutable

MAX_DIAGNOSTICS = 200
"""A file with more errors than this is not read further: no user fixes more at once."""

_SHOWN = 60
"""Longest piece of the user's own text in a message, in characters."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.*/-]{1,64}")


class Mark(NamedTuple):
    """A position in the file, counted from 1; line 0 means the whole file."""

    line: int
    column: int


WHOLE_FILE = Mark(0, 0)


class Located(Protocol):
    """Anything with a position in the file."""

    @property
    def mark(self) -> Mark: ...


def one_line(text: str, limit: int = MAX_REASON) -> str:
    """``text`` on one line: what does not print is escaped, what exceeds ``limit`` characters is cut."""
    return printable(cut(text, limit))


def shown(text: str) -> str:
    """The user's own text, cut short, in double quotes."""
    return '"' + one_line(text, _SHOWN).replace('"', '\\"') + '"'


MOST_MEANT = 3
"""The most attributes that a hint suggests."""

MEANT = "did you mean"
"""What :func:`suggest` begins with if it has a suggestion."""


def suggest(word: str, known: Iterable[str], what: str) -> str:
    """A hint for an unknown ``word``: the nearest of ``known``, or a short list of them.

    If ``known`` maps names to :class:`Attribute`, the nearest may also be the one that has this meaning.
    """
    names = sorted(known)
    if not names:
        return f"there are no {what} to choose from"
    families = tuple(name[:-1] for name in names if name.endswith("*"))
    if word.endswith("*") and word.startswith(families):
        return "write one name, with something in place of *"
    alike = [name for name in names if not word[:-1].startswith(f"{name}.")]  # "a.b" does not mean "a"
    meant = _misspelt(word[:_SHOWN], alike) or _paraphrased(word[:_SHOWN], known)
    if meant:
        return f"{MEANT} {' or '.join(meant)}?"
    more = f" and {len(names) - 16} more" if len(names) > 16 else ""
    return f"known {what}: {', '.join(names[:16])}{more}"


def _misspelt(word: str, names: Iterable[str]) -> list[str]:
    """The one of ``names`` that is spelt as ``word`` but for a few letters, if there is one."""
    import difflib  # 0.2 MB, needed only for a misspelt word

    wanted, folded = _fold(word), {_fold(name): name for name in names}
    near = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.75)
    # "model" shares most letters with "numaNode": a word that differs more than that begins as it should
    near = near or difflib.get_close_matches(wanted, [one for one in folded if one[:1] == wanted[:1]], n=1)
    return [folded[one] for one in near]


def _paraphrased(word: str, known: Iterable[str]) -> list[str]:
    """The attributes whose meaning names ``word`` first: ``product`` for ``model``; none if many do."""
    wanted = set(_words(word))
    found: dict[int, list[str]] = {}
    for name, attribute in known.items() if isinstance(known, Mapping) else ():
        meaning = _words(attribute.meaning) if isinstance(attribute, Attribute) else []
        if wanted and wanted.issubset(meaning):
            found.setdefault(min(map(meaning.index, wanted)), []).append(name)
    first = found[min(found)] if found else []
    return first if len(first) <= MOST_MEANT else []


def _words(text: str) -> list[str]:
    """The words of a text or of a name such as ``pciAddress``, in lower case."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower())


def _fold(word: str) -> str:
    """Makes ``driver_root``, ``driver-root`` and ``DriverRoot`` equal."""
    return re.sub(r"[-_]", "", word).lower()


@mutable
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
