"""The exceptions that a user may see: one line, a hint how to fix it, and an exit code.

    DevhostError                 1  something failed while running
    ├── ConfigError              2  the YAML is wrong (has all errors at once)
    ├── UsageError               2  the command line names something that does not exist
    ├── EnvironmentFailure       3  the machine does not allow it: no permission, no directory
    └── BackendError             1  a backend failed, hung or returned something invalid
        ├── BackendTimeout          … it did not answer within its deadline
        ├── NotYet                  … it waits for something, and is called again
        └── AllocationError         … a device cannot be allocated now

Every other exception that reaches the user is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from .frozen import frozen

MAX_REASON = 500
"""Characters of a text from outside devhost that a message or a reason may quote. A reason is also a label of
metrics."""

MAX_MESSAGE = 2000
"""Characters of a whole message or hint, which may quote several texts."""

DAMAGED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What is raised by reading a JSON document, and values in it, that may be damaged or of another program."""

MARK = "…"
"""The end of a text that was cut."""


class DevhostError(Exception):
    """Base of all errors meant for a user: ``message`` is what failed and where, ``hint`` how to fix it.

    Each is cut at :data:`MAX_MESSAGE` characters.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = cut(str(message), MAX_MESSAGE)  # a backend may pass the exception that it caught
        self.hint = cut(str(hint), MAX_MESSAGE)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@frozen
class Diagnostic:
    """One error in a configuration file, with its position.

    ``line`` and ``column`` count from 1; 0 means that the diagnostic is about the file as a whole.
    ``path`` is the path of the key: ``resources[2].where.linkLayer``.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f" {self.path}:" if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}:{path} {self.message}{hint}"


class ConfigError(DevhostError):
    """The configuration is refused; ``diagnostics`` has all its errors, in file order."""

    exit_code = 2

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("")
        self.message = "\n".join(map(str, diagnostics))  # each is short, and their number is limited
        self.diagnostics = diagnostics


class UsageError(DevhostError):
    """The command line names something that does not exist or cannot be combined."""

    exit_code = 2


class EnvironmentFailure(DevhostError):
    """devhost cannot work on this machine: a permission is missing, or a directory is unusable."""

    exit_code = 3


OPEN_FILES = 65536
"""The limit of open files to set; that of the systemd unit."""

MORE_OPEN_FILES = f"run `ulimit -n {OPEN_FILES}` before, or set LimitNOFILE={OPEN_FILES} in the systemd unit"
"""The hint for a process that may not open as many files as it needs."""


def exhausted(error: BaseException) -> EnvironmentFailure | None:
    """The error for a call that failed because no file descriptor was left; ``None`` for another failure."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(exhausted, error.exceptions)), None)
    if not isinstance(error, OSError) or error.errno not in {errno.EMFILE, errno.ENFILE}:
        return None
    if error.errno == errno.ENFILE:
        return EnvironmentFailure("the node has no file descriptors left", "raise fs.file-max with sysctl")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return EnvironmentFailure(f"too many open files: the limit, RLIMIT_NOFILE, is {soft}", MORE_OPEN_FILES)


def not_imported(error: BaseException) -> EnvironmentFailure | None:
    """The error for code that is imported late and is not there any longer; ``None`` for another failure."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(not_imported, error.exceptions)), None)
    if not isinstance(error, ImportError):
        return None
    return EnvironmentFailure(
        f"code cannot be imported: {error}", "restart devhost: its files may have been replaced or removed"
    )


class BackendError(DevhostError):
    """A backend failed or returned something that cannot be used.

    ``held`` are claims of containers that the text refers to, as in :meth:`devhost.backend.Context.held`: of
    an error of ``provision``, the status names these containers.
    """

    held: frozenset[str] = frozenset()

    def __init__(self, message: str, hint: str = "", *, held: Iterable[str] = ()) -> None:
        super().__init__(message, hint)
        self.held = frozenset(held)


class BackendTimeout(BackendError):
    """A backend did not answer within its deadline."""


class NotYet(BackendError):
    """``provision`` has to wait, which is not a failure; the text describes for what."""


class AllocationError(BackendError):
    """A device cannot be allocated now; the kubelet shows the text in the pod's status."""


def words(error: BaseException) -> str:
    """The text of an exception from third-party code, see :func:`excerpt`."""
    try:
        return excerpt(str(error))
    except Exception:  # noqa: BLE001 - a third-party __str__ may fail as well
        return ""


def typed(error: BaseException) -> str:
    """The same after the exception's type, for its author: ``ValueError: not a number``."""
    text = words(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def absent_paths(paths: Sequence[str], silent: Collection[str] = ()) -> str:
    """That host paths do not exist; of those that are ``silent``, that they do not answer."""
    gone = [path for path in paths if path not in silent]
    hanging = [path for path in paths if path in silent]
    found = [f"{', '.join(gone)} {'do' if gone[1:] else 'does'} not exist on the node"] if gone else []
    if hanging:
        found.append(f"the file system of {', '.join(hanging)} does not answer")
    return ", and ".join(found)


def one_line(error: BaseException) -> str:
    """An exception from third-party code in one short line for a user.

    An error of the operating system keeps the system's own words: ``/dev/fuse: Permission denied``. Anything
    else is for the author of the code, in the format of :func:`typed`.
    """
    try:
        return (_refusal(error) if isinstance(error, OSError) else "") or typed(error)
    except Exception:  # noqa: BLE001 - the file name of a third-party error may be anything
        return typed(error)


def _refusal(error: OSError) -> str:
    """The file names and the system's own words; empty for an error without them, or with another text."""
    reason: object = error.strerror
    if type(error).__str__ is not OSError.__str__ or not isinstance(reason, str) or not reason.strip():
        return ""
    names: list[object] = [name for name in (error.filename, error.filename2) if name is not None]
    path = " ".join(" -> ".join(map(_name, names)).split())
    return excerpt(f"{cut(path, 400)}: {reason}" if path else reason)


def _name(name: object) -> str:
    """The text for a file in an :class:`OSError`: a string, bytes, a path, or the number of an open file."""
    if isinstance(name, bytes):
        return name.decode(errors="backslashreplace")
    return f"open file {name}" if isinstance(name, int) else str(name)


def few(names: Sequence[str]) -> str:
    """At most three of the names, and the number of others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def counted(count: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cut(text: str, most: int = MAX_REASON) -> str:
    """``text``; if it has more than ``most`` characters, its beginning and :data:`MARK`."""
    return text if len(text) <= most else f"{text[: max(most - 1, 0)]}{MARK}"


def cut_bytes(text: str, most: int) -> str:
    """The same for ``most`` bytes of UTF-8, which must be 3 or more."""
    data = text.encode()
    return text if len(data) <= most else data[: most - len(MARK.encode())].decode(errors="ignore") + MARK


def excerpt(text: str, most: int = MAX_REASON) -> str:
    """A text from outside devhost on one printable line of at most ``most`` characters."""
    return cut(printable(" ".join(text.split())), most)


def printable(text: str) -> str:
    """``text`` with every character that does not print escaped as ``\\n``, ``\\x1b``, ``\\u202e`` …

    Attributes of a device come from its firmware. They must not be able to forge a log line, control a
    terminal, change the direction of the text around them, or look like another attribute. The decision
    follows Unicode's categories, as in ``str.isprintable``: escaped are control and format characters (Cc,
    Cf), line and paragraph separators (Zl, Zp), every space but the ordinary one (Zs), private and unassigned
    characters (Co, Cn), and bytes that are not UTF-8, which Python keeps as surrogates (Cs) and no stream can
    encode.

    The joiners in some scripts and emoji (U+200C, U+200D) are format characters as well: if they are escaped
    a word stays legible, and two names that differ only in them can be distinguished.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
