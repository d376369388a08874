"""What both sides of a node offered at every instant, from the API server's own history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.client import HTTPException
from threading import Event, Thread
from types import TracebackType
from typing import NamedTuple

from .api import Api, ApiError, Json
from .settings import NODE

NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
OPEN = 3
"""Seconds for which the API server keeps one request of changes open."""


class Instant(NamedTuple):
    """The state after one write: what the Node offers of the resource, and the devices in slices."""

    version: int
    allocatable: int
    devices: frozenset[str]


class _Change(NamedTuple):
    version: int
    kind: str
    name: str
    object: Json | None


class History:
    """Collects every write of Nodes and ResourceSlices while entered.

    Versions are those of one etcd for all objects, so that they order the writes of both kinds exactly:
    nothing is missed between two looks, and nothing depends on what is looked at first.

    Args:
        resource: the extended resource that the Node is asked for.
        driver: whose slices count.
    """

    def __init__(self, api: Api, resource: str, driver: str) -> None:
        self._api = api
        self._resource = resource
        self._driver = driver
        self._changes: list[_Change] = []
        self._failures: list[str] = []
        self._ended = Event()
        self._threads = [Thread(target=self._collect, args=(path,), daemon=True) for path in (NODES, SLICES)]

    def __enter__(self) -> History:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def instants(self, node: str = NODE) -> Sequence[Instant]:
        """Ends the collection; the states in their order, with what this node offers.

        Raises:
            AssertionError: the API server did not tell everything.
        """
        self.__exit__(None, None, None)
        assert not self._failures, self._failures
        slices, found = dict[str, frozenset[str]](), list[Instant]()
        changes = sorted(self._changes, key=lambda one: one.version)
        offered = {
            one.version: int(one.object["status"].get("allocatable", {}).get(self._resource, 0))
            for one in changes
            if (one.kind, one.name) == (NODES, node) and one.object is not None
        }
        allocatable = next(iter(offered.values()), 0)
        for change in changes:
            if change.kind == NODES:
                allocatable = offered.get(change.version, allocatable)
            elif change.object is None:
                slices.pop(change.name, None)
            else:
                slices[change.name] = _devices(change.object, self._driver)
            found.append(Instant(change.version, allocatable, frozenset[str]().union(*slices.values())))
        return found

    def _collect(self, path: str) -> None:
        try:
            listed = self._api.get(path)
            version = int(listed["metadata"]["resourceVersion"])
            for item in listed["items"]:
                self._changes.append(_Change(version, path, item["metadata"]["name"], item))
            while not self._ended.is_set():
                version = self._follow(path, version)
        except (ApiError, OSError, ValueError, LookupError, HTTPException) as error:
            self._failures.append(f"{path}: {error!r}")

    def _follow(self, path: str, version: int) -> int:
        """Takes the changes after a version; returns the newest one."""
        query = f"?watch=1&resourceVersion={version}&timeoutSeconds={OPEN}"
        for line in self._api.call("GET", path + query).splitlines():
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise LookupError(event["object"].get("message"))
            metadata = event["object"]["metadata"]
            version = int(metadata["resourceVersion"])
            gone = event["type"] == "DELETED"
            self._changes.append(_Change(version, path, metadata["name"], None if gone else event["object"]))
        return version


def _devices(piece: Json, driver: str) -> frozenset[str]:
    """The devices of a slice of the driver."""
    spec = piece["spec"]
    devices = (spec.get("devices") or ()) if spec["driver"] == driver else ()
    return frozenset(device["name"] for device in devices)
