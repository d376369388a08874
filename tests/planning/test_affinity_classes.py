"""Linked devices in classes, such as partitions of GPUs: the best set, with proof, also of many devices."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product

import pytest
from affinity_brute import Scene, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.model import Device
from devhost.planning.affinity import Choice, PreferenceRequest, prefer, unproven
from devhost.planning.affinity.policies import LIMIT, NOTHING, Outside
from devhost.planning.affinity.topology import Level, Links
from devhost.planning.settings import Prefer

SAME_GPU, XGMI = 10_000, 100

LINKED = [Prefer.TOPOLOGY, Prefer.DISTINCT]


def partitions(gpus: int = 8, each: int = 8, port: bool = True) -> dict[str, Device]:
    """Partitions of GPUs on two sockets, as of eight MI300X in mode CPX."""
    return {
        f"g{gpu}p{part}": Device(
            f"g{gpu}p{part}",
            numa_nodes=(gpu * 2 // gpus,),
            part_of=frozenset({f"pci:{gpu}"}) if port else frozenset(),
            pcie_path=(f"0000:{gpu}0:00.0", f"s{gpu}", f"gpu{gpu}") if port else (),
        )
        for gpu in range(gpus)
        for part in range(each)
    }


def gpu_of(name: str) -> str:
    return name.partition("p")[0]


def xgmi(devices: Sequence[str]) -> Links:
    return {
        frozenset(pair): SAME_GPU if gpu_of(pair[0]) == gpu_of(pair[1]) else XGMI
        for pair in combinations(devices, 2)
    }


def chosen(
    devices: dict[str, Device],
    links: Links,
    free: Sequence[str],
    size: int,
    must: Sequence[str] = (),
    *,
    policy: Prefer = Prefer.TOPOLOGY,
    outside: Outside = NOTHING,
    limit: int = LIMIT,
) -> Choice:
    request = PreferenceRequest(lambda token: devices[token].id, free, must, size)
    return prefer(policy, topology(devices), request, outside, links, limit=limit)


class Case:
    """A few devices in classes, which have to do with their places or not, and what is free of them."""

    def __init__(self, rng: random.Random, count: int) -> None:
        names = [f"d{n}" for n in range(count)]
        kinds = rng.randint(1, 3)
        strength = {pair: rng.randint(-1, 3) for pair in combinations(range(kinds), 2)}
        strength |= {(kind, kind): rng.randint(-1, 3) for kind in range(kinds)}
        kind_of = {name: rng.randrange(kinds) for name in names}
        self.devices: dict[str, Device] = {}
        for number, name in enumerate(names):
            port = rng.choice([number // 3, kind_of[name], rng.randrange(3)])
            path = (f"0000:{port}0:00.0", f"u{port}", name) if rng.random() < 0.8 else ()
            whole = path[0] if path else f"pf{port}"
            part = frozenset({whole}) if rng.random() < 0.4 else frozenset[str]()
            self.devices[name] = Device(name, numa_nodes=(port // 2,), pcie_path=path, part_of=part)
        self.links: Links = {
            frozenset((a, b)): strength[min(kind_of[a], kind_of[b]), max(kind_of[a], kind_of[b])]
            for a, b in combinations(names, 2)
        }
        self.available = rng.sample(names, rng.randint(2, len(names)))
        self.must = rng.sample(self.available, rng.choice([0, 0, 0, 1, 2]))
        got = {(Level.PORT, f"0000:{n}0:00.0"): rng.randint(1, 2) for n in range(3) if rng.random() < 0.3}
        self.outside = Outside([got] if got else ())

    def scene(self) -> Scene:
        free = {name: 1 for name in self.available if name not in self.must}
        one = dict.fromkeys(self.devices, 1)
        return Scene(self.devices, one, free, dict.fromkeys(self.must, 1), self.outside, self.links)

    def choice(self, policy: Prefer, size: int, available: Sequence[str], limit: int = LIMIT) -> Choice:
        return chosen(
            self.devices,
            self.links,
            available,
            size,
            self.must,
            policy=policy,
            outside=self.outside,
            limit=limit,
        )

    def check(self, policy: Prefer, size: int, rng: random.Random) -> None:
        choice = self.choice(policy, size, self.available)
        scene = self.scene()
        mine = Counter(name for name in choice.tokens if name not in self.must)
        assert len(choice.tokens) == size
        assert choice.exact
        sets = combinations(scene.free, size - len(self.must))
        assert scene.score(policy, mine) == max(scene.score(policy, dict.fromkeys(one, 1)) for one in sets)
        by_all_sets = self.choice(policy, size, self.available, limit=0)
        assert by_all_sets.tokens == choice.tokens or not by_all_sets.exact
        shuffled = rng.sample(self.available, len(self.available))
        assert self.choice(policy, size, shuffled).tokens == choice.tokens


@settings(deadline=None, derandomize=True, max_examples=2 * settings().max_examples)
@given(st.randoms(use_true_random=False), st.sampled_from(LINKED))
def test_no_set_of_devices_in_classes_is_better_than_the_one_chosen(
    rng: random.Random, policy: Prefer
) -> None:
    case = Case(rng, rng.randint(2, 8))
    case.check(policy, rng.randint(len(case.must), len(case.available)), rng)


@pytest.mark.parametrize("policy", LINKED)
@pytest.mark.parametrize("need", [3, 14])
@pytest.mark.parametrize("seed", range(4))
def test_no_set_of_more_than_sixteen_devices_in_classes_is_better(
    policy: Prefer, need: int, seed: int
) -> None:
    """So many that not every set is scored."""
    rng = random.Random(f"{need} {seed}")
    case = Case(rng, 20)
    case.available = [f"d{n}" for n in range(17 + len(case.must))]
    case.must = case.available[17:]
    case.check(policy, need + len(case.must), rng)


@pytest.mark.parametrize("port", [True, False])
def test_every_number_of_64_equally_linked_partitions_is_proven_best(port: bool) -> None:
    devices = partitions(port=port)
    links = xgmi(list(devices))
    assert unproven(Prefer.TOPOLOGY, topology(devices), links) == 0
    for size in range(1, 65):
        choice = chosen(devices, links, list(devices), size)
        assert choice.exact
        assert len(choice.tokens) == size
        whole, rest = divmod(size, 8)
        assert sorted(Counter(map(gpu_of, choice.tokens)).values()) == sorted(
            [rest] * bool(rest) + [8] * whole
        )


def best_of(free: Sequence[int], need: int) -> int:
    """The highest sum of links of so many partitions, by all numbers of them from each GPU."""
    sums = {0: 0}
    for count in free:
        found: dict[int, int] = {}
        for n, links in sums.items():
            for take in range(min(count, need - n) + 1):
                inside = take * (take - 1) // 2 * SAME_GPU
                found[n + take] = max(found.get(n + take, -1), links + inside + n * take * XGMI)
        sums = found
    return sums[need]


@pytest.mark.parametrize("seed", range(4))
def test_of_partly_used_gpus_the_closest_partitions_are_chosen(seed: int) -> None:
    rng = random.Random(seed)
    devices = partitions()
    links = xgmi(list(devices))
    for _ in range(5):
        free = [name for name in devices if rng.random() < rng.choice((0.3, 0.8))]
        need = rng.randint(1, len(free) - 1)
        choice = chosen(devices, links, free, need)
        assert choice.exact
        sums = sum(links[frozenset(pair)] for pair in combinations(choice.tokens, 2))
        assert sums == best_of(list(Counter(map(gpu_of, free)).values()), need)


@pytest.mark.parametrize("seed", range(3))
def test_a_proven_choice_is_never_worse_than_the_fast_one(seed: int) -> None:
    rng = random.Random(seed)
    devices = partitions()
    links = xgmi(list(devices))
    for _ in range(4):
        free = rng.sample(list(devices), rng.randint(20, 64))
        need = rng.randint(1, len(free) - 1)
        scene = Scene(devices, dict.fromkeys(devices, 1), dict.fromkeys(free, 1), {}, links=links)
        proven, fast = chosen(devices, links, free, need), chosen(devices, links, free, need, limit=0)
        assert proven.exact
        assert not fast.exact
        scores = [scene.score(Prefer.TOPOLOGY, Counter(choice.tokens)) for choice in (proven, fast)]
        assert scores[0] >= scores[1]


def test_partitions_come_from_one_socket_although_the_first_gpu_is_on_the_other() -> None:
    devices = partitions()
    free = [name for name in devices if gpu_of(name) in ("g0", "g4", "g5")]
    names = chosen(devices, xgmi(list(devices)), free, 9).tokens
    assert Counter(map(gpu_of, names)) == {"g4": 8, "g5": 1}
    fast = chosen(devices, xgmi(list(devices)), free, 9, limit=0).tokens
    assert Counter(map(gpu_of, fast)) == {"g0": 8, "g4": 1}


def test_of_partitions_that_nothing_distinguishes_the_first_ones_are_chosen() -> None:
    devices = partitions()
    rest = random.Random(1).sample(list(devices), 64)
    assert chosen(devices, xgmi(rest), rest, 3).tokens == ("g0p0", "g0p1", "g0p2")


def test_islands_of_devices_without_places_are_not_mixed_in_any_order() -> None:
    devices = {f"d{n}": Device(f"d{n}") for n in range(64)}
    links = {frozenset((f"d{a}", f"d{b}")): 4 for a, b in combinations(range(64), 2) if a % 4 == b % 4}
    free = [f"d{n}" for n in range(64) if n > 3]
    choice = chosen(devices, links, free, 20, ["d7"])
    assert choice.exact
    assert sorted(Counter(int(name[1:]) % 4 for name in choice.tokens).items()) == [(0, 15), (3, 5)]


def test_the_closest_set_is_chosen_for_any_links_between_three_classes() -> None:
    """By all numbers of devices from each class."""
    rng = random.Random(7)
    for _ in range(30):
        kinds = [rng.randrange(3) for _ in range(18)]
        strength = {pair: rng.randint(0, 3) for pair in product(range(3), repeat=2) if pair[0] <= pair[1]}
        devices = {f"d{n}": Device(f"d{n}") for n in range(18)}
        links = {
            frozenset((f"d{a}", f"d{b}")): strength[min(kinds[a], kinds[b]), max(kinds[a], kinds[b])]
            for a, b in combinations(range(18), 2)
        }

        def closeness(counts: Sequence[int], strength: dict[tuple[int, ...], int] = strength) -> int:
            inside = sum(n * (n - 1) // 2 * strength[kind, kind] for kind, n in enumerate(counts))
            pairs = combinations(range(3), 2)
            return inside + sum(counts[a] * counts[b] * strength[a, b] for a, b in pairs)

        need = rng.randint(3, 16)
        choice = chosen(devices, links, list(devices), need)
        taken = Counter(kinds[int(name[1:])] for name in choice.tokens)
        numbers = product(*(range(kinds.count(kind) + 1) for kind in range(3)))
        assert choice.exact
        assert closeness([taken[kind] for kind in range(3)]) == max(
            closeness(counts) for counts in numbers if sum(counts) == need
        )


def tangled(count: int) -> tuple[dict[str, Device], Links]:
    """Devices with all sorts of links."""
    rng = random.Random(count)
    devices = {f"d{n}": Device(f"d{n}", numa_nodes=(n % 2,)) for n in range(count)}
    return devices, {frozenset(pair): rng.randint(0, 9) for pair in combinations(devices, 2)}


@pytest.mark.parametrize("count", [17, 64])
def test_one_or_two_devices_with_any_links_are_proven_best(count: int) -> None:
    devices, links = tangled(count)
    assert chosen(devices, links, list(devices), 1).exact
    choice = chosen(devices, links, list(devices), 2)
    assert choice.exact
    assert links[frozenset(choice.tokens)] == max(links.values())


def test_the_lowest_number_that_is_not_proven_best_is_known() -> None:
    assert unproven(Prefer.TOPOLOGY, topology(tangled(16)[0]), tangled(16)[1]) == 0
    devices, links = tangled(64)
    least = unproven(Prefer.TOPOLOGY, topology(devices), links)
    assert least == 3
    assert not chosen(devices, links, list(devices), least).exact
    assert unproven(Prefer.PACK, topology(devices), links) == 0, "links do not count in pack"
    assert unproven(Prefer.TOPOLOGY, topology(devices), {}) == 0
    assert unproven(Prefer.TOPOLOGY, topology(devices), {frozenset(("x", "y")): 1}) == 0


@pytest.mark.parametrize(("limit", "exact"), [(19_062, True), (19_061, False)])
def test_a_choice_is_not_proven_if_that_takes_too_many_steps(limit: int, exact: bool) -> None:
    devices = partitions()
    choice = chosen(devices, xgmi(list(devices)), list(devices), 32, limit=limit)
    assert choice.exact is exact
    assert Counter(map(gpu_of, choice.tokens)) == {"g0": 8, "g1": 8, "g2": 8, "g3": 8}


def test_the_links_of_a_shared_device_count_once_if_it_gets_a_second_share() -> None:
    """``a`` is already in the answer: another share of it adds no link, ``c`` adds two."""
    tokens = {"a::0": Device("a"), "a::1": Device("a"), "b": Device("b"), "c": Device("c")}
    links = {frozenset("ab"): 3, frozenset("ac"): 1, frozenset("bc"): 1}
    choice = chosen(tokens, links, list(tokens), 3, ["a::0", "b"])
    assert choice.tokens == ("a::0", "b", "c")
    assert choice.exact


def test_one_share_of_linked_devices_is_proven_best() -> None:
    tokens = {f"{name}::{n}": Device(name) for name in "abc" for n in range(2)}
    links = {frozenset("ab"): 1, frozenset("bc"): 4}
    choice = chosen(tokens, links, [name for name in tokens if name != "b::0"], 2, ["b::1"])
    assert choice.tokens == ("b::1", "c::0")
    assert choice.exact
    assert unproven(Prefer.TOPOLOGY, topology(tokens), links) == 2
