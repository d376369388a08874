"""A list that is made from what has changed is the same as one that is made from nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.allocator import CARD, Listed, gone

from devhost.allocation.inventory import Entry, Tally
from devhost.allocation.leases import Listing
from devhost.backend.model import HEALTHY, Device, Health, Holder, unhealthy
from devhost.discovery.health import Grounds, HealthTracker
from devhost.planning.plan import Offer, Units, units
from devhost.planning.settings import Of

promise = settings(deadline=None, derandomize=True, max_examples=2 * settings().max_examples)

NAMES = "abcd"


class Side(Listed):
    """One inventory, with everything that it is made from."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.judged: list[str] = []
        self.tracker = HealthTracker()
        self.units = Units()

    def verdict(self, device: Device) -> Health:
        self.judged.append(device.id)
        return self.tracker.of(device, self.now)

    def list(self, of: Of, offers: Sequence[Offer], *, topology: bool = True) -> bool:
        made = (
            self.units.make(of, offers, topology=topology)
            if self.again
            else units(of, offers, topology=topology)
        )
        common = self.tracker.stale, self.tracker.released
        grounds = Grounds(common, frozenset(self.tracker.particular())) if self.again else None
        self.judged.clear()
        return self.inventory.update(
            made,
            self.verdict,
            gone,
            self.now,
            topology=topology,
            grounds=grounds,
        )

    def shown(self) -> tuple[object, ...]:
        snapshot = self.inventory.snapshot
        return (
            dict(snapshot.entries),
            snapshot.revision,
            snapshot.caused_at,
            self.inventory.names_holders,
            self.inventory.next_change(),
            {name: self.inventory.replicas(name) for name in NAMES},
        )


Step = Callable[[Side], None]
"""What happens on a node."""


class Node:
    """Draws what happens; devices are the same objects on both sides."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._offers = {name: Offer(Device(name)) for name in NAMES}
        self._of = Of.EACH
        self._topology = True

    def step(self) -> Step:
        rare = self.shape, self.probe, self.missing, self.stale, self.forget
        often = self.devices, self.use, self.list, self.wait
        return self._draw(st.sampled_from((*rare, *often, *often)))()

    def devices(self) -> Step:
        name = self._draw(st.sampled_from(NAMES))
        if self._draw(st.integers(0, 3)) == 0:
            self._offers.pop(name, None)
        else:
            self._offers[name] = self._offer(name)
        return self.shown()

    def _offer(self, name: str) -> Offer:
        numa = self._draw(st.sampled_from([(), (0,), (1,)]))
        health = self._draw(st.sampled_from([HEALTHY, unhealthy("hot"), unhealthy("cold")]))
        return Offer(Device(name, numa_nodes=numa, health=health), self._draw(st.integers(1, 2)))

    def shape(self) -> Step:
        self._of = self._draw(st.sampled_from(Of))
        self._topology = self._draw(st.booleans())
        return self.shown()

    def probe(self) -> Step:
        found = {name: unhealthy("probed") for name in self._some()}
        return lambda side: (side.tracker.apply_probe(found), None)[1]

    def missing(self) -> Step:
        lacks, back = self._some(), self._some()

        def happen(side: Side) -> None:
            for name in lacks:
                side.tracker.report_missing(name, ("/dev/x",))
            for name in back:
                side.tracker.paths_restored(name)

        return happen

    def forget(self) -> Step:
        known = self._some()
        return lambda side: side.tracker.forget(known)

    def stale(self) -> Step:
        reason = self._draw(st.sampled_from(["", "", "it hangs"]))
        return lambda side: setattr(side.tracker, "stale", reason)

    def use(self) -> Step:
        chosen = self._some()
        return lambda side: (side.inventory.allocated(_tokens(side, chosen)), None)[1]

    def list(self) -> Step:
        chosen, pods = self._some(), self._draw(st.integers(1, 3))
        holder = self._draw(st.sampled_from([Holder("default", pod, "main") for pod in ("one", "two")]))

        def happen(side: Side) -> None:
            tokens = dict.fromkeys(_tokens(side, chosen), holder)
            listing = Listing((1, 2, pods), side.now, pods, {CARD: tokens}, {holder: bool(tokens)})
            side.allocations.apply(listing)

        return happen

    def wait(self) -> Step:
        seconds = self._draw(st.sampled_from([0.5, 2.0, 20.0, 90.0]))

        def happen(side: Side) -> None:
            side.now += seconds

        return happen

    def _some(self) -> Collection[str]:
        return self._draw(st.sets(st.sampled_from(NAMES), max_size=2))

    def shown(self) -> Step:
        offers = tuple(self._offers[name] for name in sorted(self._offers))
        if self._of is Of.ALL:
            offers = tuple(Offer(offer.device, 3) for offer in offers)
        of, topology = self._of, self._topology
        return lambda side: (side.list(of, offers, topology=topology), None)[1]


def _tokens(side: Side, devices: Collection[str]) -> list[str]:
    """The tokens of these devices, and of all devices together if there is such a token."""
    entries: Mapping[str, Entry] = side.inventory.snapshot.entries
    return [name for name, entry in entries.items() if entry.unit in devices or len(entry.members) > 1]


@promise
@given(st.data())
def test_a_list_from_what_has_changed_equals_one_from_nothing(data: st.DataObject) -> None:
    node, sides = Node(data.draw), (Side(again=True), Side(again=False))
    for _ in range(data.draw(st.integers(1, 20))):
        for happen in (node.step(), node.shown()):
            for side in sides:
                happen(side)
            assert sides[0].shown() == sides[1].shown()
        snapshot = sides[0].inventory.snapshot
        assert snapshot.tally == Tally().after((), snapshot.entries.values())


def test_only_what_has_changed_is_judged_again() -> None:
    side = Side(again=True)
    offers = [Offer(Device(f"d{number}")) for number in range(1000)]
    side.list(Of.EACH, tuple(offers))
    assert len(side.judged) == 1000
    offers[7] = Offer(Device("d7", health=unhealthy("hot")))
    assert side.list(Of.EACH, tuple(offers))
    assert set(side.judged) == {"d7"}
    side.tracker.apply_probe({"d9": unhealthy("probed")})
    assert side.list(Of.EACH, tuple(offers))
    assert set(side.judged) == {"d7", "d9"}
    side.tracker.stale = "it hangs"
    assert side.list(Of.EACH, tuple(offers))
    assert len(set(side.judged)) == 1000


def test_a_shared_device_is_healthy_since_its_container_released_it() -> None:
    side = Side(again=True)
    devices = Device("a"), Device("b")
    side.list(Of.EACH, tuple(Offer(device) for device in devices))
    side.inventory.allocated(["a"])
    shared = tuple(Offer(device, 2) for device in devices)
    side.list(Of.EACH, shared)
    start = side.now
    for tokens in ("a", "", ""):
        side.hear(card=tokens)
    assert side.list(Of.EACH, shared)
    entries = side.inventory.snapshot.entries
    assert {name: entry.since - 1e9 for name, entry in entries.items() if entry.gone_at is None} == {
        "a::0": side.now,
        "a::1": side.now,
        "b::0": start,
        "b::1": start,
    }


def test_a_token_for_all_devices_follows_each_of_them() -> None:
    side = Side(again=True)
    offers = tuple(Offer(Device(name)) for name in "ab")
    side.list(Of.ALL, offers)
    side.tracker.apply_probe({"a": unhealthy("probed")})
    side.list(Of.ALL, offers)
    assert side.inventory.snapshot.devices() == {"a": False, "b": True}


def test_a_device_is_healthy_again_although_its_backend_forgot_it_between_two_lists() -> None:
    side, offers = Side(again=True), tuple(Offer(Device(name)) for name in "ab")
    side.tracker.apply_probe({"a": unhealthy("probed")})
    side.list(Of.EACH, offers)
    side.tracker.apply_probe({})
    side.tracker.forget(())
    side.list(Of.EACH, offers)
    assert side.inventory.snapshot.devices() == {"a": True, "b": True}
