"""The chart on the node, and what its devhost shows inside the pod and to the node."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from .api import Json
from .cluster import Cluster
from .kubectl import Refused
from .shipped import IMAGE, Shipped
from .waiting import until

NAME = "devhost"
"""The name of the release, its namespace, and every object of the chart."""

DAEMONSET = f"daemonset/{NAME}"
CONFIGMAP = f"configmap/{NAME}"
OWN = f"labelSelector=app.kubernetes.io/name%3D{NAME}"
PORT = 9400
NAMESPACE = f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAME}}}}}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the listener of the pod answered."""

    status: int
    kind: str
    text: str


class Release:
    """The chart, applied by kubectl on entry and deleted on exit.

    Args:
        values: of the chart, besides the image.
    """

    def __init__(self, cluster: Cluster, shipped: Shipped, values: Mapping[str, Any] | None = None) -> None:
        self._cluster = cluster
        self._shipped = shipped
        self._first = dict(values or {})
        self._manifests = ""

    def __enter__(self) -> Release:
        self._cluster.kubectl.apply(NAMESPACE)
        try:
            self.apply(self._first)
        except BaseException:
            self.__exit__(None, None, None)  # later tests need the node for themselves
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.kubectl.delete(self._manifests, f"--namespace={NAME}")

    def apply(self, values: Mapping[str, Any]) -> None:
        """Applies the chart with these values, replacing others, and waits until its pod is Ready.

        Raises:
            TimeoutError: it is not.
        """
        self.request(values)
        self.ready()

    def request(self, values: Mapping[str, Any]) -> None:
        """Applies the chart with these values, without waiting."""
        image = {"repository": IMAGE, **values.get("image", {})}
        self._manifests = self._shipped.render(NAME, {**values, "image": image})
        self._cluster.kubectl.apply(self._manifests, f"--namespace={NAME}")

    def ready(self) -> None:
        """Waits until the pods of the newest DaemonSets are Ready, so that kubelets are served.

        Raises:
            TimeoutError: it is not.
            AssertionError: its container keeps exiting.
        """
        until("the chart's pods are Ready", self._rolled_out, seen=lambda: f"{self.pods()}; {self.log()}")

    def _rolled_out(self) -> bool:
        for pod in self.pods():
            for container in pod["status"].get("containerStatuses", ()):
                waiting = container["state"].get("waiting", {})
                assert waiting.get("reason") != "CrashLoopBackOff", f"devhost exits: {self.log()}"
        return all(map(_complete, self.daemonsets().values()))

    def daemonsets(self) -> dict[str, Json]:
        """The release's DaemonSets by name."""
        path = f"/apis/apps/v1/namespaces/{NAME}/daemonsets?{OWN}"
        return {one["metadata"]["name"]: one for one in self._cluster.api.get(path)["items"]}

    # the pod

    def kubectl(self, *arguments: str) -> str:
        """kubectl in the release's namespace; raises as :meth:`Kubectl.run`."""
        return self._cluster.kubectl.run(f"--namespace={NAME}", *arguments)

    def pod(self) -> Json:
        """The pod that is not being deleted."""
        (pod,) = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        return pod

    def pods(self) -> list[Json]:
        """All pods, also those that are being deleted."""
        return list(self._cluster.api.get(f"/api/v1/namespaces/{NAME}/pods?{OWN}")["items"])

    def container(self) -> Json:
        """The status of its only container."""
        (container,) = self.pod()["status"]["containerStatuses"]
        return dict(container)

    def image(self) -> str:
        """The image that was requested for its container."""
        (container,) = self.pod()["spec"]["containers"]
        return str(container["image"])

    def identity(self) -> tuple[str, str, int]:
        """Pod, container id and number of restarts, which change with every restart."""
        pod = self.pod()
        (container,) = pod["status"]["containerStatuses"]
        return pod["metadata"]["name"], container["containerID"], container["restartCount"]

    def process(self) -> int:
        """The node's process id of the container's first process."""
        return self._cluster.process(self.container()["containerID"].removeprefix("containerd://"))

    def execute(self, *command: str) -> str:
        """The output of a command in the container, by ``kubectl exec``; raises as :meth:`kubectl`."""
        return self.kubectl("exec", f"pod/{self.pod()['metadata']['name']}", "--", *command)

    def log(self) -> str:
        """The container's log."""
        with suppress(Refused, ValueError):
            return self.kubectl("logs", f"pod/{self.pod()['metadata']['name']}")
        return ""

    # what devhost tells

    def status(self) -> dict[str, Any]:
        """The output of ``devhost status`` in the container; empty while that fails."""
        with suppress(Refused, ValueError):
            said: dict[str, Any] = json.loads(self.execute("devhost", "status", "--output=json"))
            return said
        return {}

    def resource(self, name: str) -> dict[str, Any]:
        """One resource of :meth:`status`; empty if it is missing."""
        found = [each for each in self.status().get("resources", ()) if each["name"] == name]
        return found[0] if found else {}

    def get(self, path: str) -> Answer:
        """The pod's answer at its own address to a request from the node.

        Raises:
            OSError: there is no answer.
        """
        address = self.pod()["status"]["podIP"]
        plain = self._cluster.namespaces.connect(PORT, 60.0, address)
        connection = http.client.HTTPConnection(address, PORT, timeout=60.0)
        try:
            connection.sock = plain
            connection.request("GET", path)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers.get_content_type(), answer.read().decode())
        finally:
            connection.close()
            plain.close()

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series; ``None`` if there is none."""
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    # its configuration

    def configuration(self) -> dict[str, Any]:
        """The content of the ConfigMap."""
        parsed: dict[str, Any] = yaml.safe_load(self.text())
        return parsed

    def text(self) -> str:
        """The same as text."""
        document = json.loads(self.kubectl("get", CONFIGMAP, "--output=json"))
        return str(document["data"]["devhost.yaml"])

    def edit(self, text: str) -> None:
        """Replaces the content of the ConfigMap as an edit does, without waiting."""
        patch = {"data": {"devhost.yaml": text}}
        self._cluster.kubectl.patch(CONFIGMAP, patch, f"--namespace={NAME}")

    def change(self, text: str) -> None:
        """Edits the ConfigMap and waits until devhost has loaded a new configuration.

        Raises:
            TimeoutError: it has not.
        """
        before = self.status()["devhost"]["generation"]
        self.edit(text)
        until(
            "devhost loads the ConfigMap",
            lambda: self.status().get("devhost", {}).get("generation", 0) > before,
            seen=self.status,
        )


def _complete(daemonset: Json) -> bool:
    """Whether every node has a Ready pod of the newest template."""
    status = daemonset["status"]
    wanted = status["desiredNumberScheduled"]
    return bool(
        status.get("observedGeneration") == daemonset["metadata"]["generation"]
        and status.get("updatedNumberScheduled", 0) == wanted
        and status.get("numberAvailable", 0) == wanted
    )
