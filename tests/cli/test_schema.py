"""`devhost schema`: one JSON document on standard output."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from kit.drop_in import drop_in

from devhost.backend.errors import ConfigError
from devhost.cli.plugins import print_schema as command

pytestmark = pytest.mark.usefixtures("no_installed_plugins")

PLUGIN = drop_in("""
class Card(Plain):
    name = "card"
    attributes = {"model": Attribute(str, "Größe", "X100")}
""")


def test_the_schema_is_printed_even_without_a_backend() -> None:
    done = CliRunner().invoke(command)
    assert done.exit_code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))


def test_the_drop_in_backends_of_a_file_are_included(tmp_path: Path) -> None:
    (tmp_path / "card.py").write_text(PLUGIN)
    (tmp_path / "devhost.yaml").write_text("version: 1\nbackendPaths: [.]\nresources: [half, written]\n")
    done = CliRunner().invoke(command, ["--config", str(tmp_path / "devhost.yaml")])
    assert done.exit_code == 0
    assert "Größe" in done.stdout
    assert "where-card" in json.loads(done.stdout)["$defs"]


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--config", str(tmp_path / "none.yaml")])
    assert isinstance(done.exception, ConfigError)
