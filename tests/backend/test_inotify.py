"""An inotify call that fails is explained: which limit, its value, and the command that raises it."""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path

import pytest
from kit.files import limited

from devhost.backend.files import explained


@pytest.mark.parametrize(
    ("number", "name"), [(errno.EMFILE, "max_user_instances"), (errno.ENOSPC, "max_user_watches")]
)
def test_the_limit_is_named_with_its_value_and_the_command_that_raises_it(number: int, name: str) -> None:
    text = explained(OSError(number, os.strerror(number)))
    found = re.fullmatch(
        rf"the limit fs\.inotify\.{name}, (\d+), is exhausted "
        rf"\(run `sysctl -w fs\.inotify\.{name}=(\d+)` on the node\)",
        text,
    )
    assert found, text
    assert found[1] == Path("/proc/sys/fs/inotify", name).read_text().strip()
    assert int(found[2]) >= 2 * int(found[1])


def test_the_limit_of_open_files_is_distinguished_from_that_of_inotify_instances() -> None:
    with limited(resource.RLIMIT_NOFILE, 3):  # this process has more open
        text = explained(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert text.startswith("too many open files: the limit, RLIMIT_NOFILE, is 3 ")
    assert "LimitNOFILE" in text
    assert "inotify" not in text


def test_a_node_without_descriptors_has_another_explanation() -> None:
    assert "inotify" not in explained(OSError(errno.ENFILE, os.strerror(errno.ENFILE)))


def test_any_other_failure_is_in_the_words_of_the_system() -> None:
    assert explained(PermissionError(errno.EACCES, "Permission denied", "/dev")) == "/dev: Permission denied"
