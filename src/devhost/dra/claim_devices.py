"""The devices of a claim: found, checked, and rendered as what its containers get, with its options.

An opaque configuration of a claim, or of its device class, for this driver has the parameters

    {apiVersion: devhost/v1, kind: DeviceOptions, options: {…}}

whose ``options`` are those of the resource's entry in the configuration file. The same reader reads them.
They replace the entry's options: first those of the device class, then those of the claim. A class may set
every option, because administrators make classes; a claim may set only what the entry allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import is_
from typing import Any, Final, Literal, cast

from devhost.allocation.cdi.claim_files import device_name, set_name
from devhost.allocation.cdi.spec import ContainerEdits, Rendered, Seen, adds_up, claim_kind, rendered
from devhost.allocation.claims import ClaimedDevice, ClaimRecord
from devhost.allocation.resource_backend import ResourceBackend, Terms
from devhost.backend import Backend, Consumed, NoOptions
from devhost.backend.errors import AllocationError, BackendError, ConfigError
from devhost.backend.frozen import frozen
from devhost.backend.model import NOTHING, AttributeValue, ClaimHolder, Device, sound_reason
from devhost.config.diagnostics import Diagnostics, KeyPath, Mark, one_line, suggest
from devhost.config.document import MAX_DEPTH, Entry, Fields, Items, Node, Scalar
from devhost.config.reader import WRONG, Raw, agreed, keys, read, read_fields
from devhost.config.resources import guarded
from devhost.planning.amounts import NO_LIMIT, NONE, CapacityUse, Limit, flaw, whole
from devhost.planning.claims import Key
from devhost.planning.settings import Effect, ResourceSettings, uses_of

from .answers import AllocatedDevice, ClaimError, ClaimObject, OpaqueConfig
from .inventory import DraDevice, DraInventory
from .slices import SLOTS, taints_of

MAX_ERRORS: Final = 3
"""Errors of one claim in its text; the pod's event has little space."""

_NOWHERE = Mark(0, 0)
_NO_OPTIONS = Fields(_NOWHERE)


@frozen
class DeviceOptions:
    """The parameters of an opaque configuration."""

    api_version: Literal["devhost/v1"]
    kind: Literal["DeviceOptions"]
    options: Raw = _NO_OPTIONS


def options_for(
    request: str,
    config: Sequence[OpaqueConfig],
    options: object,
    backend: type[Backend],
    entry: ResourceSettings,
    resource: str,
) -> object:
    """The options of a resource with what a claim configures for one request.

    ``request`` is as in :attr:`AllocatedDevice.request`, ``config`` the claim's, those of the class first.
    ``options`` are the resource's own: the value of the backend's ``ResourceOptions``, or ``None``. ``entry``
    has the keys that the claim itself may set. Raises ``ClaimError`` if something is wrong; the text has the
    path of each error.
    """
    diagnostics = Diagnostics("")
    before = options
    with suppress(ConfigError):  # there are too many errors to read further
        for one in config:
            if one.concerns(request):
                allowed = None if one.from_class else entry.dra.claim_options
                place = KeyPath(diagnostics, f"{one.path}.opaque.parameters")
                options = _overridden(one.parameters, options, backend, allowed, resource, place)
        if not diagnostics.found and options != before:
            options = _named(options, entry, resource, KeyPath(diagnostics, "config"))
    if diagnostics.found:
        raise ClaimError(_text(diagnostics))
    return options


def _overridden(
    parameters: Any,
    options: object,
    backend: type[Backend],
    allowed: Collection[str] | None,
    resource: str,
    place: KeyPath,
) -> object:
    """The options with what one configuration sets; unchanged after reporting what is wrong with it."""
    before = len(place.diagnostics.found)
    values = read_fields(node_of(parameters, place), DeviceOptions, place)
    if len(place.diagnostics.found) > before:
        return options
    given, place = cast("Node", values.get("options", _NO_OPTIONS)), place.key("options")
    if not isinstance(given, Fields):
        place.report(given, f"must be a mapping, not {given}")
        return options
    if backend.ResourceOptions is NoOptions or options is None:
        for key in given.entries:
            place.key(key).report(given, f"unknown key: {resource} has no options")
        return options
    what = f"the resource options of backend {backend.name}"
    changed = guarded(lambda: _changed(given, options, allowed, resource, place), given, what, place)
    return options if changed is WRONG else changed


def _changed(
    given: Fields, options: Any, allowed: Collection[str] | None, resource: str, place: KeyPath
) -> Any:
    kind: type = type(options)
    known = keys(kind)
    values = {}
    before = len(place.diagnostics.found)
    for key, entry in given.entries.items():
        here = place.key(key)
        if key not in known:
            here.report(entry, "unknown key", suggest(key, known, "keys"))
        elif allowed is not None and key not in allowed:
            hint = f"a DeviceClass can set it, or dra.claimOptions of {resource} can allow it"
            here.report(entry, "a claim must not set this option", hint)
        else:
            one, wanted = known[key]
            values[one.name] = read(entry.value, wanted, here)
    if len(place.diagnostics.found) > before:
        return WRONG
    return agreed(lambda: replace(options, **values), given, "the backend", place)


def _named(options: object, entry: ResourceSettings, resource: str, place: KeyPath) -> object:
    """The options for the entry's name; what that name, or its way of sharing, rules out is reported."""

    def check() -> Any:
        found = options
        if named := getattr(options, "named", None):
            found = agreed(lambda: named(entry.name), Fields(_NOWHERE), "the backend", place)
        alone = getattr(options, "why_alone", None)
        if alone and (entry.share.divides or not entry.exclusive):
            place.report(Fields(_NOWHERE), f"{resource} is shared: {one_line(str(alone), 300)}")
        return found

    return guarded(check, Fields(_NOWHERE), f"the resource options of {resource}", place)


def node_of(value: Any, place: KeyPath, depth: int = 0) -> Node:
    """A JSON value as the reader of the configuration file takes it."""
    if depth > MAX_DEPTH:
        place.report(Fields(_NOWHERE), f"is nested more than {MAX_DEPTH} levels deep")
    elif isinstance(value, dict):
        entries = {
            str(key): Entry(_NOWHERE, node_of(one, place.key(str(key)), depth + 1))
            for key, one in value.items()
        }
        return Fields(_NOWHERE, entries)
    elif isinstance(value, list):
        nodes = (node_of(one, place.item(n), depth + 1) for n, one in enumerate(value))
        return Items(_NOWHERE, tuple(nodes))
    elif isinstance(value, bool):
        return Scalar(_NOWHERE, str(value).lower(), "bool")
    elif isinstance(value, int | float):
        return Scalar(_NOWHERE, repr(value), "int" if isinstance(value, int) else "float")
    elif isinstance(value, str):
        return Scalar(_NOWHERE, value, "str")
    return Scalar(_NOWHERE, "", "null")


def _text(diagnostics: Diagnostics) -> str:
    """The errors in one line."""
    found = dict.fromkeys(
        f"{one.path}: {one.message}" + (f" ({one.hint})" if one.hint else "")
        for one in diagnostics.error().diagnostics
    )
    texts = list(found)
    rest = len(texts) - MAX_ERRORS
    return "; ".join(texts[:MAX_ERRORS]) + (f"; and {rest} more" if rest > 0 else "")


@frozen(slots=True)
class Chosen:
    """A device of a claim as it is now: what is recorded, the device, and the terms of the claim."""

    claimed: ClaimedDevice
    found: DraDevice
    options: object


@frozen(slots=True)
class RequestedDevices:
    """The devices of one request that one resource has: the backend is asked for them together."""

    members: tuple[Chosen, ...]

    @property
    def backend(self) -> ResourceBackend:
        return self.members[0].found.backend

    @property
    def resource(self) -> str:
        return self.members[0].found.resource

    @property
    def admin(self) -> bool:
        """Whether it takes nothing: its devices may be unhealthy, and other claims may have them."""
        return all(one.claimed.admin for one in self.members)

    @property
    def by_key(self) -> dict[Key, Device]:
        """Each device once, by its key."""
        return {key: device for one in self.members for key, device in _by_key(one.found)}

    @property
    def devices(self) -> list[Device]:
        """Each device once, in the order of the allocation."""
        return list(self.by_key.values())

    @property
    def wanted(self) -> Mapping[str, Sequence[Device]]:
        """What the claim has allocated, by id: one device, or the members of a unit."""
        return {one.found.device.id: one.found.devices for one in self.members}

    @property
    def terms(self) -> Terms:
        """The terms on which a container gets them."""
        terms = replace(self.backend.terms, options=self.members[0].options)
        if not self.admin and (consumed := self._consumed()):
            return replace(terms, consumed=consumed)
        if not self.backend.runner.backend_class.takes_shares:
            return terms
        from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

        shares: dict[str, Fraction] = {}
        for one in self.members:
            part = Fraction(min(one.claimed.slots, one.found.replicas), one.found.replicas)
            for device in one.found.devices:
                shares[device.id] = shares.get(device.id, Fraction(0)) + part
        return replace(terms, shares=shares)

    def _consumed(self) -> dict[str, dict[str, Consumed]]:
        """What the request uses of each device, by id, if claims share by amount."""
        found: dict[str, dict[str, Consumed]] = {}
        for one in self.members:
            for name, amount, total in one.claimed.parts:
                known = found.setdefault(one.found.device.id, {})
                before = known[name].amount if name in known else 0
                known[name] = Consumed(before + amount, total)
        return found


def choose(
    claim: ClaimObject, driver: str, resources: DraInventory, *, running: bool = False
) -> list[Chosen]:
    """The devices of a claim, in the order of its allocation.

    With ``running``, containers use the claim already, so that health is no question. Raises ``ClaimError``
    if a device is unknown or withdrawn, or unhealthy without admin access, or its configuration is wrong.
    """
    chosen = []
    for allocated in claim.devices:
        name = f"{allocated.pool}/{allocated.device}"
        found = resources.find(allocated.pool, allocated.device)
        if found is None:
            reason = resources.missing(allocated.pool, allocated.device) or "devhost has no such device"
            raise ClaimError(f"device {name} is not available: {reason}")
        one = _chosen(claim, allocated, found)
        if not running and not allocated.admin:
            _check_health(allocated, one, driver)
        chosen.append(one)
    return chosen


def _chosen(claim: ClaimObject, allocated: AllocatedDevice, found: DraDevice) -> Chosen:
    """A device on the terms of its resource, and on those that the claim configures."""
    claimed = ClaimedDevice(
        allocated.request,
        allocated.pool,
        allocated.device,
        allocated.share,
        found.key,
        found.resource,
        admin=allocated.admin,
        replicas=found.replicas,
        exclusive=found.entry.exclusive,
        slots=_consumed(allocated, SLOTS, 1),
        members=tuple(member.id for member in found.members),
        parts=() if allocated.admin else _parts(allocated, found),
    )
    options = found.backend.terms.options
    if claim.config:
        backend = found.backend.runner.backend_class
        options = options_for(allocated.request, claim.config, options, backend, found.entry, found.resource)
    limit = found.entry.share.limit
    if limit is not NO_LIMIT and limit.by_backend and limit.by not in getattr(options, "limits", ()):
        reason = f"{limit.by}, which limits containers of {found.resource}, is not in its configuration"
        raise ClaimError(f"device {allocated.pool}/{allocated.device} is not available: {reason}")
    return Chosen(claimed, found, options)


def _parts(allocated: AllocatedDevice, found: DraDevice) -> tuple[CapacityUse, ...]:
    """What it uses of a device that claims share by amount: all that the allocation does not limit.

    Raises ``ClaimError`` if the device has no amount of what claims share, or the allocation has none.
    """
    amounts = found.entry.share.amounts
    if not amounts:
        return ()
    if reason := flaw(amounts, found.device.attributes):
        raise ClaimError(f"device {allocated.pool}/{allocated.device} is not available: {reason}")
    parts = []
    for one in amounts:
        size = one.size(found.device.attributes)
        assert size is not None  # that would be a flaw
        parts.append(CapacityUse(one.name, _consumed(allocated, one.name, size), size))
    return tuple(parts)


def _consumed(allocated: AllocatedDevice, name: str, otherwise: int) -> int:
    """What it uses of a capacity, at least 1; ``otherwise`` if the allocation has no amount of it.

    Raises ``ClaimError`` if the amount cannot be read: the device might not have so much.
    """
    for key, text in allocated.consumed.items():
        if key.rpartition("/")[2] == name:
            if (amount := whole(text)) is None:
                raise ClaimError(f"{text} is no quantity of {name} that devhost knows")
            return max(1, amount)
    return otherwise


def _check_health(allocated: AllocatedDevice, one: Chosen, driver: str) -> None:
    """Refuses a device that cannot be used, unless the claim tolerates that."""
    found = one.found
    if found.health.healthy and not any(device.unusable_for for device in found.devices):
        return
    health = found.usable(uses_of(one.options, found.entry.permissions))
    taints = taints_of(driver, health, found.entry.dra.taints)
    if any(
        effect is not Effect.NONE and not allocated.tolerates(key, effect) for key, effect in taints.items()
    ):
        reason = sound_reason(health.reason)
        raise ClaimError(f"device {allocated.pool}/{allocated.device} is unhealthy: {reason}")


@frozen
class Basis:
    """What the file of a claim was rendered from; ``None`` for a device that was not there.

    ``seen`` is what the host had.
    """

    chosen: tuple[Chosen | None, ...]
    devices: tuple[DraDevice | None, ...]
    seen: tuple[Seen, ...]

    def is_of(self, now: Sequence[DraDevice | None]) -> bool:
        """Whether the devices are still the same, and have the same backends and attributes in slices."""
        return all(
            _same(one.devices if one else (), new.devices if new else ())
            and (one and one.backend.runner) is (new and new.backend.runner)
            and (one and (one.aliased, one.accepted)) == (new and (new.aliased, new.accepted))
            for one, new in zip(self.devices, now, strict=True)
        )

    def renewed(self, now: Sequence[DraDevice | None]) -> list[Chosen | None] | None:
        """The devices that are there now, on the same terms; ``None`` if these are not known for each."""
        if any(new is not None and one is None for one, new in zip(self.chosen, now, strict=True)):
            return None
        return [
            None if one is None or new is None else replace(one, found=new)
            for one, new in zip(self.chosen, now, strict=True)
        ]


def chosen_again(
    record: ClaimRecord, claim: ClaimObject, now: Sequence[DraDevice | None]
) -> list[Chosen | None]:
    """The devices of a prepared claim that are there now, on the terms of the claim.

    Raises ``ClaimError`` if the claim has other devices by now, or its configuration is wrong.
    """
    if not is_recorded(record, claim):
        raise ClaimError(f"{record.claim} was allocated again")
    return [
        None if found is None else _chosen(claim, allocated, found)
        for allocated, found in zip(claim.devices, now, strict=True)
    ]


def is_recorded(record: ClaimRecord, claim: ClaimObject) -> bool:
    """Whether a record is of the devices that are allocated to the claim now."""
    recorded = [(one.request, one.pool, one.device, one.share, one.admin) for one in record.devices]
    return recorded == [(one.request, one.pool, one.device, one.share, one.admin) for one in claim.devices]


def _by_key(found: DraDevice) -> Iterator[tuple[Key, Device]]:
    return zip(found.keys, found.devices, strict=True)


def _same(some: Sequence[Device], others: Sequence[Device]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def groups(chosen: Sequence[Chosen]) -> list[RequestedDevices]:
    found: dict[tuple[str, str], list[Chosen]] = {}
    for one in chosen:
        found.setdefault((one.claimed.request, one.found.resource), []).append(one)
    return [RequestedDevices(tuple(members)) for members in found.values()]


@frozen(slots=True)
class Rendering:
    """What the containers of a group get.

    Either ``single`` has the edits and further CDI names for each device or unit, by its id; or, if together
    they give more than each by itself, ``whole`` has them all. ``unclaimed`` are the claims of nodes that the
    devices do not claim, ``attributes`` those that devices have only now, by id.
    """

    single: Mapping[str, tuple[Rendered, tuple[str, ...]]]
    whole: tuple[Rendered, tuple[str, ...]] | None = None
    unclaimed: frozenset[str] = frozenset()
    attributes: Mapping[str, Mapping[str, AttributeValue]] = NOTHING

    @property
    def seen(self) -> list[Seen]:
        """What the host had."""
        return [part.seen for part in self._parts()]

    @property
    def env(self) -> Mapping[str, str]:
        """The variables of a container that has all devices."""
        lines = (line for part in self._parts() for line in part.edits.get("env", ()))
        return dict(line.split("=", 1) for line in lines)

    def _parts(self) -> list[Rendered]:
        return [part for part, _ in (*self.single.values(), *([self.whole] if self.whole else []))]


async def render(group: RequestedDevices, deadline: float, *, report: bool = True) -> Rendering:
    """Asks the backend what the containers of a group get.

    For a claim that is being prepared, ``report`` lets the backend look again at devices that lack something.
    Raises ``AllocationError`` if a device cannot be used now, and ``BackendError`` if the backend failed, or
    did not answer within ``deadline`` seconds.
    """
    backend, scanner = group.backend, group.backend.scanner
    try:
        result = await backend.call(deadline, _render, backend, group.wanted, group.terms)
    except AllocationError:
        if report:
            scanner.recheck()
        raise
    if isinstance(result, Rendering):
        return result
    for device, paths in result.items() if report else ():
        scanner.report_missing(device, paths)
    raise backend.lacking(result)


def _render(
    backend: ResourceBackend, wanted: Mapping[str, Sequence[Device]], terms: Terms
) -> Rendering | Mapping[str, Sequence[str]]:
    """The same on the backend's thread, or what of the host the devices lack."""
    root = backend.runner.context.root
    answer = backend.answer([*wanted.values()], terms)
    if not answer.devices:
        return answer.lacking
    whole = rendered(answer.granted, root), answer.granted.edits.cdi_devices
    about = answer.unclaimed, answer.granted.edits.attributes
    if len(wanted) == 1:
        return Rendering(dict.fromkeys(wanted, whole), None, *about)
    single = {}
    try:
        for name, devices in wanted.items():
            ids = {device.id for device in devices}
            shares = {device: part for device, part in terms.shares.items() if device in ids}
            granted = backend.ask(devices, replace(terms, shares=shares))
            single[name] = rendered(granted, root), granted.edits.cdi_devices
    except BackendError:  # the backend gives these devices together only
        return Rendering({}, whole, *about)
    same = adds_up([one.edits for one, _ in single.values()], whole[0].edits)
    same = same and {name for _, names in single.values() for name in names} == set(whole[1])
    return Rendering(single, None, *about) if same else Rendering({}, whole, *about)


def record_of(
    claim: ClaimHolder,
    driver: str,
    chosen: Sequence[Chosen],
    renderings: Sequence[tuple[RequestedDevices, Rendering]],
) -> tuple[ClaimRecord, dict[str, ContainerEdits]]:
    """The record of a claim, and the edits of each CDI name in its file.

    The kubelet gives a container the CDI names of all devices of a request and does not remove repeated ones,
    so a name is in one device of a request at most.
    """
    kind = claim_kind(driver)
    edits: dict[str, ContainerEdits] = {}
    names: dict[int, list[str]] = {}
    numbers: dict[str, int] = {}
    for position, one in enumerate(chosen):
        base = one.claimed.base
        number = numbers[base] = numbers.get(base, -1) + 1
        name = device_name(claim.uid, base, number)
        edits[name] = {}
        names[position] = [f"{kind}={name}"]
    sets: dict[str, int] = {}
    given: dict[str, set[str]] = {}
    positions = {id(one): position for position, one in enumerate(chosen)}
    for group, rendering in renderings:
        first = group.members[0]
        base = first.claimed.base
        there = given.setdefault(base, set())
        if rendering.whole is not None:
            number = sets[base] = sets.get(base, 0) + 1
            name = set_name(claim.uid, base, number)
            found, more = rendering.whole
            edits[name] = found.edits
            names[positions[id(first)]] += [f"{kind}={name}"] if edits[name] else []
            if not edits[name]:
                del edits[name]
            _add(names[positions[id(first)]], more, there)
            continue
        rest = dict(rendering.single)
        for one in group.members:  # two shares of one device need its edits once
            own, more = rest.pop(one.found.device.id, (Rendered({}), ()))
            own_names = names[positions[id(one)]]
            edits[own_names[0].rpartition("=")[2]] = own.edits
            _add(own_names, more, there)
    devices = [replace(one.claimed, cdi_ids=tuple(names[position])) for position, one in enumerate(chosen)]
    return ClaimRecord(claim, driver, tuple(devices)), edits


def described(
    chosen: Sequence[Chosen], renderings: Sequence[tuple[RequestedDevices, Rendering]]
) -> list[Mapping[str, Mapping[str, Any]]]:
    """The attributes of each device of a claim, for its metadata."""
    given = {
        (group.backend.runner.name, name): values
        for group, rendering in renderings
        for name, values in rendering.attributes.items()
    }
    return [one.found.attributes(given.get(one.found.key)) for one in chosen]


def check_variables(renderings: Sequence[tuple[RequestedDevices, Rendering]]) -> None:
    """Refuses different values of a variable in one request, if an entry gives it: the last one would win."""
    by_request: dict[str, list[tuple[RequestedDevices, Mapping[str, str]]]] = {}
    for group, rendering in renderings:
        by_request.setdefault(group.members[0].claimed.base, []).append((group, rendering.env))
    for groups in by_request.values():
        if len(groups) < 2 or not any(group.terms.give.env for group, _ in groups):
            continue
        from devhost.planning.give.edits import given

        for group, env in groups:
            terms = group.terms
            for name in given(terms.give, group.devices, group.resource, terms.whole, terms.of).env:
                for other, others in groups:
                    if others.get(name, env[name]) != env[name]:
                        both = f"{group.resource} and {other.resource}"
                        reason = f"{both} give containers of one request different values of {name}"
                        raise ClaimError(f"{reason} (give it in one entry, or make two requests)")


def check_limits(
    groups: Sequence[RequestedDevices], others: Iterable[tuple[AllocatedDevice, DraDevice]] = ()
) -> None:
    """Refuses two requests of a claim whose limits for different devices have the same variables.

    A container that uses both would have one of them, and no limit on the devices of the other. ``others``
    has what the claim has of other drivers.
    """
    limited = [
        (group.members[0].claimed.base, group.terms.limit, frozenset(group.by_key))
        for group in groups
        if not group.admin
    ]
    elsewhere: dict[tuple[str, str, str], tuple[Limit, set[Key]]] = {}
    for one, found in others:
        if not one.admin:
            place = one.request, found.driver, found.resource
            elsewhere.setdefault(place, (found.entry.share.limit, set()))[1].update(found.keys)
    limited += [
        (request.partition("/")[0], limit, frozenset(keys))
        for (request, *_), (limit, keys) in elsewhere.items()
    ]
    seen: dict[str, tuple[str, frozenset[Key]]] = {}
    for request, limit, devices in limited:
        for name in () if limit.by == NONE else limit.env or (limit.by,):
            other, known = seen.setdefault(name, (request, devices))
            if known != devices:
                both = f"requests {other} and {request}"
                reason = f"{both} have different devices, and one container can have one limit"
                raise ClaimError(f"{reason} (make a claim for each, or one request with a count)")


def _add(names: list[str], more: Sequence[str], there: set[str]) -> None:
    """Adds the CDI names of others that the request does not have yet."""
    for name in more:
        if name not in there:
            there.add(name)
            names.append(name)
