"""The exceptions a user may meet: one line, a hint how to mend it, and an exit code.

    DevhostError                 1  something failed while running
    ├── ConfigError              2  the YAML is wrong (carries every diagnostic at once)
    ├── UsageError               2  the command line asks for something that does not exist
    ├── EnvironmentFailure       3  the machine does not let us: no permission, no directory
    └── BackendError             1  a backend failed, hung or answered nonsense
        ├── BackendTimeout          … it did not answer within its deadline
        ├── NotYet                  … it waits for something, and is asked again
        └── AllocationError         … a device cannot be handed out now

Every other exception that reaches the user is a bug and keeps its traceback.
"""

from __future__ import annotations

from dataclasses import dataclass


class DevhostError(Exception):
    """Base of all errors meant for a user: ``message`` says what and where, ``hint`` how to mend it."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing wrong in a configuration file, with the place it stands at.

    ``line`` and ``column`` count from 1; 0 means the diagnostic is about the whole file.
    ``path`` is the key's path as a user would say it: ``resources[2].where.linkLayer``.
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
    """The configuration is refused; ``diagnostics`` is everything wrong with it, in file order."""

    exit_code = 2

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = diagnostics


class UsageError(DevhostError):
    """The command line names something that does not exist or cannot be combined."""

    exit_code = 2


class EnvironmentFailure(DevhostError):
    """The machine does not let devhost work: a missing permission, an unusable directory."""

    exit_code = 3


class BackendError(DevhostError):
    """A backend failed or answered something that cannot be used."""


class BackendTimeout(BackendError):
    """A backend did not answer within its deadline."""


class NotYet(BackendError):
    """``provision`` waits for something that is no fault; the text says for what."""


class AllocationError(BackendError):
    """A device cannot be handed out now; the text is what the kubelet shows in the pod's status."""


def words(error: BaseException) -> str:
    """What an exception of a stranger's code says, as one line of at most 500 characters."""
    try:
        return " ".join(str(error).split())[:500]
    except Exception:  # noqa: BLE001 - a stranger's __str__ may fail as well
        return ""


def typed(error: BaseException) -> str:
    """The same with the exception's type in front, for its author: ``ValueError: not a number``."""
    text = words(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(error: BaseException) -> str:
    """An exception of a stranger's code as a user should read it, as one short line.

    What the system refused is told as it tells it: ``/dev/fuse: Permission denied``. Anything else is
    a bug report for the code's author and stays as :func:`typed` has it.
    """
    try:
        return (_refusal(error) if isinstance(error, OSError) else "") or typed(error)
    except Exception:  # noqa: BLE001 - what a stranger's error calls a file may be anything
        return typed(error)


def _refusal(error: OSError) -> str:
    """The file names and the system's own words; empty for an error that has none, or a text of its own."""
    reason: object = error.strerror
    if type(error).__str__ is not OSError.__str__ or not isinstance(reason, str) or not reason.strip():
        return ""
    names: list[object] = [name for name in (error.filename, error.filename2) if name is not None]
    path = " ".join(" -> ".join(map(_name, names)).split())
    text = f"{path[:400]}: {reason}" if path else reason
    return " ".join(text.split())[:500]


def _name(name: object) -> str:
    """A file as an :class:`OSError` carries it: text, bytes, a path-like, or the number of an open file."""
    if isinstance(name, bytes):
        return name.decode(errors="backslashreplace")
    return f"open file {name}" if isinstance(name, int) else str(name)
