"""What a user sees when a Python package is not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kit.command import completed

from devhost.missing import PACKAGES

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == HIDDEN:
            raise {error}

HIDDEN = sys.argv.pop(1)
sys.meta_path.insert(0, Hide())
from devhost.cli import main

main()
"""
MISSING = "ModuleNotFoundError(f'No module named {name!r}', name=name)"
BROKEN = "ImportError('lib.so: wrong ELF class\\n', name=name)"


def run(module: str, *arguments: str, error: str = MISSING) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.replace("{error}", error)
    return completed(sys.executable, "-c", code, module, *arguments)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nresources: [{name: a.example/b, backend: udev, where: {subsystem: misc}}]\n")
    return file


def test_every_dependency_has_its_module() -> None:
    wanted = set()
    for project in [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        for line in tomllib.loads(project.read_text())["project"]["dependencies"]:
            wanted.add(re.split(r"[=><]", line)[0])
    assert set(PACKAGES.values()) == {one for one in wanted if not one.startswith("devhost")}


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("click", ["status"]),
        ("pluggy", ["status"]),
        ("yaml", ["check", "CONFIG"]),
        ("grpc", ["run", "--config", "CONFIG"]),
        ("google", ["run", "--config", "CONFIG"]),
        ("pyudev", ["run", "--config", "CONFIG"]),
        ("asyncinotify", ["demo"]),
        ("h11", ["run", "--config", "CONFIG"]),
    ],
)
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    config: Path, tmp_path: Path, module: str, command: list[str]
) -> None:
    words = [str(config) if word == "CONFIG" else word for word in command]
    if "run" in words:
        words += ["--kubelet-dir", str(tmp_path)]
    done = run(module, *words)
    package = PACKAGES[module]
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"devhost: the Python package {package} is not installed "
        f"(run `{sys.executable} -m pip install {package}`)\n"
    )


@pytest.mark.parametrize("module", ["grpc", "pyudev"])
def test_a_missing_package_is_one_json_object_in_a_log_of_such(
    config: Path, tmp_path: Path, module: str
) -> None:
    words = ["run", "--config", str(config), "--kubelet-dir", str(tmp_path), "--log-format=json"]
    done = run(module, *words)
    (line,) = done.stderr.splitlines()
    logged = json.loads(line)
    assert (done.returncode, done.stdout) == (3, "")
    assert (logged["level"], logged["message"]) == ("error", "cannot start")
    assert logged["reason"].startswith(f"the Python package {PACKAGES[module]} is not installed (run `")


def test_a_package_for_another_python_is_one_line_too(tmp_path: Path) -> None:
    done = run("yaml", "check", str(tmp_path / "any"), error=BROKEN)
    assert done.returncode == 3
    assert done.stderr == (
        "devhost: the Python package pyyaml cannot be imported: lib.so: wrong ELF class "
        f"(run `{sys.executable} -m pip install --force-reinstall pyyaml`)\n"
    )


def test_a_plugin_without_its_package_is_refused_with_the_same_words(config: Path) -> None:
    done = run("asyncinotify", "check", str(config))
    assert done.returncode == 2
    words = "the Python package asyncinotify is not installed (run `"
    assert f"plugin devhost-udev was refused: {words}" in done.stderr
    assert "ModuleNotFoundError" not in done.stderr


def test_an_import_error_of_devhost_itself_keeps_its_traceback() -> None:
    done = run("nothing", "status", error=MISSING)
    assert "Traceback" not in done.stderr
    code = (
        "import sys; sys.modules['devhost.telemetry.ask'] = None\n"
        "from devhost.cli import main\nsys.argv[1:] = ['status']\nmain()"
    )
    hidden = completed(sys.executable, "-c", code)
    assert hidden.returncode == 1
    assert "Traceback" in hidden.stderr
