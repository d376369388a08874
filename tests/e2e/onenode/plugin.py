"""``devhost run`` as a process of the node."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .cluster import Cluster
from .node import end
from .waiting import until

TRIES = 5
"""How often a status is asked for that does not come within the deadline of the command."""


class Devhost:
    """One devhost that runs from entry to exit, unless it is ended before.

    Args:
        document: the configuration.
        name: part of the name of its log.
        wait: whether to wait on entry until the kubelet is served.
    """

    def __init__(
        self, cluster: Cluster, document: Mapping[str, Any], name: str = "devhost", *, wait: bool = True
    ) -> None:
        self._cluster = cluster
        self._wait = wait
        self._directory = tempfile.TemporaryDirectory(dir=cluster.directory)
        self.config = Path(self._directory.name) / "devhost.yaml"
        self.configure(document)
        self.log = cluster.logs / f"{name}.log"
        self._said_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Devhost:
        self.start()
        return self.serving() if self._wait else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
        self._directory.cleanup()

    def configure(self, document: Mapping[str, Any]) -> None:
        """Replaces the configuration, which a running devhost reloads. JSON is valid YAML."""
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1))
        new.replace(self.config)

    def arguments(self) -> Sequence[str]:
        """More options of the command line."""
        return ()

    def start(self) -> None:
        """Starts the process."""
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        command = (sys.executable, "-m", "devhost", "run", "--config", self.config, *self.arguments())
        self._process = self._cluster.namespaces.spawn(*command, log=self.log)

    def stop(self, *, kill: bool = False) -> int:
        """Ends the process with SIGTERM or SIGKILL; returns its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        return end(process, kill=kill)

    def restart(self, *, kill: bool = False) -> None:
        """Ends the process and starts another."""
        self.stop(kill=kill)
        self.start()

    def serving(self) -> Devhost:
        """Waits until the kubelet has a list stream open for each resource; returns this devhost.

        The node's status follows later, and may show the earlier state for a second.

        Raises:
            TimeoutError: it has not.
        """
        until("devhost serves the kubelet", self._serves, seen=lambda: self.status() or self._said())
        return self

    def _serves(self) -> bool:
        status = self.status()
        if not status or status["devhost"]["pid"] != self._pid_inside():
            return False
        resources = status["resources"]
        return bool(resources) and all(resource["streams"] == 1 for resource in resources)

    def _pid_inside(self) -> int:
        assert self._process is not None
        return inside(self._process.pid)

    def status(self) -> dict[str, Any]:
        """The output of ``devhost status`` on this node; empty if no devhost answers."""
        command = (sys.executable, "-m", "devhost", "status", "--output", "json")
        for _ in range(TRIES):
            done = self._cluster.namespaces.run(*command)
            with suppress(ValueError):
                answer: dict[str, Any] = json.loads(done.stdout)
                return answer
            if "did not answer within" not in done.stderr:  # a devhost of a busy machine
                break
        return {}

    def says(self, text: str) -> None:
        """Waits until the log of the running process has a line with ``text``.

        Raises:
            TimeoutError: it has not.
        """
        until(f"devhost says {text!r}", lambda: text in self._said(), seen=self._said)

    def _said(self) -> str:
        return self.log.read_bytes()[self._said_before :].decode(errors="replace")


def inside(process: int) -> int:
    """The node's id of the process with the host's id ``process``."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
