"""What the image is made of, before it is made: the Dockerfile, what it is given, and the exact versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from devhost import __version__

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = re.sub(r"(?m)^#.*\n", "", DOCKERFILE).replace("\\\n", " ")
PLUGINS = sorted(ROOT.glob("plugins/*/pyproject.toml"))


def project(file: Path) -> dict[str, Any]:
    return dict(tomllib.loads(file.read_text(encoding="utf-8")))


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s\\]+)", text))


def let_in(path: str) -> bool:
    """Whether ``.dockerignore`` lets a file in: the last line that matches it or its directory decides."""
    decision = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        expression = re.escape(pattern.lstrip("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.match(rf"{expression}(/|$)", path):
            decision = pattern.startswith("!")
    return decision


def test_the_version_is_the_projects() -> None:
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE
    assert f"-t devhost:{__version__} ." in DOCKERFILE


def test_every_plugin_package_reaches_the_build_whole_and_without_its_tests() -> None:
    assert "/src/plugins/*" in DOCKERFILE
    for file in PLUGINS:
        plugin = file.parent
        for needed in ("pyproject.toml", "README.md", "LICENSE", f"src/devhost_{plugin.name}/__init__.py"):
            assert (plugin / needed).exists(), needed
            assert let_in(f"plugins/{plugin.name}/{needed}"), needed
        assert not let_in(f"plugins/{plugin.name}/tests/conftest.py")
        assert not let_in(f"plugins/{plugin.name}/src/devhost_{plugin.name}/__pycache__/backend.pyc")


def test_the_host_reaches_the_build_and_nothing_beside_it() -> None:
    included = project(ROOT / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for needed in ("pyproject.toml", "README.md", "LICENSE", "src/devhost/host/daemon.py", *included):
        assert let_in(needed), needed
    for other in (
        ".git/config",
        ".venv/bin/python",
        "build/image/x.tar",
        "dist/x.whl",
        "tests/x.py",
        "docs/x.md",
    ):
        assert not let_in(other), other


def test_build_secrets_are_in_no_setting_of_the_image() -> None:
    assert set(re.findall(r"(?m)^ARG (\w+)", INSTRUCTIONS)) == {
        *("BASE", "REVISION", "SOURCE_DATE_EPOCH", "VERSION")
    }
    for line in INSTRUCTIONS.splitlines():
        if line.startswith(("ENV", "ARG", "LABEL")):
            assert not re.search(r"(?i)pip|index|proxy|cert|mirror", line.partition("description")[0]), line
    assert set(re.findall(r"id=([\w.]+)", INSTRUCTIONS)) == {
        "apt.conf",
        "ca.crt",
        "debian.sources",
        "pip.conf",
    }


@pytest.mark.parametrize("file", [ROOT / "pyproject.toml", *PLUGINS], ids=lambda file: file.parent.name)
def test_what_a_package_needs_is_locked_at_a_version_it_takes(file: Path) -> None:
    about, versions = project(file)["project"], locked("requirements.txt")
    needed = [*about["dependencies"], *about.get("optional-dependencies", {}).get("nvidia", [])]
    for requirement in map(Requirement, needed):
        if not requirement.name.startswith("devhost"):
            version = versions.get(requirement.name.lower(), "")
            assert version, f"{requirement.name} is not locked: run tools/lock.py"
            assert requirement.specifier.contains(Version(version)), f"{requirement}: locked at {version}"


def test_the_build_backend_is_locked_too() -> None:
    versions = locked("requirements-build.txt")
    for requirement in map(Requirement, project(ROOT / "pyproject.toml")["build-system"]["requires"]):
        assert requirement.specifier.contains(Version(versions[requirement.name])), requirement


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-build.txt"])
def test_every_locked_package_has_hashes_and_compiled_ones_one_for_each_platform(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    hashes = dict(re.findall(r"(?m)^([\w.-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text))
    assert hashes.keys() == locked(name).keys()
    for package in {"grpcio", "protobuf", "pyyaml"} & hashes.keys():
        assert hashes[package].count("sha256:") == 2, package


def test_all_bytecode_is_made_without_columns_of_lines() -> None:
    assert DOCKERFILE.count("PYTHONNODEBUGRANGES=1 ") == DOCKERFILE.count(" -m compileall ") == 2
