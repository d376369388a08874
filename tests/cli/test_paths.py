"""Paths on the command line: an error is one line of text, or JSON in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.cli.program import root as program
from devhost.config.root_directory import ROOT_HINT, check_root


def paths(command: click.Command, name: str) -> Iterator[tuple[str, click.Path]]:
    """Every path parameter of a command and of its subcommands."""
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            yield f"{name} {parameter.name}", parameter.type
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from paths(found, f"{name} {inner}")


def test_click_checks_no_path_because_its_errors_have_no_reason_and_no_hint() -> None:
    found = dict(paths(program, "devhost"))
    assert {"devhost run root", "devhost run config", "devhost run kubelet_dir"} <= found.keys()
    judged = [name for name, kind in found.items() if kind.exists or kind.readable or kind.writable]
    assert judged == []


@pytest.mark.parametrize("command", [["run"], ["discover"], ["explain", "one"], ["record"]])
def test_a_missing_root_is_one_line_for_every_command(toys, tmp_path, command):
    toys.root = tmp_path / "nowhere"
    arguments = [*command, str(tmp_path / "tree")] if command == ["record"] else command
    done = toys.devhost(*arguments)
    said = f"devhost: --root {toys.root} does not exist ({ROOT_HINT})\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_root_that_is_a_file_is_refused_with_that_reason(toys, tmp_path):
    toys.root = tmp_path / "file"
    toys.root.touch()
    done = toys.devhost("discover")
    assert done.returncode == 2
    assert done.stderr == f"devhost: --root {toys.root} is not a directory ({ROOT_HINT})\n"


def test_a_wrong_path_is_logged_as_json_if_the_log_is_json(toys, tmp_path):
    (tmp_path / "file").touch()
    done = toys.devhost("run", "--log-format", "json", "--kubelet-dir", str(tmp_path / "file"))
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, line["message"]) == (3, "cannot start")
    assert line["reason"] == f"{tmp_path / 'file'} is not a directory (choose another --kubelet-dir)"
    toys.root = tmp_path / "nowhere"
    done = toys.devhost("run", "--log-format", "json")
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, line["message"]) == (2, "cannot start")
    assert line["reason"] == f"--root {toys.root} does not exist ({ROOT_HINT})"


def test_an_unreadable_root_exits_with_3(tmp_path, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(EnvironmentFailure, match=r"--root .* cannot be read: Permission denied \(check its"):
        check_root(tmp_path)


@pytest.mark.parametrize("command", [["run"], ["discover"], ["explain", "one"], ["record"]])
def test_a_root_one_level_too_high_is_one_line_with_the_path_to_give(toys, tmp_path, command):
    (tmp_path / "archive" / "node7" / "sys" / "class").mkdir(parents=True)
    toys.root = tmp_path / "archive"
    arguments = [*command, str(tmp_path / "tree")] if command == ["record"] else command
    done = toys.devhost(*arguments)
    fault = f"--root {toys.root} is one level too high: it has no sys directory"
    said = f"devhost: {fault} (give --root {toys.root / 'node7'})\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("below", ["sys", "dev"])
def test_a_root_one_level_too_low_is_one_line_with_the_path_to_give(toys, below):
    (toys.root / "sys" / "class").mkdir(parents=True)
    (toys.root / "sys" / "dev").mkdir()
    (toys.root / "dev").mkdir()
    above, toys.root = toys.root, toys.root / below
    done = toys.devhost("discover")
    fault = f"--root {toys.root} is one level too low: it is the {below} directory of a root"
    assert (done.returncode, done.stderr) == (2, f"devhost: {fault} (give --root {above})\n")


def test_a_tree_with_other_trees_below_it_is_accepted(toys):
    (toys.root / "host" / "sys" / "class").mkdir(parents=True)
    (toys.root / "sys").mkdir()
    assert toys.devhost("discover").returncode == 0


def test_an_existing_root_is_accepted(tmp_path):
    check_root(tmp_path)
    with pytest.raises(UsageError):
        check_root(tmp_path / "none")
