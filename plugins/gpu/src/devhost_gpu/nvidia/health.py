"""What makes an NVIDIA GPU unhealthy, and when it is healthy again.

A sign (an Xid, a failed check) shows at once. Time alone heals nothing: an incident is closed only by a check
that finds nothing wrong and that began a while after the last sign.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from devhost.backend.errors import BackendError
from devhost_gpu.nvml import reports
from devhost_gpu.nvml.keeper import Keeper
from devhost_gpu.nvml.reports import DRAINED, LOST, RESET_REQUIRED, Check, Trouble
from devhost_gpu.nvml.session import Message

from .cards import NvidiaFacts

APPLICATION_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program can cause on a GPU that is well. It is the list of NVIDIA's own device plugin."""

RECOVERY_ACTION_CHANGED = 154
"""Says that what NVIDIA recommends to do has changed, perhaps to nothing: a reason to look, not a fault."""

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
"""The more frequent ones in words, after NVIDIA's catalogue of Xid errors."""

NEEDS_RESET = frozenset({46, 48, 61, 62, 64, 69, 74, 79, 95, 110, 119, 120, 121, 140, 143, 149})
"""After these a GPU usually works again only when it was reset, which needs it to be open nowhere."""


class XidRule:
    """Which Xids make a GPU Unhealthy.

    Args:
        ignored: those that do not, besides :data:`APPLICATION_ERRORS`; or ``"all"``.
        heeded: those of either that do all the same.
    """

    def __init__(self, ignored: Literal["all"] | Collection[int] = (), heeded: Collection[int] = ()) -> None:
        self._heeded = frozenset(heeded)
        self._ignores_all = ignored == "all"
        extra = () if ignored == "all" else ignored
        self._harmless = APPLICATION_ERRORS | {*extra} | {RECOVERY_ACTION_CHANGED}

    def matters(self, xid: int) -> bool:
        """Whether this one does."""
        return xid in self._heeded or not (self._ignores_all or xid in self._harmless)


def xid_reason(xid: int) -> str:
    """An Xid as a sentence for a user."""
    words = WORDS.get(xid)
    return f"{words} (Xid {xid})" if words else f"the driver reported Xid {xid}"


HOLD = 10.0
"""Seconds after the last sign from which on a check can close a case."""

BLIND_HOLD = 300.0
"""The same after an event on a GPU that cannot tell whether it needs a reset (an older driver or GPU)."""

MOST_REASONS = 3
"""Of one case; what comes later adds nothing for whoever reads it."""

RECOVERY_ACTIONS = {
    1: "it needs a reset",
    2: "the machine must be rebooted",
    3: "it must be drained of peer-to-peer traffic",
    4: "it must be drained and reset",
    5: "its IMEX domain must be recovered",
    6: "its bus must be reset",
    7: "the machine must be rebooted",
}
"""``NVML_GPU_RECOVERY_ACTION_…`` in words; 0 is none."""

_RESETS = frozenset({1, 2, 4, 6, 7})

Instance = tuple[int, int | None]
"""Ids of a GPU instance and, if it is about that alone, of one of its compute instances."""


@dataclass(slots=True)
class _Case:
    reasons: list[str] = field(default_factory=list)
    last: float = 0.0
    hold: float = HOLD
    event: bool = False


@dataclass(slots=True)
class _Patient:
    cases: dict[Instance | None, _Case] = field(default_factory=dict)
    needs_reset: bool = False


class Cases:
    """What is wrong with each GPU, by any name for it. Only those that are ill take memory."""

    def __init__(self) -> None:
        self._patients: dict[str, _Patient] = {}
        self._sighted: set[str] = set()

    def happened(
        self,
        gpu: str,
        reason: str,
        now: float,
        instance: Instance | None = None,
        *,
        needs_reset: bool = False,
    ) -> None:
        """An event says that a GPU is ill, or only one of its MIG instances."""
        case = self._add(gpu, reason, now, instance)
        case.event = True
        if needs_reset and instance is None:
            self._patients[gpu].needs_reset = True

    def checked(self, gpu: str, found: Check | Trouble, began: float) -> None:
        """A check that began then has ended."""
        reason = wrong(found)
        if isinstance(found, Check) and found.recovery is not None:
            self._sighted.add(gpu)
        if reason:
            self._add(gpu, reason, began, None)
            self._patients[gpu].needs_reset |= _wants_release(found)
            return
        patient = self._patients.get(gpu)
        if patient is None:
            return
        for instance, case in list(patient.cases.items()):
            hold = BLIND_HOLD if case.event and gpu not in self._sighted else HOLD
            if began >= case.last + hold:
                del patient.cases[instance]
        if not patient.cases:
            del self._patients[gpu]

    def began_anew(self, gpu: str) -> None:
        """Its driver let it go, and so it was reset: a check need not wait for as long as if it had not."""
        if patient := self._patients.get(gpu):
            patient.needs_reset = False
            for case in patient.cases.values():
                case.event = False

    def reason(self, gpu: str, gi: int | None = None, ci: int | None = None) -> str:
        """Why a GPU, or one of its MIG instances, cannot be used; empty if it can."""
        patient = self._patients.get(gpu)
        if patient is None:
            return ""
        scopes: Iterable[Instance | None] = (None,) if gi is None else (None, (gi, None), (gi, ci))
        reasons = [
            reason for scope in scopes if scope in patient.cases for reason in patient.cases[scope].reasons
        ]
        return "; ".join(reasons)

    def told(self) -> Mapping[tuple[str, Instance | None], tuple[str, ...]]:
        """Every reason that is given now, by GPU and instance."""
        return {
            (gpu, instance): tuple(case.reasons)
            for gpu, patient in self._patients.items()
            for instance, case in patient.cases.items()
        }

    @property
    def ill(self) -> frozenset[str]:
        """The GPUs that have a case, or an instance that has."""
        return frozenset(self._patients)

    @property
    def to_let_go(self) -> frozenset[str]:
        """Those that must be reset, or are being drained, and so must not be held open."""
        return frozenset(gpu for gpu, patient in self._patients.items() if patient.needs_reset)

    def forget(self, known: Iterable[str]) -> None:
        """Closes the cases of all other GPUs: they are not here any more."""
        for gpu in self._patients.keys() - {*known}:
            del self._patients[gpu]

    def _add(self, gpu: str, reason: str, now: float, instance: Instance | None) -> _Case:
        case = self._patients.setdefault(gpu, _Patient()).cases.setdefault(instance, _Case())
        case.last = max(case.last, now)
        if reason not in case.reasons and len(case.reasons) < MOST_REASONS:
            case.reasons.append(reason)
        return case


def wrong(found: Check | Trouble) -> str:
    """What a check found wrong with a GPU; empty if nothing is.

    Memory that waits for a reset to be replaced counts where uncorrectable errors are among the reasons: what
    correctable ones led to is worked around already.
    """
    if isinstance(found, Trouble):
        return str(found)
    if found.recovery:
        action = RECOVERY_ACTIONS.get(found.recovery, f"recovery action {found.recovery} is due")
        return f"{action}, says its driver"
    if found.remap_failed:
        return "its spare memory rows are used up"
    if found.remap_pending and found.remap_uncorrectable:
        return "memory with uncorrectable errors waits for a reset to be replaced"
    if found.retirement_pending:
        return "memory pages wait for a reset to be retired"
    return ""


def heeded(found: Check | Trouble, checks: Collection[str]) -> Check | Trouble | None:
    """What of this counts; ``None`` if none of it does.

    Args:
        checks: in the words of the option ``healthChecks``. That NVML cannot reach a GPU always counts.
    """
    if isinstance(found, Trouble):
        return None if found.code == DRAINED and "drain" not in checks else found
    if "recovery" not in checks and found.recovery:
        found = replace(found, recovery=0)
    if "remap" not in checks:
        found = replace(found, remap_failed=False, remap_pending=False, retirement_pending=False)
    return found


def _wants_release(found: Check | Trouble) -> bool:
    if isinstance(found, Trouble):
        return found.code in (LOST, RESET_REQUIRED, DRAINED)
    return found.recovery in _RESETS or found.retirement_pending or found.remap_pending


PATIENCE = 4.0
"""Seconds a check waits for its answer."""

ALONE_EVERY = 15.0
"""Seconds between two questions to a GPU that was let go."""

_EVENTS = {
    "ecc": ("uncorrectable memory error (double-bit ECC)", "ecc"),
    "dram": ("memory could not be replaced", "ecc"),
    "poison": ("fatal memory error (poison)", "ecc"),
    "unavailable": ("its driver says that it is unavailable", "recovery"),
}
"""Events that show by themselves that a GPU is unhealthy, and the check to which they belong."""


class Care:
    """Who is ill, and why. Methods may be called from any thread; GPUs go by their PCI addresses.

    Args:
        keeper: asks NVML.
        rule: which Xids matter.
        clock: monotonic seconds.
        changed: called when a GPU that was asked alone may be another than before.
        checks: what counts, in the words of the option ``healthChecks``.
    """

    def __init__(
        self,
        keeper: Keeper,
        rule: XidRule,
        clock: Callable[[], float],
        changed: Callable[[], None],
        checks: Collection[str],
    ) -> None:
        self._keeper = keeper
        self._rule = rule
        self._clock = clock
        self._changed = changed
        self._checks = checks
        self._lock = threading.Lock()
        self._cases = Cases()
        self._asked_alone: dict[str, float] = {}
        self._doubt = False

    @property
    def is_needed(self) -> bool:
        """Whether somebody should be asked soon."""
        with self._lock:
            return self._doubt or bool(self._cases.ill)

    @property
    def is_urgent(self) -> bool:
        """Whether all should be asked at once."""
        return self._doubt

    @property
    def away(self) -> frozenset[str]:
        """Those that must be reset, or are being drained, and so must not be held open."""
        with self._lock:
            return self._cases.to_let_go

    def told(self) -> object:
        """All that is said of anybody, to be compared with what was said before."""
        with self._lock:
            return self._cases.told()

    def reason(self, facts: NvidiaFacts) -> str:
        """Why a GPU or an instance cannot be used; empty if it can."""
        return self.reason_at(facts.address, facts.instance)

    def reason_at(self, gpu: str, instance: tuple[int, int] | None = None) -> str:
        """The same by address, and the ids of the instance."""
        with self._lock:
            return self._cases.reason(gpu, *(instance or ()))

    def meet(self, here: Collection[str], bound: Collection[str], hung: Iterable[str]) -> None:
        """Takes note of who is here, whom the driver has, and at whom NVML hung."""
        with self._lock:
            self._cases.forget(here)
            for gpu in {*here} - {*bound}:
                self._cases.began_anew(gpu)
            for gpu in hung:
                text = "NVML hung when it was asked about it"
                self._cases.happened(gpu, text, self._clock(), needs_reset=True)

    def doubt(self) -> None:
        """All should be asked at once: something may have happened that nobody heard."""
        self._doubt = True

    def take(self, found: Mapping[str, reports.Check | reports.Trouble], began: float) -> None:
        """Takes what a question that was put then found."""
        with self._lock:
            for gpu, one in found.items():
                if (counts := heeded(one, self._checks)) is not None:
                    self._cases.checked(gpu, counts, began - one.age)

    def hear(self, event: Message) -> None:
        """Takes an event of the program's."""
        kind = event["event"]
        if kind == "recovery" or (kind == "xid" and event["data"] == RECOVERY_ACTION_CHANGED):
            self._doubt = True
        if kind == "xid" and "xid" in self._checks and self._rule.matters(event["data"]):
            text, needs_reset = xid_reason(event["data"]), event["data"] in NEEDS_RESET
        elif kind in _EVENTS and _EVENTS[kind][1] in self._checks:
            text, needs_reset = _EVENTS[kind][0], False
        else:
            return
        instance = (event["gi"], event.get("ci")) if "gi" in event else None
        with self._lock:
            self._cases.happened(event["gpu"], text, self._clock(), instance, needs_reset=needs_reset)

    def check(self, bound: frozenset[str], *, everything: bool = False) -> None:
        """Asks those that are ill how they are, or all of them."""
        with self._lock:
            ill, away = self._cases.ill & bound, self._cases.to_let_go & bound
            everything |= self._doubt
            self._doubt = False
        if everything or ill - away:
            try:
                reply = self._keeper.ask("probe", PATIENCE)
            except BackendError:
                self._doubt |= everything  # the looks tell of it
            else:
                self.take(reports.checks(reply.content), reply.since)
        for gpu in away:
            self._check_alone(gpu)

    def _check_alone(self, gpu: str) -> None:
        """Asks one that was let go, on a thread of its own: it is opened for a moment."""
        now = self._clock()
        with self._lock:
            if now - self._asked_alone.get(gpu, -ALONE_EVERY) < ALONE_EVERY:
                return
            self._asked_alone[gpu] = now
        threading.Thread(target=self._ask_alone, args=(gpu, now), name=f"nvml-{gpu}", daemon=True).start()

    def _ask_alone(self, gpu: str, began: float) -> None:
        found = self._keeper.ask_alone(gpu)
        if found is not None:
            self.take({gpu: found}, began)
            self._changed()
