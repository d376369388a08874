"""Where devhost writes files for others: the keys `cdi`, `deviceInfo` and `labels`."""

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

USUAL = {
    "cdi": Path("/var/run/cdi"),
    "deviceInfo": Path("/var/run/k8s.cni.cncf.io/devinfo/dp"),
    "labels": LABEL_DIRECTORY,
}
OTHER = Path("/run/other")


@pytest.mark.parametrize(
    ("line", "directory"),
    [("", USUAL["cdi"]), ("cdi: {}", USUAL["cdi"]), ("cdi: {directory: /run/other}", OTHER)],
)
def test_specifications_go_to_the_default_or_the_configured_directory(
    read: Read, line: str, directory: Path
) -> None:
    assert read(f"version: 1\nresources: []\n{line}\n").cdi_directory == directory


@pytest.mark.parametrize(
    ("line", "directory"),
    [
        ("", USUAL["deviceInfo"]),
        ("deviceInfo: {}", USUAL["deviceInfo"]),
        ("deviceInfo: {write: true}", USUAL["deviceInfo"]),
        ("deviceInfo: {directory: /run/other}", OTHER),
        ("deviceInfo: {write: false}", None),
        ("deviceInfo: {directory: /run/other, write: false}", None),
    ],
)
def test_device_info_goes_to_the_default_or_the_configured_directory_or_nowhere(
    read: Read, line: str, directory: Path | None
) -> None:
    assert read(f"version: 1\nresources: []\n{line}\n").device_info_directory == directory


@pytest.mark.parametrize(
    ("line", "directory", "write"),
    [
        ("", LABEL_DIRECTORY, False),
        ("labels: {}", LABEL_DIRECTORY, False),
        ("labels: {write: true}", LABEL_DIRECTORY, True),
        ("labels: {directory: /run/other}", OTHER, False),
        ("labels: {write: true, directory: /run/other}", OTHER, True),
    ],
)
def test_labels_are_written_only_if_configured(read: Read, line: str, directory: Path, write: bool) -> None:
    settings = read(f"version: 1\nresources: []\n{line}\n")
    assert (settings.label_directory, settings.write_labels) == (directory, write)


@pytest.mark.parametrize("key", USUAL)
@pytest.mark.parametrize("directory", ["relative", "./relative", "/run/../relative"])
def test_a_directory_that_depends_on_the_place_is_refused(
    complaints: Complain, key: str, directory: str
) -> None:
    (found,) = complaints(f"version: 1\nresources: []\n{key}: {{directory: {directory}}}\n")
    assert (found.line, found.path) == (3, f"{key}.directory")
    assert found.message == "must be an absolute path without .."
    assert f"such as {USUAL[key]}" in found.hint


@pytest.mark.parametrize("key", USUAL)
def test_an_unknown_key_is_refused(complaints: Complain, key: str) -> None:
    (found,) = complaints(f"version: 1\nresources: []\n{key}: {{dir: /run/x}}\n")
    assert (found.path, found.message) == (key, 'unknown key "dir"')


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("cdi", {"cdi_directory": OTHER}),
        ("deviceInfo", {"device_info_directory": OTHER}),
        ("deviceInfo", {"device_info_directory": None}),
        ("labels", {"label_directory": OTHER}),
        ("labels", {"write_labels": True}),
    ],
)
def test_another_directory_or_switch_is_a_difference_that_a_reload_heeds(
    key: str, changed: dict[str, object]
) -> None:
    old = Settings()
    assert difference(old, replace(old, **changed)) == f"{key} changed; 0 unchanged"
