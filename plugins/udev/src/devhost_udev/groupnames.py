"""What the devices of configured groups are called: by the group and the node that tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from devhost.backend.model import MAX_DEVICE_ID

from .identity import RANKS, apart, fit, joined, ranked
from .scan import Record

_RANKS = 64
"""How many former ranks are listed of a node whose id had to be cut."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The id of a group's device, why it is withheld (empty if it is not), and its former ids."""

    id: str
    withheld: str = ""
    former: tuple[str, ...] = ()

    def as_one_of(self, bearers: int, path: str) -> Naming:
        """The same for a device of the group when several have this id; ``path`` is its first."""
        if bearers < 2:
            return self
        why = self.withheld or f"{bearers} devices of the group have this node: narrow its globs"
        return replace(self, id=apart(self.id, path), withheld=why, former=(self.id, *self.former))


@dataclass(frozen=True, slots=True)
class Telling:
    """A path that tells a group's devices apart, and what the scan knows of it.

    ``repeats`` is whether several devices of the group may have it, as ``limit`` says.
    """

    path: str
    record: Record | None
    repeats: bool = False


def name_of(group: str, alternative: int, tellings: Sequence[Telling]) -> Naming:
    """Names one device of a group by its first path that tells it apart, and by the next where that repeats.

    Args:
        alternative: which entry with the group's name it is from, from 0.
    """
    labels: list[str] = []
    withheld = ""
    for telling in tellings:
        record = telling.record
        withheld = withheld or (record.device.withheld if record else "")
        labels.append(_id_of(record) if record else telling.path.rpartition("/")[2])
        if not telling.repeats:
            break
    stem = f"alt{alternative}" if alternative else ""
    text, first = joined(group, *labels, stem), labels[0] if labels else ""
    # earlier versions took the first path only, and a rank
    plain = joined(group, first, "" if first else stem)
    former = ranked(plain) if text != plain else ()
    if labels and (record := tellings[0].record):
        former += tuple(
            joined(group, one.removesuffix(RANKS)) + (RANKS if one.endswith(RANKS) else "")
            for one in _listed(record.own.former_ids if record.device.withheld else record.device.former_ids)
        )
    naming = Naming(fit(text), former=former)
    if withheld:
        return replace(naming, id=apart(naming.id, tellings[0].path), withheld=withheld)
    return naming


def _id_of(record: Record) -> str:
    """The id of a node, also of one that is withheld and shown under another."""
    return record.own.id if record.device.withheld else record.device.id


def _listed(former: Sequence[str]) -> tuple[str, ...]:
    """Former ids of a node as they were part of a group's id: cut before the group's name was added."""
    found: list[str] = []
    for one in former:
        text = one.removesuffix(RANKS)
        if len(text) < MAX_DEVICE_ID - len(RANKS):
            found.append(one)
        elif text == one:
            found.append(fit(text))
        else:
            found += (fit(f"{text}.{rank}") for rank in range(_RANKS))
    return tuple(found)
