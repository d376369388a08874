"""The metadata files of prepared claims: what containers can read about the devices that they have.

There is one file for each request of a claim (KEP-5304, "DRA device metadata"). The claim's CDI file mounts
it into containers. On the host the files are in the directory of the driver below the kubelet's ``plugins``,
as those of drivers in Go (``kubeletplugin/metadata.go`` in ``k8s.io/dynamic-resource-allocation`` 0.37).

They are written before the CDI file that mounts them, and removed after it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devhost.allocation.claims import ClaimRecord
from devhost.allocation.owned_files import OwnedDirectory, OwnedFiles

CONTAINER_DIRECTORY = "/var/run/kubernetes.io/dra-device-attributes"
"""Where containers find the files (``ContainerDir`` in ``api/metadata/types.go`` of the same module)."""

CLAIMS = "resourceclaims"
"""The directory there for claims that a pod names."""

TEMPLATES = "resourceclaimtemplates"
"""The directory there for claims that are made from a template for a pod."""

DIRECTORY = "dra-device-metadata"
"""The directory of the files below that of the driver."""

VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""Of the API, the newest first; v1alpha1 is what Kubernetes 1.36 and KubeVirt 1.9 read (``api/metadata``)."""

HINT = "--plugins-dir must be a directory that devhost may write to and the container runtime reads"


def place_of(claim: str, pod_claim: str = "") -> str:
    """Where the files of a claim are below :data:`CONTAINER_DIRECTORY`.

    ``pod_claim`` is the name that its pod has for it, if it was made from a template; else empty.
    """
    return f"{TEMPLATES}/{pod_claim}" if pod_claim else f"{CLAIMS}/{claim}"


def container_path(place: str, request: str, driver: str) -> str:
    return f"{CONTAINER_DIRECTORY}/{place}/{request}/{driver}-metadata.json"


def is_metadata(path: str) -> bool:
    return path.startswith(f"{CONTAINER_DIRECTORY}/")


class MetadataDirectory(OwnedDirectory):
    """The files of one driver. Every method may block."""

    mark = "-dra_"

    def name(self, uid: str, request: str) -> str:
        return f"{self.prefix}{uid}_{request}.json"

    def of(self, uid: str) -> Iterator[str]:
        return (name for name in self.names() if self.uid(name) == uid)

    def uid(self, name: str) -> str:
        return name.removeprefix(self.prefix).partition("_")[0]


class MetadataFiles:
    """The metadata files of all claims of this node, by request.

    ``plugins`` has a directory for each driver, with the same path on the host. For ``tag`` see
    :func:`devhost.allocation.owned_files.owner`. Methods that work on files raise ``EnvironmentFailure`` if
    permission is denied, or the directory is full or hangs.
    """

    def __init__(self, plugins: Path, tag: str = "") -> None:
        self._plugins = plugins
        self._files = OwnedFiles(MetadataDirectory, None, "dra-metadata", HINT, tag)
        self._known: dict[tuple[str, str], Mapping[str, bytes]] = {}
        """By driver and uid."""

    def path(self, driver: str, uid: str, request: str) -> Path:
        place = self._of(driver)
        return place.directory / place.name(uid, request)

    def directory(self, driver: str) -> Path:
        """Where the files of a driver are."""
        return self._of(driver).directory

    def known(self, driver: str, uid: str) -> Mapping[str, bytes]:
        """What the files of a claim contain, by request, as this process wrote or read them."""
        return self._known.get((driver, uid), {})

    async def read(self, driver: str, uid: str, requests: Collection[str]) -> None:
        """Reads the files of a claim; of one that is missing, the content is what it was until now."""
        place = self._of(driver)
        found = await self._files.run(f"read {place.directory}", _read, place, uid, requests)
        before = self.known(driver, uid)
        self._known[driver, uid] = {one: before[one] for one in requests if one in before} | found

    async def write(self, driver: str, uid: str, contents: Mapping[str, bytes]) -> bool:
        """Makes the files of a claim contain this; true if one of them contained something else."""
        if not contents:
            return False
        place = self._of(driver)
        what = f"write {place.directory / place.name(uid, next(iter(contents)))}"
        changed = await self._files.run(what, _write, place, uid, contents)
        self._known[driver, uid] = dict(contents)
        return changed

    async def remove(self, driver: str, uid: str) -> None:
        """Removes the files that a claim has of a driver, if there are any; of all drivers if it is empty."""
        await self._files.run(f"remove metadata below {self._plugins}", self._remove, driver, uid)
        self._known.pop((driver, uid), None)

    async def remove_orphans(self, claims: Collection[str]) -> None:
        """Removes files of all other claims. A file that another process may have just written stays."""
        await self._files.run(f"read {self._plugins}", self._remove_orphans, claims)

    def close(self) -> None:
        self._files.close()

    def _of(self, driver: str) -> MetadataDirectory:
        return self._files.of(self._plugins / driver / DIRECTORY)

    def _all(self) -> Iterator[MetadataDirectory]:
        return (self._of(found.parent.name) for found in self._plugins.glob(f"*/{DIRECTORY}"))

    def _remove(self, driver: str, uid: str) -> None:
        for place in (self._of(driver),) if driver else self._all():
            for name in place.of(uid):
                place.remove_file(name)

    def _remove_orphans(self, claims: Collection[str]) -> None:
        for place in self._all():
            place.remove_unfinished()
            for name in place.names():
                if place.uid(name) not in claims and place.is_settled(name):
                    place.remove_file(name)


def _read(place: MetadataDirectory, uid: str, requests: Iterable[str]) -> dict[str, bytes]:
    found = {}
    for request in requests:
        with suppress(OSError):  # it is written again
            if data := place.read_file(place.name(uid, request)):
                found[request] = data
    return found


def _write(place: MetadataDirectory, uid: str, contents: Mapping[str, bytes]) -> bool:
    return any([place.write_file(place.name(uid, request), data) for request, data in contents.items()])


def contents(
    record: ClaimRecord, attributes: Sequence[Mapping[str, Any] | None], before: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The content of the metadata file of each request of a claim.

    A file is a stream of JSON objects with the same content, one for each of :data:`VERSIONS`.
    ``attributes`` are those of each device in the terms of a ResourceSlice, ``None`` for one that is not
    known: the content of a request with such a device stays as ``before``.
    """
    found: dict[str, bytes] = {}
    for request in record.requests:
        members = [
            (one, has) for one, has in zip(record.devices, attributes, strict=True) if one.base == request
        ]
        old = before.get(request, b"")
        if old and any(has is None for _, has in members):
            found[request] = old
            continue
        described: dict[str, list[dict[str, Any]]] = {}
        for one, has in members:
            device: dict[str, Any] = {"driver": record.driver, "pool": one.pool, "name": one.device}
            described.setdefault(one.request, []).append(
                device if has is None else {**device, "attributes": has}
            )
        found[request] = _renewed(record, described, old)
    return found


def _renewed(record: ClaimRecord, requests: Mapping[str, Sequence[Any]], old: bytes) -> bytes:
    """The new content: the old one if nothing else has changed, else of the next generation."""
    generation = _generation(old)
    same = _stream(record, requests, generation)
    return same if same == old else _stream(record, requests, generation + 1)


def _generation(content: bytes) -> int:
    """The generation of a content; 0 if it has none."""
    try:
        first, _ = json.JSONDecoder().raw_decode(content.decode())
        return int(first["metadata"]["generation"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def _stream(record: ClaimRecord, requests: Mapping[str, Sequence[Any]], generation: int) -> bytes:
    claim = record.claim
    content: dict[str, Any] = {
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "uid": claim.uid,
            "generation": generation,
        }
    }
    kind, _, name = record.metadata.partition("/")
    if kind == TEMPLATES:
        content["podClaimName"] = name
    content["requests"] = [{"name": name, "devices": devices} for name, devices in requests.items()]
    objects = ({"kind": "DeviceMetadata", "apiVersion": version, **content} for version in VERSIONS)
    return "".join(f"{json.dumps(one)}\n" for one in objects).encode()
