"""Which of the available devices a container should get together. Pure and deterministic.

The answer to GetPreferredAllocation is always a subset of the available tokens, contains those that it must
include, and is never an error. If there are too few tokens, it contains all of them.

:mod:`.policies` defines which choice is best and finds it, or :mod:`.links` if devices are linked;
``docs/affinity.md`` explains it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from heapq import nsmallest

from devhost.backend.frozen import frozen
from devhost.planning.settings import Prefer

from .links import choose, is_exact
from .policies import LIMIT, NOTHING, SCALES, Availability, Outside, TooMuch, best, descend, even, totals
from .topology import Links, Topology, card


@frozen
class PreferenceRequest:
    """What a container requests.

    ``candidate`` gives the device of a token, ``available`` are the tokens that the kubelet could allocate,
    in any order, ``must_include`` those that the answer must contain (unless they are not available),
    ``size`` is how many tokens the container requests in all.
    """

    candidate: Callable[[str], str | None]
    available: Sequence[str]
    must_include: Collection[str]
    size: int


@frozen
class Choice:
    """The preferred tokens: at most ``size``, or more if ``must_include`` has more; these come first.

    ``exact`` is whether no choice can be better, ``scores`` the score by criterion if it was requested.
    """

    tokens: tuple[str, ...]
    exact: bool = True
    scores: Mapping[str, int] = field(default_factory=dict)


def prefer(
    policy: Prefer,
    topology: Topology,
    request: PreferenceRequest,
    outside: Outside = NOTHING,
    links: Links | None = None,
    *,
    explain: bool = False,
    limit: int = LIMIT,
) -> Choice:
    """Chooses the tokens that the container should get.

    ``outside`` is what other resources have near the devices, ``links`` is how closely these are linked.
    ``explain`` is whether to fill in :attr:`Choice.scores`. Beyond ``limit`` steps, a fast method replaces
    the exact one.
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
        # perhaps 100 000 tokens, which differ only in their numbers
        return Choice((*must, *_first(next(iter(free.values())), need)))
    counts = [len(free.get(candidate.name, ())) for candidate in topology.candidates]
    chosen, exact, scores = counts, True, dict[str, int]()
    if need < sum(counts):
        scale = SCALES[policy]
        availability = Availability(topology, counts, base, outside)
        linked, exact = choose(availability, need, scale, links or {}, limit)
        try:
            chosen = best(availability, need, scale, limit) if linked is None else linked
        except TooMuch:
            chosen, exact = _fast(policy, availability, need, outside), False
        scores = totals(availability, chosen, scale) if explain else {}
    tokens = [
        token
        for candidate, n in zip(topology.candidates, chosen, strict=True)
        if n
        for token in _first(free[candidate.name], n)
    ]
    return Choice((*must, *tokens), exact, scores)


def unproven(policy: Prefer, topology: Topology, links: Links) -> int:
    """The lowest number of tokens of which links keep the choice from being proven best; 0 if there is none.

    All tokens are taken for free; the arguments are as for :func:`prefer`.
    """
    if not links:
        return 0
    free = [candidate.total for candidate in topology.candidates]
    availability = Availability(topology, free, [0] * len(free))
    sizes = range(1, sum(free))
    return next((n for n in sizes if not is_exact(availability, n, SCALES[policy], links, LIMIT)), 0)


def _fast(policy: Prefer, availability: Availability, need: int, outside: Outside) -> list[int]:
    """A choice by the main criterion of the policy, for when the exact one would take too long."""
    candidates = availability.topology.candidates
    if policy is Prefer.SPREAD:
        return even(availability, need, lambda number: candidates[number].total - availability.free[number])
    if policy is Prefer.PACK:
        return descend(availability, need, SCALES[policy])
    single = [min(1, free) for free in availability.free]
    if policy is Prefer.DISTINCT:
        seen: set[str] = set()
        for number, free in enumerate(single):
            name = card(candidates[number].device)
            single[number] = int(bool(free) and name not in seen)
            seen |= {name} if free else set()
    if sum(single) < need:
        return even(availability, need, lambda number: availability.base[number])
    if single != list(availability.free):
        availability = Availability(availability.topology, single, availability.base, outside)
    return descend(availability, need, SCALES[policy])


def _first(tokens: Iterable[str], count: int) -> list[str]:
    """The ``count`` tokens of one device with the lowest numbers, in their order."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for token in tokens:
        by_length[len(token)].append(token)
    found: list[str] = []
    for length in sorted(by_length):
        found += nsmallest(count - len(found), by_length[length])
        if len(found) == count:
            break
    return found
