"""`devhost plugins`: the installed plugins with their declarations, and the refused ones with reasons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from devhost.cli.plugins import plugins as command

pytestmark = pytest.mark.usefixtures("no_installed_plugins")

PLUGIN = """
from dataclasses import dataclass
from typing import Literal
from devhost.backend import Attribute, Backend, Edits, hookimpl, option

__version__ = "2.1"

@dataclass(frozen=True)
class Options:
    token: str = option(meaning="A secret.", example="abc")
    level: Literal["low", "high"] = option("low", "How much.")
    limit: int | None = option(None, "At most.")

@dataclass(frozen=True)
class Use:
    bank: int = option(meaning="Which bank.")
    fast: bool = option(False, "Whether it is fast.")

class Card(Backend):
    name = "card"
    Options = Options
    ResourceOptions = Use
    subsystems = ("misc", "tty")
    attributes = {
        "model": Attribute(str, "The model.", "X100"),
        "ports": Attribute(list, "Its ports.", ("a", "b")),
        "kind": Attribute(str, "What it is.", "card", words=("card", "part")),
    }
    def discover(self): return []
    def allocate(self, request): return Edits()
    def probe(self, devices): return {}

class Bare(Backend):
    name = "bare"
    def discover(self): return []
    def allocate(self, request): return Edits()

@hookimpl
def devhost_backends(): return [Card, Bare]
"""


OBSERVER = """
from devhost.backend.observe import hookimpl

@hookimpl
def devhost_left(news): ...

@hookimpl
def devhost_allocated(news, missed): ...
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "card.py").write_text(PLUGIN)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no\\nluck')")
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nbackendPaths: [.]\nresources: []\n")
    return file


def plugins(*arguments: str) -> Result:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0
    return done


def test_an_installation_without_backends_is_reported() -> None:
    assert plugins().stdout == "no backend is installed\n"


def test_the_table_lists_every_backend_with_its_declarations(config: Path) -> None:
    lines = plugins("--config", str(config)).stdout.splitlines()
    directory = config.parent
    assert lines == [
        f"bare 2.1 from {directory}/card.py",
        "  hooks: devhost_backends",
        "  subsystems: none",
        "  options: none",
        "  resource options: none",
        "  attributes: none",
        f"card 2.1 from {directory}/card.py",
        "  hooks: devhost_backends, probe()",
        "  subsystems: misc, tty",
        "  options:",
        "    token  string           A secret, required",
        '    level  low | high       How much, default "low"',
        "    limit  integer or null  At most",
        "  resource options:",
        "    bank  integer  Which bank, required",
        "    fast  boolean  Whether it is fast, default false",
        "  attributes:",
        '    model  str   The model, e.g. "X100"',
        '    ports  list  Its ports, e.g. ["a", "b"]',
        '    kind   str   What it is, one of "card", "part"',
        f"refused: {directory}/broken.py:1: RuntimeError: no luck",
    ]


def test_json_has_the_same_content_as_the_table(config: Path) -> None:
    found = json.loads(plugins("--config", str(config), "--output", "json").stdout)
    bare, card = found["backends"]
    assert (bare["name"], card["name"], card["version"]) == ("bare", "card", "2.1")
    assert card["origin"] == str(config.parent / "card.py")
    assert (card["hooks"], card["optionalMethods"]) == (["devhost_backends"], ["probe"])
    assert card["attributes"]["ports"] == {
        "type": "list",
        "meaning": "Its ports.",
        "example": ["a", "b"],
        "words": [],
    }
    assert card["attributes"]["kind"]["words"] == ["card", "part"]
    assert card["requiredOptions"] == ["token"]
    assert card["options"]["level"]["default"] == "low"
    assert card["resourceOptions"]["fast"] == {
        "type": "boolean",
        "description": "Whether it is fast.",
        "default": False,
    }
    assert card["requiredResourceOptions"] == ["bank"]
    assert (bare["resourceOptions"], bare["requiredResourceOptions"]) == ({}, [])
    (refused,) = found["refused"]
    assert refused["reason"] == f"{config.parent}/broken.py:1: RuntimeError: no luck"


def test_observers_are_listed_with_their_hooks(config: Path) -> None:
    (config.parent / "audit.py").write_text(OBSERVER)
    lines = plugins("--config", str(config)).stdout.splitlines()
    assert lines[-3:] == [
        f"observer audit from {config.parent}/audit.py",
        "  hooks: devhost_allocated, devhost_left",
        f"refused: {config.parent}/broken.py:1: RuntimeError: no luck",
    ]
    found = json.loads(plugins("--config", str(config), "--output", "json").stdout)
    (observer,) = found["observers"]
    assert observer == {
        "name": "audit",
        "version": "",
        "origin": f"{config.parent}/audit.py",
        "hooks": ["devhost_allocated", "devhost_left"],
    }


def test_plugins_are_listed_even_if_the_rest_of_the_file_is_invalid(config: Path) -> None:
    config.write_text("version: 7\nbackendPaths: [.]\nresources: [x]\n")
    assert "card 2.1" in plugins("--config", str(config)).stdout
