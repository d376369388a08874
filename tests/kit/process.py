"""The rig of ``devhost run`` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def running(
    config: Path,
    root: Path,
    kubelet: Path,
    *options: object,
    log: int | IO[str] = subprocess.DEVNULL,
    runtime: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Serves what a configuration says until the context ends, which kills it.

    Args:
        root: the directory to use as ``/``.
        kubelet: the directory of the kubelet's socket.
        options: further ones.
        log: where standard error goes.
        runtime: the directory of sockets; that of the tests by default.
    """
    command = [sys.executable, "-m", "devhost", "run", "--config", config, "--root", root]
    command += ["--kubelet-dir", kubelet, *options]
    more = {} if runtime is None else {"DEVHOST_RUNTIME_DIR": str(runtime)}
    process = subprocess.Popen([*map(str, command)], stderr=log, text=True, env={**os.environ, **more})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=240)
