"""The outcome of each entry of the file: how many devices it serves, or why it serves none.

Status, page, metrics and ``devhost discover`` all show these values. A reason is worked out on request, and
only for entries without devices: it takes a comparison with every device of the entry's backend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from devhost.backend import MissingDriver
from devhost.backend.errors import counted
from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import AnyHolder, AttributeValue, Device
from devhost.backend.sysfs import natural
from devhost.backend.where import Block, Term, Text, Where, may_hold, quoted, shortened
from devhost.discovery.health import overruled
from devhost.discovery.scanner import BackendNow, BackendState
from devhost.planning.claims import Key, Reason
from devhost.planning.plan import Plan, Refusal, RefusalKind
from devhost.planning.settings import ResourceSettings, Settings

if TYPE_CHECKING:
    from devhost.telemetry.document import EntryStatus

MAX_COMPARISONS = 50_000
"""Most comparisons of a device with a block for all reasons of one plan: about 0.1 s of the event loop."""

NAMED = 3
"""Most values, patterns and groups that a reason names."""

NO_LINKS: Mapping[int, str] = MappingProxyType({})

_SIMILAR = 200
"""Most distinct values among which similar ones are searched."""

UNKNOWN = "no device matches (`devhost explain DEVICE` shows why)"
"""The reason if comparing every device would take too long."""


class EntryState(StrEnum):
    """The state of an entry."""

    SERVED = "served"
    """It has devices."""
    WAITING = "waiting"
    """Its backend has not listed its devices yet."""
    MOVING = "moving"
    """It has no devices because they change sides: between device plugin and DRA."""
    NONE = "none"
    """It has no devices although it should, or although the node has hardware for it."""
    ABSENT = "absent"
    """It is optional, and the node has no hardware for it."""


@frozen
class EntryOutcome:
    """One entry: the number of its devices, the names of its resources, and what is wrong with that number.

    ``reason`` is why it has no devices, or another number than the file expects. ``held_by`` are the
    containers that the reason refers to. ``cordoned`` is the same if cordoned devices do not count.
    """

    entry: ResourceSettings
    devices: int
    resources: tuple[str, ...]
    state: EntryState
    reason: str = ""
    held_by: tuple[AnyHolder, ...] = ()
    cordoned: str = ""


class EntryOutcomes:
    """The entries of one plan. Reasons are worked out once, when they are first asked for.

    ``comparisons`` are most comparisons of a device with a block for all reasons; ``None`` for no limit.
    ``before`` are the outcomes of the previous plan, whose reasons are reused for unchanged entries and
    devices. ``dead_links`` are the symbolic links that entries name and that lead to nothing, by the index of
    the entry (:func:`~devhost.discovery.unserved.dead_links`).
    """

    def __init__(
        self,
        settings: Settings,
        plan: Plan | None,
        backends: Mapping[str, BackendNow],
        *,
        comparisons: int | None = None,
        before: EntryOutcomes | None = None,
        dead_links: Mapping[int, str] = NO_LINKS,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._backends = backends
        self._comparisons = comparisons
        self._dead_links = dead_links
        self._served = plan.served() if plan else {}
        self._counts = {index: sum(one.size for one in served) for index, served in self._served.items()}
        self._missed: dict[int, tuple[ResourceSettings, Mapping[str, Device], str]] = {}
        self._known = before._missed if before else {}
        self._all: Sequence[EntryOutcome] | None = None
        self._remarks: Mapping[int, str] | None = None
        self._taken: tuple[Collection[Key], Collection[str]] | None = None

    def waits(self, entry: ResourceSettings) -> bool:
        """Whether the entry's backend has not listed its devices yet."""
        backend = self._backends.get(entry.backend)
        return self._plan is None or backend is None or not backend.listed

    def all(self) -> Sequence[EntryOutcome]:
        """Every entry, in the order of the file."""
        if self._all is None or self._plan is None:  # without a plan, backends change and no new plan is made
            refused: dict[int, list[Refusal]] = {}
            for refusal in self._plan.refusals if self._plan else ():
                refused.setdefault(refusal.entry, []).append(refusal)
            self._all = [
                self._outcome(entry, refused.get(entry.index, ())) for entry in self._settings.resources
            ]
        return self._all

    def remarks(self) -> Mapping[int, str]:
        """What entries with devices just miss and no entry takes, also without its driver; by index."""
        if self._remarks is None or self._plan is None:
            found = ((entry.index, self._remark(entry)) for entry in self._settings.resources)
            self._remarks = {index: text for index, text in found if text}
        return self._remarks

    def _remark(self, entry: ResourceSettings) -> str:
        if not self.count(entry):
            return ""
        lacking = self._lacking(self._backends[entry.backend], entry)
        return "; ".join((*_without_driver(lacking), *filter(None, [self._missed_by(entry)])))

    def described(self) -> list[EntryStatus]:
        remarks = self.remarks()
        return [_described(outcome, remarks.get(outcome.entry.index, "")) for outcome in self.all()]

    def count(self, entry: ResourceSettings) -> int:
        """How many devices the entry serves."""
        return self._counts.get(entry.index, 0)

    def _outcome(self, entry: ResourceSettings, refused: Sequence[Refusal]) -> EntryOutcome:
        if count := self.count(entry):
            names = tuple(resource.name for resource in self._served[entry.index])
            reason = self._unexpected(entry, count, refused)
            cordoned = "" if reason.text else self._cordoned(entry, count)
            return EntryOutcome(
                entry, count, tuple(sorted(names)), EntryState.SERVED, reason.text, reason.held_by, cordoned
            )
        state, reason = self._why(entry, refused)
        return EntryOutcome(entry, 0, (), state, f"0 devices; {reason.text}", reason.held_by)

    def _why(self, entry: ResourceSettings, refused: Sequence[Refusal]) -> tuple[EntryState, Reason]:
        backend = self._backends.get(entry.backend)
        degraded = backend is not None and backend.condition.state is BackendState.DEGRADED
        waits = self.waits(entry)
        if backend is None or (waits and not degraded):
            return EntryState.WAITING, Reason("the backend has not answered yet")
        if degraded:
            state = EntryState.WAITING if waits else EntryState.NONE
            return state, Reason(f"the backend is degraded: {backend.condition.reason}")
        lacking = self._lacking(backend, entry)
        # hardware without its driver may also be a withheld device: this reason includes the fix
        if lacking and all(one.kind is RefusalKind.WITHHELD for one in refused):
            more = f" and {len(lacking) - 1} more without a driver" if len(lacking) > 1 else ""
            return EntryState.NONE, Reason(f"{lacking[0].subject}: {lacking[0].reason}{more}")
        if self._moves(entry, 0, refused):
            return EntryState.MOVING, _refused([one for one in refused if one.passes], self._settings)
        if refused:
            return EntryState.NONE, _refused(refused, self._settings)
        if (wrong := backend.condition.refused) and not backend.devices:
            more = "; ".join((f"{wrong[0].device}: {wrong[0].reason}", *_rest(len(wrong) - 1, "more device")))
            return EntryState.NONE, Reason(f"the backend reports its devices incorrectly: {more}")
        state = EntryState.ABSENT if entry.may_be_empty else EntryState.NONE
        return state, Reason(self._nearest(entry, backend.devices))

    def _lacking(self, backend: BackendNow, entry: ResourceSettings) -> list[MissingDriver]:
        """The hardware that would be devices of an entry with its driver."""
        known = backend.condition.missing_drivers
        return [one for one in known if one.makes_device and wanted(one, [entry])]

    def _unexpected(self, entry: ResourceSettings, count: int, refused: Sequence[Refusal]) -> Reason:
        """What is wrong with the number of devices, and why others are not among them."""
        wrong = entry.unexpected(count)
        if not wrong or self._moves(entry, count, refused):
            return Reason("")
        if entry.exceeds(count):
            return Reason(wrong)
        backend = self._backends[entry.backend]
        lacking = self._lacking(backend, entry)
        found = [wrong, *_without_driver(lacking)]
        held: tuple[AnyHolder, ...] = ()
        if refused:
            why = _refused(refused, self._settings)
            found.append(why.text)
            held = why.held_by
        more = self._dead_links.get(entry.index, ""), self._missed_by(entry)
        return Reason("; ".join((*found, *filter(None, more))), held)

    def _cordoned(self, entry: ResourceSettings, count: int) -> str:
        """What is wrong with the number of devices without those that are cordoned, and who did that."""
        backend = self._backends[entry.backend]
        if not (entry.expect and backend.cordons):
            return ""
        offers = (offer for one in self._served[entry.index] for offer in one.offers)
        found = [offer for offer in offers if backend.is_cordoned(offer.device.id)]
        cordoned = sorted((offer.device.id for offer in found), key=natural)
        if not cordoned or not (wrong := entry.unexpected(count - len({offer.unit for offer in found}))):
            return ""
        named = [f"{device}: {overruled(backend.cordons, device).reason}" for device in cordoned[:NAMED]]
        return "; ".join((wrong, *named, *_rest(len(cordoned) - len(named), "more cordoned device")))

    def _moves(self, entry: ResourceSettings, count: int, refused: Sequence[Refusal]) -> bool:
        """Whether an entry lacks only devices that change sides: it gets them without an edit of the file."""
        moving = sum(one.passes for one in refused)
        return moving > 0 and not entry.unexpected(count + moving)

    def _missed_by(self, entry: ResourceSettings) -> str:
        """The devices that an entry with devices just misses and that no entry takes."""
        backend = self._backends[entry.backend]
        assert self._plan is not None  # it has devices
        if len(backend.devices) * len(entry.where) > MAX_COMPARISONS:
            return ""
        if self._taken is None:
            offered = [
                (resource.entry.backend, offer.device)
                for resource in self._plan.resources.values()
                for offer in resource.offers
            ]
            self._taken = (
                {(backend, device.id) for backend, device in offered},
                {claim for _, device in offered for claim in device.claims},
            )
        taken, claims = self._taken
        free = (
            one
            for one in backend.devices.values()
            if (entry.backend, one.id) not in taken and one.claims.isdisjoint(claims) and not one.withheld
        )
        return near_misses(entry.where, free)

    def _nearest(self, entry: ResourceSettings, devices: Mapping[str, Device]) -> str:
        if dead := self._dead_links.get(entry.index):
            return dead
        known = self._known.get(entry.index)
        if known is not None and known[0] == entry and known[1] is devices:
            reason = known[2]
        elif self._comparisons is not None and len(devices) * len(entry.where) > self._comparisons:
            return UNKNOWN
        else:
            if self._comparisons is not None:
                self._comparisons -= len(devices) * len(entry.where)
            reason = nearest(entry.where, devices.values())
        self._missed[entry.index] = entry, devices, reason
        return reason


def _without_driver(lacking: Sequence[MissingDriver]) -> Iterator[str]:
    return (f"{one.subject}: {one.reason}" for one in lacking[:NAMED])


def place(entry: ResourceSettings) -> str:
    """An entry's place in the file, as in complaints: ``resources[2]``."""
    return f"resources[{entry.index}]"


def _described(outcome: EntryOutcome, remark: str) -> EntryStatus:
    from devhost.telemetry.document import EntryStatus, held_by  # 0.2 MB, only for a status document

    return EntryStatus(
        entry=place(outcome.entry),
        name=outcome.entry.name,
        backend=outcome.entry.backend,
        optional=outcome.entry.optional,
        devices=outcome.devices,
        resources=outcome.resources,
        state=outcome.state.value,
        reason=outcome.reason,
        remark=remark,
        cordoned=outcome.cordoned,
        held_by=held_by(outcome.held_by),
    )


def wanted(lacking: MissingDriver, entries: Iterable[ResourceSettings]) -> bool:
    """Whether any of these entries, all of its backend, could select hardware whose driver is missing."""
    return any(may_hold(entry.where, lacking.attributes) for entry in entries)


def _refused(refused: Sequence[Refusal], settings: Settings) -> Reason:
    """Why an entry offers none of the devices that it selects."""
    groups: dict[tuple[int | None, str, RefusalKind], list[Refusal]] = {}
    for one in refused:
        why = (one.taker, "" if one.taker is not None else one.reason, one.kind)
        groups.setdefault(why, []).append(one)
    named = sorted(groups.items(), key=lambda group: -len(group[1]))[:NAMED]
    found = []
    for (taker, reason, kind), alike in named:
        if taker is None:
            each = "" if len(alike) == 1 else "each is refused: "
            found.append(f"{_match(len(alike))}, but {each}{reason}")
            continue
        entry = settings.resources[taker]
        exclusive = " and does not have exclusive: false" if kind is RefusalKind.UNSHARED else ""
        them = "it" if len(alike) == 1 else "them"
        found.append(f"{_match(len(alike))}, but resources[{taker}] ({entry.name}) took {them}{exclusive}")
    text = "; ".join((*found, *_rest(len(groups) - len(found), "more reason")))
    holders = (holder for _, alike in named for one in alike for holder in one.held_by)
    return Reason(text, tuple(dict.fromkeys(holders)))


@mutable
class _UnmetDevices:
    """Devices that fail the same conditions of one block."""

    block: int
    unmet: Sequence[Term | Block]
    devices: list[Device]


def nearest(where: Where, devices: Collection[Device]) -> str:
    """Which conditions the nearest devices do not meet, if ``where`` selects none.

    The nearest devices fail the fewest conditions of a block; among these, those that differ from the
    configured values only in case and white space. A block of which a device meets no condition counts least.
    """
    if not devices:
        return "the backend sees no devices"
    most = max((len(block.terms) + len(block.refuse) for block in where), default=0)
    best: tuple[bool, int, int, int] | None = None
    groups: dict[tuple[int, ...], _UnmetDevices] = {}
    for device in devices:
        own: tuple[tuple[bool, int, int, int], int, Sequence[Term | Block]] | None = None
        for number, block in enumerate(where):
            seen = block.sees(device.attributes, device.inherited)
            if not (unmet := block.unmet(seen, most)):
                continue
            different = sum(not _alike(one, device, seen) for one in unmet)
            met = len(block.terms) - sum(isinstance(one, Term) for one in unmet)
            rank = not met and different == len(unmet), len(unmet), different, -met
            if own is None or rank < own[0]:
                own = rank, number, unmet
        if own is None or (best is not None and own[0] > best):
            continue
        rank, number, lacks = own
        if rank != best:
            best, groups = rank, {}
            most = most if rank[0] else rank[1]
        group = groups.setdefault((number, *map(id, lacks)), _UnmetDevices(number, lacks, []))
        group.devices.append(device)
    if best is None:
        return UNKNOWN
    if best[0] and all(isinstance(one, Term) for group in groups.values() for one in group.unmet):
        return _nothing(where, groups.values(), len(devices))
    ordered = sorted(groups.values(), key=lambda group: (-len(group.devices), group.block))
    described_groups = [_described_group(group, where) for group in ordered[:NAMED]]
    rest = sum(len(group.devices) for group in ordered[NAMED:])
    return "; ".join((*described_groups, *_rest(rest, "more device")))


def near_misses(where: Where, devices: Iterable[Device]) -> str:
    """The devices that meet all conditions of a block but one, of at least two; empty if there are none.

    A device that lacks attributes because something is wrong with it, as a function without its driver, may
    lack more of them. Each condition is named with some of the devices that do not meet it, and why.
    """
    missed: dict[str, list[str]] = {}
    for device in devices:
        for block in where:
            seen = block.sees(device.attributes, device.inherited)
            unmet = block.unmet(seen, len(block.terms) - 1 if device.health.reason else 1)
            if not unmet or len(block.terms) < 2:
                continue
            terms = [one for one in unmet if isinstance(one, Term)]
            has = [one for one in terms if one.attribute in seen]
            if len(terms) < len(unmet) or len(has) > 1:
                continue
            reason = device.health.reason
            if not reason:
                reason = (
                    f"it is {shortened(seen[has[0].attribute])}" if has else f"it has no {terms[0].attribute}"
                )
            names = _joined([one.attribute for one in terms], "and")
            missed.setdefault(names, []).append(f"{device.id}: {reason}")
            break
    found = []
    for attribute, few in sorted(missed.items()):
        verb = "matches" if len(few) == 1 else "match"
        found.append(
            f"{len(few)} more {verb} all but {attribute} "
            f"({', '.join((*few[:NAMED], *_rest(len(few) - NAMED, 'other')))})"
        )
    return "; ".join(found)


def _described_group(group: _UnmetDevices, where: Where) -> str:
    count = len(group.devices)
    of = f"all of block {group.block + 1} but" if len(where) > 1 else "all but"
    lacks = [_lack(one, group, where[group.block]) for one in group.unmet]
    return f"{_match(count)} {of} {' and '.join(lacks)}"


def _match(count: int) -> str:
    return "1 matches" if count == 1 else f"{count} match"


def _lack(one: Term | Block, group: _UnmetDevices, block: Block) -> str:
    if isinstance(one, Block):
        return f"not: {{{one}}}"
    if block.without and any(one.holds(device.attributes) for device in group.devices):
        return f"{one.attribute} (counts only in a block that names {block.without})"
    views = [block.sees(device.attributes, device.inherited) for device in group.devices]
    found = [view.get(one.attribute) for view in views]
    values = {value for value in found if value is not None}
    if not values:
        has = ["has none" if len(found) == 1 else "all have none"]
    else:
        has = [*_listed(one, values, _names(one, views)), *(["none"] if None in found else [])]
    return f"{one.attribute} ({_joined(has)}, not {_wanted(one)})"


def _nothing(where: Where, groups: Iterable[_UnmetDevices], count: int) -> str:
    """The reason if no device meets any condition of any block."""
    terms = {id(one): (one, group) for group in groups for one in group.unmet}
    if len(where) != 1 or len(terms) != 1:
        return (
            "the only device meets no condition"
            if count == 1
            else f"none of the {count} devices meets any condition"
        )
    ((term, group),) = terms.values()
    assert isinstance(term, Term)
    values = {found for one in group.devices if (found := one.attributes.get(term.attribute)) is not None}
    names = _names(term, [one.attributes for one in group.devices])
    has = _joined(_listed(term, values, names), "and") if values else ""
    if count == 1:
        return (
            f"the only device has {term.attribute} {has}, not {_wanted(term)}"
            if has
            else f"the only device has no {term.attribute}"
        )
    if not has:
        return f"none of the {count} devices has the attribute {term.attribute}"
    return f"none of the {count} devices has {term.attribute} {_wanted(term)}, they have {has}"


def _wanted(term: Term) -> str:
    shown = [quoted(str(one)) if isinstance(one, Text) else str(one) for one in term.patterns]
    return _joined([*shown[:NAMED], *_rest(len(shown) - NAMED, "other")])


def _joined(items: Sequence[str], word: str = "or") -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def _rest(count: int, what: str) -> list[str]:
    return [counted(count, what)] if count > 0 else []


def _names(term: Term, views: Iterable[Mapping[str, AttributeValue]]) -> set[AttributeValue]:
    """The further names of what a term is about, such as symbolic links to a device node."""
    several = (view.get(term.also) for view in views) if term.also else ()
    return {name for names in several if isinstance(names, tuple) for name in names}


def _listed(
    term: Term, values: Collection[AttributeValue], names: Collection[AttributeValue] = ()
) -> list[str]:
    """A few of the values, quoted: those most similar to the wanted ones, otherwise the first.

    ``names`` are further names of the values, of which only similar ones are listed.
    """
    shown = sorted({quoted(value) for value in values})
    similar: list[str] = []
    if len(shown) > NAMED or names:
        import difflib  # 0.2 MB, only for an entry that selects nothing

        every = sorted({*shown[:_SIMILAR], *[quoted(name) for name in names][:_SIMILAR]})
        for pattern in term.patterns[:NAMED]:
            similar += difflib.get_close_matches(quoted(str(pattern)), every, NAMED)
    few = list(dict.fromkeys((*similar, *shown)))[:NAMED]
    return [*few, *_rest(len(shown) - len(few), "other")]


def _alike(one: Term | Block, device: Device, seen: Mapping[str, AttributeValue]) -> bool:
    """Whether a device differs from what a term wants only in case and white space.

    This is also true for a device that has the right value but inherited it, which does not count.
    """
    if not isinstance(one, Term):
        return False
    if (value := seen.get(one.attribute)) is None:
        return one.holds(device.attributes)
    found = _folded(value)
    return any(
        isinstance(pattern, Text) and Text(" ".join(pattern.pattern.split()), fold=True).matches(found)
        for pattern in one.patterns
    )


def _folded(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return " ".join(value.split())
    return tuple(" ".join(item.split()) for item in value) if isinstance(value, tuple) else value
