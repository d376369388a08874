"""Traces the paths that backends access while a recording runs.

Python calls an audit hook for every ``open``, ``os.listdir`` and ``os.scandir``, from any thread and through
any reference to the function (PEP 578). It has no such event for ``os.stat`` and similar functions. Therefore
these are replaced, in every module that refers to them, by functions that note the path first; ``os.path``,
``glob`` and ``pathlib`` all use them. Neither method sees a library that reads from C, nor a program that a
backend starts.
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

from devhost.backend.frozen import mutable

_UNAUDITED = ("access", "lstat", "open", "readlink", "stat")
"""Functions of ``os`` that query a path; and ``open``, whose ``dir_fd`` is not part of its audit event."""

_LEFT_ALONE = frozenset({"posix", __name__})
"""Modules that keep the original functions: every import uses the first a thousand times; the second is
this."""


class Access(StrEnum):
    """How a path was accessed."""

    ASKED = "asked"
    """Its existence, its type, or the target of a link."""
    LISTED = "listed"
    """The names in it."""
    READ = "read"
    """Its content."""


@mutable
class Trace:
    """Every path that threads other than the creating one accessed, in the order of first access.

    ``accesses`` maps the kind of access and the path to the thread's name. Paths are absolute, with links not
    resolved. ``last`` is the newest path of each thread.
    """

    accesses: dict[tuple[Access, str], str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    _own: int = field(default_factory=threading.get_ident)

    def note(self, access: Access, path: object, directory: int | None = None) -> None:
        """Notes an access to a path or an open directory. Never raises: third-party code is running."""
        if threading.get_ident() == self._own:
            return
        text = _text(path, directory)
        if text:
            thread = threading.current_thread().name
            self.accesses.setdefault((access, text), thread)
            self.last[thread] = text


def _text(path: object, directory: int | None) -> str:
    """The absolute path; empty if there is none."""
    try:
        if isinstance(path, int):
            return _real_readlink(f"/proc/self/fd/{path}")
        text = os.fsdecode(path)  # type: ignore[arg-type]  # other types raise TypeError
        if directory is not None:
            text = f"{_real_readlink(f'/proc/self/fd/{directory}')}/{text}"
        return text if text.startswith("/") or not text else f"{os.getcwd()}/{text}"  # noqa: PTH109 - a string
    except (OSError, TypeError, ValueError):
        return ""


_real_readlink = os.readlink
_current: Trace | None = None
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _current is None or event not in ("open", "os.listdir", "os.scandir"):
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
            return
        _current.note(Access.READ, path)
    else:
        _current.note(Access.LISTED, "." if arguments[0] is None else arguments[0])


def _noting(trace: Trace, original: Callable[..., Any]) -> Callable[..., Any]:
    access = Access.READ if original is os.open else Access.ASKED

    def ask(path: Any, *arguments: Any, **named: Any) -> Any:
        directory = named.get("dir_fd")
        # an open file reveals nothing new (this is an fstat)
        if (
            _current is trace
            and not isinstance(path, int)
            and (access is Access.ASKED or directory is not None)
        ):
            trace.note(access, path, directory)
        return original(path, *arguments, **named)

    return ask


def _holders() -> Iterator[tuple[ModuleType | type, dict[str, Any]]]:
    """Objects that may refer to a function of ``os``: modules, and the classes of ``glob`` (3.13)."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__ not in _LEFT_ALONE:
            # vars() would load a module that is loaded lazily
            yield module, ModuleType.__getattribute__(module, "__dict__")
    for value in list(vars(glob).values()):
        if isinstance(value, type):
            yield value, dict(vars(value))


@contextmanager
def _exchanged(functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Replaces each function by its substitute wherever a name refers to it."""
    before: list[tuple[ModuleType | type, str, Any]] = []
    for holder, names in _holders():
        for name, value in list(names.items()):
            held = value.__func__ if isinstance(value, staticmethod) else value
            if isinstance(held, BuiltinFunctionType) and held in functions:
                before.append((holder, name, value))
                substitute = functions[held]
                setattr(holder, name, substitute if held is value else staticmethod(substitute))
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


@contextmanager
def tracing() -> Iterator[Trace]:
    """Notes what all other threads access. Only one can run in a process, which it slows down a little."""
    global _current, _hooked
    if not _hooked:
        sys.addaudithook(_audit)  # permanent: Python cannot remove an audit hook
        _hooked = True
    trace = Trace()
    originals = [getattr(os, name) for name in _UNAUDITED]
    with _exchanged({original: _noting(trace, original) for original in originals}):
        _current = trace
        try:
            yield trace
        finally:
            _current = None


def of_python(path: str) -> bool:
    """Whether ``path`` belongs to Python or to an installed package: an import does not read hardware."""
    return path.startswith(_OF_PYTHON)


_IMPORTED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_OF_PYTHON = tuple(
    {
        f"{spelled}/"
        for place in (*_IMPORTED, *sys.path)
        if Path(place).is_absolute()
        for spelled in (place, os.path.realpath(place))
        if spelled != "/"
    }
)
