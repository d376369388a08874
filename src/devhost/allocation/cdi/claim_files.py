"""The CDI specifications of prepared claims: one file for each, which is also the record of the claim.

A file has one CDI device for each device of the claim, and one that no container is given: its variables,
``DEVHOST_CLAIM_…``, name the claim, the requests and the devices, so that the file can be read back after a
restart without the API server. (Files of earlier versions have these variables in the CDI devices
themselves.) There is no second record that could disagree: writing the file prepares the claim, and removing
it releases the claim.

A file of an earlier boot counts as absent, because the state of its devices ended with that boot. Files carry
the id of the boot instead of relying on their time: a clock that is set after the boot would make new files
look old.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from devhost.allocation.claims import ClaimedDevice, ClaimRecord
from devhost.allocation.given_record import BOOT_ID
from devhost.allocation.owned_files import OwnedDirectory, OwnedFiles
from devhost.backend.errors import DAMAGED, EnvironmentFailure
from devhost.backend.files import make_directory
from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import ClaimHolder
from devhost.discovery.runner import BackendRunner
from devhost.planning.amounts import CapacityUse
from devhost.runtime.log import get
from devhost.runtime.worker import FILE_DEADLINE

from . import spec
from .claim_metadata import MetadataFiles, container_path, is_metadata
from .files import HINT
from .spec import ContainerEdits, Seen, outdated

log = get(__name__)

VARIABLE = "DEVHOST_CLAIM_"
"""The beginning of the variables that make a file the record of its claim."""

NOTHING = "DEVHOST=1"
"""What a CDI device sets that gives nothing: one without any edits would make the whole file invalid."""

_TRIED = 64 << 10
"""Bytes that must fit into a directory for it to count as writable; files of claims have a few thousand."""

_RECORD = "record-"
"""The beginning of the name of the CDI device that is only the record; the claim's uid follows."""

NO_FILES: Mapping[str, Any] = MappingProxyType({})
"""For a claim without metadata files."""

_UID = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?")
_SAFE = "/:.,@+-_*"
_SAFE_IN_LIST = _SAFE.replace(",", "")
_NO_WORD = re.compile(r"[^A-Z0-9]")


def is_uid(text: str) -> bool:
    """Whether a text can be the uid of a claim, and so a part of a file's name."""
    return _UID.fullmatch(text) is not None


def device_name(uid: str, request: str, number: int) -> str:
    """The CDI name of a device of a claim; ``number`` counts the devices of the request."""
    return f"{uid}-{request}-{number}"


def set_name(uid: str, request: str, number: int) -> str:
    """The CDI name of what a backend grants for several devices of a request; ``number`` is from 1."""
    return f"{uid}-{request}-set{number if number > 1 else ''}"


def document(
    record: ClaimRecord, edits: Mapping[str, ContainerEdits], boot: str, host: Mapping[str, Path] = NO_FILES
) -> dict[str, Any]:
    """The specification of a claim, in which each CDI name adds these edits to a container.

    ``host`` has the metadata file of each request.
    """
    content = {name: dict(edit) for name, edit in edits.items()}
    variables = []
    for number, device in enumerate(record.devices):
        name = device.cdi_ids[0].rpartition("=")[2]
        variable = f"{VARIABLE}{_NO_WORD.sub('_', name.upper())}"
        variables.append(f"{variable}={_value(record, device, number, boot)} name={name}")
        content.setdefault(name, {})
    for request, path in host.items():
        name = record.requests[request].cdi_ids[0].rpartition("=")[2]
        target = container_path(record.metadata, request, record.driver)
        mount = {"hostPath": str(path), "containerPath": target, "options": ["rbind", "rprivate", "ro"]}
        content[name]["mounts"] = [*content[name].get("mounts", ()), mount]
    content = {name: edit or {"env": [NOTHING]} for name, edit in content.items()}
    content[f"{_RECORD}{record.claim.uid}"] = {"env": variables}
    return spec.document(spec.claim_kind(record.driver), content)


def _value(record: ClaimRecord, device: ClaimedDevice, number: int, boot: str) -> str:
    claim = record.claim
    words = [
        device.request,
        f"{device.pool}/{device.device}",
        device.share or "-",
        f"claim={quote(f'{claim.namespace}/{claim.name}', _SAFE)}",
        f"resource={quote(device.resource, _SAFE)}",
        f"id={quote(f'{device.key[0]}/{device.key[1]}', _SAFE)}",
        f"driver={record.driver}",
        f"replicas={device.replicas}",
        f"slots={device.slots}",
        f"n={number}",
        f"of={len(record.devices)}",
        f"boot={boot}",
    ]
    if len(device.cdi_ids) > 1:
        words.append(f"also={','.join(quote(name, _SAFE_IN_LIST) for name in device.cdi_ids[1:])}")
    if device.members:
        words.append(f"members={','.join(quote(name, _SAFE_IN_LIST) for name in device.members)}")
    if device.parts:
        parts = (f"{part.name}:{part.amount}/{part.total}" for part in device.parts)
        words.append(f"consumed={','.join(parts)}")
    if record.metadata:
        words.append(f"metadata={quote(record.metadata, _SAFE)}")
    words += ["admin"] * device.admin
    words += ["exclusive"] * device.exclusive
    return " ".join(words)


def parsed(data: bytes, uid: str) -> tuple[ClaimRecord, str] | None:
    """The record in a file's content, and the boot it is of; ``None`` if it is no record of this claim."""
    try:
        found = json.loads(data)
        kind = str(found["kind"])
        present = {str(device["name"]) for device in found["devices"]}
        records = sorted(
            (
                _parsed_value(kind, str(device["name"]), variable)
                for device in found["devices"]
                for variable in device["containerEdits"].get("env", ())
                if str(variable).startswith(VARIABLE)
            ),
            key=lambda one: one.number,
        )
        _edits_in(found)
        nodes_of(device["containerEdits"] for device in found["devices"])
    except DAMAGED:
        return None
    if not records or any(one.name not in present or not one.name.startswith(f"{uid}-") for one in records):
        return None
    first = records[0]
    if [one.number for one in records] != list(range(first.count)):
        return None
    if any(one.common != first.common for one in records):
        return None
    namespace, name, driver, metadata, boot = first.common
    devices = tuple(one.device for one in records)
    return ClaimRecord(ClaimHolder(namespace, name, uid), driver, devices, metadata), boot


@frozen(slots=True)
class _Parsed:
    """A device of a file. ``common`` are the claim's namespace and name, its driver, metadata and boot."""

    name: str
    number: int
    count: int
    common: tuple[str, str, str, str, str]
    device: ClaimedDevice


def _parsed_value(kind: str, name: str, variable: str) -> _Parsed:
    """One device of a file; any exception that :func:`parsed` handles if it is none."""
    request, place, share, *rest = variable.partition("=")[2].split(" ")
    flags = {word for word in rest if "=" not in word}
    given = dict(word.split("=", 1) for word in rest if "=" in word)
    pool, _, device = place.rpartition("/")
    namespace, _, claim = unquote(given["claim"]).partition("/")
    backend, _, identity = unquote(given["id"]).partition("/")
    resource = unquote(given["resource"])
    if not all((request, pool, device, namespace, claim, backend, identity, resource, given["driver"])):
        raise ValueError(variable)
    also = tuple(map(unquote, given["also"].split(","))) if "also" in given else ()
    recorded = ClaimedDevice(
        request,
        pool,
        device,
        "" if share == "-" else share,
        (backend, identity),
        resource,
        (f"{kind}={given.get('name', name)}", *also),
        "admin" in flags,
        max(1, int(given["replicas"])),
        "exclusive" in flags,
        max(1, int(given.get("slots", 1))),
        tuple(map(unquote, filter(None, given.get("members", "").split(",")))),
        tuple(map(_part, given["consumed"].split(","))) if "consumed" in given else (),
    )
    return _Parsed(
        given.get("name", name),
        int(given["n"]),
        int(given["of"]),
        (namespace, claim, given["driver"], unquote(given.get("metadata", "")), given["boot"]),
        recorded,
    )


def _part(text: str) -> CapacityUse:
    name, _, amounts = text.partition(":")
    amount, _, total = amounts.partition("/")
    return CapacityUse(name, int(amount), int(total))


class ClaimDirectory(OwnedDirectory):
    """The files of claims in one directory. Every method may block.

    Their names begin differently from those of other specifications, so that neither removes the other's.
    A claim has one file, and for devices of further DRA drivers one each, with the driver in its name.
    """

    mark = "-dra_"

    def name(self, uid: str, driver: str = "") -> str:
        return f"{self.prefix}{uid}_{driver}.json" if driver else f"{self.prefix}{uid}.json"

    def files(self) -> Iterator[tuple[str, str]]:
        """The names of the files, each with the uid of its claim."""
        for name in self.names():
            uid = name.removeprefix(self.prefix).removesuffix(".json").partition("_")[0]
            if name.endswith(".json") and is_uid(uid):
                yield name, uid

    def uids(self) -> list[str]:
        return [uid for _, uid in self.files()]


class _Write:
    """A write that may finish after nothing waits for it any longer: then it removes what it wrote."""

    def __init__(self, place: ClaimDirectory, name: str, data: bytes) -> None:
        self._place = place
        self._name = name
        self._data = data
        self._lock = threading.Lock()
        self._revoked = False
        self.finished = False

    def run(self) -> None:
        try:
            if not self._revoked:
                self._place.write_file(self._name, self._data)
        finally:
            with self._lock:
                self.finished = True
                if self._revoked:
                    with suppress(OSError):
                        self._place.remove_file(self._name)

    def revoke(self) -> bool:
        """Nothing waits for it any longer; true if it has finished, so that its file must be removed."""
        with self._lock:
            self._revoked = True
            return self.finished


@mutable(slots=True)
class _ClaimFile:
    """A file as this process wrote or read it."""

    place: ClaimDirectory
    name: str
    data: bytes
    record: ClaimRecord = field(repr=False)


class PreparedClaim(NamedTuple):
    """A claim that is prepared, and its file."""

    record: ClaimRecord
    directory: Path
    file: str

    @property
    def path(self) -> Path:
        return self.directory / self.file


class ClaimFiles:
    """The files of the claims of one devhost.

    ``directory`` is made when first needed; the container runtime reads it. For ``tag`` see
    :func:`devhost.allocation.owned_files.owner`. One file operation may take ``deadline`` seconds.
    ``boot_id`` is a file with the id of this boot. ``metadata`` has the metadata files of claims; without it
    no claim can have any. Methods that work on files raise ``EnvironmentFailure`` if permission is denied, or
    the directory is full or hangs.

    :meth:`of` has those of one DRA driver: a claim with devices of several has a file of each.
    """

    def __init__(
        self,
        directory: Path,
        tag: str = "",
        deadline: float = FILE_DEADLINE,
        boot_id: Path = BOOT_ID,
        metadata: MetadataFiles | None = None,
    ) -> None:
        self._files = OwnedFiles(ClaimDirectory, directory, "cdi-claims", HINT, tag, deadline)
        self._metadata = metadata
        self._driver = ""
        self._drivers: dict[str, ClaimFiles] = {}
        self._first: dict[str, str] = {}
        """The driver whose file has the name without a driver, by the claim's uid."""
        self._all: Sequence[_ClaimFile] = ()
        """What was read last, of every driver."""
        self._known: dict[str, _ClaimFile] = {}
        self._boot_id = boot_id
        self._boot = ""
        """The id of this boot, once it has been read."""
        self.records: dict[str, ClaimRecord] = {}
        """What this process has written or read and not removed, by uid; it follows changes."""
        self.devices: Counter[tuple[str, str]] = Counter()
        """How often each device, a pool and a name, is in a record; those that are in none are absent."""
        self._now: Mapping[str, PreparedClaim] | None = None
        """What :meth:`now` gives; ``None`` once that has changed."""
        self._hanging: dict[str, _Write] = {}
        self.unwritten = ""
        """Why the last claim could not be prepared, as far as files are the reason; else empty."""
        self._with_metadata = False
        """Whether it needed metadata files."""

    def now(self) -> Mapping[str, PreparedClaim]:
        """The claims of :attr:`records` with their files: the same value until they change."""
        if self._now is None:
            self._now = {
                uid: PreparedClaim(one.record, one.place.directory, one.name)
                for uid, one in self._known.items()
            }
        return self._now

    def of(self, driver: str) -> ClaimFiles:
        """The files of the claims of one driver, which begin with what was read last."""
        if driver not in self._drivers:
            found = self._drivers[driver] = copy(self)
            found._driver, found._hanging, found._now = driver, {}, None
            found._known, found.records, found.devices = {}, {}, Counter()
            for one in self._all:
                if one.record.driver == driver:
                    found._keep(one)
        return self._drivers[driver]

    def _keep(self, known: _ClaimFile) -> None:
        """Takes a file in place of that of the same claim."""
        uid = known.record.claim.uid
        self._drop(uid)
        self._known[uid], self.records[uid], self._now = known, known.record, None
        self.devices.update((one.pool, one.device) for one in known.record.devices)

    def _drop(self, uid: str) -> None:
        """Forgets the file of a claim, if there is one."""
        self._known.pop(uid, None)
        self._now = None
        record = self.records.pop(uid, None)
        for one in record.devices if record else ():
            place = one.pool, one.device
            self.devices[place] -= 1
            if not self.devices[place]:
                del self.devices[place]

    @property
    def drivers(self) -> Collection[str]:
        """The drivers whose files were asked for."""
        return self._drivers.keys()

    @property
    def _current(self) -> ClaimDirectory:
        assert self._files.current is not None
        return self._files.current

    def _name(self, uid: str) -> str:
        other = self._first.get(uid, self._driver) != self._driver
        return self._current.name(uid, self._driver if other else "")

    def _names(self, place: ClaimDirectory, uid: str) -> Iterator[str]:
        yield place.name(uid)
        if self._driver:
            yield place.name(uid, self._driver)

    def _is_own(self, record: ClaimRecord) -> bool:
        return self._driver in ("", record.driver)

    def move(self, directory: Path) -> None:
        """New files go there from now on; those in earlier directories are still read and removed."""
        self._files.move(directory)

    def nodes(self, uid: str) -> Sequence[tuple[str, str]]:
        """The nodes in a claim's files: their paths on the host, and their numbers (``c188:0``) if known."""
        among = (self._drivers.values() if not self._driver else ()) or (self,)
        data = [one._known[uid].data for one in among if uid in one._known]
        devices = (device for one in data for device in json.loads(one)["devices"])
        return nodes_of(device["containerEdits"] for device in devices)

    async def read_all(self) -> list[ClaimRecord]:
        """The claims that are prepared now. Removes the files of earlier boots, and unfinished ones.

        A file that is no record is left alone: another version of devhost may have written it.
        """
        found: list[_ClaimFile] = []
        for place in self._files.directories:
            found += await self._files.run(f"read {place.directory}", self._read_all, place)
        records = []
        self._all = found
        for known in found:
            if self._is_own(known.record):
                await self._take(known)
                records.append(known.record)
        if self._metadata is not None:
            there = [await self._files.run("read", place.uids) for place in self._files.directories]
            with suppress(EnvironmentFailure):  # the next start tries again
                await self._metadata.remove_orphans({uid for uids in there for uid in uids})
        return records

    async def read_again(self) -> list[ClaimRecord]:
        """The same after another process had the files: what it removed is forgotten."""
        before = dict(self._known)
        records = await self.read_all()
        there = {record.claim.uid for record in records}
        for uid, known in before.items():
            if uid not in there and self._known.get(uid) is known:
                self._drop(uid)
                self._forget(uid)
        return records

    async def read(self, uid: str) -> ClaimRecord | None:
        """The record of a claim; ``None`` if it is not prepared, or was in an earlier boot."""
        for place in self._places(uid):
            what = f"read {place.directory / place.name(uid)}"
            if (known := await self._files.run(what, self._read, place, uid)) is not None:
                await self._take(known)
                return known.record
        return None

    async def _take(self, known: _ClaimFile) -> None:
        record = known.record
        if self._metadata is not None and record.metadata:
            await self._metadata.read(record.driver, record.claim.uid, record.requests)
        self._keep(known)
        if known.name == known.place.name(record.claim.uid):
            self._first[record.claim.uid] = record.driver

    async def write(
        self,
        record: ClaimRecord,
        edits: Mapping[str, ContainerEdits],
        metadata: Mapping[str, bytes] = NO_FILES,
    ) -> None:
        """Makes a claim prepared: its file is on the disk when this returns.

        If it raises, also because it was cancelled, there is no file, at the latest when a write that hangs
        has ended. ``edits`` has what each CDI name adds to a container, without the variables of the record;
        ``metadata`` is the content of the metadata file of each request.
        """
        uid = record.claim.uid
        place = self._current
        path = place.directory / self._name(uid)
        self._hanging = {one: write for one, write in self._hanging.items() if not write.finished}
        if uid in self._hanging:
            raise EnvironmentFailure(f"cannot write {path}: an earlier write still hangs")
        if path.name == place.name(uid):
            self._first[uid] = self._driver
        data = await self._document(record, edits)
        try:
            await self._write_metadata(record, metadata)
            await self._write(uid, place, path, data)
        except BaseException as error:
            if isinstance(error, EnvironmentFailure):
                self.unwritten, self._with_metadata = str(error), bool(record.metadata)
            with suppress(EnvironmentFailure):
                await self._remove_metadata(uid, record)
            raise
        self.unwritten = ""
        self._keep(_ClaimFile(place, path.name, data, record))

    async def check(self) -> None:
        """Looks whether a claim can be prepared again, if :attr:`unwritten` has a reason."""
        if not self.unwritten:
            return
        directories = [self._current.directory]
        if self._with_metadata and self._metadata is not None:
            directories.append(self._metadata.directory(self._driver))
        try:
            for directory in directories:
                await self._files.run(f"write {directory}", _try_to_write, directory)
        except EnvironmentFailure as error:
            self.unwritten = str(error)
        else:
            self.unwritten = ""

    async def _write(self, uid: str, place: ClaimDirectory, path: Path, data: bytes) -> None:
        write = self._hanging[uid] = _Write(place, path.name, data)
        try:
            await self._files.run(f"write {path}", write.run)
        except BaseException:
            if write.revoke():
                with suppress(EnvironmentFailure):
                    await self._files.run(f"remove {path}", place.remove_file, path.name)
            raise

    def edits(self, uid: str) -> dict[str, ContainerEdits]:
        """What each name of a claim's file gives, as this process wrote or read it, without the record."""
        return _edits_in(json.loads(self._known[uid].data)) if uid in self._known else {}

    def metadata(self, uid: str) -> Mapping[str, bytes]:
        """What the metadata files of a claim contain, by request, as far as this process knows."""
        known = self._known.get(uid)
        if self._metadata is None or known is None:
            return NO_FILES
        return self._metadata.known(known.record.driver, uid)

    async def rewrite(
        self,
        record: ClaimRecord,
        edits: Mapping[str, ContainerEdits],
        metadata: Mapping[str, bytes] = NO_FILES,
    ) -> bool:
        """Makes the files of a prepared claim give this instead; true if they gave something else.

        If it raises, the file of the claim is what it was.
        """
        known = self._known[record.claim.uid]
        return await self._rewrite(known, await self._document(record, edits), metadata)

    async def _rewrite(self, known: _ClaimFile, data: bytes, metadata: Mapping[str, bytes]) -> bool:
        changed = await self._write_metadata(known.record, metadata)
        path = known.place.directory / known.name
        changed |= await self._files.run(f"write {path}", known.place.write_file, known.name, data)
        known.data = data
        return changed

    async def _document(self, record: ClaimRecord, edits: Mapping[str, ContainerEdits]) -> bytes:
        host: Mapping[str, Path] = NO_FILES
        if self._metadata is not None and record.metadata:
            uid, path = record.claim.uid, self._metadata.path
            host = {request: path(record.driver, uid, request) for request in record.requests}
        return spec.dumps(document(record, edits, await self._this_boot(), host)).encode()

    async def _write_metadata(self, record: ClaimRecord, metadata: Mapping[str, bytes]) -> bool:
        """Makes the metadata files of a claim contain this; true if they contained something else."""
        if self._metadata is None or not record.metadata:
            return False
        return await self._metadata.write(record.driver, record.claim.uid, metadata)

    async def _remove_metadata(self, uid: str, record: ClaimRecord | None) -> None:
        """Removes the metadata files of a claim; one without a record may have some, too."""
        if self._metadata is not None and (record is None or record.metadata):
            await self._metadata.remove(self._driver if record is None else record.driver, uid)

    async def outdated(self, every: Sequence[Seen], runner: BackendRunner) -> Sequence[int]:
        """The numbers of those for which the host of a backend has something else now."""
        where = runner.context.root, runner.existence.exists
        return await self._files.run("look at device nodes", outdated, every, *where)

    async def remove(self, uid: str) -> bool:
        """Removes the file of a claim, if there is one; true if there was."""
        removed = False
        for place in self._places(uid):
            what = f"remove {place.directory / place.name(uid)}"
            removed |= await self._files.run(what, self._remove, place, uid)
        await self._remove_metadata(uid, self.records.get(uid))
        self._drop(uid)
        self._forget(uid)
        return removed

    def _forget(self, uid: str) -> None:
        """A file of the driver is gone."""
        if self._first.get(uid) == self._driver:
            del self._first[uid]

    async def restore(self, uid: str) -> bool:
        """Writes the files of a claim again that have been removed or changed since; true if there were such.

        Nothing is done for a claim that this process has not written or read.
        """
        known = self._known.get(uid)
        return known is not None and await self._rewrite(known, known.data, self.metadata(uid))

    def close(self) -> None:
        self._files.close()
        if self._metadata is not None:
            self._metadata.close()

    async def _this_boot(self) -> str:
        if not self._boot:
            self._boot = await self._files.run(f"read {self._boot_id}", _boot, self._boot_id)
        return self._boot

    def _places(self, uid: str) -> Sequence[ClaimDirectory]:
        """Where a claim's file may be; nowhere for what is no uid."""
        return (self._current, *self._files.former) if is_uid(uid) else ()

    def _read_all(self, place: ClaimDirectory) -> list[_ClaimFile]:
        place.remove_unfinished()
        return list(self._records(place))

    def _records(self, place: ClaimDirectory) -> Iterator[_ClaimFile]:
        for name, uid in place.files():
            try:
                data = place.read_file(name)
            except OSError as error:
                log.warning("a claim file cannot be read", file=name, reason=error.strerror)
                continue
            found = parsed(data, uid)
            if found is None:
                log.warning("a claim file is no record", file=str(place.directory / name))
            elif found[1] != _boot(self._boot_id):
                place.remove_file(name)
                log.info("removed the claim file of an earlier boot", claim=str(found[0].claim), uid=uid)
            else:
                yield _ClaimFile(place, name, data, found[0])

    def _read(self, place: ClaimDirectory, uid: str) -> _ClaimFile | None:
        for name in self._names(place, uid):
            data = place.read_file(name)
            found = parsed(data, uid)
            if found is not None and found[1] == _boot(self._boot_id) and self._is_own(found[0]):
                return _ClaimFile(place, name, data, found[0])
        return None

    def _remove(self, place: ClaimDirectory, uid: str) -> bool:
        removed = False
        for name in self._names(place, uid):
            found = None
            with suppress(OSError):  # a file that cannot be read is no other driver's
                found = parsed(place.read_file(name), uid) if self._driver else None
            if found is None or self._is_own(found[0]):
                removed |= place.remove_file(name)
        return removed


def _boot(path: Path) -> str:
    return quote(path.read_text().strip(), "")


def _try_to_write(directory: Path) -> None:
    """Writes as much as a claim takes to a file without a name."""
    make_directory(directory)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(_TRIED))
        file.flush()
        os.fsync(file.fileno())


def _edits_in(document: Any) -> dict[str, ContainerEdits]:
    """What each name in the content of a file gives, see :meth:`ClaimFiles.edits`."""
    found: dict[str, ContainerEdits] = {}
    for device in document["devices"]:
        if device["name"].startswith(_RECORD):
            continue
        edits = dict(device["containerEdits"])  # keys stay in their order: what is the same is not written
        env, mounts = edits.get("env", ()), edits.get("mounts", ())
        own = {
            "env": [one for one in env if not one.startswith(VARIABLE) and one != NOTHING],
            "mounts": [one for one in mounts if not is_metadata(one["containerPath"])],
        }
        found[device["name"]] = {key: kept for key, value in edits.items() if (kept := own.get(key, value))}
    return found


def nodes_of(edits: Iterable[ContainerEdits]) -> list[tuple[str, str]]:
    """The nodes in edits; see :meth:`ClaimFiles.nodes`."""
    found = []
    for one in edits:
        for node in () if spec.is_withheld(one) else one.get("deviceNodes", ()):
            numbers = [node[key] for key in ("type", "major", "minor") if key in node]
            number = "{}{}:{}".format(*numbers) if len(numbers) == 3 else ""
            found.append((str(node.get("hostPath", node["path"])), number))
    return found
