"""What a device publishes under other names than those of its backend: attributes and capacities. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_

from devhost.backend.frozen import frozen
from devhost.backend.model import AttributeValue, Device
from devhost.planning.amounts import GREATEST, factor, quantity
from devhost.planning.settings import OWN_SOURCES, Alias, DraTerms


@frozen
class Aliased:
    """The attributes of a device under their names in slices, and its capacities as quantities.

    With ``only``, the attributes of the backend are not published besides. ``left_out`` has what
    cannot be published, with the reason; ``foreign`` is why the device is not published at all.
    """

    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    only: bool = False
    left_out: tuple[tuple[str, str], ...] = ()
    foreign: str = ""


NOTHING = Aliased()


class Aliases:
    """What the devices of one resource publish, worked out again only for those that have changed."""

    def __init__(self) -> None:
        self._known: Mapping[str, tuple[tuple[object, ...], Aliased]] = {}

    def follow(
        self, terms: DraTerms, resource: str, devices: Iterable[Device], others: Mapping[str, Device]
    ) -> Mapping[str, Aliased]:
        """What these devices publish now, by id; see :func:`aliased`. Empty if the entry names nothing."""
        if not (terms.attributes or terms.capacity):
            return {}
        named = {one.source.partition(".")[0] for one in (*terms.attributes, *terms.capacity)}
        now = {}
        for device in devices:
            basis = (terms, device, *(others.get(str(device.attributes.get(name, ""))) for name in named))
            before = self._known.get(device.id)
            if before is None or not all(map(is_, before[0], basis)):
                before = basis, aliased(terms, resource, device, others)
            now[device.id] = before
        self._known = now
        return {name: found for name, (_, found) in now.items()}


def aliased(terms: DraTerms, resource: str, device: Device, others: Mapping[str, Device]) -> Aliased:
    """What a device of a resource publishes by the terms of its entry.

    ``others`` are the devices of its backend by id, of which an alias may name an attribute.
    """
    if not (terms.attributes or terms.capacity):
        return NOTHING
    if terms.profile is not None:
        from devhost.planning.profiles import PROFILES  # only where it is used

        vendor = PROFILES[terms.profile].vendor
        if vendor and (found := device.attributes.get("vendor", vendor)) != vendor:
            reason = f"its vendor is {found}, and the entry has dra.profile: {terms.profile.value}"
            return Aliased(only=True, foreign=reason)
    attributes, capacity, left_out = [], [], []
    for one, value in _values(terms.attributes, resource, device, others):
        if isinstance(value, tuple) and not terms.lists:
            if len(value) != 1:
                left_out.append((one.name, f"it has {len(value)} values, and the entry has no dra.lists"))
                continue
            (value,) = value
        attributes.append((one.name, value))
    for one, value in _values(terms.capacity, resource, device, others):
        if isinstance(value, int) and 0 <= value * factor(one.unit) <= GREATEST:
            capacity.append((one.name, quantity(value, one.unit)))
        else:
            left_out.append((one.name, f"{value} is no capacity"))
    return Aliased(tuple(attributes), tuple(capacity), terms.profile is not None, tuple(left_out))


def _values(
    wanted: Sequence[Alias], resource: str, device: Device, others: Mapping[str, Device]
) -> Iterator[tuple[Alias, AttributeValue]]:
    for one in wanted:
        if one.kind and device.attributes.get("kind") != one.kind:
            continue
        if one.needs and one.needs not in device.attributes:
            continue
        value = _source(one.source, resource, device, others)
        if value == ():  # a slice cannot have an empty list
            value = None
        if value is not None and one.convert is not None:
            value = one.convert(value)
        if value is None:
            value = one.otherwise
        if value is not None:
            yield one, value


def _source(
    source: str, resource: str, device: Device, others: Mapping[str, Device]
) -> AttributeValue | None:
    if source in OWN_SOURCES:
        return {"resource": resource, "id": device.id}[source]
    if source in device.attributes:
        return device.attributes[source]
    name, _, attribute = source.partition(".")
    other = others.get(str(device.attributes.get(name, "")))
    return other.attributes.get(attribute) if other else None
