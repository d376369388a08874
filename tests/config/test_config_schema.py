"""The JSON schema: sound by its own rules, complete, and of one mind with the reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from devhost.backend import option
from devhost.backend.errors import ConfigError
from devhost.config.schema import of_dataclass, options_of, schema
from devhost.discovery.catalog import Catalog
from devhost.planning.settings import Settings

Read = Callable[[str], Settings]


def entry(body: str) -> str:
    """A configuration with one resource of the card backend."""
    return f"{{version: 1, resources: [{{name: a.b/c, backend: card, {body}}}]}}"


def card(body: str) -> str:
    """A configuration with options of the card backend."""
    return f"{{version: 1, resources: [], backends: {{card: {{{body}}}}}}}"


def dra(body: str, driver: str = "devhost.example.com") -> str:
    """A configuration with one resource that is served by claims."""
    return (
        f"{{version: 1, dra: {{driver: {driver}}}, resources: "
        f"[{{name: a.b/c, backend: card, serve: dra, {body}}}]}}"
    )


GOOD = [
    "{version: 1, resources: []}",
    "{version: 1, resources: [{name: a.b/c, backend: card}]}",
    "{version: 1, backendPaths: [x], resources: []}",
    entry("where: {vendor: [a, b], ID_X: y}"),
    entry("where: [{numaNode: '0-3, 6,8-'}, {virtual: true}]"),
    entry("where: {not: [{sysattr.a/b: 'x'}, {numaNode: [0, '2-']}]}"),
    entry("where: {kind: [vf, 'p*'], modes: safe}"),
    entry("share: {replicas: 100000}, prefer: pack, inject: cdi"),
    entry("share: {overrides: [{where: {vendor: x}, replicas: 2}]}"),
    entry("share: {of: each, overrides: [{where: {vendor: x}, replicas: 2}]}"),
    entry("share: {of: all, replicas: 100}"),
    entry("share: {of: numaNode, members: 2, replicas: 3, overrides: [{where: {vendor: x}, replicas: 2}]}"),
    entry("share: {of: all, overrides: []}"),
    entry("share: {replicas: 4, maxPerContainer: 1}, topology: false, permissions: mrw"),
    entry("permissions: r, healthyWhile: {sysattr.status: [ALIVE, ok], not: {vendor: x}}"),
    entry("healthyWhile: [{vendor: x}, {numaNode: '0-3'}]"),
    dra("dra: {class: c.example.com, extendedName: true, claimOptions: []}"),
    dra("share: {of: each, replicas: 4}", "d" * 63),
    dra("share: {of: vendor, members: 2}"),
    dra("share: {capacity: {size: {total: 8Gi, min: 1, step: 256Mi, unit: ''}}, limit: none}"),
    dra("share: {capacity: {size: {total: 8, min: 1}}, limit: {env: {A: '{consumed.size}'}}}"),
    entry("serve: plugin, dra: {extendedName: true}, share: {of: all}"),
    entry("serve: plugin, dra: {counters: true}, exclusive: false, share: {of: vendor}"),
    dra("dra: {counters: true}, share: {of: each, replicas: 1}"),
    dra("dra: {counters: false}, share: {of: vendor}, exclusive: false"),
    "{version: 1, dra: {driver: d}, resources: []}",
    card("level: high, limit: null, node: {paths: [/a]}, names: [a]"),
    card("groups: [{paths: [/a], count: 2}], env: {A: 'b'}, timeout: 3"),
]
BAD = [
    "{resources: []}",
    "{version: 1}",
    "{version: 2, resources: []}",
    "{version: 1, resources: {}}",
    "{version: 1, resources: [], more: 1}",
    "{version: 1, resources: [{backend: card}]}",
    "{version: 1, resources: [{name: a.b/c, backend: nope}]}",
    entry("where: {nope: x}"),
    entry("where: {ID_: x}"),
    entry("where: {vendor: 3}"),
    entry("where: {vendor: ''}"),
    entry("where: {vendor: []}"),
    entry("where: {kind: vfs}"),
    entry("where: {modes: [safe, quick]}"),
    entry("where: {numaNode: -1}"),
    entry("where: {numaNode: '1,'}"),
    entry("where: {virtual: 'true'}"),
    entry("where: []"),
    entry("where: [{}]"),
    entry("where: {not: {}}"),
    entry("share: {replicas: 0}"),
    entry("share: {replicas: 100001}"),
    entry("share: {overrides: [{replicas: 2}]}"),
    entry("share: {of: any}"),
    entry("share: {of: links}"),
    entry("share: {members: 2}"),
    entry("share: {of: all, members: 2}"),
    entry("share: {of: vendor, members: 0}"),
    entry("share: {maxPerContainer: 0}"),
    entry("share: {maxPerContainer: null}"),
    entry("maxPerContainer: 1"),
    entry("topology: none"),
    entry("permissions: rwx"),
    entry("permissions: m"),
    entry("permissions: rr"),
    entry("permissions: ''"),
    entry("permissions: null"),
    entry("healthyWhile: {nope: x}"),
    entry("healthyWhile: []"),
    entry("healthyWhile: operational"),
    entry("share: {of: all, overrides: [{where: {vendor: x}, replicas: 2}]}"),
    entry("share: {overrides: [{where: {x: y}, replicas: 2}]}"),
    entry("prefer: packed"),
    entry("exclusive: 'no'"),
    entry("serve: dra"),
    entry("serve: both"),
    entry("serve: null"),
    entry("dra: null"),
    entry("dra: {class: Upper}"),
    entry("dra: {driver: D.e}"),
    entry("dra: {claimOptions: [mode]}"),
    dra("share: {of: all}"),
    dra("share: {limit: none}"),
    dra("share: {capacity: {size: {total: 8, min: 1}}}"),
    dra("share: {capacity: {size: {total: 8, min: 1}}, limit: all}"),
    dra("share: {capacity: {size: {total: 8, min: 1}}, limit: none, replicas: 2}"),
    dra("share: {capacity: {size: {total: 8, min: 1.5Gi}}, limit: none}"),
    dra("share: {capacity: {size: {total: 8}}, limit: none}"),
    entry("share: {capacity: {size: {total: 8, min: 1}}, limit: none}"),
    dra("share: {capacity: {size: {total: 8, min: 1}}, limit: none, of: vendor}"),
    dra("share: {maxPerContainer: 2}"),
    dra("dra: {counters: true}, exclusive: false"),
    dra("dra: {counters: true}, share: {replicas: 2}"),
    dra("dra: {counters: true}, share: {overrides: [{where: {vendor: x}, replicas: 2}]}"),
    dra("dra: {counters: true}, share: {of: vendor}"),
    dra("dra: {counters: true}, share: {capacity: {size: {total: 8, min: 1}}, limit: none}"),
    "{version: 1, dra: {driver: d}, resources: "
    "[{name: 'a.b/{vendor}', backend: card, serve: dra, dra: {counters: true}}]}",
    dra("", "Devhost"),
    dra("", "d" * 64),
    dra("", "a..b"),
    dra("", "''"),
    "{version: 1, dra: {}, resources: []}",
    "{version: 1, dra: null, resources: []}",
    "{version: 1, dra: {driver: d.e, class: c.d}, resources: []}",
    "{version: 1, resources: [], backends: {nope: {}}}",
    card("nope: 1"),
    card("limit: x"),
    card("level: medium"),
    card("node: {count: 1}"),
    "{version: 1, resources: [], backends: {other: {}}}",
]


@pytest.fixture(scope="module")
def whole(catalog: Catalog) -> dict[str, Any]:
    return schema(catalog)


def test_the_schema_is_a_schema(whole: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(whole)


def test_the_schema_of_an_installation_without_backends_is_a_schema_too() -> None:
    bare = schema(Catalog())
    jsonschema.Draft202012Validator.check_schema(bare)
    jsonschema.Draft202012Validator(bare).validate({"version": 1, "resources": []})


@pytest.mark.parametrize("text", GOOD)
def test_what_the_reader_takes_the_schema_takes(whole: dict[str, Any], read: Read, text: str) -> None:
    read(text)
    jsonschema.Draft202012Validator(whole).validate(yaml.safe_load(text))


@pytest.mark.parametrize("text", BAD)
def test_what_the_schema_refuses_the_reader_refuses(whole: dict[str, Any], read: Read, text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(whole).validate(yaml.safe_load(text))
    with pytest.raises(ConfigError):
        read(text)


def test_options_and_attributes_come_with_meaning_default_and_example(whole: dict[str, Any]) -> None:
    driver_root = whole["$defs"]["options-card"]["properties"]["driverRoot"]
    assert driver_root == {
        "type": "string",
        "minLength": 1,
        "description": "Where the driver is.",
        "default": "/",
        "examples": ["/run/driver"],
    }
    vendor = whole["$defs"]["block-card"]["properties"]["vendor"]
    assert (vendor["description"], vendor["examples"]) == ("Who made it.", ["intel"])
    assert whole["$defs"]["block-card"]["patternProperties"].keys() == {"^ID_.", r"^sysattr\.."}


def _properties(part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(part, dict):
        for key, inner in part.get("properties", {}).items():
            yield f"{path}.{key}", inner
        for key, inner in part.items():
            yield from _properties(inner, f"{path}.{key}")


def test_every_key_of_the_language_has_a_description(whole: dict[str, Any]) -> None:
    own = [
        p for p in _properties(whole) if ".then." not in p[0] and not p[0].startswith(".properties.backends.")
    ]
    silent = [path for path, inner in own if not inner.get("description") and "$ref" not in inner]
    assert silent == []


@dataclasses.dataclass(frozen=True)
class _Odd:
    what: complex = option(1j, "Nothing that YAML can carry.")


def test_a_type_that_yaml_cannot_carry_spoils_only_its_own_backend(catalog: Catalog) -> None:
    backend = catalog.get("card")
    assert backend is not None
    found = options_of(type("Odd", (backend,), {"Options": _Odd}))
    assert found == {"title": "Options of backend card", "type": "object"}
    with pytest.raises(TypeError):
        of_dataclass(_Odd)
