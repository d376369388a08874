"""What an entry publishes in ResourceSlices besides the attributes of its backend."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from devhost.backend import Backend
from devhost.backend.base import declared
from devhost.planning.naming import SUBDOMAIN
from devhost.planning.settings import OWN_SOURCES, Alias

from .diagnostics import KeyPath, shown, suggest
from .document import Fields, Node
from .language import ResourceDra
from .reader import complain

MOST = 24
"""Attributes and capacities of an entry, with those of its profile: a device in a slice has 32, of which
devhost may need eight."""

RESERVED = ("resource", "backend", "id", "pcieSwitch", "slots")
"""Names that devhost publishes itself."""

_NAME = re.compile(rf"((?=[^/]{{1,63}}/){SUBDOMAIN}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
_STANDARD = "kubernetes.io"


def read_published(
    terms: ResourceDra,
    backend: type[Backend],
    node: Node,
    driver: str,
    place: KeyPath,
    shared: int = 0,
) -> tuple[tuple[Alias, ...], tuple[Alias, ...]]:
    """The attributes and the capacities by the terms of an entry; what is wrong with them is reported.

    ``node`` is the value of its key ``dra``, ``driver`` the DRA driver. A name of the file comes before that
    of a profile. An entry with ``shared`` capacities publishes these in place of others.
    """
    assert isinstance(node, Fields)  # it has been read as a mapping
    attributes = {name: Alias(name, source) for name, source in terms.attributes.items()}
    capacity = {name: _capacity(name, source, backend) for name, source in terms.capacity.items()}
    _check(attributes, "attributes", backend, node, place)
    _check(capacity, "capacity", backend, node, place)
    if terms.profile:
        from devhost.planning.profiles import PROFILES  # only where it is used

        published = PROFILES[terms.profile]
        wanted = (*published.attributes, *published.capacity)
        needed = [one.source for one in wanted if one.otherwise is None]
        if missing := [source for source in needed if not _is_source(source, backend)]:
            message = f"backend {backend.name} has no attribute {shown(missing[0])}, which this profile needs"
            hint = f"it is for entries with backend: {published.backend}"
            complain(node, "profile", place, message, hint)
        attributes = {one.name: one for one in published.attributes} | attributes
        optional = [one for one in published.optional if _is_source(one.source, backend)]
        capacity = {one.name: one for one in (*published.capacity, *optional)} | capacity
    _refuse_second(terms.attributes, "attributes", {*attributes, *RESERVED}, driver, node, place)
    _refuse_second(terms.capacity, "capacity", capacity.keys(), driver, node, place)
    if len(attributes) + (count := shared or len(capacity)) > MOST:
        message = f"has {len(attributes)} attributes and {count} capacities, and may have {MOST}"
        place.report(node, message, "a device in a slice has at most 32, with those that devhost needs")
    return tuple(attributes.values()), tuple(capacity.values())


def _capacity(name: str, source: str, backend: type[Backend]) -> Alias:
    found = declared(backend.attributes, source)
    return Alias(name, source, unit=found.unit if found else "")


def _check(
    wanted: Mapping[str, Alias], key: str, backend: type[Backend], node: Fields, place: KeyPath
) -> None:
    if not wanted:
        return
    values = node.entries[key].value
    assert isinstance(values, Fields)  # it has been read as a mapping
    for name, one in wanted.items():
        entry, where = values.entries[name], place.key(key).key(name)
        if problem := _name_problem(name):
            where.report(entry, f"{shown(name)} {problem}", 'for example type or "example.com/type"')
        elif key == "capacity" and not _is_number(one.source, backend):
            numbers = {name: one for name, one in backend.attributes.items() if one.type is int}
            message = f"backend {backend.name} has no number {shown(one.source)}"
            where.report(entry.value, message, suggest(one.source, numbers, "numbers"))
        elif not _is_source(one.source, backend):
            names, _, attribute = one.source.partition(".")
            wrong = attribute if attribute and _names_device(names, backend) else one.source
            message = f"backend {backend.name} has no attribute {shown(wrong)}"
            where.report(entry.value, message, suggest(wrong, backend.attributes, "attributes"))


def _refuse_second(
    wanted: Collection[str], key: str, others: Collection[str], driver: str, node: Fields, place: KeyPath
) -> None:
    """Complains about names that are there with the domain of the driver and without: Kubernetes sees one."""
    for name in wanted:
        domain, _, bare = name.rpartition("/")
        if driver and domain == driver and bare in others:
            values = node.entries[key].value
            assert isinstance(values, Fields)  # it has been read as a mapping
            message = f"is also published as {bare}, which is the same name: {driver} is the driver"
            place.key(key).key(name).report(values.entries[name], message, f"write {bare}, or remove it")


def _name_problem(name: str) -> str:
    if not _NAME.fullmatch(name):
        return (
            "is no name of an attribute or a capacity: at most 32 letters, digits and _, which do not begin "
            "with a digit; before it a domain of at most 63 characters and a slash, if it has one"
        )
    domain, _, _ = name.rpartition("/")
    if name in RESERVED:
        return "is published by devhost itself"
    if domain == _STANDARD or domain.endswith(f".{_STANDARD}"):
        return "is in kubernetes.io, which belongs to Kubernetes itself"
    return ""


def _is_number(source: str, backend: type[Backend]) -> bool:
    found = declared(backend.attributes, source)
    return found is not None and found.type is int


def _is_source(source: str, backend: type[Backend]) -> bool:
    if source in OWN_SOURCES or declared(backend.attributes, source):
        return True
    names, _, attribute = source.partition(".")
    return _names_device(names, backend) and declared(backend.attributes, attribute) is not None


def _names_device(attribute: str, backend: type[Backend]) -> bool:
    found = declared(backend.attributes, attribute)
    return found is not None and found.type is str
