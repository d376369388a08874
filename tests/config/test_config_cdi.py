"""Where CDI specifications go: the key `cdi`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.backend.errors import Diagnostic
from devhost.config.difference import difference
from devhost.planning.settings import Settings

Read = Callable[[str], Settings]
Complain = Callable[[str], tuple[Diagnostic, ...]]


@pytest.mark.parametrize(
    ("line", "directory"),
    [
        ("", "/var/run/cdi"),
        ("cdi: {}", "/var/run/cdi"),
        ("cdi: {directory: /run/other}", "/run/other"),
    ],
)
def test_specifications_go_to_the_default_or_the_configured_directory(
    read: Read, line: str, directory: str
) -> None:
    assert read(f"version: 1\nresources: []\n{line}\n").cdi_directory == Path(directory)


@pytest.mark.parametrize("directory", ["cdi", "./cdi", "/run/../cdi"])
def test_a_directory_that_depends_on_the_place_is_refused(complaints: Complain, directory: str) -> None:
    (found,) = complaints(f"version: 1\nresources: []\ncdi: {{directory: {directory}}}\n")
    assert (found.line, found.path) == (3, "cdi.directory")
    assert found.message == "must be an absolute path without .."
    assert "such as /var/run/cdi" in found.hint


def test_an_unknown_key_is_refused_with_the_right_one(complaints: Complain) -> None:
    (found,) = complaints("version: 1\nresources: []\ncdi: {dir: /run/cdi}\n")
    assert (found.path, found.message) == ("cdi", 'unknown key "dir"')


def test_another_directory_is_a_difference_that_a_reload_heeds() -> None:
    old = Settings()
    found = difference(old, replace(old, cdi_directory=Path("/run/other")))
    assert found == "cdi changed; 0 unchanged"
