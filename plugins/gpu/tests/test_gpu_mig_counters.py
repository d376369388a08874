"""The shared counters of MIG instances on demand allow exactly what a GPU can have at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from devhost_gpu.options import GpuOptions
from gpu_mig import MODELS, Profile, placements
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk

from devhost.backend import Device
from devhost.config import loads
from devhost.discovery import catalog
from devhost.dra.slices import DesiredSlice, Offered, Pool

A = DGX[0]
Open = Callable[..., NvidiaDesk]
At = tuple[Profile, int]

FILE = """
version: 1
dra: {driver: devhost.example.com}
resources:
- {name: example.com/mig, backend: gpu, where: {kind: mig}, serve: dra, dra: {counters: true}}
backends: {gpu: {mig: dynamic}}
"""


def slices_of(devices: Mapping[str, Device]) -> list[DesiredSlice]:
    """The slices of an entry with counters."""
    offers = [
        Offered(device, device.health, counters=True)
        for device in devices.values()
        if device.attributes["kind"] == "mig" and (device.divided or not device.withheld)
    ]
    slices, left_out = Pool("devhost.example.com", "node", "example.com/mig", "gpu").slices(offers)
    assert not left_out
    return slices


def amounts(counters: Mapping[str, Any]) -> dict[str, int]:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    texts = {name: str(one["value"]) for name, one in counters.items()}
    return {name: int(text.rstrip("KMGi")) * units.get(text[-2:], 1) for name, text in texts.items()}


def fits(some: Sequence[Mapping[str, int]], most: Mapping[str, int]) -> bool:
    """Whether a scheduler can give all of these."""
    total = sum((Counter(one) for one in some), Counter())
    return all(amount <= most[name] for name, amount in total.items())


def compatible(one: At, other: At) -> bool:
    """Whether a GPU can have both: they overlap nowhere, and only one has the media engines."""
    (a, at), (b, to) = one, other
    apart = at + a.size <= to or to + b.size <= at
    return apart and not ("+me" in a.name and "+me" in b.name)


def complete_sets(every: Sequence[At], chosen: tuple[At, ...] = ()) -> Iterator[tuple[At, ...]]:
    """Every set of instances that a GPU can have at once."""
    yield chosen
    for number, one in enumerate(every):
        if all(compatible(one, other) for other in chosen):
            yield from complete_sets(every[number + 1 :], (*chosen, one))


@pytest.mark.parametrize("model", sorted(MODELS))
def test_counters_and_claims_allow_exactly_the_sets_that_a_gpu_can_have(
    nvidia: NvidiaMachine, at: Open, model: str
) -> None:
    nvidia.divisible(A, model)
    devices = at(nvidia, GpuOptions(mig="dynamic")).look()
    slices = slices_of(devices)
    ((counters,),) = [one.counters for one in slices if one.counters]
    most = amounts(counters["counters"])
    taken: dict[At, dict[str, int]] = {}
    claims: dict[At, frozenset[str]] = {}  # with which devhost itself decides
    named = {one["attributes"]["id"]["string"]: one for some in slices for one in some.devices}
    for profile, start in placements(model):
        label = profile.name.replace("+", "-").replace(".", "")
        name = f"{nvidia.uuids[A].lower()}-{label}-{start}"
        claims[profile, start] = devices[name].claims
        (consumed,) = named[name]["consumesCounters"]
        assert consumed["counterSet"] == counters["name"]
        taken[profile, start] = amounts(consumed["counters"])
    assert len(taken) == len(named)
    for one, other in combinations(taken, 2):
        assert fits([taken[one], taken[other]], most) == compatible(one, other), (one, other)
        assert claims[one].isdisjoint(claims[other]) == compatible(one, other), (one, other)
    number = 0
    for some in complete_sets([*taken]):
        number += 1
        assert fits([taken[one] for one in some], most), some
    assert number > 1000


def test_the_largest_profile_takes_all_of_every_counter(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.divisible(A)
    slices = slices_of(at(nvidia, GpuOptions(mig="dynamic")).look())
    ((counters,),) = [one.counters for one in slices if one.counters]
    whole = next(
        one for some in slices for one in some.devices if "7g80gb" in one["attributes"]["id"]["string"]
    )
    assert whole["consumesCounters"][0]["counters"] == counters["counters"]
    assert amounts(counters["counters"]) == {
        **{f"memory-slice-{number}": 1 for number in range(8)},
        **{"multiprocessors": 132, "copy-engines": 8, "decoders": 7, "jpeg-engines": 7, "ofa-engines": 1},
        "memory": 81152 << 20,
    }


@pytest.mark.parametrize("gpus", [1, 8])
def test_slices_stay_within_the_limits_of_the_api(nvidia: NvidiaMachine, at: Open, gpus: int) -> None:
    for address in DGX[:gpus]:
        nvidia.divisible(address)
    slices = slices_of(at(nvidia, GpuOptions(mig="dynamic")).look())
    devices = [len(one.devices) for one in slices if one.devices]
    sets = [len(one.counters) for one in slices if one.counters]
    assert (devices, sets) == {1: ([25], [1]), 8: ([64, 64, 64, 8], [8])}[gpus]
    assert {len(one["counters"]) for some in slices for one in some.counters} == {14}
    assert all(len(one["consumesCounters"]) == 1 for some in slices for one in some.devices)
    assert all(len(one["name"]) <= 63 for some in slices for one in some.devices)


# The configuration


def errors(text: str) -> str:
    from devhost.backend.errors import ConfigError

    with pytest.raises(ConfigError) as refused:
        loads(text, "f.yaml", catalog.load)
    return str(refused.value)


def test_an_entry_for_claims_with_counters_is_accepted() -> None:
    assert len(loads(FILE, "f.yaml", catalog.load).resources) == 1


@pytest.mark.parametrize(
    "terms", ["serve: plugin", "", "serve: dra", "serve: dra, dra: {counters: false}"], ids=str
)
def test_an_entry_that_could_not_get_an_instance_is_refused_at_its_place(terms: str) -> None:
    entry = f"{{name: a.b/c, backend: gpu, where: {{kind: mig}}{', ' if terms else ''}{terms}}}"
    text = "\n".join(f"- {entry}" if "counters" in line else line for line in FILE.splitlines())
    assert errors(text) == (
        "f.yaml:5:3: resources[0]: selects devices (vendor: nvidia, kind: mig) that backends.gpu makes for "
        "claims only (add serve: dra and dra: {counters: true}, or exclude them in where)"
    )


@pytest.mark.parametrize("where", ["{kind: gpu}", "{vendor: amd}"])
def test_an_entry_for_other_gpus_needs_no_counters(where: str) -> None:
    text = FILE.replace("backends:", f"- {{name: a.b/c, backend: gpu, where: {where}}}\nbackends:")
    assert len(loads(text, "f.yaml", catalog.load).resources) == 2
