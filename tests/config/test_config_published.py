"""What an entry publishes in slices besides its backend's attributes, and what is refused of it at load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
from kit.backend import Plain

from devhost.backend import Attribute
from devhost.backend.errors import ConfigError, Diagnostic
from devhost.config import loads
from devhost.discovery.catalog import Catalog, Installed
from devhost.planning.settings import Alias, DraTerms, ResourceSettings

DRIVER = "d.example.com"
Complain = Callable[[str], tuple[Diagnostic, ...]]


class Chip(Plain):
    name = "chip"
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "kind": Attribute(str, "What it is.", "gpu"),
        "parent": Attribute(str, "What it is a part of.", "c0"),
        "memory": Attribute(int, "Its memory.", 1, unit="Mi"),
        "sysattr.*": Attribute(str, "A sysfs attribute.", "1"),
    }


CATALOG = Catalog({"chip": Installed(Chip, "devhost-chip", "1.0", ("devhost_backends",))})


def entry(dra: str, serve: str = "dra") -> ResourceSettings:
    text = (
        "version: 1\ndra: {driver: d.example.com}\nresources:\n"
        f"- {{name: a.b/c, backend: chip, serve: {serve}, dra: {dra}}}\n"
    )
    (found,) = loads(text, "f.yaml", lambda _paths, _wanted: CATALOG).resources
    return found


def complaints(dra: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        entry(dra)
    return [f"{found.path}: {found.message} ({found.hint})" for found in caught.value.diagnostics]


def test_names_and_their_sources_are_read() -> None:
    terms = entry(
        "{attributes: {type: kind, parentKind: parent.kind, a.b/c: resource, d: id, e: sysattr.x}, "
        "capacity: {a.b/memory: memory}, lists: true}"
    ).dra
    pairs = {
        "type": "kind",
        "parentKind": "parent.kind",
        "a.b/c": "resource",
        "d": "id",
        "e": "sysattr.x",
    }
    assert terms == DraTerms(
        attributes=tuple(Alias(name, source) for name, source in pairs.items()),
        capacity=(Alias("a.b/memory", "memory", unit="Mi"),),
        lists=True,
    )


def test_the_backend_is_asked_for_what_is_published() -> None:
    names = "{attributes: {a: parent.kind, d: id}, capacity: {memory: memory}}"
    assert entry(names).wanted() == {"parent", "kind", "memory", "parent.kind"}
    assert entry(names, "plugin").wanted() == set()


def test_an_entry_without_these_keys_publishes_what_its_backend_has() -> None:
    assert entry("{extendedName: true}").dra == DraTerms(extended_name=True)


@pytest.mark.parametrize("name", ["A", "_", "a" * 32, f"{'d' * 63}/x9_"])
@pytest.mark.parametrize("key", ["attributes: {%s: kind}", "capacity: {%s: memory}"])
def test_a_name_of_kubernetes_is_accepted(name: str, key: str) -> None:
    terms = entry(f"{{{key % name}}}").dra
    assert [one.name for one in (*terms.attributes, *terms.capacity)] == [name]


@pytest.mark.parametrize(
    "name", ["9a", "a-b", "a" * 33, f"{'d' * 64}/x", "a.b/", "/x", "A.b/x", "a/b/c", "''"]
)
def test_another_name_is_refused_with_the_rule(name: str) -> None:
    (found,) = complaints(f"{{attributes: {{{name}: kind}}}}")
    assert found.startswith("resources[0].dra.attributes")
    assert (
        "is no name of an attribute or a capacity: at most 32 letters, digits and _, which do not begin with "
        "a digit; before it a domain of at most 63 characters and a slash, if it has one (for example type "
        'or "example.com/type")'
    ) in found


@pytest.mark.parametrize("name", ["resource", "backend", "id", "pcieSwitch", "slots"])
def test_a_name_that_devhost_publishes_is_refused(name: str) -> None:
    (found,) = complaints(f"{{attributes: {{{name}: kind}}}}")
    assert f'"{name}" is published by devhost itself' in found


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        ("{attributes: {type: kind, %s/type: kind}}", "type"),
        ("{attributes: {%s/resource: kind}}", "resource"),
        ("{capacity: {size: memory, %s/size: memory}}", "size"),
    ],
)
def test_a_name_that_is_there_with_and_without_the_driver_is_refused(terms: str, name: str) -> None:
    """The API server refuses such a slice."""
    (found,) = complaints(terms % DRIVER)
    assert f"is also published as {name}, which is the same name: {DRIVER} is the driver" in found
    assert entry(terms % "example.com")


@pytest.mark.parametrize("name", ["resource.kubernetes.io/numaNode", "kubernetes.io/x"])
def test_a_name_of_kubernetes_itself_is_refused(name: str) -> None:
    (found,) = complaints(f"{{capacity: {{{name}: memory}}}}")
    assert "is in kubernetes.io, which belongs to Kubernetes itself" in found


def test_a_source_that_the_backend_lacks_is_refused_at_its_value() -> None:
    assert complaints("{attributes: {a: knid, b: parent.knid, c: memory.kind, d: parent.}}") == [
        'resources[0].dra.attributes.a: backend chip has no attribute "knid" (did you mean kind?)',
        'resources[0].dra.attributes.b: backend chip has no attribute "knid" (did you mean kind?)',
        'resources[0].dra.attributes.c: backend chip has no attribute "memory.kind" (known attributes: kind, '
        "memory, parent, sysattr.*)",
        'resources[0].dra.attributes.d: backend chip has no attribute "parent." (did you mean parent?)',
    ]


def test_a_capacity_that_is_no_number_is_refused() -> None:
    assert complaints("{capacity: {a: kind}}") == [
        'resources[0].dra.capacity.a: backend chip has no number "kind" (known numbers: memory)'
    ]


def test_an_entry_has_at_most_as_many_names_as_fit_into_a_slice() -> None:
    names = ", ".join(f"a{number}: kind" for number in range(23))
    assert len(entry(f"{{attributes: {{{names}}}, capacity: {{m: memory}}}}").dra.attributes) == 23
    (found,) = complaints(f"{{attributes: {{{names}, more: kind}}, capacity: {{m: memory}}}}")
    assert found == (
        "resources[0].dra: has 24 attributes and 1 capacities, and may have 24 (a device in a slice has at "
        "most 32, with those that devhost needs)"
    )


def test_the_names_of_a_profile_count_unless_the_entry_has_them_too() -> None:
    names = ", ".join(f"a{number}: kind" for number in range(13))
    (profile,) = complaints(f"{{profile: nvidia, attributes: {{type: kind, {names}}}}}")
    assert "dra.profile" in profile
    found, _ = complaints(f"{{profile: nvidia, attributes: {{more: kind, {names}}}}}")
    assert found.startswith("resources[0].dra: has 24 attributes and 1 capacities, and may have 24")


def test_a_profile_is_refused_for_a_backend_that_lacks_its_facts() -> None:
    (found,) = complaints("{profile: nvidia}")
    assert found == (
        'resources[0].dra.profile: backend chip has no attribute "uuid", which this profile needs (it is for '
        "entries with backend: gpu)"
    )


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    (found,) = complaints("{profile: nvida}")
    assert found.endswith("(did you mean nvidia?)")
