"""Looking after NVIDIA's GPUs: what their events and checks say is brought to :mod:`.nvidia_health`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from devhost.backend.errors import BackendError

from .nvidia_health import Cases, heeded
from .nvidia_xid import NEEDS_RESET, RECOVERY_ACTION_CHANGED, XidRule, reason
from .nvml import reports
from .nvml.facts import NvidiaFacts
from .nvml.keeper import Keeper
from .nvml.session import Message

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
            text, needs_reset = reason(event["data"]), event["data"] in NEEDS_RESET
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
