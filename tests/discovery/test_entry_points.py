"""Installed packages are found as importlib.metadata finds them, without importing that."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from devhost.discovery.entry_points import EntryPoint, entry_points


def install(directory: Path, folder: str, points: str, name: str = "", version: str = "1.0") -> None:
    information = directory / folder
    information.mkdir(parents=True)
    file = "METADATA" if folder.endswith(".dist-info") else "PKG-INFO"
    header = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (information / file).write_text(f"{header}Summary: x\n\nName: of the description\n")
    (information / "entry_points.txt").write_text(points)


def found(*directories: Path) -> list[tuple[str, str, str, str]]:
    points = entry_points("devhost", [str(directory) for directory in directories])
    return [(one.name, one.value, one.dist.name, one.dist.version) for one in points]


def test_what_is_installed_here_is_what_importlib_finds() -> None:
    theirs = importlib.metadata.entry_points(group="devhost")
    expected = {(one.name, one.value, one.dist.name, one.dist.version) for one in theirs if one.dist}
    assert {
        (one.name, one.value, one.dist.name, one.dist.version) for one in entry_points("devhost")
    } == expected
    assert "udev" in {name for name, *_ in expected}


def test_only_lines_of_the_group_count(tmp_path: Path) -> None:
    points = "[console_scripts]\ntool = x:main\n\n# a = comment\n[ devhost ]\n; another = one\n"
    points += "# nic = off\nnic=nic_backend\n"
    points += "[other]\na = b\n"
    install(tmp_path, "Nic_Backend-2.1.dist-info", points, "Nic-Backend", "2.1")
    assert found(tmp_path) == [("nic", "nic_backend", "Nic-Backend", "2.1")]


def test_a_package_with_egg_info_is_found(tmp_path: Path) -> None:
    install(
        tmp_path, "nic_backend-2.1-py3.11.egg-info", "[devhost]\nnic = nic_backend\n", "nic-backend", "2.1"
    )
    assert found(tmp_path) == [("nic", "nic_backend", "nic-backend", "2.1")]


def test_the_first_of_two_packages_with_the_same_name_counts(tmp_path: Path) -> None:
    install(tmp_path / "a", "nic_backend-2.0.dist-info", "[devhost]\nnic = new\n", "nic-backend", "2.0")
    install(tmp_path / "b", "Nic.Backend-1.0.dist-info", "[devhost]\nnic = old\n", "nic.backend", "1.0")
    assert found(tmp_path / "a", tmp_path / "b") == [("nic", "new", "nic-backend", "2.0")]


def test_paths_without_package_metadata_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "archive.zip").write_bytes(b"PK")
    (tmp_path / "site/empty-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site/nic-3.0.dist-info").mkdir()
    (tmp_path / "site/nic-3.0.dist-info/entry_points.txt").write_text("[devhost]\nnic = nic\n")
    assert found(tmp_path / "archive.zip", tmp_path / "absent", tmp_path / "site") == [
        ("nic", "nic", "nic", "3.0")
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("os", "os"), ("os:path.join", "join"), ("os : path [extra]", "posixpath")],
)
def test_an_entry_point_names_a_module_or_an_object_in_one(value: str, expected: str) -> None:
    assert EntryPoint("x", value, None).load().__name__ == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["no_such_module_here", "", "a b", "os:"])
def test_an_entry_point_that_names_nothing_is_an_import_error(value: str) -> None:
    with pytest.raises(ImportError):
        EntryPoint("x", value, None).load()  # type: ignore[arg-type]
