"""The health of NVIDIA GPUs: what makes one unhealthy, and when it is healthy again.

A fault (an Xid, a failed check) takes effect at once. An incident never ends by itself: it is closed by a
check that finds no fault and that began some time after the last fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Literal, Protocol

from devhost.backend import HEALTHY, Cause, Health, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.frozen import mutable
from devhost.backend.threads import NoThread, start
from devhost_gpu.environment import DEFAULT, STANDARD, Environment
from devhost_gpu.nvml import reports
from devhost_gpu.nvml.process import Message, Reply
from devhost_gpu.nvml.reports import (
    COMPLETED,
    DRAINED,
    IN_PROGRESS,
    LOST,
    NOT_STARTED,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    ROUTE_BITS,
    ROUTE_UNHEALTHY,
    UNSUPPORTED,
    Check,
    Fabric,
    NvmlError,
)

from .cards import NvidiaFacts

APPLICATION_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program can cause on a healthy GPU: the list in NVIDIA's device plugin."""

RECOVERY_ACTION_CHANGED = 154
"""The recommended action has changed, perhaps to none: a reason to check, not a fault."""

WORDS = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error (double-bit ECC)",
    61: "an internal micro-controller halted",
    62: "an internal micro-controller halted",
    63: "a memory row or page was retired",
    64: "a memory row or page could not be retired",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many correctable memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    121: "error on the link between chips",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
    149: "NVLink error",
}
"""Descriptions of the more frequent Xids, from NVIDIA's catalog of Xid errors."""

NEEDS_RESET = frozenset({46, 48, 61, 62, 64, 69, 74, 79, 95, 110, 119, 120, 121, 140, 143, 149})
"""Xids after which a GPU usually needs a reset, for which no process may have it open."""


class XidRule:
    """Which Xids make a GPU Unhealthy.

    ``ignored`` are those that do not, in addition to :data:`APPLICATION_ERRORS`; or ``"all"``. ``heeded`` are
    those that do although they would be ignored.
    """

    def __init__(self, ignored: Literal["all"] | Collection[int] = (), heeded: Collection[int] = ()) -> None:
        self._heeded = frozenset(heeded)
        self._ignores_all = ignored == "all"
        extra = () if ignored == "all" else ignored
        self._harmless = APPLICATION_ERRORS | {*extra} | {RECOVERY_ACTION_CHANGED}

    def matters(self, xid: int) -> bool:
        """Whether this Xid makes a GPU Unhealthy."""
        return xid in self._heeded or not (self._ignores_all or xid in self._harmless)


def xid_reason(xid: int) -> str:
    """The reason for an Xid, for a user."""
    words = WORDS.get(xid)
    return f"{words} (Xid {xid})" if words else f"the driver reported Xid {xid}"


MOST_REASONS = 3
"""The most reasons of one incident that are kept."""

RECOVERY_ACTIONS = {
    1: "it needs a reset",
    2: "the machine must be rebooted",
    3: "it must be drained of peer-to-peer traffic",
    4: "it must be drained and reset",
    5: "its IMEX domain must be recovered",
    6: "its bus must be reset",
    7: "the machine must be rebooted",
}
"""Descriptions of ``NVML_GPU_RECOVERY_ACTION_…``; 0 is none."""

_RESETS = frozenset({1, 2, 4, 6, 7})

Instance = tuple[int, int | None]
"""The ids of a GPU instance and of one of its compute instances; ``None`` in place of the latter for all."""


@mutable
class _Incident:
    reasons: dict[str, Cause] = field(default_factory=dict)
    last: float = 0.0
    is_event: bool = False


@mutable
class _GpuIncidents:
    incidents: dict[Instance | None, _Incident] = field(default_factory=dict)
    needs_reset: bool = False


class Incidents:
    """The faults of each GPU, by any name for it. The caller passes the time, in seconds of one clock.

    Only unhealthy GPUs take memory. ``hold`` is seconds after the last fault before a check can close an
    incident, ``blind_hold`` the same after an event of a GPU that cannot report whether it needs a reset.
    """

    def __init__(self, hold: float = DEFAULT.hold, blind_hold: float = DEFAULT.blind_hold) -> None:
        self._hold = hold
        self._blind_hold = blind_hold
        self._gpus: dict[str, _GpuIncidents] = {}
        self._reporting: set[str] = set()

    def add_event(
        self,
        gpu: str,
        reason: str,
        now: float,
        instance: Instance | None = None,
        *,
        needs_reset: bool = False,
        cause: Cause = Cause.UNHEALTHY,
    ) -> None:
        """Adds an event that makes a GPU, or only one of its MIG instances, unhealthy."""
        self._add(gpu, reason, now, instance, cause).is_event = True
        if needs_reset and instance is None:
            self._gpus[gpu].needs_reset = True

    def add_check(self, gpu: str, found: Check | NvmlError, began: float) -> None:
        """Adds the result of a check that began at this time."""
        reason = fault(found)
        if isinstance(found, Check) and found.recovery is not None:
            self._reporting.add(gpu)
        if reason:
            self._add(gpu, reason, began, None, Cause.ECC if reason in MEMORY else Cause.UNHEALTHY)
            self._gpus[gpu].needs_reset |= _needs_release(found)
            return
        state = self._gpus.get(gpu)
        if state is None:
            return
        for instance, incident in list(state.incidents.items()):
            is_blind = incident.is_event and gpu not in self._reporting
            if began >= incident.last + (self._blind_hold if is_blind else self._hold):
                del state.incidents[instance]
        if not state.incidents:
            del self._gpus[gpu]

    def was_reset(self, gpu: str) -> None:
        """Its driver released it, which resets it: the next check need not wait as long as after an event."""
        if state := self._gpus.get(gpu):
            state.needs_reset = False
            for incident in state.incidents.values():
                incident.is_event = False

    def reason(self, gpu: str, gi: int | None = None, ci: int | None = None) -> str:
        """Why a GPU, or one of its MIG instances, cannot be used; empty if it can."""
        found = self._found(gpu, gi, ci)
        return "; ".join(reason for reasons in found for reason in reasons)

    def causes(self, gpu: str, gi: int | None = None, ci: int | None = None) -> frozenset[Cause]:
        """The kinds of these reasons."""
        return frozenset(cause for reasons in self._found(gpu, gi, ci) for cause in reasons.values())

    def _found(self, gpu: str, gi: int | None, ci: int | None) -> Sequence[Mapping[str, Cause]]:
        state = self._gpus.get(gpu)
        if state is None:
            return ()
        scopes: Iterable[Instance | None] = (None,) if gi is None else (None, (gi, None), (gi, ci))
        return [state.incidents[scope].reasons for scope in scopes if scope in state.incidents]

    def reasons(self) -> Mapping[tuple[str, Instance | None], tuple[str, ...]]:
        """All current reasons, by GPU and instance."""
        return {
            (gpu, instance): tuple(incident.reasons)
            for gpu, state in self._gpus.items()
            for instance, incident in state.incidents.items()
        }

    @property
    def unhealthy(self) -> frozenset[str]:
        """The GPUs with an incident, including those of instances."""
        return frozenset(self._gpus)

    @property
    def to_release(self) -> frozenset[str]:
        """The GPUs that must be reset, or are being drained, and so must not be kept open."""
        return frozenset(gpu for gpu, state in self._gpus.items() if state.needs_reset)

    def keep_only(self, present: Iterable[str]) -> None:
        """Closes the incidents of all other GPUs, which are gone."""
        for gpu in self._gpus.keys() - {*present}:
            del self._gpus[gpu]

    def _add(self, gpu: str, reason: str, now: float, instance: Instance | None, cause: Cause) -> _Incident:
        incidents = self._gpus.setdefault(gpu, _GpuIncidents()).incidents
        incident = incidents.setdefault(instance, _Incident())
        incident.last = max(incident.last, now)
        if reason not in incident.reasons and len(incident.reasons) < MOST_REASONS:
            incident.reasons[reason] = cause
        return incident


_SPARE_USED = "its spare memory rows are used up"
_REMAP_DUE = "memory with uncorrectable errors waits for a reset to be replaced"
_RETIREMENT_DUE = "memory pages wait for a reset to be retired"
MEMORY = frozenset({_SPARE_USED, _REMAP_DUE, _RETIREMENT_DUE})
"""The faults that checks find in memory."""


def fault(found: Check | NvmlError) -> str:
    """The fault that a check found in a GPU; empty if it found none.

    Memory that is replaced at the next reset is a fault only after uncorrectable errors: the driver already
    works around correctable ones.
    """
    if isinstance(found, NvmlError):
        return str(found)
    if found.recovery:
        action = RECOVERY_ACTIONS.get(found.recovery, f"recovery action {found.recovery} is due")
        return f"{action}, according to its driver"
    if found.remap_failed:
        return _SPARE_USED
    if found.remap_pending and found.remap_uncorrectable:
        return _REMAP_DUE
    if found.retirement_pending:
        return _RETIREMENT_DUE
    return _not_ready(found)


_NO_MANAGER = "CUDA programs fail with error 802: is nvidia-fabricmanager running?"


def _not_ready(found: Check) -> str:
    """Why no program could start on a GPU although NVML answers; empty if one can."""
    fabric = found.fabric or Fabric(UNSUPPORTED, 0, 0)
    if fabric.state in (NOT_STARTED, IN_PROGRESS):
        return f"it is not registered with the fabric manager of the NVSwitches, and {_NO_MANAGER}"
    if fabric.state == UNSUPPORTED and found.is_linked is False:
        return f"none of its NVLinks to the NVSwitches is active, and {_NO_MANAGER}"
    if fabric.state == COMPLETED and fabric.status not in (0, NOT_SUPPORTED):
        return f"the fabric manager refused it (NVML error {fabric.status}): see its log"
    if fabric.state == COMPLETED and fabric.health & ROUTE_BITS == ROUTE_UNHEALTHY:
        return "a route to its NVSwitches is unhealthy: see the log of nvidia-fabricmanager"
    if found.is_ready is False:
        return "confidential GPUs are not ready: verify them, then run nvidia-smi conf-compute -srs 1"
    if found.is_licensed is False:
        return "this vGPU has no license: check nvidia-gridd and its client token"
    return "its compute mode is Prohibited: run nvidia-smi -c DEFAULT" if found.is_prohibited else ""


def counted(
    found: Check | NvmlError, checks: Collection[str], *, has_switches: bool = True
) -> Check | NvmlError | None:
    """The part of the result of a check that counts; ``None`` if no part does.

    An error of NVML always counts. ``checks`` are the values of the option ``healthChecks``. Without
    NVSwitches, NVLinks may be inactive.
    """
    if isinstance(found, NvmlError):
        return None if found.code == DRAINED and "drain" not in checks else found
    if "recovery" not in checks and found.recovery:
        found = replace(found, recovery=0)
    if "remap" not in checks:
        found = replace(found, remap_failed=False, remap_pending=False, retirement_pending=False)
    if "fabric" not in checks:
        found = replace(found, fabric=None, is_linked=None)
    if "confidential" not in checks:
        found = replace(found, is_ready=None)
    if "license" not in checks:
        found = replace(found, is_licensed=None)
    if "compute" not in checks:
        found = replace(found, is_prohibited=False)
    return found if has_switches else replace(found, is_linked=None)


def _needs_release(found: Check | NvmlError) -> bool:
    if isinstance(found, NvmlError):
        return found.code in (LOST, RESET_REQUIRED, DRAINED)
    return found.recovery in _RESETS or found.retirement_pending or found.remap_pending


_EVENTS = {
    "ecc": ("uncorrectable memory error (double-bit ECC)", "ecc"),
    "dram": ("memory could not be replaced", "ecc"),
    "poison": ("fatal memory error (poison)", "ecc"),
    "unavailable": ("its driver reports that it is unavailable", "recovery"),
}
"""Events that mean that a GPU is unhealthy, each with its reason and its health check."""


class Nvml(Protocol):
    """The methods of :class:`devhost_gpu.nvml.client.NvmlClient` that a :class:`HealthMonitor` uses."""

    def ask(self, do: str, patience: float) -> Reply:
        """Asks about all GPUs. Raises a ``BackendError`` if there is no answer."""

    def ask_alone(self, address: str) -> Check | NvmlError | None:
        """Checks one GPU that was released; ``None`` if that failed."""


class HealthMonitor:
    """Which GPUs are unhealthy, and why, by PCI address. Methods may be called from any thread.

    ``rule`` is which Xids matter, ``checks`` what counts, the values of the option ``healthChecks``.
    ``on_change`` is called when the state of a GPU that was checked alone may have changed.
    """

    def __init__(
        self,
        client: Nvml,
        rule: XidRule,
        checks: Collection[str],
        on_change: Callable[[], None],
        environment: Environment = STANDARD,
    ) -> None:
        self._client = client
        self._rule = rule
        self._checks = checks
        self._on_change = on_change
        self._timings, self._clock = environment.timings, environment.clock
        self._lock = threading.Lock()
        self._incidents = Incidents(self._timings.hold, self._timings.blind_hold)
        self._asked_alone: dict[str, float] = {}
        self._is_check_due = False
        self._has_switches = False

    @property
    def is_needed(self) -> bool:
        """Whether any GPU should be checked soon."""
        with self._lock:
            return self._is_check_due or bool(self._incidents.unhealthy)

    @property
    def is_check_due(self) -> bool:
        """Whether all GPUs should be checked at once."""
        return self._is_check_due

    @property
    def released(self) -> frozenset[str]:
        """The GPUs that must be reset, or are being drained, and so must not be kept open."""
        with self._lock:
            return self._incidents.to_release

    def reasons(self) -> object:
        """All current reasons, for a comparison with an earlier state."""
        with self._lock:
            return self._incidents.reasons()

    def verdict(self, facts: NvidiaFacts) -> Health:
        """Whether a GPU or an instance can be used, and why not."""
        return self.verdict_at(facts.address, facts.instance)

    def verdict_at(self, gpu: str, instance: tuple[int, int] | None = None) -> Health:
        """The same by address, and the ids of the instance."""
        with self._lock:
            place = gpu, *(instance or ())
            reason = self._incidents.reason(*place)
            return unhealthy(reason, *self._incidents.causes(*place)) if reason else HEALTHY

    def update_gpus(
        self,
        present: Collection[str],
        bound: Collection[str],
        hung: Iterable[str],
        *,
        has_switches: bool = False,
    ) -> None:
        """Sets which GPUs exist, which of them are bound to the driver, and for which of them NVML hung.

        ``has_switches`` is whether the machine has NVSwitches.
        """
        with self._lock:
            self._has_switches = has_switches
            self._incidents.keep_only(present)
            for gpu in {*present} - {*bound}:
                self._incidents.was_reset(gpu)
            for gpu in hung:
                text = "NVML hung when it was asked about it"
                self._incidents.add_event(gpu, text, self._clock(), needs_reset=True)

    def request_check(self) -> None:
        """Requests a check of all GPUs at once, because events may have been missed."""
        self._is_check_due = True

    def add_checks(self, found: Mapping[str, Check | NvmlError], began: float) -> None:
        """Adds the answers to a request that was sent at this time."""
        with self._lock:
            for gpu, one in found.items():
                counts = counted(one, self._checks, has_switches=self._has_switches)
                if counts is not None:
                    self._incidents.add_check(gpu, counts, began - one.age)

    def add_event(self, event: Message) -> None:
        """Handles an event of the program."""
        kind = event["event"]
        if kind == "recovery" or (kind == "xid" and event["data"] == RECOVERY_ACTION_CHANGED):
            self._is_check_due = True
        if kind == "xid" and "xid" in self._checks and self._rule.matters(event["data"]):
            text, needs_reset = xid_reason(event["data"]), event["data"] in NEEDS_RESET
            cause = Cause.XID
        elif kind in _EVENTS and _EVENTS[kind][1] in self._checks:
            text, needs_reset = _EVENTS[kind][0], False
            cause = Cause.ECC if _EVENTS[kind][1] == "ecc" else Cause.UNHEALTHY
        else:
            return
        instance = (event["gi"], event.get("ci")) if "gi" in event else None
        with self._lock:
            self._incidents.add_event(
                event["gpu"], text, self._clock(), instance, needs_reset=needs_reset, cause=cause
            )

    def check(self, bound: frozenset[str], *, everything: bool = False) -> None:
        """Checks the GPUs with NVML if any is unhealthy, a check is due, or ``everything`` is requested."""
        with self._lock:
            unhealthy, released = self._incidents.unhealthy & bound, self._incidents.to_release & bound
            everything |= self._is_check_due
            self._is_check_due = False
        if everything or unhealthy - released:
            try:
                reply = self._client.ask("probe", self._timings.answer)
            except BackendError:
                self._is_check_due |= everything  # scans report the error
            else:
                self.add_checks(reports.checks(reply.content), reply.since)
        for gpu in released:
            self._check_alone(gpu)

    def _check_alone(self, gpu: str) -> None:
        """Checks a GPU that was released, on a separate thread, and opens it only for that."""
        now = self._clock()
        with self._lock:
            last = self._asked_alone.get(gpu)
            if last is not None and now - last < self._timings.alone_every:
                return
            self._asked_alone[gpu] = now
        with suppress(NoThread):  # it is asked again later
            start(f"nvml-{gpu}", self._ask_alone, gpu, now)

    def _ask_alone(self, gpu: str, began: float) -> None:
        found = self._client.ask_alone(gpu)
        if found is not None:
            self.add_checks({gpu: found}, began)
            self._on_change()
