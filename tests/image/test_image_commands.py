"""The host works without the packages that no node needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from kit.command import completed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host and what it requires, and no other package of this project."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "src", place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in Path(sysconfig.get_path("purelib")).iterdir():
        if "devhost" not in file.name and file.suffix != ".pth":
            (place / file.name).symlink_to(file)
    return place


def devhost(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(sys.executable, "-S", *arguments, env={"PYTHONPATH": str(installed)})


def test_every_module_of_the_host_can_be_imported(installed: Path) -> None:
    code = (
        "import importlib, pkgutil, devhost\n"
        "for one in pkgutil.walk_packages(devhost.__path__, 'devhost.'):\n"
        "    if one.name not in ('devhost.__main__', 'devhost.testing'): importlib.import_module(one.name)\n"
        "print(devhost.__file__)"
    )
    done = devhost(installed, "-c", code)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(str(installed))


def test_the_former_name_of_the_test_kit_names_what_to_install(installed: Path) -> None:
    done = devhost(installed, "-c", "import devhost.testing.trees")
    assert done.stderr.endswith(
        "ModuleNotFoundError: devhost.testing has become devhost_testing, which is in the package "
        "devhost-testing (pip install devhost-testing)\n"
    )


@pytest.mark.parametrize("command", [("import", "akri", "x.yaml"), ("kubelet", "--dir", "/x"), ("demo",)])
def test_a_command_that_is_not_installed_is_one_line(installed: Path, command: tuple[str, ...]) -> None:
    done = devhost(installed, "-m", "devhost", *command)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"devhost: devhost {command[0]} is not installed: it is in the package devhost-")
    assert line.endswith(f" && devhost {command[0]})")


def test_the_help_lists_the_other_commands_as_ever(installed: Path) -> None:
    done = devhost(installed, "-m", "devhost", "--help")
    assert done.returncode == 0 and done.stdout.count("Not installed: it is in the package devhost-") == 3


def test_an_unknown_command_is_no_command_of_another_package(installed: Path) -> None:
    done = devhost(installed, "-m", "devhost", "exprot")
    assert done.returncode == 2 and "No such command" in done.stderr


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("strange:command", "ImportError: it is broken"),
        ("json:loads", "json:loads is no click command"),
        ("json:nothing", "AttributeError: module 'json' has no attribute 'nothing'"),
    ],
)
def test_a_command_of_a_package_that_is_broken_costs_no_other(
    installed: Path, tmp_path: Path, value: str, why: str
) -> None:
    place = tmp_path / "site"
    shutil.copytree(installed, place, symlinks=True)
    (place / "strange.py").write_text("raise ImportError('it is broken')\n")
    information = place / "strange-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[devhost.commands]\nstrange = {value}\nrun = {value}\n")
    done = devhost(place, "-m", "devhost", "strange", "--anything")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 3
    assert line.startswith(f"devhost: devhost strange, of the package strange, cannot be used: {why} (run `")
    assert devhost(place, "-m", "devhost", "run", "--help").returncode == 0
    listed = devhost(place, "-m", "devhost", "--help")
    assert listed.returncode == 0 and "strange" in listed.stdout
