"""``devhost run`` as a process of the node."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .cluster import Cluster, end
from .waiting import until


class Devhost:
    """One devhost, running from entry to exit unless it is ended before.

    Args:
        document: the configuration.
        name: tells its log from others'.
        wait: whether to enter only when the kubelet is served.
    """

    def __init__(
        self, cluster: Cluster, document: Mapping[str, Any], name: str = "devhost", *, wait: bool = True
    ) -> None:
        self._cluster = cluster
        self._wait = wait
        self._directory = tempfile.TemporaryDirectory(prefix="devhost-e2e-")
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
        """Replaces the configuration; a running devhost takes it over by itself. JSON is YAML too."""
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1))
        new.replace(self.config)

    def start(self) -> None:
        """Starts the process."""
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        command = (sys.executable, "-m", "devhost", "run", "--config", self.config)
        self._process = self._cluster.namespaces.spawn(*command, log=self.log)

    def stop(self, *, kill: bool = False) -> int:
        """Ends the process, by SIGTERM or SIGKILL; its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        return end(process, kill=kill)

    def restart(self, *, kill: bool = False) -> None:
        """Ends the process and starts another."""
        self.stop(kill=kill)
        self.start()

    def serving(self) -> Devhost:
        """Waits until the kubelet has a list stream open for each of its resources; the devhost itself.

        The node's status says so only later, and may show for a second what was there before.

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
        """What ``devhost status`` tells of the devhost that answers on this node; empty if none does."""
        done = self._cluster.namespaces.run(sys.executable, "-m", "devhost", "status", "--output", "json")
        with suppress(ValueError):
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer
        return {}

    def says(self, text: str) -> None:
        """Waits until its log has a line with ``text``, of the process that runs now.

        Raises:
            TimeoutError: it has not.
        """
        until(f"devhost says {text!r}", lambda: text in self._said(), seen=self._said)

    def _said(self) -> str:
        return self.log.read_bytes()[self._said_before :].decode(errors="replace")


def inside(process: int) -> int:
    """The number that a process of the node, which the host counts as ``process``, has there."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
