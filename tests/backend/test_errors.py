"""How a stranger's exception is told: in the system's words to a user, with its type to its author."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from devhost.backend.errors import one_line, typed


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
