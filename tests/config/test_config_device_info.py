"""Where device-info files go: the key `deviceInfo`."""

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

USUAL = Path("/var/run/k8s.cni.cncf.io/devinfo/dp")


@pytest.mark.parametrize(
    ("line", "directory"),
    [
        ("", USUAL),
        ("deviceInfo: {}", USUAL),
        ("deviceInfo: {write: true}", USUAL),
        ("deviceInfo: {directory: /run/other}", Path("/run/other")),
        ("deviceInfo: {write: false}", None),
        ("deviceInfo: {directory: /run/other, write: false}", None),
    ],
)
def test_files_go_to_the_default_or_the_configured_directory_or_nowhere(
    read: Read, line: str, directory: Path | None
) -> None:
    assert read(f"version: 1\nresources: []\n{line}\n").device_info_directory == directory


@pytest.mark.parametrize("directory", ["dp", "./dp", "/run/../dp"])
def test_a_directory_that_depends_on_the_place_is_refused(complaints: Complain, directory: str) -> None:
    (found,) = complaints(f"version: 1\nresources: []\ndeviceInfo: {{directory: {directory}}}\n")
    assert (found.line, found.path) == (3, "deviceInfo.directory")
    assert found.message == "must be an absolute path without .."
    assert "such as /var/run/k8s.cni.cncf.io/devinfo/dp" in found.hint


def test_an_unknown_key_is_refused_with_the_right_ones(complaints: Complain) -> None:
    (found,) = complaints("version: 1\nresources: []\ndeviceInfo: {dir: /run/dp}\n")
    assert (found.path, found.message) == ("deviceInfo", 'unknown key "dir"')


def test_another_directory_is_a_difference_that_a_reload_heeds() -> None:
    old = Settings()
    for directory in (None, Path("/run/other")):
        found = difference(old, replace(old, device_info_directory=directory))
        assert found == "deviceInfo changed; 0 unchanged"
