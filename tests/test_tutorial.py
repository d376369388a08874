"""The page that teaches to write a backend is done literally: its files, its commands, their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from devhost.testing.serving import Node

PAGE = Path(__file__).resolve().parents[1] / "docs" / "backends" / "writing.md"


class Block(NamedTuple):
    language: str
    text: str


BLOCKS = [
    Block(*found) for found in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
]
SMALLEST, WHOLE, ADDED = (block.text for block in BLOCKS if block.language == "python")
CONFIG, TOLD = (block.text for block in BLOCKS if block.language == "yaml")
SESSION = next(block.text for block in BLOCKS if block.language == "console")
STEPS = re.findall(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)", SESSION)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a reader has followed the page up to "Try it"."""
    directory = tmp_path_factory.mktemp("tutorial")
    (directory / "backends").mkdir()
    (directory / "backends" / "watchdog.py").write_text(WHOLE, encoding="utf-8")
    (directory / "devhost.yaml").write_text(CONFIG, encoding="utf-8")
    tree = next(block.text for block in BLOCKS if block.language == "sh")
    subprocess.run(["sh", "-eu", "-c", tree], cwd=directory, check=True, timeout=120)
    return directory


def devhost(command: str, directory: Path) -> str:
    assert command.startswith("devhost ")
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=directory,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
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


def test_the_whole_backend_is_short() -> None:
    assert len(WHOLE.splitlines()) < 80


async def test_what_an_entry_says_reaches_its_containers_and_no_others(
    workplace: Path, tmp_path: Path
) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "watchdog.py").write_text(f"{WHOLE}\n\n{ADDED}", encoding="utf-8")
    silent = TOLD.replace("tellTimeout: true", "tellTimeout: false")
    async with Node(tmp_path, root=workplace / "root") as node:
        for text, told in ((TOLD, {"WATCHDOG_TIMEOUT": "30"}), (silent, {})):
            node.config.write_text(text, encoding="utf-8")
            async with node.served():
                await node.offers({"example.com/watchdog": 1})
                assert (await node.container({"example.com/watchdog": 1})).envs == told
