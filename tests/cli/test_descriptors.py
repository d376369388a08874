"""With few file descriptors every command works, or fails with one line and exit code 3."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from kit import files
from kit.command import DEVHOST, completed

from devhost.runtime.descriptors import provide
from devhost.runtime.http import Limits

ACCEPT = "connections cannot be accepted"


def limited(limit: int, *arguments: str) -> subprocess.Popen[str]:
    """The program with a limit of open files, which a shell sets: gRPC aborts a fork of its threads."""
    return subprocess.Popen(
        ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *DEVHOST, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "kubelet").mkdir()
    file = tmp_path / "devhost.yaml"
    file.write_text(
        "version: 1\n"
        "resources: [{name: example.com/null, backend: udev, where: {subsystem: mem, sysName: 'null'}}]\n"
    )
    return file


def run(config: Path, *more: str) -> tuple[str, ...]:
    place = config.parent
    return (
        "run",
        *("--config", str(config), "--kubelet-dir", str(place / "kubelet")),
        *("--status-socket", str(place / "status.sock"), *more),
    )


@pytest.mark.parametrize("limit", [8, 12, 16, 20, 24, 32, 48, 64])
def test_a_host_with_too_few_descriptors_exits_with_one_line_that_names_the_limit(
    config: Path, limit: int
) -> None:
    """Without descriptors gRPC ends the process with a signal, and Python with a traceback."""
    process = limited(limit, *run(config))
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (3, "")
    (line,) = err.splitlines()
    assert line.startswith(f"devhost: the limit of open files, RLIMIT_NOFILE, is {limit}, and devhost needs ")
    assert "ulimit -n" in line and "LimitNOFILE=" in line


def test_a_host_with_too_few_descriptors_reports_it_in_its_log_format(config: Path) -> None:
    process = limited(16, *run(config, "--log-format", "json"))
    _, err = process.communicate(timeout=240)
    (line,) = err.splitlines()
    assert process.returncode == 3
    assert '"message":"cannot start"' in line and "RLIMIT_NOFILE" in line


@pytest.mark.parametrize("limit", [8, 12, 16, 20, 24, 32, 48])
@pytest.mark.parametrize("command", ["check", "discover", "status"])
def test_other_commands_work_or_fail_with_one_line(config: Path, command: str, limit: int) -> None:
    arguments = {
        "check": ("check", str(config)),
        "discover": ("discover", "--config", str(config)),
        "status": ("status", "--socket", str(config.parent / "none.sock")),
    }[command]
    process = limited(limit, *arguments)
    _, err = process.communicate(timeout=240)
    assert "Traceback" not in err
    assert process.returncode in (0, 3)
    if process.returncode:
        assert len(err.splitlines()) == 1 and err.startswith("devhost: ")
    assert (limit >= 20) is not ("RLIMIT_NOFILE" in err)


def test_a_soft_limit_is_raised_up_to_the_hard_limit(config: Path) -> None:
    """systemd intends this: DefaultLimitNOFILE has a low soft limit and a high hard one."""
    lower = 'ulimit -Sn 12 && ulimit -Hn 1024 && exec "$@"'
    process = completed("sh", "-c", lower, "sh", *DEVHOST, "check", config)
    assert (process.returncode, process.stderr) == (0, "")


def test_the_soft_limit_becomes_what_would_be_used_as_far_as_the_hard_limit_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    with files.limited(resource.RLIMIT_NOFILE, used + 8):
        provide(4, 100)
        assert used + 90 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= used + 110
        provide(4, 2 * hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard


def test_a_host_may_have_as_many_connections_open_as_it_accepts(config: Path) -> None:
    lower = 'ulimit -Sn 100 && exec "$@"'
    command = [*DEVHOST, *run(config, "--listen", "127.0.0.1:0")]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(["sh", "-c", lower, "sh", *command], stderr=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stderr is not None
        assert any(" listening address=" in line for line in process.stderr)
        soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert soft > 2 * Limits().connections


def test_a_host_that_runs_out_of_descriptors_logs_it_once_and_recovers(config: Path) -> None:
    process = limited(80, *run(config, "--listen", "127.0.0.1:0"))
    assert process.stderr is not None
    lines: list[str] = []
    with process, ExitStack() as stack:
        stack.callback(process.kill)
        for line in process.stderr:
            lines.append(line)
            if " holders of devices are unknown " in line:  # it has started
                break
        port = next(int(line.strip().rpartition(":")[2]) for line in lines if " listening address=" in line)
        with ExitStack() as flood:
            for _ in range(150):
                one = flood.enter_context(socket.socket())
                one.settimeout(0.2)
                with suppress(OSError):
                    one.connect(("127.0.0.1", port))
            for line in process.stderr:
                lines.append(line)
                if ACCEPT in line:
                    break
        answer = b""
        while not answer.startswith(b"HTTP/1.1"):  # accepting begins again after a second
            time.sleep(0.1)
            with (
                suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", port), timeout=240) as one,
            ):
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = one.recv(100)
        process.send_signal(signal.SIGTERM)
        lines += process.stderr
    assert process.returncode == 0
    assert sum(ACCEPT in line for line in lines) == 1
    assert not [line for line in lines if line.startswith("  |") or "Traceback" in line]
