"""Finds settings of a backend class that neither devhost nor the backend reads.

A class attribute such as ``resync_interval = 5.0`` looks like an option of devhost and has no effect.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

from devhost.backend import Backend

KNOWN = tuple(name for name in Backend.__annotations__ if not name.startswith("_"))
"""The class attributes that devhost reads."""

_PLAIN = (bool, int, float)

_ADVICE = {
    "deadline|timeout": "did you mean discover_deadline?",
    "interval|period|poll|resync": "devhost scans after each event that watch() yields",
}
"""What to do instead, by words in the name."""


def unread(kind: type[Backend]) -> Iterator[str]:
    """The settings of a class that nothing reads, each as one clause with the right name where there is one.

    Those are numbers and switches, and attributes of any type whose name is almost one that devhost reads.
    What the code of the backend mentions again counts as read, and so does everything if there is no source.
    """
    for base in kind.__mro__:
        if base in Backend.__mro__:
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name.isupper() or name in KNOWN or hasattr(Backend, name):
                continue
            if (
                callable(value)
                or inspect.isdatadescriptor(value)
                or isinstance(value, classmethod | staticmethod)
            ):
                continue
            meant = _meant(name)
            if (meant or isinstance(value, _PLAIN)) and not _is_read(base, name):
                yield f"it sets {name}, which nothing reads: {_advice(name, meant)}"


def _advice(name: str, meant: str) -> str:
    if meant:
        return f"did you mean {meant}?"
    advice = (text for words, text in _ADVICE.items() if re.search(words, name))
    return next(advice, f"devhost reads {', '.join(sorted(KNOWN))}")


def _meant(name: str) -> str:
    """The attribute that was probably meant; empty if none is similar."""
    import difflib  # 0.2 MB, only where there is something to compare

    same = {known.lower().replace("_", ""): known for known in KNOWN}
    close = difflib.get_close_matches(name.lower().replace("_", ""), same, n=1, cutoff=0.8)
    return same[close[0]] if close else ""


def _is_read(base: type, name: str) -> bool:
    """Whether the package that defines a class mentions a name more than once; true if that is not known."""
    package = base.__module__.partition(".")[0]
    mentioned = 0
    for path, module in list(sys.modules.items()):
        if path == package or path.startswith(f"{package}."):
            try:
                text = module.__spec__.loader.get_source(path)  # type: ignore[union-attr]
            except Exception:  # noqa: BLE001 - a third-party loader may raise anything
                text = None
            mentioned += len(re.findall(rf"\b{name}\b", text or ""))
    return mentioned != 1
