"""Finds GPUs that a process uses although its pod does not hold them (``occupied: refuse``).

A process outside pods counts at once. One of a pod counts if that pod does not hold the GPU, after some time:
the kubelet lists a pod later than it starts, and no longer lists it while its processes end.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping

from devhost.backend import Context, Event, MissingDriver, claim
from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError, printable
from devhost.backend.sysfs import OWN_MOUNTS, Sysfs, read_bytes, read_lines

from .discovery import AMD, NVIDIA
from .environment import Environment
from .vendor import Card

LOGS = "/var/log/pods"
"""The kubelet's directory with the logs of each pod, ``<namespace>_<name>_<uid>``."""

IGNORED = frozenset({"nvidia-cuda-mps"})
"""The first 15 characters of the name of an MPS server: NVML also lists its clients."""

# the cgroup of a pod with either driver: …/pod<uid>/…, …-pod<uid>.slice/…; the uid of a static pod is a hash
_POD = re.compile(
    rb"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|\s|$)"
)

_CGROUP_LIMIT = 1 << 14

Ask = Callable[[], Mapping[str, Collection[int]]]


class Occupied:
    """Which cards are occupied, and by what.

    ``cards`` returns those of the last scan, by id, ``ask`` the ids of the processes that use each card, by
    its id; some may be missing. It raises ``BackendError`` if no driver answers.
    """

    def __init__(
        self,
        context: Context,
        environment: Environment,
        cards: Callable[[], Mapping[str, Card]],
        ask: Ask,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._cards = cards
        self._context = context
        self._timings, self._clock = environment.timings, environment.clock
        self._sysfs = Sysfs(context.root)
        self._ask = ask
        self._sleep = sleep
        self._since: dict[tuple[str, int], float] = {}
        # Replaced whole, never changed: scans read it on another thread.
        self.reasons: Mapping[str, str] | None = None
        """Why cards are occupied, by id; ``None`` before the first look."""

    def check(self) -> bool:
        """Looks at the processes again; whether the reasons have changed.

        A card whose driver does not answer keeps its reason.
        """
        asked, held, now = self._ask(), self._context.held(), self._clock()
        cards, pods = self._cards(), _Pods(self._sysfs)
        # NVML's process ids are those of this process's namespace, the kernel's are those of the node
        unknown = () if sees_node(self._sysfs) else (NVIDIA,)
        found = {
            name: pids for name, pids in asked.items() if name in cards and cards[name].vendor not in unknown
        }
        since: dict[tuple[str, int], float] = {}
        reasons = {
            name: why for name, why in (self.reasons or {}).items() if name in cards.keys() - found.keys()
        }
        for name, pids in found.items():
            guilty = []
            for pid in sorted(pids):
                if (comm := self._comm(pid)) in IGNORED or (group := self._cgroup(pid)) is None:
                    continue
                uid = _POD.search(group)
                if uid is not None:
                    if not _is_foreign(cards[name], pods.name(uid[1]), held):
                        continue
                    since[name, pid] = self._since.get((name, pid), now)
                    if now - since[name, pid] < self._timings.occupied_pod:
                        continue
                guilty.append(f"{pid} ({comm})" if comm else str(pid))
            if guilty:
                more = f" and {len(guilty) - 1} more use it" if guilty[1:] else " uses it"
                reasons[name] = f"process {guilty[0]}{more}"
        self._since = since
        before, self.reasons = self.reasons, reasons
        return before != reasons

    async def watch(self) -> AsyncIterator[Event]:
        """Yields an event when the reasons have changed."""
        timings = self._timings
        backoff = Backoff(2 * timings.occupied_check, timings.occupied_retry)
        pause = timings.occupied_check
        while True:
            await self._sleep(pause)
            pause = timings.occupied_check
            try:
                changed = await self._context.run_blocking(self.check)
            except BackendError:  # scans and probes report it
                pause = backoff.delay()
            else:
                backoff.reset()
                if changed:
                    yield Event("gpu", "change")

    def problems(self, cards: Mapping[str, Card]) -> Iterator[MissingDriver]:
        """Why the processes of a card cannot be checked."""
        if not sees_node(self._sysfs) and any(card.vendor == NVIDIA for card in cards.values()):
            reason = (
                "backends.gpu.occupied has no effect: devhost does not share the process ids of the node "
                "(set hostPID: true in its pod, ProtectProc=default in its unit)"
            )
            yield MissingDriver("NVIDIA GPUs", reason, makes_device=False)
        facts = [card.facts for card in cards.values() if card.vendor == AMD]
        if any(getattr(one, "computes", False) and getattr(one, "node", None) is None for one in facts):
            reason = (
                "backends.gpu.occupied has no effect: the kernel hides which processes use them (the "
                "container of devhost needs access to their device nodes, as a privileged one has)"
            )
            yield MissingDriver("AMD GPUs", reason, makes_device=False)

    def _comm(self, pid: int) -> str:
        data = read_bytes(f"{self._sysfs.prefix}/proc/{pid}/comm", 64) or b""
        return printable(data.removesuffix(b"\n").decode(errors="surrogateescape"))

    def _cgroup(self, pid: int) -> bytes | None:
        """The control groups of a process; ``None`` if it has ended."""
        return read_bytes(f"{self._sysfs.prefix}/proc/{pid}/cgroup", _CGROUP_LIMIT)


def sees_node(sysfs: Sysfs, mounts: str = OWN_MOUNTS) -> bool:
    """Whether process ids of this process are those of the node, by the file with its mounts."""
    proc = f"{sysfs.prefix}/proc"
    try:
        own = os.readlink(f"{proc}/self")  # noqa: PTH115 - a plain string path
    except OSError:
        return False
    hides = any(f" {proc} " in line and "hidepid=" in line for line in read_lines(mounts))
    return own == str(os.getpid()) and not hides


class _Pods:
    """The names of pods by uid, read once when the first is needed."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._names: Mapping[str, str] | None = None

    def name(self, uid: bytes) -> str:
        """``namespace/name``; empty if it is unknown."""
        if self._names is None:
            parts = (name.split("_") for name in self._sysfs.names(LOGS))
            self._names = {part[2]: f"{part[0]}/{part[1]}" for part in parts if len(part) == 3}
        return self._names.get(uid.decode().replace("_", "-"), "")


def _is_foreign(card: Card, pod: str, held: frozenset[str] | None) -> bool:
    """Whether a pod that a process belongs to does not hold this card."""
    if held is None:
        return False
    place = "gpu", card.id
    if claim.device(*place) not in held:
        return held.isdisjoint(card.device.claims)
    return bool(pod) and held.isdisjoint((claim.holder("", *place), claim.holder(pod, *place)))
