"""A node without I/O: the ledger, the plan and the inventories, a kubelet, and who really has what."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from devhost.allocation.allocations import Allocations, Listing
from devhost.allocation.inventory import Inventory
from devhost.backend.model import HEALTHY, Device, Holder
from devhost.backend.where import Block, Term, Text
from devhost.planning.claims import Reason
from devhost.planning.plan import Plan, units
from devhost.planning.planner import plan_devices
from devhost.planning.settings import Of, ResourceSettings, Settings, Share
from devhost.planning.timing import ALLOCATION as NODE
from devhost.planning.tokens import ALL

APART = NODE.release_gap
GRACE = NODE.grace

BACKENDS = ("one", "two")
ANY = (Block(),)
KINDS = tuple((Block((Term("kind", (Text(kind),)),)),) for kind in ("x", "y"))


def machine(dice: random.Random) -> list[tuple[str, Device]]:
    """Cards as a whole and in parts, groups of them, and cards that two backends know."""
    made: dict[tuple[str, str], Device] = {}
    for number in range(dice.randint(2, 4)):
        card = f"card:{number}"
        group = frozenset({f"group:{dice.randint(0, 1)}"}) if dice.random() < 0.2 else frozenset()
        parts = [f"p{number}.{part}" for part in range(dice.randint(0, 2))]
        for name in (f"c{number}", *parts):
            whole = name.startswith("c")
            claims = frozenset({card} if whole else {f"part:{name}"}) | group
            for backend in dice.choice(((BACKENDS[0],), (BACKENDS[1],), BACKENDS)):
                kind = dice.choice("xy")
                part_of = frozenset() if whole else frozenset({card})
                made[backend, name] = Device(name, {"kind": kind}, claims, part_of)
    return [(backend, device) for (backend, _), device in made.items()]


def file(dice: random.Random) -> Settings:
    """A configuration of a few entries, in any order."""
    names = [f"example.com/r{number}" for number in range(4)] + ["example.com/k-{kind}"]
    entries = []
    for index, name in enumerate(dice.sample(names, dice.randint(1, 4))):
        entries.append(
            ResourceSettings(
                index,
                name,
                dice.choice(BACKENDS),
                dice.choice((ANY, *KINDS)),
                Share(dice.choice((1, 1, 2, 3)), of=dice.choice((Of.EACH, Of.EACH, Of.EACH, Of.ALL))),
                exclusive=dice.random() < 0.6,
            )
        )
    return Settings(tuple(entries))


@dataclass
class Container:
    """What a container really has: devices by backend, and every claim they have had since."""

    holder: Holder
    resource: str
    token: str
    devices: dict[tuple[str, str], Device]
    exclusive: bool
    """What the configuration last said of the resource."""
    alone: bool
    """Whether it got the devices for itself."""
    blind: set[tuple[str, str]] = field(default_factory=set)
    """Devices of which nobody could tell since devhost restarted that this container has them."""


class AllocatedTwice(AssertionError):
    """One thing was given to two containers."""


@dataclass
class Node:
    dice: random.Random
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.hardware = machine(self.dice)
        self.found: dict[str, dict[str, Device]] = {}
        self.settings = file(self.dice)
        self.containers: list[Container] = []
        self.inventories: dict[str, Inventory] = {}
        self.plan = Plan()
        self.numbers = itertools.count()
        self.start()

    # what devhost does

    def start(self) -> None:
        """Starts devhost, which knows nothing, and tells it what the kubelet knows."""
        self.ledger = Allocations(lambda: self.now, self.replan)
        self.inventories = {}
        self.ledger.apply(self.listing())
        self.replan()

    def read(self) -> None:
        """Brings up to date whether containers share what they have."""
        for container in self.containers:
            for entry in self.entries(container.resource):
                container.exclusive = entry.exclusive

    def replan(self) -> None:
        self.read()
        self.plan = plan_devices(self.found, self.settings, self.ledger)
        for name in [name for name in self.inventories if name not in self.plan.resources]:
            self.inventories.pop(name).clear()
        for name, planned in self.plan.resources.items():
            backend = planned.entry.backend
            inventory = self.inventories.get(name)
            if inventory is None or inventory.backend != backend:
                inventory = Inventory(
                    lambda: self.now,
                    lambda: self.now,
                    allocations=self.ledger.of(name),
                    backend=backend,
                )
                self.inventories[name] = inventory
            inventory.update(units(planned.entry.share.of, planned.offers), lambda _: HEALTHY, Reason)

    # what the kubelet does

    def listing(self) -> Listing:
        holders: dict[str, dict[str, Holder]] = {}
        for container in self.containers:
            holders.setdefault(container.resource, {})[container.token] = container.holder
        return Listing((1, 1, 1), self.now, 3, holders)

    def free(self) -> Iterator[tuple[str, str, dict[tuple[str, str], Device]]]:
        """Every token that a pod could get now, with its devices."""
        taken = {(container.resource, container.token) for container in self.containers}
        for name, inventory in self.inventories.items():
            for token, entry in inventory.snapshot.entries.items():
                if entry.health.healthy and entry.gone_at is None and (name, token) not in taken:
                    yield name, token, {(inventory.backend, m.device.id): m.device for m in entry.members}

    # what happens

    def admit(self) -> None:
        offered = list(self.free())
        if not offered:
            return
        name, token, devices = self.dice.choice(offered)
        inventory, exclusive = self.inventories[name], self.plan.resources[name].entry.exclusive
        alone = self.replicas(name, devices) == 1
        with inventory.reserved({token: devices.values()}):
            if self.dice.random() < 0.1:
                self.reload()  # in the middle of Allocate
            if self.dice.random() < 0.1:
                return  # the backend says no
            inventory.allocated([token], {token: devices.values()})
        holder = Holder("default", f"pod-{next(self.numbers)}", "main")
        self.containers.append(Container(holder, name, token, dict(devices), exclusive, alone))
        self.read()

    def end(self) -> None:
        if self.containers:
            self.containers.remove(self.dice.choice(self.containers))

    def tell(self) -> None:
        self.now += self.dice.choice((0.5, APART, 10.0))
        self.ledger.apply(self.listing())

    def reload(self) -> None:
        dice, entries = self.dice, list(self.settings.resources)
        chance = dice.random()
        if chance < 0.4:
            self.settings = file(dice)
        elif chance < 0.6:
            dice.shuffle(entries)
        elif chance < 0.7 or not entries:
            del entries[dice.randrange(4) :]
        else:
            which = dice.randrange(len(entries))
            share = Share(dice.choice((1, 2, 3)), of=dice.choice(tuple(Of)))
            entries[which] = dice.choice(
                (
                    replace(entries[which], exclusive=not entries[which].exclusive),
                    replace(entries[which], share=share),
                    replace(entries[which], where=dice.choice((ANY, *KINDS))),
                    replace(entries[which], backend=dice.choice(BACKENDS)),
                )
            )
        if chance >= 0.4:
            self.settings = Settings(tuple(replace(e, index=n) for n, e in enumerate(entries)))
        self.replan()

    def plug(self) -> None:
        """Some devices appear, go, or are bound to another driver."""
        for backend, device in self.dice.sample(self.hardware, min(3, len(self.hardware))):
            known = self.found.setdefault(backend, {})
            if device.id not in known:
                known[device.id] = device
            elif self.dice.random() < 0.2:
                claims = device.claims | {f"group:{self.dice.randint(0, 1)}"}
                known[device.id] = replace(device, claims=claims)
            else:
                del known[device.id]
        if self.dice.random() < 0.05:
            self.found.pop(self.dice.choice(BACKENDS), None)
        for container in self.containers:
            for backend, name in container.devices:
                if now := self.found.get(backend, {}).get(name):
                    was = container.devices[backend, name]
                    container.devices[backend, name] = replace(was, claims=was.claims | now.claims)
        self.replan()
        for container in self.containers:
            container.blind = {key for key in container.blind if not self.readable(container, *key)}

    def wait(self) -> None:
        self.now += self.dice.choice((1.0, GRACE, 20.0))
        self.replan()

    def restart(self) -> None:
        """Devhost restarts, perhaps with another file; what it held only in memory is lost."""
        if self.dice.random() < 0.5:
            self.settings = file(self.dice)
        for container in self.containers:
            container.exclusive = True
            for key in container.devices:
                if (now := self.found.get(key[0], {}).get(key[1])) is not None:
                    container.devices[key] = now
        self.start()
        for container in self.containers:
            container.blind = {key for key in container.devices if not self.readable(container, *key)}

    def readable(self, container: Container, backend: str, device: str) -> bool:
        """Whether the kubelet's word and the file tell that a container has this device."""
        entries = self.entries(container.resource)
        if container.token.startswith(f"{ALL}::"):
            planned = self.plan.resources.get(container.resource)
            return planned is not None and any(
                (planned.entry.backend, offer.device.id) == (backend, device) for offer in planned.offers
            )
        own = {entry.backend for entry in entries}
        other = own and backend not in own and any(device in self.found.get(b, {}) for b in own)
        return not other and device in self.found.get(backend, {})

    def entries(self, resource: str) -> list[ResourceSettings]:
        """The entries that the resource may come from."""
        names = resource, resource[:-1]  # a template has one letter in its braces
        return [entry for entry in self.settings.resources if entry.name.partition("{")[0] in names]

    # what must hold

    def check(self) -> None:
        """Nothing that meets what a container has is on offer to anybody else."""
        exclusive = {name: planned.entry.exclusive for name, planned in self.plan.resources.items()}
        for name, token, devices in self.free():
            for container in self.containers:
                for mine, had in container.devices.items():
                    if mine in container.blind:
                        continue
                    for key, device in devices.items():
                        if key != mine:
                            if meet(had, device):
                                raise AllocatedTwice(f"{name} offers {key}, {container} has {mine}")
                        elif name != container.resource:
                            shared = not (exclusive[name] or container.exclusive)
                        else:
                            shared = not container.alone and self.replicas(name, devices) > 1
                        if key == mine and not shared:
                            raise AllocatedTwice(f"{name} offers {key} as {token}, which {container} has")

    def replicas(self, name: str, devices: dict[tuple[str, str], Device]) -> int:
        """How often a resource hands out a token with these devices."""
        planned = self.plan.resources[name]
        offers = {offer.device.id: offer.replicas for offer in planned.offers}
        return planned.offers[0].replicas if planned.entry.share.of is Of.ALL else offers[min(devices)[1]]


def meet(a: Device, b: Device) -> bool:
    """Whether two devices use up one thing."""
    return bool(a.claims & (b.claims | b.part_of) or b.claims & a.part_of)
