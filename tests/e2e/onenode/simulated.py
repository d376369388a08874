"""Nodes without a kubelet, which make a cluster as large as one with hundreds of nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from threading import Event, Thread
from types import TracebackType

from .api import Api, ApiError, Json

NODES = "/api/v1/nodes"
LABEL = "devhost.test/simulated"

HEARTBEAT = 15.0
"""Seconds; after 50 without one, the controller manager takes a node for lost."""

PAUSE = 1.0

ROOM = {"cpu": "8", "memory": "64Gi", "pods": "110"}
"""The capacity of a node."""


class Simulated:
    """Nodes that exist while entered. They report the pods on them as ready, and end those that are deleted.

    Args:
        nodes: names, with the labels of each.
        namespace: of the pods.
    """

    def __init__(self, api: Api, nodes: Mapping[str, Mapping[str, str]], namespace: str) -> None:
        self._api = api
        self._nodes = nodes
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._failures: list[str] = []
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Simulated:
        for name, labels in self._nodes.items():
            status = {"conditions": [_ready()], "allocatable": ROOM, "capacity": ROOM}
            metadata = {"name": name, "labels": {**labels, LABEL: ""}}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
            self._api.post(NODES, node)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._api.call("DELETE", f"{NODES}?labelSelector={LABEL}")
        assert not self._failures, self._failures

    def _run(self) -> None:
        beat = time.monotonic()
        try:
            while not self._ended.wait(PAUSE):
                if time.monotonic() - beat > HEARTBEAT:
                    beat = time.monotonic()
                    for name in self._nodes:
                        patch = {"status": {"conditions": [_ready()]}}
                        self._api.call("PATCH", f"{NODES}/{name}/status", patch)
                for pod in self._api.get(self._pods)["items"]:
                    if pod["spec"].get("nodeName") in self._nodes:
                        self._follow(pod)
        except (ApiError, OSError, HTTPException) as failure:
            self._failures.append(repr(failure))

    def _follow(self, pod: Json) -> None:
        path = f"{self._pods}/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            self._api.delete(path, gracePeriodSeconds=0)
        elif pod["status"]["phase"] == "Pending":
            ready = {"type": "Ready", "status": "True"}
            patch = {"status": {"phase": "Running", "conditions": [ready]}}
            self._api.call("PATCH", f"{path}/status", patch)


def _ready() -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": now}
