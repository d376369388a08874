"""Which of the available devices to hand out together. Pure and deterministic.

The answer to GetPreferredAllocation: always a subset of what is available, always with the tokens that
must be in it, never an error. When the request cannot be met the answer is the best there is.

What is best is defined in :mod:`.policies`, found by :mod:`.solver` and, where devices are linked, by
:mod:`.links`; ``docs/affinity.md`` explains it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from devhost.planning.settings import Prefer

from .links import choose
from .policies import SCALES
from .solver import LIMIT, NOTHING, Availability, Outside, TooMuch, best, descend, even, totals
from .topology import Links, Topology, card


@dataclass(frozen=True, slots=True)
class Request:
    """What a container asks for.

    ``candidate`` names the device of each token that can be handed out, ``available`` are tokens that the
    kubelet could give, in any order, ``must_include`` those that must be in the answer (of them, those not
    available are ignored), ``size`` how many tokens the container asks for in all.
    """

    candidate: Callable[[str], str | None]
    available: Sequence[str]
    must_include: Collection[str]
    size: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Tokens to hand out: at most ``size``, or more if ``must_include`` has more; these come first.

    ``exact`` tells whether it is the best there is for certain, ``worths`` why, where that was asked for.
    """

    tokens: tuple[str, ...]
    exact: bool = True
    worths: Mapping[str, int] = field(default_factory=dict)


def prefer(
    policy: Prefer,
    topology: Topology,
    request: Request,
    outside: Outside = NOTHING,
    links: Links | None = None,
    *,
    explain: bool = False,
    limit: int = LIMIT,
) -> Choice:
    """Names the tokens to hand out.

    Args:
        policy: the resource's ``prefer``.
        topology: where its devices are.
        outside: what of other resources is near them.
        links: how closely its devices are joined.
        explain: whether :attr:`Choice.worths` is wanted.
        limit: steps after which a quick way is taken instead of the exact one.
    """
    offered = dict.fromkeys(request.available)
    must = [token for token in dict.fromkeys(request.must_include) if token in offered]
    for token in must:
        del offered[token]
    free: dict[str, list[str]] = defaultdict(list)
    for token in offered:
        name = request.candidate(token)
        if name is not None and name in topology.number:
            free[name].append(token)
    need = min(request.size - len(must), sum(map(len, free.values())))
    if need <= 0:
        return Choice(tuple(must))
    base = [0] * len(topology.candidates)
    for token in must:
        if (number := topology.number.get(request.candidate(token) or "")) is not None:
            base[number] += 1
    if len(free) == 1:
        # Nothing to choose between, among perhaps 100 000: they differ in their numbers only.
        return Choice((*must, *_first(next(iter(free.values())), need)))
    counts = [len(free.get(candidate.name, ())) for candidate in topology.candidates]
    chosen, exact, worths = _weighed(policy, topology, counts, base, need, outside, links, explain, limit)
    tokens = [
        token
        for candidate, n in zip(topology.candidates, chosen, strict=True)
        if n
        for token in _first(free[candidate.name], n)
    ]
    return Choice((*must, *tokens), exact, worths)


def _weighed(
    policy: Prefer,
    topology: Topology,
    counts: list[int],
    base: list[int],
    need: int,
    outside: Outside,
    links: Links | None,
    explain: bool,
    limit: int,
) -> tuple[list[int], bool, Mapping[str, int]]:
    if need == sum(counts):
        return counts, True, {}
    scale = SCALES[policy]
    stand = Availability(topology, counts, base, outside)
    if linked := choose(stand, need, scale, links or {}):
        chosen, exact = linked
    else:
        try:
            chosen, exact = best(stand, need, scale, limit), True
        except TooMuch:
            chosen, exact = _quick(policy, stand, need, outside), False
    return chosen, exact, totals(stand, chosen, scale) if explain else {}


def _quick(policy: Prefer, stand: Availability, need: int, outside: Outside) -> list[int]:
    """A choice in the spirit of the policy, where the exact one would take too long."""
    candidates = stand.topology.candidates
    if policy is Prefer.SPREAD:
        return even(stand, need, lambda number: candidates[number].total - stand.free[number])
    if policy is Prefer.PACK:
        return descend(stand, need, SCALES[policy])
    single = [min(1, free) for free in stand.free]
    if policy is Prefer.DISTINCT:
        seen: set[str] = set()
        for number, free in enumerate(single):
            name = card(candidates[number].device)
            single[number] = int(bool(free) and name not in seen)
            seen |= {name} if free else set()
    if sum(single) < need:
        return even(stand, need, lambda number: stand.base[number])
    if single != list(stand.free):
        stand = Availability(stand.topology, single, stand.base, outside)
    return descend(stand, need, SCALES[policy])


def _first(tokens: Iterable[str], count: int) -> list[str]:
    """The tokens of one device with the lowest numbers, in their order."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for token in tokens:
        by_length[len(token)].append(token)
    found: list[str] = []
    for length in sorted(by_length):
        found += nsmallest(count - len(found), by_length[length])
        if len(found) == count:
            break
    return found
