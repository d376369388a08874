"""GetPreferredAllocation from the tokens to the answer, in this process, without the gRPC call."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import combinations

from devhost.allocation.inventory import Inventory
from devhost.allocation.preferred import PreferredAllocation
from devhost.backend.model import Device
from devhost.planning.affinity.topology import Links
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of, Prefer

from . import measures
from .measure import Measure, Result

ROUNDS = 20


async def measure() -> AsyncIterator[Result]:
    """Each line uses a separate machine; the first request, which builds the tree, is included."""
    for count, line in ((8, measures.PREFER_8), (16, measures.PREFER_16)):
        devices = [_card(n, count // 2, f"gpu{n}") for n in range(count)]
        rng = random.Random(count)
        links = {frozenset((a.id, b.id)): rng.randint(0, 4) for a, b in combinations(devices, 2)}
        yield _result(line, {"gpu": _inventory(devices)}, list(range(1, count + 1)) * ROUNDS, links)
        await asyncio.sleep(0)
    many = [_card(n, 500, f"dev{n:05}") for n in range(10_000)]
    yield _result(measures.PREFER_BIG, {"dev": _inventory(many)}, [8] * ROUNDS)
    await asyncio.sleep(0)
    shared = {"kvm": _inventory([Device(f"kvm{n}", numa_nodes=(n % 2,)) for n in range(8)], 12_500)}
    yield _result(measures.PREFER_REPLICAS, shared, [8] * ROUNDS)
    await asyncio.sleep(0)
    both = {kind: _inventory([_card(n, 4, f"{kind}{n}") for n in range(8)]) for kind in ("gpu", "hca")}
    yield _result(measures.PREFER_PAIR, both, list(range(1, 9)) * ROUNDS)


def _card(number: int, switches: int, name: str) -> Device:
    """One of the cards, which are distributed to this number of switches on two sockets."""
    switch = number % switches
    root = f"{switch >> 8:04x}:{switch & 255:02x}:01.0"
    path = (root, f"up{switch}", f"down{switch}.{number // switches}", name)
    return Device(name, numa_nodes=(switch * 2 // switches,), pcie_path=path)


def _inventory(devices: Sequence[Device], replicas: int = 1) -> Inventory:
    inventory = Inventory(time.time, time.monotonic)
    offers = [Offer(device, replicas) for device in devices]
    inventory.update(units(Of.EACH, offers), lambda device: device.health, lambda device: Reason("gone"))
    return inventory


def _result(
    line: Measure, inventories: Mapping[str, Inventory], sizes: Sequence[int], links: Links | None = None
) -> Result:
    vicinity = PreferredAllocation(lambda: inventories)
    tokens = {name: list(inventory.snapshot.entries) for name, inventory in inventories.items()}
    samples, exact = [], True
    for size in sizes:
        for name, inventory in inventories.items():
            began = time.perf_counter()
            choice = vicinity.prefer(name, inventory, Prefer.TOPOLOGY, links or {}, tokens[name], (), size)
            samples.append((time.perf_counter() - began) * 1e3)
            vicinity.allocated(name, inventory, time.monotonic(), choice.tokens)
            exact = exact and choice.exact and len(choice.tokens) == size
    return Result(line, tuple(samples), wrong="" if exact else "not the best choice")
