"""The access of the DRA driver: the shipped rights, and the token of a pod on the node."""

from __future__ import annotations

from types import TracebackType

import yaml

from .cluster import Cluster
from .release import NAME, NAMESPACE
from .settings import NODE
from .shipped import REPOSITORY

RIGHTS = REPOSITORY / "deploy" / "kustomize" / "components" / "dra" / "dra.yaml"
"""Service account, ClusterRole and admission policy; the chart renders the same."""

STATUS_RIGHTS = RIGHTS.parent.parent / "dra-status" / "dra-status.yaml"
"""The further rights for the status of devices in claims."""

POD_NAME = "driver"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": POD_NAME, "namespace": NAME},
    "spec": {
        "nodeName": NODE,
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "none", "image": "none", "imagePullPolicy": "Never"}],
    },
}
"""Its token names the node, as that of the DaemonSet's pod does; devhost itself runs as a process."""


class Access:
    """While entered, the driver's kubeconfig has the shipped rights, or those that are given."""

    def __init__(self, cluster: Cluster, rights: str = "") -> None:
        self._cluster = cluster
        self._manifests = f"{rights or RIGHTS.read_text()}\n---\n{yaml.safe_dump(POD)}"

    def __enter__(self) -> Access:
        kubectl = self._cluster.kubectl
        kubectl.apply(NAMESPACE)
        kubectl.apply(self._manifests)
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={POD_NAME}")
        token = kubectl.run("create", "token", NAME, f"--namespace={NAME}", *bound)
        self._cluster.grant_driver(token.strip())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.kubectl.delete(self._manifests)
