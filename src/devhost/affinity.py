"""Which of the available devices to hand out together. Pure and deterministic.

The answer to GetPreferredAllocation: always a subset of what is available, always with the tokens that
must be in it, never an error. When the request cannot be met the answer is the best there is.

The order of business: choose NUMA nodes (as few as can serve the request, and of those the ones that
leave the least behind), then devices within them, by the policy.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest

from .model import Device
from .settings import Prefer


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could be handed out, and the device behind it."""

    token: str
    device: Device


def prefer(
    policy: Prefer,
    devices: Mapping[str, Device],
    available: Sequence[str],
    must_include: Collection[str],
    size: int,
) -> list[str]:
    """Names the tokens to hand out.

    Args:
        policy: the resource's ``prefer``.
        devices: the device behind each token known.
        available: tokens the kubelet could give, in any order.
        must_include: tokens that must be in the answer; those not available are ignored.
        size: how many tokens the container asks for in all.

    Returns:
        At most ``size`` tokens (more only if ``must_include`` has more), the must-includes first.
    """
    offered = dict.fromkeys(available)
    chosen = {token: None for token in must_include if token in offered}
    free = [token for token in offered if token in devices and token not in chosen]
    need = size - len(chosen)
    if need <= 0:
        return list(chosen)
    if len({devices[token].id for token in free}) == 1:
        # Nothing to choose between, among perhaps 100 000: they differ in their numbers only.
        return [*chosen, *nsmallest(need, free, key=lambda token: (len(token), token))]
    candidates = [Candidate(token, devices[token]) for token in sorted(free, key=natural)]
    if len(candidates) <= need:
        return [*chosen, *(candidate.token for candidate in candidates)]
    taken = [devices[token] for token in chosen if token in devices]
    selection = _Selection(policy, taken, candidates)
    return [*chosen, *(candidate.token for candidate in selection.pick(need))]


@lru_cache(maxsize=4096)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts ``card2`` before ``card10``."""
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


Nodes = tuple[int, ...]


class _Selection:
    def __init__(self, policy: Prefer, taken: Sequence[Device], candidates: Sequence[Candidate]) -> None:
        self._policy = policy
        self._taken = list(taken)
        self._free = Counter(candidate.device.id for candidate in candidates)
        self._by_node: dict[Nodes, list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            self._by_node[candidate.device.numa_nodes].append(candidate)

    def pick(self, need: int) -> list[Candidate]:
        picked: list[Candidate] = []
        if self._policy is Prefer.SPREAD:
            queues = [self._ordered(group) for _, group in sorted(self._by_node.items(), key=self._room)]
            while len(picked) < need:
                for queue in queues:
                    if queue and len(picked) < need:
                        picked.append(queue.pop(0))
            return picked
        if self._policy is Prefer.DISTINCT:
            pool = [c for nodes in self._node_order(need) for c in self._ordered(self._by_node[nodes])]
            return _one_each_first(pool, [device.id for device in self._taken])[:need]
        for nodes in self._node_order(need):
            picked += self._ordered(self._by_node[nodes])[: need - len(picked)]
        return picked

    def _room(self, item: tuple[Nodes, list[Candidate]]) -> tuple[int, Nodes]:
        return -len(item[1]), item[0]

    def _node_order(self, need: int) -> list[Nodes]:
        """NUMA nodes in the order to use them: where something is already taken, then the best fit."""
        left = dict(self._by_node)
        order = [nodes for nodes in dict.fromkeys(d.numa_nodes for d in self._taken) if nodes in left]
        for nodes in order:
            need -= len(left.pop(nodes))
        while left:
            enough = [item for item in left.items() if len(item[1]) >= need]
            if enough and need > 0:
                nodes = min(enough, key=lambda item: (not item[0], len(item[1]), item[0]))[0]
            else:
                nodes = min(left.items(), key=lambda item: (not item[0], -len(item[1]), item[0]))[0]
            order.append(nodes)
            need -= len(left.pop(nodes))
        return order

    def _ordered(self, group: Sequence[Candidate]) -> list[Candidate]:
        """Candidates of one NUMA node in the order to take them."""
        if self._policy is Prefer.PACK:
            return sorted(group, key=lambda c: (self._free[c.device.id], natural(c.token)))
        taken_ids = [device.id for device in self._taken]
        if self._policy is Prefer.SPREAD:
            fresh = sorted(group, key=lambda c: (-self._free[c.device.id], natural(c.token)))
            return _one_each_first(fresh, taken_ids)
        near = sorted(group, key=lambda c: (-self._nearness(c.device), c.device.pcie_path, natural(c.token)))
        return _one_each_first(near, taken_ids)

    def _nearness(self, device: Device) -> int:
        """PCIe bridges shared with the nearest device already taken."""
        return max((_common(device.pcie_path, other.pcie_path) for other in self._taken), default=0)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def _one_each_first(candidates: Sequence[Candidate], taken: Sequence[str]) -> list[Candidate]:
    """The same candidates, one replica of every physical device before a second of any."""
    seen = Counter(taken)
    rounds: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        rounds[seen[candidate.device.id]].append(candidate)
        seen[candidate.device.id] += 1
    return [candidate for turn in sorted(rounds) for candidate in rounds[turn]]
