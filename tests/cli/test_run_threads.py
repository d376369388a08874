"""Commands whose process cannot start the threads that gRPC needs; gRPC would hang or abort without them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kit.command import DEVHOST, completed

TOO_LITTLE = 100_000
"""kB of virtual memory: enough for the imports, not for the stacks of gRPC's threads."""


@pytest.mark.parametrize("command", ["run", "kubelet", "demo"])
def test_a_command_that_lacks_threads_for_grpc_ends_with_one_line(tmp_path: Path, command: str) -> None:
    config = tmp_path / "devhost.yaml"
    config.write_text("version: 1\nresources: []\n")
    arguments = {
        "run": ["--config", str(config), "--kubelet-dir", str(tmp_path)],
        "kubelet": ["--dir", str(tmp_path / "kubelet")],
        "demo": ["--config", str(config)],
    }[command]
    limited = ("sh", "-c", f'ulimit -v {TOO_LITTLE} && exec "$@"', "sh", *DEVHOST)
    done = completed(*limited, command, *arguments, stdin=subprocess.DEVNULL)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "threads, and the process can start" in line
