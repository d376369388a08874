"""A node: its container runtime and kubelet, and what the API server shows of it."""

from __future__ import annotations

import signal
import subprocess
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import image
from .api import Api, ApiError, Json
from .namespaces import Namespaces
from .settings import API_PORT, CONTAINERD_SOCKET, Settings
from .waiting import LIMIT, until

STOP_LIMIT = 60.0
"""Seconds a process has to end before it is killed."""


class Node:
    """A node, whose programs can be started and stopped.

    Args:
        beside: the node whose network it has; none for the first one.
    """

    def __init__(self, settings: Settings, beside: Namespaces | None = None) -> None:
        place = settings.place
        self.name = place.name
        self.selector = {"kubernetes.io/hostname": place.name} if beside else {}
        """Labels by which pods select it; the first node needs none."""
        self.directory = settings.directory
        self.logs = settings.directory / "log"
        self.namespaces = Namespaces(place.address, place.name, self.logs / "namespaces.log", beside)
        self.api = Api(beside or self.namespaces, API_PORT, settings.token)
        self._settings = settings
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    # processes

    def start(self, name: str, *arguments: str) -> None:
        """Starts a program of the node, without waiting until it is ready.

        Args:
            arguments: added to the usual ones.
        """
        command = (*self._settings.command(name), *arguments)
        self._running[name] = self.namespaces.spawn(
            *command, log=self.logs / f"{name}.log", env=self._settings.environment()
        )

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Ends a program with SIGTERM or SIGKILL, and waits for its end."""
        end(self._running.pop(name), kill=kill)

    def crash(self) -> None:
        """Kills every process, as a power cut does, and starts the runtime and the kubelet again."""
        self.namespaces.run("sh", "-c", "kill -KILL -1")
        for name in [*self._running]:
            self.stop(name, kill=True)
        self.start("containerd")
        self.answers()
        self.start("kubelet")

    def answers(self) -> None:
        """Waits until the runtime answers."""
        until("containerd answers", lambda: self.ctr("version").returncode == 0, seen=self.said("containerd"))

    def said(self, name: str) -> Any:
        """A function that returns the last lines of a program's log."""
        return lambda: _tail(self.logs / f"{name}.log")

    # what it shows

    def node(self) -> Json:
        """The node object."""
        return self.api.get(f"/api/v1/nodes/{self.name}")

    def schedulable(self) -> bool:
        """Whether pods can be scheduled to it."""
        with suppress(ApiError, OSError):
            node = self.node()
            conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
            return conditions.get("Ready") == "True" and not node["spec"].get("taints")
        return False

    def counts(self, resource: str) -> tuple[int, int] | None:
        """Capacity and allocatable of the node; ``None`` if it does not have the resource."""
        status = self.node()["status"]
        if resource not in status.get("capacity", {}):
            return None
        return int(status["capacity"][resource]), int(status["allocatable"].get(resource, -1))

    def refreshed(self) -> None:
        """Waits until the kubelet has written a node status begun after this call.

        Raises:
            TimeoutError: it has not.
        """
        now = datetime.now(UTC).replace(microsecond=0)  # heartbeats are whole seconds, rounded down
        until("a new node status", lambda: self._heartbeat() > now, seen=self._heartbeat)

    def _heartbeat(self) -> datetime:
        conditions = {each["type"]: each for each in self.node()["status"]["conditions"]}
        return datetime.fromisoformat(conditions["Ready"]["lastHeartbeatTime"])

    def shows(
        self, resource: str, capacity: int, allocatable: int | None = None, *, limit: float = LIMIT
    ) -> None:
        """Waits until the node shows these numbers; ``allocatable`` defaults to ``capacity``.

        Raises:
            TimeoutError: it does not.
        """
        wanted = (capacity, capacity if allocatable is None else allocatable)
        until(
            f"{resource} of {self.name} has capacity and allocatable {wanted}",
            lambda: self.counts(resource) == wanted,
            limit=limit,
            seen=lambda: self.counts(resource),
        )

    # the runtime

    def execute(self, container: str, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell script in the cgroup and namespaces of a container."""
        return self.ctr("tasks", "exec", "--exec-id", uuid.uuid4().hex, container, "/bin/sh", "-c", script)

    def process(self, container: str) -> int:
        """The node's process id of a running container's first process.

        Raises:
            RuntimeError: no such container runs.
        """
        for line in self.ctr("tasks", "ls").stdout.splitlines():
            name, pid, *_ = line.split()
            if name == container:
                return int(pid)
        raise RuntimeError(f"container {container} does not run")

    def load_image(self, archive: Path, *names: str) -> None:
        """Imports the image of an OCI archive into the runtime's store, only under these names.

        Raises:
            RuntimeError: it cannot be imported.
        """
        renamed = self.directory / "renamed.tar"
        image.rename(archive, renamed, *names)
        self.import_(renamed)
        renamed.unlink()

    def import_(self, *archives: Path) -> None:
        """Imports OCI archives once the runtime answers; raises as :meth:`load_image`."""
        self.answers()
        for archive in archives:
            done = self.ctr("images", "import", "--local", str(archive), timeout=600)
            if done.returncode:
                raise RuntimeError(f"the image cannot be imported: {done.stderr.strip()}")

    def ctr(self, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs containerd's client."""
        place = ("--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
        return self.namespaces.run(self._settings.programs["ctr"], *place, *arguments, timeout=timeout)


def end(process: subprocess.Popen[bytes], *, kill: bool = False) -> int:
    """Ends a process, if needed with SIGKILL; returns its exit code."""
    process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
    try:
        return process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_LIMIT)


def _tail(log: Path) -> str:
    try:
        return "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    except OSError:
        return "no log"
