"""The condition ``DevicesReady`` of the node, and the startup taints that devhost removes once per boot.

Both are written with patches, so that nothing of the node changes that others write. At the end of the
process the condition stays: pods keep their devices over a restart, and ``lastHeartbeatTime`` shows how old
it is. After a boot, it is ``Unknown`` until the backends have answered.

Writes are bounded. A change is written at once while one of :data:`BURST` permits is left, and a permit
returns after :data:`HEARTBEAT` seconds; without a change, or without a permit, the node is written when the
last write is :data:`HEARTBEAT` seconds old. So no hour has more than 28 writes, however often devices change.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from devhost.allocation.given_record import BOOT_ID, boot
from devhost.backend import trusted
from devhost.backend.backoff import Backoff, TokenBucket
from devhost.backend.errors import DAMAGED, DevhostError, EnvironmentFailure, UsageError, cut_bytes
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen
from devhost.backend.threads import elsewhere
from devhost.dra.answers import Json
from devhost.dra.credentials import from_files
from devhost.dra.kube import KubeApi, Object, Unreachable
from devhost.planning.naming import digest, is_subdomain
from devhost.planning.settings import DraOptions
from devhost.runtime.log import get, printable, utc
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.tables import WAITING, unready

log = get(__name__)

CONDITION = "DevicesReady"

HEARTBEAT = 300.0
"""Seconds after which the condition is written again, and after which a permit for a change returns."""

BURST = 4
"""Changes that are written at once after a quiet period. The last one is kept for a change of the status."""

SETTLE, GAP = 1.0, 5.0
"""Seconds from a change of devhost to a look at it, and from one look to the next."""

PATIENCE = 10.0
"""Seconds that a process has to register everything before the condition of the one before it is changed."""

LONGEST = 1024
"""Bytes of the message."""

_REASONS = 20
"""Entries whose reasons the message may have."""

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VERSION = 1


@frozen
class Taint:
    """A taint to remove; without an effect, each taint with the key."""

    key: str
    effect: str = ""

    def is_one_of(self, taints: Sequence[Taint]) -> bool:
        """Whether a taint of a node is among those to remove."""
        return any(one.key == self.key and one.effect in ("", self.effect) for one in taints)


def startup_taints(text: str) -> tuple[Taint, ...]:
    """The taints that ``--startup-taints`` names: each as ``KEY`` or ``KEY:EFFECT``, separated by commas."""
    found = []
    for one in filter(None, text.split(",")):
        key, colon, effect = one.partition(":")
        if not _KEY.fullmatch(key) or (colon and effect not in _EFFECTS):
            raise UsageError(
                f"--startup-taints: {one[:80]!r} is no taint",
                f"write KEY or KEY:EFFECT; effects are {', '.join(_EFFECTS)}",
            )
        found.append(Taint(key, effect))
    return tuple(found)


@frozen
class State:
    """What the condition reports; ``status`` is empty if the node has no such condition."""

    status: Literal["True", "False", "Unknown", ""] = ""
    reason: str = ""
    message: str = ""


def state_of(document: StatusDocument | None) -> State:
    """What to report of a status document; ``None`` before the first plan."""
    wrong = [("devhost", WAITING)] if document is None else unready(document)
    if not wrong:
        return State("True", "DevicesReady", "pods can request all devices that the configuration asks for")
    if all(reason == WAITING for _, reason in wrong):
        return State("Unknown", "LookingForDevices", _message(wrong))
    return State("False", "DevicesNotReady", _message(wrong))


def _message(wrong: Sequence[tuple[str, str]]) -> str:
    """The first reasons that fit, and the number of the others."""
    texts = [printable(f"{name}: {reason}") for name, reason in wrong[:_REASONS]]
    for count in range(len(texts), 0, -1):
        message = "; ".join(texts[:count]) + _more(len(wrong) - count)
        if len(message.encode()) <= LONGEST:
            return message
    more = _more(len(wrong) - 1)
    return cut_bytes(texts[0], LONGEST - len(more)) + more


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""


@frozen
class Handled:
    """What was done for a node object since a boot: its uid, and whether its startup taints were removed."""

    boot: str = ""
    node: str = ""
    taints: bool = False


class BootRecord:
    """The file with what was done since the boot, for the next process.

    Without a directory, or if the file cannot be used, the next process repeats it.
    """

    def __init__(self, directory: Path | None, node: str, boot_id: Path = BOOT_ID) -> None:
        name = digest(node, 12)
        self.file = None if directory is None else directory.absolute() / f"condition-{name}.json"
        self._boot_id = boot_id

    def boot(self) -> str:
        return boot(self._boot_id)

    def read(self) -> Handled:
        """What was done since this boot."""
        if self.file is not None and (this := self.boot()):
            try:
                found = json.loads(trusted.read_bytes(self.file))
                if found["version"] == _VERSION and found["boot"] == this:
                    return Handled(this, str(found["node"]), found["taints"] is True)
            except (OSError, DevhostError, *DAMAGED):
                pass
        return Handled()

    def write(self, done: Handled) -> None:
        """Keeps it, atomically. Raises ``EnvironmentFailure`` if it cannot be written."""
        if self.file is None:
            return
        content = {"version": _VERSION, "boot": done.boot, "node": done.node, "taints": done.taints}
        try:
            make_directory(self.file.parent, 0o700)
            replace_file(self.file, json.dumps(content).encode() + b"\n", f".{self.file.stem}-", 0o600)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write {self.file}: {error.strerror or error}", "the state directory must be writable"
            ) from None


class NodeCondition:
    """Keeps the condition of one node, and removes ``taints``.

    ``capture`` takes the present state, and gives what makes the document of it on any thread; ``None``
    before the first plan. ``changed`` is called when :attr:`failures` have changed. ``wall`` gives Unix time.
    """

    def __init__(
        self,
        node: str,
        taints: Sequence[Taint],
        api: KubeApi,
        record: BootRecord,
        capture: Callable[[], Callable[[], StatusDocument] | None],
        changed: Callable[[], None] = lambda: None,
        *,
        clock: Clock = LOOP_CLOCK,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self.failures = FailureLog(
            log, "the node cannot be written", "the node can be written again", changed=changed, node=node
        )
        self._path = f"/api/v1/nodes/{node}"
        self._taints = taints
        self._api = api
        self._record = record
        self._capture = capture
        self._clock = clock
        self._wall = wall
        self._done: Handled | None = None
        self._known: State | None = None
        """What the node has; ``None`` if that must be read."""
        self._uid = ""
        self._transition = ""
        """The node's ``lastTransitionTime``."""
        self._bucket = TokenBucket(BURST, HEARTBEAT)
        self._written_at = -math.inf
        self._patient_until = clock.time() + PATIENCE
        self._reconciler = Reconciler(
            self._pass,
            backoff=Backoff(5.0, HEARTBEAT),
            failures=self.failures,
            settle=SETTLE,
            gap=GAP,
            wakeable=False,
            clock=clock,
        )
        api.close()  # the next call is minutes away

    def wake(self) -> None:
        """Something in devhost has changed. This is inexpensive."""
        self._reconciler.wake()

    async def run(self) -> None:
        await self._reconciler.run()

    async def _pass(self) -> float:
        try:
            return await self._follow()
        except DevhostError:
            self._known = None
            raise

    async def _follow(self) -> float:
        """Writes what is due; gives the seconds until the next look.

        Raises ``DevhostError`` if the node cannot be read or written, or the record cannot.
        """
        if self._done is None:
            self._done = await elsewhere(self._record.read)
        if self._known is None:
            self._see(await self._api.get(self._path))
        capture = self._capture()
        wanted = await elsewhere(lambda: state_of(capture() if capture else None))
        now = self._clock.time()
        same_boot = self._done.node == self._uid != ""
        if wanted.status != "True" and same_boot and now < self._patient_until:
            return self._patient_until - now
        if self._wait(wanted, now) <= 0:
            await self._write(wanted, now)
        if not same_boot:
            await self._keep(taints=False)
        if wanted.status == "True" and self._taints and not self._done.taints:
            await self._remove_taints()
            await self._keep(taints=True)
        return max(0.0, self._wait(wanted, self._clock.time()))

    def _wait(self, wanted: State, now: float) -> float:
        """Seconds until the node is to be written."""
        wait = self._written_at + HEARTBEAT - now
        if self._known is not None and wanted != self._known:
            permits = 1 if wanted.status != self._known.status else 2
            wait = min(wait, self._bucket.delay(now, permits))
        return wait

    async def _write(self, wanted: State, now: float) -> None:
        known = self._known or State()
        at = utc(self._wall())
        condition = {
            "type": CONDITION,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastHeartbeatTime": at,
            "lastTransitionTime": self._transition if wanted.status == known.status else at,
        }
        try:
            node = await self._api.patch(f"{self._path}/status", {"status": {"conditions": [condition]}})
        except Unreachable:  # it may have been done
            self._count(wanted, known, now)
            raise
        self._count(wanted, known, now)
        self._see(node)
        if wanted.status != known.status:
            log.info("node condition changed", node=self.node, status=wanted.status, reason=wanted.message)

    def _count(self, wanted: State, known: State, now: float) -> None:
        self._written_at = now
        if wanted != known and self._bucket.delay(now) <= 0:
            self._bucket.take(now)

    def _see(self, node: Object) -> None:
        whole = Json(node, f"node {self.node}")
        self._uid = whole.at("metadata").required("uid")
        self._known, self._transition = State(), ""
        for one in whole.at("status").items("conditions"):
            if one.text("type") == CONDITION:
                status: Any = one.text("status")
                self._known = State(status, one.text("reason"), one.text("message"))
                self._transition = one.text("lastTransitionTime")

    async def _remove_taints(self) -> None:
        node = Json(await self._api.get(self._path), f"node {self.node}")
        present = node.at("spec").items("taints")
        kept = [
            one.value
            for one in present
            if not Taint(one.required("key"), one.text("effect")).is_one_of(self._taints)
        ]
        if len(kept) == len(present):
            return
        version = node.at("metadata").required("resourceVersion")  # the list is replaced as a whole
        await self._api.patch(
            self._path, {"metadata": {"resourceVersion": version}, "spec": {"taints": kept}}
        )
        log.info("startup taints removed", node=self.node, count=len(present) - len(kept))

    async def _keep(self, *, taints: bool) -> None:
        done = Handled(self._record.boot(), self._uid, taints)
        await elsewhere(self._record.write, done)
        self._done = done


def node_condition(
    options: DraOptions,
    taints: str,
    state_dir: Path | None,
    capture: Callable[[], Callable[[], StatusDocument] | None],
    changed: Callable[[], None],
) -> NodeCondition:
    """The condition of the node that the options name.

    Raises ``UsageError`` if a taint or the node's name is not valid, and ``EnvironmentFailure`` without
    access to the API server.
    """
    if not is_subdomain(options.node):
        raise UsageError(
            f"{options.node[:80]!r} is not the name of a node in Kubernetes",
            "give it with --node-name NAME or in NODE_NAME",
        )
    api = KubeApi(from_files(options.kubeconfig, os.environ))
    record = BootRecord(state_dir, options.node)
    return NodeCondition(options.node, startup_taints(taints), api, record, capture, changed)
