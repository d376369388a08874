"""Whether and where labels go: the key `labels`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.backend.errors import Diagnostic
from devhost.config.difference import difference
from devhost.planning.settings import LABEL_DIRECTORY, Settings

Read = Callable[[str], Settings]
Complain = Callable[[str], tuple[Diagnostic, ...]]


@pytest.mark.parametrize(
    ("line", "directory", "write"),
    [
        ("", LABEL_DIRECTORY, False),
        ("labels: {}", LABEL_DIRECTORY, False),
        ("labels: {write: true}", LABEL_DIRECTORY, True),
        ("labels: {directory: /run/other}", Path("/run/other"), False),
        ("labels: {write: true, directory: /run/other}", Path("/run/other"), True),
    ],
)
def test_labels_are_written_only_if_configured(read: Read, line: str, directory: Path, write: bool) -> None:
    settings = read(f"version: 1\nresources: []\n{line}\n")
    assert (settings.label_directory, settings.write_labels) == (directory, write)


@pytest.mark.parametrize("directory", ["features.d", "./x", "/run/../x"])
def test_a_directory_that_depends_on_the_place_is_refused(complaints: Complain, directory: str) -> None:
    (found,) = complaints(f"version: 1\nresources: []\nlabels: {{directory: {directory}}}\n")
    assert (found.line, found.path) == (3, "labels.directory")
    assert "such as /etc/kubernetes/node-feature-discovery/features.d" in found.hint


def test_a_switch_and_another_directory_are_differences_that_a_reload_heeds() -> None:
    old = Settings()
    for new in (replace(old, write_labels=True), replace(old, label_directory=Path("/run/other"))):
        found = difference(old, new)
        assert found == "labels changed; 0 unchanged"
