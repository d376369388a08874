"""The page that teaches to write a backend is done literally: its files, its commands, their output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from devhost_testing.fixtures import BackendFixture, by_id, request
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from kit.command import completed

from devhost.backend import Event, unhealthy
from devhost.backend.base import OPTIONAL_METHODS, overrides
from devhost.discovery import catalog

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "backends" / "writing.md"
PACKAGE = ROOT / "examples" / "watchdog"


class Block(NamedTuple):
    language: str
    text: str


BLOCKS = [
    Block(*found) for found in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
]
SMALLEST, ADDED = (block.text for block in BLOCKS if block.language == "python")
CONFIG, WITH_TIMEOUT = (block.text for block in BLOCKS if block.language == "yaml")
SESSION = next(block.text for block in BLOCKS if block.language == "console")
WHOLE = (PACKAGE / "src" / "devhost_watchdog" / "__init__.py").read_text(encoding="utf-8")
PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EVERYTHING = ROOT / "examples" / "every_method.py"
STEPS = re.findall(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)", SESSION)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a reader has followed the page up to "Try it"."""
    directory = tmp_path_factory.mktemp("tutorial")
    (directory / "backends").mkdir()
    (directory / "backends" / "watchdog.py").write_text(WHOLE, encoding="utf-8")
    (directory / "devhost.yaml").write_text(CONFIG, encoding="utf-8")
    tree = next(block.text for block in BLOCKS if block.language == "sh")
    subprocess.run(["sh", "-eu", "-c", tree], cwd=directory, check=True, timeout=240)
    return directory


def devhost(command: str, directory: Path, **environment: str) -> str:
    assert command.startswith("devhost ")
    env = os.environ | {"COLUMNS": "200", "DEVHOST_RUNTIME_DIR": str(directory / "run")} | environment
    done = completed(sys.executable, "-m", *command.split(), cwd=directory, env=env)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("command", "output"), STEPS, ids=[step[0].split()[1] for step in STEPS])
def test_the_commands_print_what_the_page_shows(workplace: Path, command: str, output: str) -> None:
    assert devhost(command, workplace) == output


def test_the_session_shows_every_step(workplace: Path) -> None:
    assert [step[0].split()[1] for step in STEPS] == ["check", "discover", "explain"]


def test_the_smallest_backend_works_too(workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "watchdog.py").write_text(SMALLEST, encoding="utf-8")
    config = tmp_path / "devhost.yaml"
    config.write_text(
        "version: 1\nbackendPaths: [backends]\nresources: [{name: example.com/w, backend: watchdog}]\n"
    )
    shown = devhost(f"devhost discover --config {config} --root {workplace / 'root'}", tmp_path)
    assert "watchdog0" in shown
    assert "watchdog1" in shown


def test_the_example_with_every_method_implements_each_optional_method(tmp_path: Path) -> None:
    shutil.copy(EVERYTHING, tmp_path / "mycard.py")
    kind = catalog.load([tmp_path], {"mycard"}).installed["mycard"].backend
    assert [method for method in OPTIONAL_METHODS if not overrides(kind, method)] == []
    tree = Tree(tmp_path / "root")
    for number, model in enumerate(("X100", "bad")):
        place = f"pci0000:3a/0000:3a:00.{number}"
        tree.pci(place, driver="mycard", vendor="0x1bad", numa_node=1)
        tree.device(
            f"{place}/mycard/mycard{number}", "mycard", f"mycard{number}", f"240:{number}", {"model": model}
        )
    tree.pci("pci0000:3a/0000:3a:01.0", vendor="0x1bad")
    with BackendFixture(kind) as made:
        backend = made(tree)
        found = by_id(backend, Event())
        good, bad = found["0000:3a:00.0"], found["0000:3a:00.1"]
        assert (good.numa_nodes, good.pcie_path) == ((1,), ("0000:3a:00.0",))
        assert good.claims == {"pci:0000:3a:00.0", "node:/dev/mycard0"}
        asked = request(backend, [good])
        edits = backend.allocate(asked)
        assert edits.env == {"MYCARD_EXAMPLE_COM_RESOURCE": "0000:3a:00.0"}
        assert edits.mounts[0].host_path == "/usr/lib/mycard"
        assert backend.probe([good, bad]) == {
            bad.id: unhealthy("exited with status 1: the firmware is missing")
        }
        assert [one.subject for one in backend.missing_drivers()] == ["0000:3a:01.0"]
        backend.prepare(asked)
        backend.provision()


def test_the_whole_backend_is_short() -> None:
    assert len([line for line in WHOLE.splitlines() if line]) < 80


def test_the_package_passes_its_tests_as_on_the_page() -> None:
    with tempfile.TemporaryDirectory() as own:  # not the directory that all runs of pytest share and clean up
        pytest_here = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        done = completed(*pytest_here, f"--basetemp={own}/run", PACKAGE, cwd=PACKAGE, env=env)
    assert done.returncode == 0, done.stdout
    promised = re.search(r"(?m)^\d+ passed$", PAGE.read_text(encoding="utf-8"))
    assert promised is not None
    assert promised[0] in done.stdout


def test_devhost_finds_the_package_by_its_entry_point(tmp_path: Path) -> None:
    """What pip would write beside the module is made here: no environment is changed, and no index asked."""
    about = PROJECT
    (tmp_path / "devhost_watchdog").symlink_to(PACKAGE / "src" / "devhost_watchdog")
    written = tmp_path / f"devhost_watchdog-{about['version']}.dist-info"
    written.mkdir()
    (written / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    found = "".join(f"{name} = {where}\n" for name, where in about["entry-points"]["devhost"].items())
    (written / "entry_points.txt").write_text(f"[devhost]\n{found}")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    assert "watchdog 1.0.0 from devhost-watchdog\n" in devhost("devhost plugins", tmp_path, **environment)
    config = PACKAGE / "devhost.yaml"
    assert "ok (2 resources, 1 backend)" in devhost(f"devhost check {config}", tmp_path, **environment)


async def test_the_options_of_an_entry_reach_only_its_containers(workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "watchdog.py").write_text(f"{WHOLE}\n\n{ADDED}", encoding="utf-8")
    silent = WITH_TIMEOUT.replace("timeoutVariable: true", "timeoutVariable: false")
    async with Node(tmp_path, root=workplace / "root") as node:
        for text, expected in ((WITH_TIMEOUT, {"WATCHDOG_TIMEOUT_EXAMPLE_COM_WATCHDOG": "30"}), (silent, {})):
            node.config.write_text(text, encoding="utf-8")
            async with node.served({"example.com/watchdog": 1}):
                assert (await node.container({"example.com/watchdog": 1})).envs == expected
