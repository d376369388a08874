"""Pods that request devices, and their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import cgroups, image
from .api import ApiError, Json
from .node import Node
from .waiting import until

NAMESPACE = "/api/v1/namespaces/default/pods"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
CONTAINER = "main"
SECOND = "beside"
DEVICES_CGROUP = Path("/sys/fs/cgroup/devices")

COMPLETE = "--complete--"
TRIES = 5
"""ctr may lose the output of a process that ends at once, on a busy machine all of it."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One container of a pod, by name; its state is read for each call."""

    node: Node
    name: str
    container: str = CONTAINER

    @property
    def beside(self) -> Pod:
        """The second container of the same pod."""
        return replace(self, container=SECOND)

    def document(self) -> Json:
        """The pod in the API server."""
        return self.node.api.get(f"{NAMESPACE}/{self.name}")

    @property
    def phase(self) -> str:
        return str(self.document()["status"].get("phase", ""))

    def running(self) -> Pod:
        """Waits until its container runs; returns this pod.

        Raises:
            TimeoutError: it does not.
            AssertionError: it was rejected, or it has ended.
        """
        assert self.settled(), self._status()
        return self

    def settled(self) -> bool:
        """Waits until its container runs or has failed; returns whether it runs.

        Raises:
            TimeoutError: neither happens.
        """
        until(f"pod {self.name} runs or fails", self._settled, seen=self._status)
        # a pod of which one container runs is Pending until all have started
        return self.phase not in ("Failed", "Succeeded")

    def waits_for(self, resource: str) -> None:
        """Waits until the scheduler has found no node with free ``resource``.

        Raises:
            TimeoutError: it was scheduled, or the scheduler did not try it.
        """
        until(
            f"pod {self.name} waits for {resource}",
            partial(self._pending, f"Insufficient {resource}"),
            seen=self._status,
        )

    def waits_for_claims(self) -> None:
        """Waits until the scheduler has found no device for its claims.

        Raises:
            TimeoutError: it was scheduled, or the scheduler did not try it.
        """
        text = "cannot allocate all claims"
        until(f"pod {self.name} waits for claims", partial(self._pending, text), seen=self._status)

    def failed(self) -> str:
        """Waits until the kubelet has rejected it; returns its message."""
        until(f"pod {self.name} is rejected", lambda: self.phase == "Failed", seen=self._status)
        return str(self.document()["status"].get("message", ""))

    def identity(self) -> tuple[str, int]:
        """Container id and number of restarts, which change with every restart."""
        container = self._container()
        return container["containerID"], container["restartCount"]

    def restarted(self) -> Pod:
        """Ends the container's process and waits until the kubelet has started the container again.

        Raises:
            TimeoutError: it has not.
        """
        before = self.identity()
        self.can("kill -TERM 1")
        until(f"pod {self.name} is started again", lambda: self._again(before), seen=self._status)
        return self

    def _again(self, before: tuple[str, int]) -> bool:
        container = self._container()
        return bool(container["state"].get("running")) and container["containerID"] != before[0]

    def shell(self, script: str) -> str:
        """The output of a shell script in the container; it may be run more than once.

        Raises:
            AssertionError: it fails.
        """
        for _ in range(TRIES):
            done = self.node.execute(self._id(), f"( {script}\n) && echo {COMPLETE}")
            assert done.returncode == 0, f"{script!r} in {self.name}: {done.stdout}{done.stderr}"
            said, complete, _ = done.stdout.partition(COMPLETE)
            if complete:
                return said.strip()
        raise AssertionError(f"{script!r} in {self.name}: the output was lost {TRIES} times")

    def can(self, script: str) -> bool:
        """Whether a shell script in the container succeeds."""
        return self.node.execute(self._id(), script).returncode == 0

    def nodes(self) -> set[str]:
        """Every device node in the container's /dev and its direct subdirectories."""
        look = "for n in /dev/* /dev/[!f]*/*; do if test -c $n || test -b $n; then echo $n; fi; done"
        return set(self.shell(look).split())

    def opens(self, node: str) -> bool:
        """Whether a device node exists and can be opened for reading and writing."""
        return self.can(f"( test -c {node} || test -b {node} ) && exec 3<>{node}")

    def cgroup_rules(self) -> set[str]:
        """The entries of the container's devices cgroup: ``c 10:229 rw``. Cgroups of version 1 only."""
        found = [path for path in (DEVICES_CGROUP / cgroups.NAME).rglob(self._id()) if path.is_dir()]
        assert len(found) == 1, found
        return set((found[0] / "devices.list").read_text().splitlines())

    def leave(self) -> None:
        """Deletes it without waiting."""
        self.node.api.delete(f"{NAMESPACE}/{self.name}", gracePeriodSeconds=1)

    def delete(self) -> None:
        """Deletes it and waits until it is gone and its devices are free."""
        self.leave()
        self.ends()

    def ends(self) -> None:
        """Waits until it is gone and its devices are free."""
        until(f"pod {self.name} is gone", self._gone, seen=self._status)

    def _settled(self) -> bool:
        if self.phase in ("Failed", "Succeeded"):
            return True
        return bool(self._container().get("state", {}).get("running"))

    def _gone(self) -> bool:
        try:
            self.document()
        except ApiError as error:
            return error.status == 404
        return False

    def _pending(self, text: str) -> bool:
        status = self.document()["status"]
        messages = [condition.get("message", "") for condition in status.get("conditions", ())]
        return status.get("phase") == "Pending" and any(text in each for each in messages)

    def _container(self) -> Json:
        statuses: list[Json] = self.document()["status"].get("containerStatuses") or []
        return next((status for status in statuses if status["name"] == self.container), {})

    def _id(self) -> str:
        return self.identity()[0].removeprefix("containerd://")

    def _status(self) -> Json:
        status: Json = self.document()["status"]
        return status


@dataclass(frozen=True, slots=True)
class Replicas:
    """Pods that are replaced when rejected: a kubelet never tries a rejected pod again."""

    node: Node
    name: str
    count: int

    def running(self) -> None:
        """Waits until the requested number runs.

        Raises:
            TimeoutError: they do not.
        """
        until(f"{self.count} pods of {self.name} run", lambda: self._ready() == self.count, seen=self._ready)

    def _ready(self) -> int:
        status = self.node.api.get(f"{REPLICA_SETS}/{self.name}")["status"]
        return int(status.get("readyReplicas", 0))

    def delete(self) -> None:
        """Deletes them and waits until they are gone and their devices are free."""
        self.node.api.delete(f"{REPLICA_SETS}/{self.name}", propagationPolicy="Foreground")
        until(f"the pods of {self.name} are gone", self._gone, seen=self._ready)

    def _gone(self) -> bool:
        try:
            self.node.api.get(f"{REPLICA_SETS}/{self.name}")
        except ApiError as error:
            return error.status == 404
        return False


class Pods:
    """Creates pods on a node; :meth:`clear` deletes the remaining ones."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._made: list[Pod] = []
        self._replicated: list[Replicas] = []

    def create(
        self,
        name: str,
        limits: Mapping[str, int] | None = None,
        beside: Mapping[str, int] | None = None,
        *,
        claims: Sequence[str] = (),
        **security: Any,
    ) -> Pod:
        """Creates a pod with these resources.

        Args:
            claims: names of ResourceClaims that every container uses.
            beside: resources of a second container, if there is one.
            security: the containers' securityContext.
        """
        wanted = {CONTAINER: limits or {}} | ({} if beside is None else {SECOND: beside})
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": self._spec(wanted, security, claims),
        }
        self._node.api.post(NAMESPACE, document)
        pod = Pod(self._node, name)
        self._made.append(pod)
        return pod

    def replicate(self, name: str, limits: Mapping[str, int], count: int) -> Replicas:
        """Creates pods with these resources, and replaces those that are rejected."""
        labels = {"pods-of": name}
        spec = {
            "replicas": count,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": self._spec({CONTAINER: limits}, {})},
        }
        self._node.api.post(
            REPLICA_SETS,
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec},
        )
        replicas = Replicas(self._node, name, count)
        self._replicated.append(replicas)
        return replicas

    def clear(self) -> None:
        """Deletes every pod that was created."""
        for replicas in self._replicated:
            replicas.delete()
        self._replicated.clear()
        for pod in self._made:
            pod.leave()
        for pod in self._made:
            pod.delete()
        self._made.clear()

    def _spec(
        self, wanted: Mapping[str, Mapping[str, int]], security: Mapping[str, Any], claims: Sequence[str] = ()
    ) -> Json:
        """A pod's containers by name, with the resources of each."""
        containers = [
            {
                "name": container,
                "image": image.NAME,
                "imagePullPolicy": "Never",
                "resources": {
                    "limits": {resource: str(count) for resource, count in amounts.items()},
                    "claims": [{"name": claim} for claim in claims],
                },
                "securityContext": dict(security),
            }
            for container, amounts in wanted.items()
        ]
        return {
            "containers": containers,
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "nodeSelector": self._node.selector,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        }
