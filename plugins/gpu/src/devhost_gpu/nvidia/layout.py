"""Gives an NVIDIA GPU the MIG instances of a layout.

Each instance is a GPU instance with one compute instance that fills it. Instances that the layout also has
stay, if the others fit beside them. What does not fit is refused before anything is destroyed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from devhost.backend.errors import BackendError
from devhost.backend.frozen import frozen
from devhost_gpu.attributes import ENGINES
from devhost_gpu.nvml.client import NvmlClient
from devhost_gpu.nvml.reports import Partitions, Placement, Profile
from devhost_gpu.vendor import Change

PARTS = [attrgetter(name) for name in ("slices", *ENGINES.values())]
"""What instances divide besides the memory, whose slices they have by placement."""


@frozen
class Steps:
    """The instances to destroy, and then to create."""

    destroy: tuple[Placement, ...]
    create: tuple[Placement, ...]


def steps(found: Partitions, odd: Sequence[int], wanted: Sequence[str]) -> Steps | None:
    """How a GPU gets exactly the instances of the wanted profiles; ``None`` if they do not fit.

    ``odd`` are ids of GPU instances that cannot stay, because their compute instances are others.
    """
    profiles = {one.name: one for one in found.profiles}
    left = Counter(wanted)
    kept, unfilled = [], []
    for one in found.instances:
        name = one.placement.name
        if left[name] and one.gi not in odd and len(one.computes) < 2:
            left[name] -= 1
            kept.append(one.placement)
            unfilled += [] if one.computes else [one.placement]
    parts = [[part(profiles[one]) for one in wanted] for part in PARTS]
    most = [max(map(part, found.profiles)) for part in PARTS]
    if any(sum(used) > there for used, there in zip(parts, most, strict=True)):
        return None
    before = [one.placement for one in found.instances]
    if (made := _placed(profiles, [*left.elements()], kept)) is not None:
        return Steps(tuple(one for one in before if one not in kept), (*unfilled, *made))
    made = _placed(profiles, wanted, [])
    return None if made is None else Steps(tuple(before), tuple(made))


def _placed(
    profiles: Mapping[str, Profile], wanted: Sequence[str], taken: Sequence[Placement]
) -> list[Placement] | None:
    """Places for these profiles beside the taken ones, the largest first; ``None`` if there are none."""

    def size(name: str) -> tuple[int, int, str]:
        one = profiles[name]
        return -max((place.size for place in one.placements), default=0), -one.slices, name

    def search(names: Sequence[str], places: Sequence[Placement]) -> list[Placement] | None:
        if not names:
            return [*places]
        for place in profiles[names[0]].placements:
            if places and places[-1].name == place.name and place.start < places[-1].start:
                continue  # equal instances are placed in order, so that each arrangement is tried once
            if not any(map(place.overlaps, (*taken, *places))):
                found = search(names[1:], [*places, place])
                if found is not None:
                    return found
        return None

    return search(sorted(wanted, key=size), [])


class MigLayouts:
    """The MIG instances of GPUs. Used by one thread. ``patience`` is seconds that one request may take."""

    def __init__(self, client: NvmlClient, patience: float) -> None:
        self._client = client
        self._patience = patience
        self._known: dict[str, tuple[object, Partitions]] = {}

    def change(
        self, address: str, present: Mapping[tuple[int, int], str], wanted: Sequence[str]
    ) -> Change | None:
        """What has to be done so that a GPU has instances of the wanted profiles; ``None`` if it has them.

        ``present`` are the profiles of its instances, by the ids of GPU instance and compute instance. Raises
        ``BackendError`` if NVML does not answer, or they are impossible.
        """
        if Counter(present.values()) == Counter(wanted):
            self._known.pop(address, None)
            return None
        if (known := self._known.get(address)) is None or known[0] != present:
            # asked once, as long as it waits for a container
            known = self._known[address] = present, self._client.placements(address, self._patience)
        found = known[1]
        todo = self._steps(address, found, present, wanted)
        if not todo.destroy and not todo.create:
            return None  # the scan was before, or the driver does not report complete names
        make = partial(self._make, address, present, wanted)
        return Change(_listed(present.values()), _listed(wanted), make)

    def _make(self, address: str, present: Mapping[tuple[int, int], str], wanted: Sequence[str]) -> None:
        self._known.pop(address, None)
        with self._client.series(address, self._patience):
            found = self._client.placements(address, self._patience)
            todo = self._steps(address, found, present, wanted)
            try:
                for place in todo.destroy:
                    self._client.destroy(address, place, self._patience)
                for place in todo.create:
                    self._client.create(address, place, self._patience, resume=True)
            except BackendError as error:
                raise BackendError(f"{address}: {error.message}") from error

    def _steps(
        self, address: str, found: Partitions, present: Mapping[tuple[int, int], str], wanted: Sequence[str]
    ) -> Steps:
        has = [one.name for one in found.profiles]
        if unknown := [name for name in wanted if name not in has]:
            raise BackendError(f"{address} has no MIG profile {unknown[0]}, only {', '.join(has)}")
        odd = [gi for (gi, _), name in present.items() if "c." in name]  # 1c.3g.40gb
        todo = steps(found, odd, wanted)
        if todo is None:
            raise BackendError(f"{_listed(wanted)} do not fit on {address} together")
        return todo


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, reverse=True)) or "no MIG instance"
