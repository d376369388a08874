"""Which requests belong to one container: a guess from their order and the pauses between them. Pure.

A kubelet admits one pod at a time and asks, container by container, for one resource after another, in
random order, without a deliberate pause and without naming the container. So what comes soon after the
request before is taken for the same admission, and a resource that is asked for again shows that another
container's turn has come: with this request, unless an earlier pause since the first time was clearly wider.
Within a container a kubelet only computes, between two it writes a file.

A wrong guess places devices where they need not be. It never fails a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise

from devhost.backend.frozen import frozen, mutable
from devhost.planning.affinity.topology import Place
from devhost.planning.timing import ALLOCATION
from devhost.telemetry.metrics import Guess

CLEARLY = 3.0
"""How many times as wide as the last pause an earlier one must be to be taken for the border."""

NOTICEABLE = 0.003
"""Seconds that it must be wide at least: below that it is the operating system's noise."""

PENDING = 256
"""Requests whose container is not known yet."""

PATIENCE = 300.0
"""Seconds after which a guess that no list has settled is given up."""

LONGEST = 64
"""Requests of one admission that are remembered."""


@mutable(eq=False)
class Call:
    """One container's request for one resource.

    ``places`` are those of the device behind each token, ``beside`` the earlier calls whose devices it was
    drawn to, ``allocated`` is whether it got its own.
    """

    resource: str
    began: float
    ended: float
    tokens: tuple[str, ...] = ()
    places: tuple[tuple[Place, ...], ...] = ()
    beside: tuple[Call, ...] = ()
    allocated: bool = False


@frozen
class Admission:
    """What was asked for before, as it concerns a new request: by the same container, and before it."""

    same: tuple[Call, ...] = ()
    before: tuple[Call, ...] = ()


Places = Sequence[tuple[Place, ...]]
"""The places of the device behind each token."""

Holder = Callable[[str, str], object]
"""Who holds a token of a resource; ``None`` while the kubelet has not listed it."""


@mutable
class RequestGrouping:
    """Follows the requests of one kubelet.

    ``clock`` gives monotonic seconds. ``guessed`` is called with the outcome of each guess and the two
    resources it was about. ``window`` is the longest pause within an admission, in seconds.
    """

    clock: Callable[[], float]
    guessed: Callable[[Guess, str, str], None] = lambda guess, one, other: None
    window: float = ALLOCATION.together
    _run: list[Call] = field(init=False, default_factory=list)
    _border: int = field(init=False, default=0)
    _pending: deque[Call] = field(init=False, default_factory=lambda: deque(maxlen=PENDING))

    def asked(self, resource: str) -> Admission:
        """What came before a request for a preference that arrives now."""
        self._turn(resource, self.clock())
        return Admission(tuple(self._run[self._border :]), tuple(self._run[: self._border]))

    def preferred(
        self, resource: str, began: float, tokens: Sequence[str], places: Places, same: Sequence[Call]
    ) -> None:
        """The answer to it, which the container will very likely get, and what drew it."""
        self._append(Call(resource, began, self.clock(), tuple(tokens), tuple(places), tuple(same)))

    def allocated(self, resource: str, began: float, tokens: Sequence[str], places: Places) -> None:
        """A container got devices; ``began`` is when it asked for them."""
        last = next((call for call in reversed(self._run) if call.resource == resource), None)
        if last is None or last.allocated or began - last.ended > self.window:
            self._turn(resource, began)
            last = Call(resource, began, began, beside=tuple(self._run[self._border :]))
            self._append(last)
        last.tokens, last.places = tuple(tokens), tuple(places)
        last.ended, last.allocated = self.clock(), True
        if last.beside:
            self._pending.append(last)

    def settle(self, holder: Holder) -> None:
        """Takes who holds what, as the kubelet has listed meanwhile.

        Requests whose container is known are over: they no longer attract devices.
        """
        known = [call for call in self._run if _whose(call, holder) is not None]
        self._border -= sum(call in known for call in self._run[: self._border])
        self._run = [call for call in self._run if call not in known]
        now = self.clock()
        for call in tuple(self._pending):
            whose = _whose(call, holder)
            others = [(other, _whose(other, holder)) for other in call.beside if other.allocated]
            decided = whose is not None and all(found is not None for _, found in others)
            if not decided and now - call.ended < PATIENCE:
                continue
            self._pending.remove(call)
            for other, found in others:
                guess = Guess.UNKNOWN
                if whose is not None and found is not None:
                    guess = Guess.RIGHT if whose == found else Guess.WRONG
                self.guessed(guess, call.resource, other.resource)
            call.beside = ()  # it refers to earlier calls, and they to earlier ones

    def _append(self, call: Call) -> None:
        self._run.append(call)
        if len(self._run) > LONGEST:
            del self._run[0]
            self._border = max(0, self._border - 1)

    def _turn(self, resource: str, now: float) -> None:
        """Moves the border between containers to where a request that begins now shows it to be."""
        run = self._run
        if run and now - run[-1].ended > self.window:
            run.clear()
            self._border = 0
        again = next((i for i in range(len(run) - 1, -1, -1) if run[i].resource == resource), None)
        if again is None or again < self._border:
            return
        if not run[again].allocated:
            del run[again]  # it asks again: the first time led to nothing
            return
        since = enumerate(pairwise(run[again:]), again + 1)
        pauses = ((call.began - before.ended, at) for at, (before, call) in since)
        last = now - run[-1].ended
        widest, at = max(pauses, default=(0.0, 0))
        self._border = at if widest >= max(NOTICEABLE, CLEARLY * last) else len(run)


def _whose(call: Call, holder: Holder) -> object:
    """The container that a call was for; ``None`` while that is not known."""
    return holder(call.resource, call.tokens[0]) if call.allocated and call.tokens else None
