"""The host works without the packages that the image leaves out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devhost.cli.program import NOT_ON_NODES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as the image has them."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "src", place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NOT_ON_NODES:
        shutil.rmtree(place / name.replace(".", "/"))
    return place


def devhost(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_dockerfile_removes_what_the_commands_do_without() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    removed = re.findall(r"site-packages/(devhost/\S+)", text)
    assert sorted(removed) == sorted(name.replace(".", "/") for name in NOT_ON_NODES)


def test_every_other_module_can_be_imported_without_them(installed: Path) -> None:
    code = (
        "import importlib, pkgutil, devhost, sys\n"
        "for one in pkgutil.walk_packages(devhost.__path__, 'devhost.'):\n"
        "    if one.name.partition('devhost.cli.')[2] not in ('import_', 'kubelet', 'demonstration'):\n"
        "        if one.name != 'devhost.__main__': importlib.import_module(one.name)\n"
        "print(devhost.__file__)"
    )
    done = devhost(installed, "-c", code)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(str(installed))


@pytest.mark.parametrize("command", [("import", "akri", "x.yaml"), ("kubelet", "--dir", "/x"), ("demo",)])
def test_a_missing_command_is_one_line(installed: Path, command: tuple[str, ...]) -> None:
    done = devhost(installed, "-m", "devhost", *command)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"devhost: devhost {command[0]} is not part of the node's image (")


def test_the_help_lists_the_other_commands_as_ever(installed: Path) -> None:
    done = devhost(installed, "-m", "devhost", "--help")
    assert done.returncode == 0 and done.stdout.count("Not part of the node's image.") == 2
