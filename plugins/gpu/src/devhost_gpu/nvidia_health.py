"""What is wrong with GPUs, and when they are well again. Pure: times are seconds of one clock, given.

A sign of illness (an Xid, a failed check) shows at once. Nothing is forgotten by the passing of time: a case
is closed only by a check that finds nothing wrong, and only by one that began a while after the last sign.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from .nvml.reports import DRAINED, LOST, RESET_REQUIRED, Check, Trouble

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
