"""After any sequence of changes and their events, the backend reports the current state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devhost_testing.fixtures import by_id
from sriov_network import CONNECTX6_DX, CONNECTX6_DX_VF
from sriov_tree import SriovTree

from devhost.backend import Event

STEPS = 120
CARDS = ("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci0000:3a/0000:3a:00.0/0000:3b:00.1")
DRIVERS = ("mlx5_core", "vfio-pci", "igb_uio", "")

REMEMBERED = {"netDevs", "mac", "mtu", "linkType", "pfName", "pfNames", "representor"}
"""Attributes that one who just started need not know: they are kept while an interface is in a pod."""


class Machine:
    """A machine that changes at random. Each step gives the kernel's events of it."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.tree = SriovTree(root)
        self.dice = dice
        self.number = 0
        self.parts: list[str] = []
        for driver in filter(None, DRIVERS):
            (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
        for card in CARDS:
            list(self._plug(card))

    def step(self) -> list[Event]:
        """One change."""
        steps: list[Callable[[], Iterator[Event]]] = [
            *[self.make_virtual] * 4,
            *[self.make_scalable] * 2,
            *[self.rebind, self.rename, self.lose_interface, self.gain_interface] * 2,
            *[self.remove_part, self.carrier, self.represent, self.stray, self.vdpa] * 2,
            self.replug,
            self.late,
        ]
        return list(self.dice.choice(steps)())

    def make_virtual(self) -> Iterator[Event]:
        card = self._card()
        if not self._exists(card):
            return
        address = f"0000:3b:{self._next() % 29 + 2:02x}.{self.number % 8}"
        path = f"{card.rpartition('/')[0]}/{address}"
        if not self._exists(path):
            self.tree.virtual(card, address, CONNECTX6_DX_VF, self.dice.choice(DRIVERS), group=self.number)
            self.parts.append(path)
            yield from (Event("pci", action, f"/sys/devices/{path}") for action in ("add", "change", "bind"))

    def make_scalable(self) -> Iterator[Event]:
        card = self._card()
        if self._exists(card):
            path = self.tree.scalable(card, f"mlx5_core.sf.{self._next()}", self.number)
            self.parts.append(path)
            yield Event("auxiliary", "add", f"/sys/devices/{path}")

    def remove_part(self) -> Iterator[Event]:
        if self.parts:
            yield from self._remove(self.parts.pop(self.dice.randrange(len(self.parts))))

    def rebind(self) -> Iterator[Event]:
        virtual = [path for path in self.parts if ".sf." not in path]
        if virtual:
            path = self.dice.choice(virtual)
            for name in self._interfaces(path):
                yield self.tree.remove(f"/sys/devices/{path}/net/{name}")
            link = self.tree.root / "sys/devices" / path / "driver"
            link.unlink(missing_ok=True)
            yield Event("pci", "unbind", f"/sys/devices/{path}")
            if driver := self.dice.choice(DRIVERS):
                self.tree.link(f"/sys/devices/{path}/driver", f"/sys/bus/pci/drivers/{driver}")
                yield Event("pci", "bind", f"/sys/devices/{path}")

    def gain_interface(self) -> Iterator[Event]:
        if path := self._any():
            yield self._netdev(path)

    def lose_interface(self) -> Iterator[Event]:
        if names := self._interfaces(path := self._any()):
            yield self.tree.remove(f"/sys/devices/{path}/net/{self.dice.choice(names)}")

    def rename(self) -> Iterator[Event]:
        for event in self.lose_interface():
            path = event.sys_path.removeprefix("/sys/devices/").partition("/net/")[0]
            new = self._netdev(path)
            yield Event("net", "move", new.sys_path)

    def carrier(self) -> Iterator[Event]:
        if names := self._interfaces(path := self._any()):
            name = self.dice.choice(names)
            self.tree.file(f"/sys/devices/{path}/net/{name}/operstate", self.dice.choice(("up", "down")))
            yield Event("net", "change", f"/sys/class/net/{name}")

    def represent(self) -> Iterator[Event]:
        card = self._card()
        if self._exists(card):
            word = self.dice.choice(("vf", "sf"))
            yield self._netdev(card, f"pf{card[-1]}{word}{self.dice.randrange(6)}")

    def stray(self) -> Iterator[Event]:
        yield self._netdev("virtual", f"pf0vf{self.dice.randrange(6)}")

    def vdpa(self) -> Iterator[Event]:
        path = self._any()
        if path and not list((self.tree.root / "sys/devices" / path).glob("vdpa*")):
            driver = self.dice.choice(("vhost_vdpa", "virtio_vdpa"))
            yield Event("vdpa", "add", self.tree.vdpa(path, f"vdpa{self._next()}", driver))

    def replug(self) -> Iterator[Event]:
        card = self._card()
        if not self._exists(card):
            yield from self._plug(card)
            return
        for path in [*self.parts]:
            physfn = self.tree.root / "sys/devices" / path / "physfn"
            if path.startswith(f"{card}/") or (physfn.is_symlink() and physfn.readlink().name == card[-12:]):
                self.parts.remove(path)
                yield from self._remove(path)
        yield from self._remove(card)

    def late(self) -> Iterator[Event]:
        yield Event()

    def _plug(self, card: str) -> Iterator[Event]:
        address, port = card.rpartition("/")[2], card[-1]
        self.tree.function(address, CONNECTX6_DX, "mlx5_core", below="0000:3a:00.0", total=16)
        yield Event("pci", "add", f"/sys/devices/{card}")
        yield self._netdev(card, f"p{port}")

    def _netdev(self, path: str, port_name: str = "") -> Event:
        there = self.tree.netdev(path, f"eth{self._next()}", port_name=port_name)
        return Event("net", "add", there)

    def _remove(self, path: str) -> Iterator[Event]:
        # a node of vfio or vDPA is of no interest here
        yield self.tree.remove(f"/sys/devices/{path}")

    def _card(self) -> str:
        return self.dice.choice(CARDS)

    def _any(self) -> str:
        present = [path for path in (*CARDS, *self.parts) if self._exists(path)]
        return self.dice.choice(present) if present else ""

    def _interfaces(self, path: str) -> list[str]:
        directory = self.tree.root / "sys/devices" / path / "net"
        return sorted(entry.name for entry in directory.iterdir()) if path and directory.is_dir() else []

    def _exists(self, path: str) -> bool:
        return (self.tree.root / "sys/devices" / path).exists()

    def _next(self) -> int:
        self.number += 1
        return self.number


@pytest.mark.parametrize("seed", range(4))
def test_after_any_changes_a_scan_equals_that_of_a_new_backend(looking, tmp_path, seed):
    machine = Machine(tmp_path, random.Random(seed))
    backend = looking(machine.tree)
    backend.discover()
    for number in range(STEPS):
        events = [event for _ in range(machine.dice.randint(1, 3)) for event in machine.step()]
        if not events:
            continue
        for event in events:
            backend.notice(event)
        found, fresh = by_id(backend), by_id(looking(machine.tree))
        place = f"seed {seed}, step {number}: {events}"
        assert list(found) == list(fresh), place
        for name, device in fresh.items():
            known = found[name]
            kept = known.attributes.keys() - device.attributes.keys()
            assert kept <= REMEMBERED, place
            told = {key: value for key, value in known.attributes.items() if key not in kept}
            assert told == device.attributes, place
            assert (known.claims, known.part_of, known.withheld) == (
                device.claims,
                device.part_of,
                device.withheld,
            ), place
            assert known.health == device.health, place
