"""A release that lacks a file, a licence, a type marker or an exact pin is refused, with the reason."""

from __future__ import annotations

import os
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkout
import pytest
from distribution import __main__ as program
from distribution import checks
from distribution.build import distributions, write_sums

from devhost import __version__

ROOT = Path(__file__).resolve().parents[2]
VERSION = "1.2.3"


@dataclass
class Part:
    """What a wheel is made of; a test changes one thing."""

    name: str
    requirements: list[str]
    version: str = VERSION
    licence: str = "Apache-2.0"
    description: str = "# What it is\n"
    files: list[str] = field(default_factory=lambda: ["__init__.py", "py.typed", "data.yaml"])
    extra_files: list[str] = field(default_factory=list)
    with_licence: bool = True

    @property
    def package(self) -> str:
        return self.name.replace("-", "_")

    def write(self, directory: Path) -> None:
        information = f"{self.package}-{VERSION}.dist-info"
        lines = [
            "Metadata-Version: 2.4",
            f"Name: {self.name}",
            f"Version: {self.version}",
            "Summary: something",
            f"License-Expression: {self.licence}",
            "Requires-Python: >=3.11",
            *(f"Requires-Dist: {requirement}" for requirement in self.requirements),
            "Description-Content-Type: text/markdown",
        ]
        with zipfile.ZipFile(directory / f"{self.package}-{VERSION}-py3-none-any.whl", "w") as wheel:
            for file in [*(f"{self.package}/{name}" for name in self.files), *self.extra_files]:
                wheel.writestr(file, "")
            wheel.writestr(f"{information}/METADATA", "\n".join([*lines, "", self.description]))
            if self.name != "devhost":
                kind = self.name.removeprefix("devhost-")
                wheel.writestr(f"{information}/entry_points.txt", f"[devhost]\n{kind} = {self.package}\n")
            if self.with_licence:
                wheel.writestr(f"{information}/licenses/LICENSE", "")
        (directory / f"{self.package}-{VERSION}.tar.gz").touch()


class Release:
    """A host and one plugin, with sources to compare with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "dist"
        self.directory.mkdir()
        pins = [f"devhost-x[y]=={VERSION}; extra == 'x'", f"devhost-x[y]=={VERSION}; extra == 'all'"]
        self.host, self.plugin = (
            Part("devhost", ["click>=8", *pins]),
            Part("devhost-x", [f"devhost=={VERSION}"]),
        )
        self.packages = {}
        for part in (self.host, self.plugin):
            self.packages[part.name] = directory / "src" / part.package
            self.packages[part.name].mkdir(parents=True)
            for name in part.files:
                (self.packages[part.name] / name).touch()

    def complaints(self) -> list[str]:
        for part in (self.host, self.plugin):
            part.write(self.directory)
        return list(checks.complaints(self.directory, self.packages, VERSION))


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def test_a_release_that_is_right_is_let_through(release: Release) -> None:
    assert release.complaints() == []


def test_missing_and_strange_files_are_named(release: Release) -> None:
    release.complaints()
    (release.directory / f"devhost_x-{VERSION}.tar.gz").unlink()
    (release.directory / "devhost-1.0.0.tar.gz").touch()
    assert list(checks.complaints(release.directory, release.packages, VERSION)) == [
        f"devhost_x-{VERSION}.tar.gz is missing",
        "devhost-1.0.0.tar.gz is not part of the release",
    ]


def _set(**values: Any) -> Callable[[Part], None]:
    def change(part: Part) -> None:
        for name, value in values.items():
            setattr(part, name, value)

    return change


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("devhost", _set(version="1.2.2"), "has version 1.2.2"),
        ("devhost", _set(licence="MIT"), "does not name its licence"),
        ("devhost", _set(with_licence=False), "has no licence file"),
        ("devhost", _set(description=""), "has no description"),
        ("devhost", _set(files=["__init__.py", "py.typed"]), "lacks devhost/data.yaml"),
        ("devhost", _set(files=["__init__.py", "data.yaml"]), "lacks devhost/py.typed"),
        ("devhost", _set(extra_files=["tests/x.py"]), "contains files of other packages: tests/x.py"),
        ("devhost-x", _set(requirements=[f"devhost>={VERSION}"]), f"does not require devhost=={VERSION}"),
        (
            "devhost",
            _set(requirements=[f"devhost-x=={VERSION}; extra == 'x'"]),
            f"its extra 'all' does not require devhost-x=={VERSION}",
        ),
        (
            "devhost",
            _set(requirements=["devhost-x>=1; extra == 'x'", f"devhost-x=={VERSION}; extra == 'all'"]),
            f"its extra 'x' does not require devhost-x=={VERSION}",
        ),
    ],
)
def test_a_broken_wheel_is_reported(
    release: Release, name: str, change: Callable[[Part], None], complaint: str
) -> None:
    part = release.host if name == "devhost" else release.plugin
    change(part)
    assert release.complaints() == [f"{part.package}-{VERSION}-py3-none-any.whl: {complaint}"]


def test_the_sums_are_those_that_sha256sum_reads(release: Release) -> None:
    release.complaints()
    write_sums(release.directory)
    lines = (release.directory / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == [file.name for file in distributions(release.directory)]
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert f"{empty}  devhost-{VERSION}.tar.gz" in lines


def test_every_package_of_the_repository_is_in_a_release() -> None:
    assert list(program.packages()) == [
        "devhost",
        *(f"devhost-{package.name}" for package in checkout.packages()),
    ]
    assert all((source / "__init__.py").exists() for source in program.packages().values())
    assert checkout.version() == __version__


def test_the_hosts_extras_want_each_package_of_exactly_this_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    kinds = [package.name for package in checkout.packages()]
    assert extras.pop("all") == [f"devhost[{','.join(kinds)}]=={__version__}"]
    assert sorted(extras) == kinds
    for kind, wanted in extras.items():
        assert [one.replace("[nvidia]", "") for one in wanted] == [f"devhost-{kind}=={__version__}"]


def test_each_package_carries_the_projects_licence() -> None:
    for package in checkout.packages():
        assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes(), package.name


def test_results_have_the_given_time_or_that_of_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert checkout.epoch() == 1700000000
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert checkout.epoch() >= checkout.WITHOUT_GIT
    monkeypatch.setenv("PATH", os.devnull)
    assert checkout.epoch() == checkout.WITHOUT_GIT
    assert checkout.revision() == "unknown"


def test_what_make_dist_left_is_right() -> None:
    dist = ROOT / "dist"
    if not (dist / f"devhost-{__version__}-py3-none-any.whl").exists():
        pytest.skip(f"there is no devhost {__version__} in dist: run make dist")
    names = {file.name for file in distributions(dist)}
    assert {line.split("  ")[1] for line in (dist / "SHA256SUMS").read_text().splitlines()} == names
    for plugin in checkout.plugins():
        assert f"devhost_{plugin.name}-{__version__}-py3-none-any.whl" in names
