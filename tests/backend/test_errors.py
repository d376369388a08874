"""How a stranger's exception is told: in the system's words to a user, with its type to its author."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from devhost.backend.errors import (
    MAX_MESSAGE,
    MAX_REASON,
    AllocationError,
    ConfigError,
    DevhostError,
    Diagnostic,
    cut_bytes,
    one_line,
    typed,
    words,
)


class Own(OSError):
    def __str__(self) -> str:
        return "the card is asleep"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            PermissionError(13, "Permission denied", "/sys/class/infiniband"),
            "/sys/class/infiniband: Permission denied",
        ),
        (OSError(5, "Input/output error"), "Input/output error"),
        (FileNotFoundError(2, "No such file or directory", Path("/a b")), "/a b: No such file or directory"),
        (FileNotFoundError(2, "gone", "/old", None, "/new"), "/old -> /new: gone"),
        (OSError(9, "Bad file descriptor", 7), "open file 7: Bad file descriptor"),
        (OSError(5, "dark", b"/dev/lamp\xff"), "/dev/lamp\\xff: dark"),
        (OSError(5, "two\nlines", "/a\nb"), "/a b: two lines"),
    ],
)
def test_an_error_of_the_system_is_shown_without_number_and_type(error: OSError, text: str) -> None:
    assert one_line(error) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("unplugged while we looked"), "OSError: unplugged while we looked"),
        (TimeoutError(), "TimeoutError"),
        (OSError(5, ""), "OSError: [Errno 5]"),
        (OSError(5, 17), "OSError: [Errno 5] 17"),
        (Own(5, "Input/output error"), "Own: the card is asleep"),
    ],
)
def test_an_oserror_without_the_systems_words_keeps_its_type(error: OSError, text: str) -> None:
    assert one_line(error) == text


def test_an_error_whose_file_has_no_name_is_still_shown() -> None:
    class Nameless:
        def __str__(self) -> str:
            raise ValueError

        __repr__ = __str__

    assert one_line(OSError(5, "dark", Nameless())) == "OSError"


def test_any_other_exception_keeps_its_type_for_the_author() -> None:
    assert one_line(KeyError("serial")) == "KeyError: 'serial'"


def test_the_reason_is_shown_even_if_the_path_is_too_long() -> None:
    text = one_line(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "/x" * 5000))
    assert text.endswith(": File name too long")
    assert len(text) <= 500


def test_an_author_reads_the_type_of_every_exception() -> None:
    assert typed(FileNotFoundError(2, "gone", "/a")) == "FileNotFoundError: [Errno 2] gone: '/a'"


@pytest.mark.parametrize("shown", [words, lambda error: one_line(OSError(5, str(error)))])
def test_a_text_of_others_is_whole_up_to_the_limit_and_cut_with_a_mark_beyond(shown) -> None:
    assert shown(ValueError("x" * MAX_REASON)) == "x" * MAX_REASON
    assert shown(ValueError("x" * (MAX_REASON + 1))) == "x" * (MAX_REASON - 1) + "…"


def test_a_message_and_its_hint_are_whole_up_to_the_limit_and_cut_with_a_mark_beyond() -> None:
    whole = DevhostError("x" * MAX_MESSAGE, "y" * MAX_MESSAGE)
    assert str(whole) == f"{'x' * MAX_MESSAGE} ({'y' * MAX_MESSAGE})"
    longer = DevhostError("x" * (MAX_MESSAGE + 1), "y" * (MAX_MESSAGE + 1))
    assert longer.message == "x" * (MAX_MESSAGE - 1) + "…"
    assert longer.hint == "y" * (MAX_MESSAGE - 1) + "…"


def test_an_error_made_from_an_exception_has_its_text() -> None:
    error = AllocationError(ValueError("busy"), Path("/sys/card"))  # type: ignore[arg-type]  # by a backend
    assert (words(error), error.message) == ("busy (/sys/card)", "busy")


def test_all_errors_of_a_configuration_are_shown() -> None:
    every = ConfigError(tuple(Diagnostic("f", n, 1, "key", "is wrong") for n in range(1, 201)))
    assert len(str(every).splitlines()) == len(every.message.splitlines()) == 200


def test_bytes_are_cut_between_characters() -> None:
    assert cut_bytes("ü" * 5, 10) == "ü" * 5
    assert cut_bytes("ü" * 6, 10) == "ü" * 3 + "…"
