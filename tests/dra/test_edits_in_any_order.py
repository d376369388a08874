"""Edits, restarts and claims in random order: two drivers with counters, amounts, shares and units.

Whatever the order, a device is in the slices of one driver, what is prepared stays prepared, and in the end
each device is where the file has it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.dra import DRIVER, Cards, DraNode

from devhost.backend import Attribute, Device, claim
from devhost.dra.api import dra_v1_pb2 as v1

OTHER = "other.example.org"
NICS = {"pf", "vf0", "vf1"}
SHARES = {
    "amount": "share: {capacity: {memory: {min: 1Gi}}, limit: {env: {LIMIT: '{consumed.memory}'}}}, ",
    "replicas": "share: {replicas: 3}, ",
    "unit": "share: {of: serial, members: 2}, ",
    "none": "",
}


class Mixed(Cards):
    """A function with parts, and two cards; all have the same serial number."""

    attributes: ClassVar = {
        "model": Attribute(str, "model", "pf"),
        "serial": Attribute(str, "serial number", "0"),
        "memory": Attribute(int, "memory", 8192, unit="Mi"),
    }

    def discover(self) -> list[Device]:
        whole = frozenset({claim.pci("0000:01:00.0")})
        found = [Device("pf", {"model": "pf"}, claims=whole, withheld="it is divided", divided=True)]
        for n in range(2):
            function = frozenset({claim.pci(f"0000:01:00.{n + 1}")})
            found.append(Device(f"vf{n}", {"model": "vf"}, claims=function, part_of=whole))
            card = frozenset({claim.pci(f"0000:0{n + 2}:00.0")})
            found.append(Device(f"m{n}", {"model": "card", "memory": 8192}, claims=card))
        return [replace(one, attributes={**one.attributes, "serial": "same"}) for one in found]


@dataclass
class File:
    """What the configuration says."""

    default: str = DRIVER
    nic: str = DRIVER
    """The driver of the functions; empty for the device plugin."""
    card: str = OTHER
    counters: bool = True
    share: str = "amount"
    names: bool = False
    metadata: bool = True
    status: bool = True
    reverse: bool = False

    def edit(self, rng: random.Random) -> None:
        """Changes one key."""
        key = rng.choice(list(vars(self)))
        drivers = [DRIVER, OTHER]
        choices = {"default": drivers, "nic": [*drivers, ""], "card": drivers, "share": list(SHARES)}
        value = rng.choice(choices[key]) if key in choices else not vars(self)[key]
        setattr(self, key, value)

    def text(self) -> str:
        names = ", attributes: {type: model, number: serial}" if self.names else ""
        counters = f", counters: {str(self.counters).lower()}"
        dra = f"serve: dra, dra: {{driver: {self.nic}{counters}{names}}}" if self.nic else "serve: plugin"
        entries = [
            f"{{name: example.com/nic, backend: cards, where: {{model: [pf, vf]}}, {dra}}}",
            "{name: example.com/card, backend: cards, where: {model: card}, serve: dra, "
            f"{SHARES[self.share]}dra: {{driver: {self.card}}}}}",
        ]
        terms = f"metadata: {str(self.metadata).lower()}, status: {str(self.status).lower()}"
        rows = "".join(f"  - {entry}\n" for entry in (reversed(entries) if self.reverse else entries))
        return f"dra: {{driver: {self.default}, {terms}}}\nresources:\n{rows}"

    def offers(self) -> dict[str, set[str]]:
        """The devices of each driver once nothing is held."""
        found: dict[str, set[str]] = {}
        if self.nic:
            found.setdefault(self.nic, set()).update(NICS if self.counters else NICS - {"pf"})
        found.setdefault(self.card, set()).update({"same"} if self.share == "unit" else {"m0", "m1"})
        return found


@dataclass
class Pod:
    """A claim, the drivers of its devices, and by driver the CDI names if it could prepare its devices."""

    claim: v1.Claim
    drivers: set[str]
    prepared: dict[str, list[str]] = field(default_factory=dict)


class Cluster:
    """The node, and the pods with claims on it."""

    def __init__(self, node: DraNode, rng: random.Random) -> None:
        self.node, self.rng, self.file = node, rng, File()
        self.pods: list[Pod] = []
        self._made = 0

    def configure(self) -> None:
        self.node.node.configure(self.file.text())

    async def step(self) -> None:
        """Does something at random."""
        do = self.rng.choice(
            [self.edit, self.edit, self.start, self.start, self.start, self.repeat, self.end]
        )
        await do()
        drivers: dict[str, str] = {}
        for driver, devices in self.node.drivers().items():
            for one in devices:
                assert drivers.setdefault(one, driver) == driver, f"{one} is in the slices of two drivers"
        assert not self.node.host.tasks.failing

    async def edit(self) -> None:
        self.file.edit(self.rng)
        self.configure()
        await self.node.node.reload()
        self.node.kubelet_reports(example_com__nic=0)

    async def start(self) -> None:
        """A scheduler allocates devices that are in slices; not all of them fit together."""
        offered: list[tuple[str, str, Any]] = [
            (spec["driver"], spec["pool"]["name"], one)
            for spec in self.node.slices()
            for one in spec.get("devices", ())
        ]
        chosen = self.rng.sample(offered, min(len(offered), self.rng.choice([1, 1, 2])))
        if not chosen:
            return
        self._made += 1
        name = f"claim-{self._made}"
        shared = next((one for one in chosen if one[2].get("allowMultipleAllocations")), None)
        consumed = {}
        if shared is not None:
            amount = {"memory": f"{self.rng.randint(1, 6)}Gi"}
            consumed = amount if "memory" in shared[2]["capacity"] else {f"{shared[0]}/slots": "1"}
        made = self.node.allocate(
            name,
            *((pool, one["name"]) for _, pool, one in chosen),
            drivers=[driver for driver, _, _ in chosen],
            share=name if shared is not None else "",
            consumed=consumed,
        )
        self.pods.append(Pod(made, {driver for driver, _, _ in chosen}))
        await self.prepare(self.pods[-1])

    async def prepare(self, pod: Pod) -> None:
        """Prepares a claim: what is prepared already gives the same again."""
        for driver in sorted(pod.drivers):
            answer = (await self.node.prepare(pod.claim, driver=driver))[pod.claim.uid]
            assert "devhost failed" not in answer.error
            names = sorted(name for one in answer.devices for name in one.cdi_device_ids)
            if driver in pod.prepared:
                assert not answer.error and names == pod.prepared[driver]
            elif not answer.error:
                pod.prepared[driver] = names

    async def repeat(self) -> None:
        """The kubelet prepares a claim again, as after its restart."""
        if self.pods:
            await self.prepare(self.rng.choice(self.pods))

    async def end(self) -> None:
        """A pod ends."""
        if not self.pods:
            return
        pod = self.pods.pop(self.rng.randrange(len(self.pods)))
        for driver in sorted(pod.drivers):
            assert not (await self.node.unprepare(pod.claim, driver=driver))[pod.claim.uid].error
        self.node.delete_claim(pod.claim.name)

    def is_settled(self) -> bool:
        """Whether every device is where the file has it, and nothing is left of claims."""
        offered = {driver: devices for driver, devices in self.node.drivers().items() if devices}
        left = list(self.node.options.plugins_dir.glob("*/dra-device-metadata/*"))
        return offered == self.file.offers() and not left and not self.node.host.allocations.claims.count


@pytest.mark.parametrize("seed", range(4))
async def test_devices_are_where_the_file_has_them_after_edits_claims_and_restarts(
    place: Path, seed: int
) -> None:
    async with DraNode(place, kind=Mixed) as node:
        cluster = Cluster(node, random.Random(seed))
        cluster.configure()
        for _ in range(2):
            async with node.served():
                await node.synced()
                for _ in range(5):
                    await cluster.step()
        async with node.served():
            while cluster.pods:
                await cluster.end()
            node.kubelet_reports(example_com__nic=0)
            await node.until(cluster.is_settled)
