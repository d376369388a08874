"""Broken machines and commands: each ends with one line that names cause and fix, and with its exit code."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from kit.command import DEVHOST, completed

Command = Callable[..., CompletedProcess[str]]

CONFIGURATION, MACHINE = 2, 3
"""Exit codes: the input of the user is wrong; the machine lacks something."""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration with which nothing is wrong."""
    file = tmp_path / "devhost.yaml"
    file.write_text(
        "version: 1\nresources:\n- {name: a.b/null, backend: udev, where: {devNode: /dev/null}}\n"
    )
    return str(file)


@pytest.fixture
def run(devhost: Command, config: str, tmp_path: Path) -> Command:
    """Runs ``devhost run`` with a valid configuration and further arguments."""
    directory = tmp_path / "plugins"
    directory.mkdir()
    return lambda *given: devhost("run", "--config", config, "--kubelet-dir", str(directory), *given)


def ends(ended: CompletedProcess[str], code: int, cause: str, fix: str) -> None:
    """Asserts that a command ended with this code and one line that holds these words."""
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("devhost: ")
    assert cause in line
    assert fix in line


def test_a_start_with_an_invalid_configuration_prints_the_same_errors_as_check(
    devhost: Command, tmp_path: Path
) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nresources:\n- {name: serial, backend: udev}\n")
    checked, started = devhost("check", str(file)), devhost("run", "--config", str(file))
    assert checked.returncode == started.returncode == CONFIGURATION
    (line,) = (checked.stdout + checked.stderr).splitlines()
    assert line in started.stderr
    assert "Traceback" not in started.stderr


def test_a_file_in_place_of_the_kubelets_directory(run: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run("--kubelet-dir", str(tmp_path / "file"))
    ends(ended, MACHINE, f"{tmp_path}/file is not a directory", "choose another --kubelet-dir")


def test_a_port_that_is_in_use(run: Command) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ended = run("--listen", address)
    ends(ended, MACHINE, f"cannot listen on {address}: another process uses this port", "with --listen")


@pytest.mark.parametrize(
    ("address", "cause"), [("banana", "it has no port"), ("127.0.0.1:99999", "a port is at most 65535")]
)
def test_an_address_that_is_none(run: Command, address: str, cause: str) -> None:
    ends(run("--listen", address), CONFIGURATION, cause, "write HOST:PORT")


def test_a_host_name_that_does_not_resolve(run: Command) -> None:
    ends(run("--listen", "no-such-host.invalid:9400"), MACHINE, "cannot be resolved", "with --listen")


def test_a_root_that_does_not_exist(run: Command, tmp_path: Path) -> None:
    ended = run("--root", str(tmp_path / "missing"))
    ends(ended, CONFIGURATION, "missing does not exist", "give the directory to use as /")


def test_a_root_one_level_too_high(run: Command, tmp_path: Path) -> None:
    (tmp_path / "archive" / "node7" / "sys" / "class").mkdir(parents=True)
    ended = run("--root", str(tmp_path / "archive"))
    ends(ended, CONFIGURATION, "is one level too high", f"give --root {tmp_path}/archive/node7")


@pytest.mark.parametrize("command", ["run", "discover", "explain"])
def test_a_configuration_that_is_missing(devhost: Command, tmp_path: Path, command: str) -> None:
    device = ["/dev/null"] if command == "explain" else []
    ended = devhost(command, *device, "--config", str(tmp_path / "missing.yaml"))
    assert ended.returncode == CONFIGURATION
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{tmp_path}/missing.yaml: there is no such file (check the path, or create it")


@pytest.mark.parametrize("option", [[], ["--all"]])
def test_a_drop_in_that_raises(devhost: Command, tmp_path: Path, option: list[str]) -> None:
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "card.py").write_text("import os\n\nraise RuntimeError('no firmware')\n")
    config = tmp_path / "devhost.yaml"
    config.write_text("version: 1\nbackendPaths: [drop]\nresources:\n- {name: a.b/c, backend: card}\n")
    ended = devhost("discover", *option, "--config", str(config))
    assert ended.returncode == CONFIGURATION
    assert f"{tmp_path}/drop/card.py:3: RuntimeError: no firmware" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_too_few_open_files(config: str, tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 16 && exec "$@"', "sh", *DEVHOST)
    ended = completed(*limited, "run", "--config", config, "--kubelet-dir", tmp_path)
    ends(ended, MACHINE, "the limit of open files, RLIMIT_NOFILE, is 16", "run `ulimit -n 65536` before")


def test_a_status_without_a_devhost(devhost: Command, tmp_path: Path) -> None:
    ended = devhost("status", "--socket", str(tmp_path / "none.sock"))
    ends(ended, MACHINE, f"no devhost listens on {tmp_path}/none.sock", "start it with `devhost run`")


def test_a_device_that_no_backend_knows(devhost: Command, config: str) -> None:
    ended = devhost("explain", "/dev/nothing", "--config", config)
    ends(ended, CONFIGURATION, "no backend has a device '/dev/nothing'", "`devhost discover --all`")
