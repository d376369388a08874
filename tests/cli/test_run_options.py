"""``devhost run`` takes plain options without click, and the same values as with it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from devhost.cli.program import root
from devhost.cli.program import run as command
from devhost.cli.serve import OPTIONS, parsed

VALUES = {Path: "some/where", str: "text", bool: None}


def forms() -> list[list[str]]:
    found: list[list[str]] = [[], ["--show-pods", "--hide-pods"], ["--listen", ":1", "--listen=:2"]]
    for option in OPTIONS:
        for name in (name for names in option.names for name in names.split("/")):
            value = option.choices[-1] if option.choices else VALUES[option.type]
            found += [[name]] if value is None else [[name, value], [f"{name}={value}"], [f"{name}="]]
    return found


@pytest.mark.parametrize("arguments", forms(), ids=" ".join)
def test_plain_options_mean_the_same_as_with_click(arguments: list[str]) -> None:
    try:
        wanted = command.make_context("devhost run", list(arguments)).params
    except click.UsageError:
        wanted = None
    assert parsed(arguments) == wanted


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["word"],
        ["--conf", "x"],
        ["--config"],
        ["--config="],
        ["--kubelet-dir", ""],
        ["--config", "--root"],
        ["--strict-config=yes"],
        ["--log-level", "loud"],
        ["--", "x"],
    ],
    ids=" ".join,
)
def test_anything_else_is_left_to_click(arguments: list[str]) -> None:
    assert parsed(arguments) is None


@pytest.mark.parametrize("name", ["--config", "--kubelet-dir", "--state-dir", "--root"])
def test_an_empty_path_is_refused_and_never_the_current_directory(name: str) -> None:
    with pytest.raises(click.BadParameter, match="it is empty"):
        command.make_context("devhost run", [name, ""])


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    for words, nearest in ((["statsu"], "'status'"), (["dra", "clases"], "'classes'")):
        done = CliRunner().invoke(root, words)
        assert done.exit_code == 2 and f"Did you mean {nearest}?" in done.output
