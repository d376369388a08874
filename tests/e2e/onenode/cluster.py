"""One node with its control plane, whose parts can be started and stopped."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from . import cgroups, image
from .api import Api, ApiError, Json
from .kubectl import Kubectl
from .namespaces import Namespaces
from .settings import (
    ADDRESS,
    API_PORT,
    CONTAINERD_SOCKET,
    NODE,
    PLUGIN_DIRECTORY,
    SPECIFICATIONS,
    Settings,
)
from .waiting import LIMIT, until

DRA = ("apis/resource.k8s.io/v1/resourceslices", "apis/resource.k8s.io/v1/resourceclaims")
STOP_LIMIT = 60.0
"""Seconds a process has to end before it is killed."""


class Cluster:
    """A cluster of one node while entered; only its logs remain afterwards.

    Args:
        programs: as returned by :func:`onenode.binaries.find`.
        directory: for settings and logs; emptied first.
    """

    def __init__(self, programs: Mapping[str, Path], directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "log"
        self._programs = programs
        self._settings = Settings(programs, directory, secrets.token_hex(16))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()
        self.namespaces = Namespaces(ADDRESS, NODE, self.logs / "namespaces.log")
        self.api = Api(self.namespaces, API_PORT, self._settings.token)
        self.kubectl = Kubectl(self.namespaces, programs["kubectl"], self._settings.kubeconfig, directory)

    @property
    def driver_kubeconfig(self) -> Path:
        """The access of a DRA driver, once it is granted."""
        return self._settings.driver_kubeconfig

    def grant_driver(self, token: str) -> None:
        """Writes the access of a DRA driver, with this token."""
        self._settings.grant_driver(token)

    def __enter__(self) -> Cluster:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.logs.mkdir(parents=True)
        with ExitStack() as stack:
            stack.enter_context(cgroups.made())
            stack.enter_context(self.namespaces)
            self._settings.write()
            self._start_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_all(self) -> None:
        self.start("etcd")
        self.start("kube-apiserver")
        self.start("containerd")
        archive = self.directory / "image.tar"
        image.write(self._programs["busybox"], archive)
        until(
            "containerd answers", lambda: self._ctr("version").returncode == 0, seen=self._say("containerd")
        )
        self._import(archive)
        until("the API server is ready", self._ready, seen=self._say("kube-apiserver"))
        self.start("kube-scheduler")
        self.start("kube-controller-manager")
        self.start("kubelet")
        until("pods have their service account", self._accounts, seen=self._say("kube-controller-manager"))
        until("the node is ready", self._schedulable, limit=300, seen=self._say("kubelet"))

    # processes

    def start(self, name: str, *arguments: str) -> None:
        """Starts a program of the cluster, without waiting until it is ready.

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

    def restart_kubelet(self, *, kill: bool = False, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ends the kubelet and starts another; returns once that one listens for plugins.

        Args:
            meanwhile: called while no kubelet runs.
        """
        socket = self.namespaces.path("/var/lib/kubelet/device-plugins/kubelet.sock")
        before = socket.stat().st_ino
        self.stop("kubelet", kill=kill)
        meanwhile()
        self.start("kubelet")
        until(
            "the new kubelet's socket",
            lambda: _inode(socket) not in (None, before),
            seen=self._say("kubelet"),
        )

    def restart_api_server(self, *arguments: str) -> None:
        """Ends the API server and starts another one with further arguments; returns once it is ready."""
        self.stop("kube-apiserver", kill=True)  # otherwise it waits for watches to end
        self.start("kube-apiserver", *arguments)
        until("the API server is ready", self._ready, seen=self._say("kube-apiserver"))

    def _ready(self) -> bool:
        with suppress(ApiError, OSError):
            return self.api.call("GET", "/readyz") == "ok"
        return False

    def _accounts(self) -> bool:
        """Whether the default service account of pods exists."""
        with suppress(ApiError, OSError):
            return bool(self.api.get("/api/v1/namespaces/default/serviceaccounts/default"))
        return False

    def _schedulable(self) -> bool:
        with suppress(ApiError, OSError):
            node = self.node()
            conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
            return conditions.get("Ready") == "True" and not node["spec"].get("taints")
        return False

    def _say(self, name: str) -> Any:
        return lambda: _tail(self.logs / f"{name}.log")

    # what the node shows

    def node(self) -> Json:
        """The node object."""
        return self.api.get(f"/api/v1/nodes/{NODE}")

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
            f"{resource} has capacity and allocatable {wanted}",
            lambda: self.counts(resource) == wanted,
            limit=limit,
            seen=lambda: self.counts(resource),
        )

    # the runtime

    def execute(self, container: str, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell script in the cgroup and namespaces of a container."""
        return self._ctr("tasks", "exec", "--exec-id", uuid.uuid4().hex, container, "/bin/sh", "-c", script)

    def process(self, container: str) -> int:
        """The node's process id of a running container's first process.

        Raises:
            RuntimeError: no such container runs.
        """
        for line in self._ctr("tasks", "ls").stdout.splitlines():
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
        self._import(renamed)
        renamed.unlink()

    def _import(self, archive: Path) -> None:
        done = self._ctr("images", "import", "--local", str(archive), timeout=600)
        if done.returncode:
            raise RuntimeError(f"the image cannot be imported: {done.stderr.strip()}")

    def _ctr(self, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        place = ("--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
        return self.namespaces.run(self._programs["ctr"], *place, *arguments, timeout=timeout)

    def save(self, name: str) -> None:
        """Writes the state of the cluster beside the logs, to investigate failures.

        After the end of the cluster it writes nothing.
        """
        with suppress(ApiError, OSError):
            for what in ("api/v1/nodes", "api/v1/pods", "api/v1/events", *DRA):
                document = self.api.get(f"/{what}")
                (self.logs / f"{name}-{what.rpartition('/')[2]}.json").write_text(
                    json.dumps(document, indent=1)
                )
        for file in (f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint", *self._specifications()):
            with suppress(OSError):
                shutil.copy(self.namespaces.path(file), self.logs / f"{name}-{Path(file).name}")
        for log in self.namespaces.path("/var/log/pods").glob("devhost_*/*/*.log"):
            with suppress(OSError):
                shutil.copy(log, self.logs / f"{name}-{log.parent.parent.name}-{log.name}")
        with suppress(OSError), (self.logs / f"{name}-containers.json").open("w") as log:
            for container in self._ctr("containers", "ls", "-q").stdout.split():
                log.write(self._ctr("containers", "info", container).stdout)

    def _specifications(self) -> list[str]:
        found = self.namespaces.path(SPECIFICATIONS).glob("*.json")
        return [f"{SPECIFICATIONS}/{file.name}" for file in found]


def end(process: subprocess.Popen[bytes], *, kill: bool = False) -> int:
    """Ends a process, if needed with SIGKILL; returns its exit code."""
    process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
    try:
        return process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_LIMIT)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _tail(log: Path) -> str:
    try:
        return "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    except OSError:
        return "no log"
