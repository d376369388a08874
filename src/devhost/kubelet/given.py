"""Keeps what is known of the nodes that containers were given: reads the sources, looks at the nodes, logs.

:mod:`devhost.allocation.given` decides. Everything that may block runs on a thread with a deadline. A source
that cannot be used refuses nothing and is logged once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from devhost.allocation.allocations import Allocations
from devhost.allocation.allocator import Allocator
from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.given import Difference, Gift, Node, Token, may_be_node
from devhost.allocation.given_record import GivenRecord, Recorded
from devhost.backend.errors import DAMAGED, AllocationError, BackendError, DevhostError
from devhost.backend.files import read_regular
from devhost.backend.model import ClaimHolder
from devhost.backend.sysfs import node_number, prefix_of
from devhost.planning.claims import Key, holder_field
from devhost.planning.plan import Found
from devhost.planning.settings import Settings
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler, Report
from devhost.runtime.tasks import Failing
from devhost.runtime.worker import STATE_HINT, FileWorker

from .api import CHECKPOINT
from .api.api_pb2 import ContainerAllocateResponse

log = get(__name__)

Differences = Mapping[tuple[str, Key], Difference]

NAMED = 20
"""Most differences that are logged when several begin together."""


class GivenKeeper:
    """Follows what containers were given, from :meth:`read` on.

    ``allocators`` are those of the resources that are served, ``found`` the devices of each backend,
    ``listed`` the backends that have listed theirs. ``kubelet`` is the kubelet's device plugin directory,
    ``root`` the directory in which devices are found.
    ``replan`` is called when other devices are held, or other containers have something wrong.
    """

    def __init__(
        self,
        allocations: Allocations,
        allocators: Callable[[], Mapping[str, Allocator]],
        found: Callable[[], Found],
        listed: Callable[[], Collection[str]],
        kubelet: Path,
        record: GivenRecord,
        files: ClaimFiles,
        root: Path,
        replan: Callable[[], None],
        timing: KubeletTiming = KUBELET,
    ) -> None:
        self._allocations = allocations
        self._given = allocations.given
        self._allocators = allocators
        self._found = found
        self._listed = listed
        self._checkpoint = kubelet / CHECKPOINT
        self._record = record
        self.file = record.file
        self._files = files
        self._prefix = prefix_of(root)
        self._replan = replan
        self._check = timing.given
        self._seen: Signature | None = None
        """The checkpoint that was read last."""
        self._sources = {
            source: FailureLog(
                log, "what containers were given is not known", "it is known again", source=source
            )
            for source in ("the kubelet's checkpoint", "record", "nodes")
        }
        self._unwritten = FailureLog(
            log,
            "what containers were given is not recorded",
            "what containers were given is recorded again",
            changed=replan,
            file=record.file,
        )
        self._worker = FileWorker("given", "")
        self._loop = Reconciler(self._pass, first=0.0, settle=timing.given_soon)
        self._given.changed = Report(self._loop.wake)

    @property
    def unrecorded(self) -> Failing | None:
        """Why the record cannot be written; ``None`` while a restart would miss nothing."""
        return self._unwritten.failing if self._given.tokens or self._given.claims else None

    async def read(self) -> None:
        """Reads what earlier runs and the kubelet know. Call it before the first plan."""
        await self._read_checkpoint()
        try:
            recorded = await self._worker.file("read the record", self._record.read)
        except DevhostError as error:
            self._sources["record"].failed(str(error))
            recorded = Recorded()
        self._given.recall(recorded.tokens, recorded.claims)

    async def prepare(self, settings: Settings) -> None:
        """Takes the files of claims, and looks at the nodes, once devices and holders are known."""
        for uid in self._files.records.keys() - self._given.claims.keys():
            nodes = tuple(Node(path, number) for path, number in self._files.nodes(uid))
            self._given.claims[uid] = Gift(nodes, frozenset({uid}))
        self._allocations.observe(self._found(), settings)
        await self.look()

    async def run(self) -> None:
        await self._loop.run()

    def follow(self, before: Differences, now: Differences) -> None:
        """Logs the differences that have begun or ended, and looks at the nodes."""
        new = [
            one
            for one, difference in now.items()
            if one not in before or before[one].reason != difference.reason
        ]
        for resource, key in new[:NAMED]:
            difference = now[resource, key]
            log.warning(
                "a container has another device than it was given",
                resource=resource,
                device=key[1],
                reason=difference.reason,
                **holder_field(difference.held_by),
            )
        if len(new) > NAMED:
            log.warning("containers have more devices that they were not given", devices=len(new) - NAMED)
        over = [one for one in before if one not in now]
        for resource, key in over[:NAMED]:
            log.info("no container has another device than it was given", resource=resource, device=key[1])
        if len(over) > NAMED:
            log.info("more containers have what they were given", devices=len(over) - NAMED)
        if now.keys() != before.keys() or self._unknown():
            self._loop.wake()

    async def check(self, resource: str, tokens: Sequence[str]) -> None:
        """See :data:`devhost.allocation.allocator.StartCheck`."""
        await self.look()
        found = self._found()
        self._allocations.compare(found)
        allocations = self._allocations.of(resource)
        listed = self._listed()
        for token in tokens:
            gift = self._given.of_token((resource, token), allocations.leases.holder(token))
            for key in sorted(allocations.devices_of(token)):
                difference = self._given.differences.get((resource, key))
                mine = difference is not None and token in difference.tokens
                if mine and difference is not None and not difference.restarts:
                    raise AllocationError(f"{resource}: {difference.reason}")
                if gift is not None and key[0] in listed and key[1] not in found[key[0]]:
                    raise AllocationError(f"{resource}: the container cannot start: {key[1]} is gone")
        if self._given.started(resource, tokens, found):
            self._replan()

    async def look(self) -> None:
        """Looks at the nodes that containers were given. Never fails, only logs."""
        found = self._found()
        await self._ask(found)
        paths = self._given.paths(found)
        if not paths:
            self._given.numbers = {}
            return
        try:
            numbers = await self._worker.file("look at device nodes", self._numbers, paths)
        except DevhostError as error:
            self._sources["nodes"].failed(str(error))
            return
        self._sources["nodes"].succeeded()
        self._given.numbers = numbers

    def close(self) -> None:
        self._worker.close()

    async def _pass(self) -> float | None:
        given, allocations = self._given, self._allocations
        if self._unknown() or not all(allocations.is_held(*token) for token in given.tokens):
            await self._read_checkpoint()
        if allocations.known:
            claims = {one.holder.uid for one in allocations.held() if isinstance(one.holder, ClaimHolder)}
            given.keep(lambda token: allocations.is_held(*token), claims)
        await self.look()
        before = given.differences, given.strays
        given.fill()
        if allocations.compare(self._found()) or (given.differences, given.strays) != before:
            self._replan()
        await self._write()
        return self._check if self._given.tokens or self._given.claims else None

    async def _ask(self, found: Found) -> None:
        """Asks for the nodes of held devices that claim none."""
        asked: dict[Key, frozenset[str]] = {}
        allocators = self._allocators()
        for one in self._allocations.held():
            allocator = allocators.get(one.resource)
            device = found.get(one.key[0], {}).get(one.key[1])
            if allocator is None or device is None or one.key in asked:
                continue
            if not self._given.must_ask(one, device):
                continue
            try:
                asked[one.key] = await allocator.nodes(device)
            except BackendError:
                if one.key in self._given.asked:
                    asked[one.key] = self._given.asked[one.key]
        self._given.asked = asked

    def _numbers(self, paths: set[str]) -> dict[str, str | None]:
        """Runs on the thread."""
        found: dict[str, str | None] = {}
        for path in paths:
            place = f"{self._prefix}{path}"
            found[path] = node_number(place) if Path(place).exists() else None
        return found

    def _unknown(self) -> bool:
        """Whether a container holds a token of which nothing is known; it may be of another devhost."""
        allocators = self._allocators()
        return any(
            (held.resource, token) not in self._given.tokens and held.leases.holder(token) is not None
            for held in self._allocations.in_use()
            if held.resource in allocators
            for token in held.tokens()
        )

    async def _read_checkpoint(self) -> None:
        source = self._sources["the kubelet's checkpoint"]
        try:
            found = await self._worker.file("read the kubelet's checkpoint", self._changed_checkpoint)
        except DevhostError as error:
            source.failed(str(error))
            return
        source.succeeded()
        if found is not None:
            self._given.checkpointed = found

    def _changed_checkpoint(self) -> Mapping[Token, Sequence[Gift]] | None:
        """What is in the checkpoint, ``None`` if it has been read. Runs on the thread."""
        now = signature(self._checkpoint)
        if now == self._seen:
            return None
        answers = read_checkpoint(self._checkpoint)
        self._seen = now
        return answers

    async def _write(self) -> None:
        if self.file is None:
            return
        given = self._given
        try:
            await self._worker.file(f"write {self.file}", self._record.write, given.tokens, given.claims)
        except DevhostError as error:
            self._unwritten.failed(str(error) if error.hint else f"{error} ({STATE_HINT})")
        else:
            self._unwritten.succeeded()


MAX_BYTES = 16 << 20
"""A larger file is not read: reading would hold up the event loop. Most have a few kB."""

Signature = tuple[int, int, int]
"""Differs once the file has been replaced."""


class Unusable(DevhostError):
    """The checkpoint cannot be used; the message is the reason."""


def signature(path: Path) -> Signature | None:
    """Identifies the content; ``None`` if there is no file. May block."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_checkpoint(path: Path) -> dict[Token, list[Gift]]:
    """What containers were given by each token; nothing if there is no file. Raises ``Unusable``. May block.

    A gift has the paths of nodes, given or mounted, or CDI names if there are no paths.

    The kubelet keeps the answer of each Allocate in ``kubelet_internal_checkpoint`` beside the plugins'
    sockets, and repeats it whenever a container starts (``pkg/kubelet/cm/devicemanager/checkpoint``). The
    file is JSON:

    * ``Data.PodDeviceEntries``, a list or ``null``; each entry has ``PodUID``, ``ContainerName``,
      ``ResourceName``, ``DeviceIDs`` and ``AllocResp``;
    * ``DeviceIDs`` has lists by NUMA node; up to Kubernetes 1.19 it was one list, which kubelets up to 1.26
      still read;
    * ``AllocResp`` is a serialized ``ContainerAllocateResponse`` in base64, or ``null``;
    * beside ``Data`` a checksum over a dump of Go's data structures, which nothing else can compute, and in
      newer kubelets the id of the boot.

    The kubelet replaces the file atomically. It has entries of ended pods, until the next admission.
    """
    try:
        data = read_regular(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise Unusable(str(error)) from None
    try:
        return _gifts(json.loads(data)["Data"]["PodDeviceEntries"] or ())
    except (*DAMAGED, DecodeError):
        raise Unusable(f"{path} is not a kubelet's checkpoint, or damaged") from None


def _gifts(entries: Any) -> dict[Token, list[Gift]]:
    found: dict[Token, list[Gift]] = {}
    for entry in entries:
        ids = entry["DeviceIDs"] or ()
        lists = ids.values() if isinstance(ids, dict) else (ids,)
        answer = ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"] or ""))
        paths = [device.host_path for device in answer.devices]
        paths += [mount.host_path for mount in answer.mounts if may_be_node(mount.host_path)]
        names = () if paths else (device.name for device in answer.cdi_devices)
        gift = Gift(tuple(map(Node, paths)), frozenset(names), _text(entry["ContainerName"]))
        resource = _text(entry["ResourceName"])
        for token in (token for some in lists for token in some or ()):
            found.setdefault((resource, _text(token)), []).append(gift)
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
