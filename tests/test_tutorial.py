"""The page that teaches to write a backend is done literally: its files, its commands, their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "backends" / "writing.md"


class Block(NamedTuple):
    language: str
    text: str


BLOCKS = [
    Block(*found) for found in re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
]
PROGRAMS = [block.text for block in BLOCKS if block.language == "python"]
SESSION = next(block.text for block in BLOCKS if block.language == "console")
STEPS = re.findall(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)", SESSION)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a reader has followed the page up to "Try it"."""
    directory = tmp_path_factory.mktemp("tutorial")
    (directory / "backends").mkdir()
    (directory / "backends" / "watchdog.py").write_text(PROGRAMS[-1], encoding="utf-8")
    config = next(block.text for block in BLOCKS if block.language == "yaml")
    (directory / "devhost.yaml").write_text(config, encoding="utf-8")
    tree = next(block.text for block in BLOCKS if block.language == "sh")
    subprocess.run(["sh", "-eu", "-c", tree], cwd=directory, check=True, timeout=30)
    return directory


def devhost(command: str, directory: Path) -> str:
    assert command.startswith("devhost ")
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=directory,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=30,
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
    (tmp_path / "backends" / "watchdog.py").write_text(PROGRAMS[0], encoding="utf-8")
    config = tmp_path / "devhost.yaml"
    config.write_text(
        "version: 1\nbackendPaths: [backends]\nresources: [{name: example.com/w, backend: watchdog}]\n"
    )
    shown = devhost(f"devhost discover --config {config} --root {workplace / 'root'}", tmp_path)
    assert "watchdog0" in shown
    assert "watchdog1" in shown


def test_the_whole_backend_is_short() -> None:
    assert len(PROGRAMS[-1].splitlines()) < 80
