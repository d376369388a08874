"""One node with its control plane, whose parts can be started and stopped."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from . import cgroups, image
from .api import ApiError
from .kubectl import Kubectl
from .node import Node
from .settings import PLUGIN_DIRECTORY, SPECIFICATIONS, Place, Settings
from .waiting import until

DRA = ("apis/resource.k8s.io/v1/resourceslices", "apis/resource.k8s.io/v1/resourceclaims")


class Cluster(Node):
    """A cluster of one node while entered; only its logs remain afterwards.

    Args:
        programs: as returned by :func:`onenode.binaries.find`.
        directory: for settings and logs; emptied first.
    """

    def __init__(self, programs: Mapping[str, Path], directory: Path) -> None:
        super().__init__(Settings(programs, directory, secrets.token_hex(16)))
        self._stack = ExitStack()
        self.image = directory / "image.tar"
        """The archive of the image of pods."""
        self.kubectl = Kubectl(self.namespaces, programs["kubectl"], self._settings.kubeconfig, directory)

    def settings(self, place: Place) -> Settings:
        """The settings of one more node."""
        return replace(self._settings, directory=self.directory / place.name, place=place)

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
            self._settings.write_control_plane()
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
        image.write(self._settings.programs["busybox"], self.image)
        self.import_(self.image)
        until("the API server is ready", self._ready, seen=self.said("kube-apiserver"))
        self.start("kube-scheduler")
        self.start("kube-controller-manager")
        self.start("kubelet")
        until("pods have their service account", self._accounts, seen=self.said("kube-controller-manager"))
        until("the node is ready", self.schedulable, limit=300, seen=self.said("kubelet"))

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
            seen=self.said("kubelet"),
        )

    def restart_api_server(self, *arguments: str) -> None:
        """Ends the API server and starts another one with further arguments; returns once it is ready."""
        self.stop("kube-apiserver", kill=True)  # otherwise it waits for watches to end
        self.start("kube-apiserver", *arguments)
        until("the API server is ready", self._ready, seen=self.said("kube-apiserver"))

    def _ready(self) -> bool:
        with suppress(ApiError, OSError):
            return self.api.call("GET", "/readyz") == "ok"
        return False

    def _accounts(self) -> bool:
        """Whether the default service account of pods exists."""
        with suppress(ApiError, OSError):
            return bool(self.api.get("/api/v1/namespaces/default/serviceaccounts/default"))
        return False

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
            for container in self.ctr("containers", "ls", "-q").stdout.split():
                log.write(self.ctr("containers", "info", container).stdout)

    def _specifications(self) -> list[str]:
        found = self.namespaces.path(SPECIFICATIONS).glob("*.json")
        return [f"{SPECIFICATIONS}/{file.name}" for file in found]


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
