"""The rig of ``devhost run`` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import IO

from kit.command import DEVHOST

_FORKSERVER = get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["devhost.cli.serve", "devhost.host.daemon"])


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
    command = [*DEVHOST, "run", "--config", config, "--root", root]
    command += ["--kubelet-dir", kubelet, *options]
    more = {} if runtime is None else {"DEVHOST_RUNTIME_DIR": str(runtime)}
    process = subprocess.Popen([*map(str, command)], stderr=log, text=True, env={**os.environ, **more})
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=240)


class Prepared(_FORKSERVER.Process):
    """``devhost run``, forked from a process that has imported it and has neither threads nor started gRPC.

    It takes a quarter of the time that a new program takes. It does not show what an import does.
    """

    def __init__(self, words: list[str], log: Path) -> None:
        super().__init__()
        self._given = words, dict(os.environ), log

    def run(self) -> None:
        from devhost.cli import main

        words, environment, log = self._given
        os.environ.clear()
        os.environ.update(environment)
        with log.open("a") as errors:
            os.dup2(errors.fileno(), 2)
        sys.argv = ["devhost", "run", *words]
        main()

    def send_signal(self, number: int) -> None:
        assert self.pid
        os.kill(self.pid, number)

    def wait(self, timeout: float = 60) -> int:
        """The exit code."""
        self.join(timeout)
        assert self.exitcode is not None, "it does not end"
        return self.exitcode


@contextmanager
def prepared(config: Path, root: Path, kubelet: Path, *options: object, log: Path) -> Iterator[Prepared]:
    """The same as :func:`running`, in a process that is ready sooner."""
    words = ["--config", config, "--root", root, "--kubelet-dir", kubelet, *options]
    process = Prepared([*map(str, words)], log)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait(240)
