"""The configuration language as a JSON schema, with every installed backend's options and attributes.

It is made from the dataclasses that the reader uses. ``devhost check`` covers what a schema cannot express
(two entries with one name, an entry hidden by an earlier one).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from devhost.backend import Attribute, Backend, Conditions
from devhost.discovery.catalog import Catalog
from devhost.planning.amounts import WHOLE
from devhost.planning.settings import Of, Serve

from .language import File, Resource
from .reader import LISTS, MAPPINGS, NOT, Bounds, Form, Quantity, Raw, choices, keys, members, required

Schema = dict[str, Any]
"""A JSON schema, or a part of one."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_BY_DRA: Final[Schema] = {"serve": {"const": Serve.DRA.value}}

_RANGES = r"^\s*([0-9]+(\s*-\s*[0-9]*)?|-\s*[0-9]+)\s*(,\s*([0-9]+(\s*-\s*[0-9]*)?|-\s*[0-9]+)\s*)*$"
_GLOB = r"[*?\[]"
_FLAT: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string", "minLength": 1},
    type(None): {"type": "null"},
}


def schema(catalog: Catalog) -> Schema:
    """The JSON schema (draft 2020-12) of a configuration for the backends in ``catalog``."""
    backends = {name: found.backend for name, found in sorted(catalog.installed.items())}
    definitions: Schema = {"resource": _resource(backends)}
    for name, backend in backends.items():
        definitions[f"options-{name}"] = options_of(backend)
        definitions[f"block-{name}"] = _block(name, backend.attributes)
        definitions[f"where-{name}"] = _where(f"block-{name}")
    whole = of_dataclass(File)
    properties = whole["properties"]
    properties["resources"] |= {"items": {"$ref": "#/$defs/resource"}}
    properties["backends"] |= {
        "properties": {name: {"$ref": f"#/$defs/options-{name}"} for name in backends},
        "additionalProperties": False,
    }
    served = {"contains": {"properties": _BY_DRA, "required": [*_BY_DRA]}}
    needs = {"if": {"properties": {"resources": served}}, "then": {"required": ["dra"]}}
    return {"$schema": DIALECT, "title": "devhost.yaml", **whole, "allOf": [needs], "$defs": definitions}


def of_dataclass(cls: type) -> Schema:
    """An object with the keys of a dataclass, their meanings, defaults and examples.

    Raises ``TypeError`` if a field has a type that a configuration cannot carry.
    """
    fields = keys(cls)
    found: Schema = {
        "type": "object",
        "properties": {key: _field(field, wanted) for key, (field, wanted) in fields.items()},
        "required": [key for key, (field, _) in fields.items() if required(field)],
        "additionalProperties": False,
    }
    if text := _text(cls):
        found["description"] = " ".join(text.split())
    return found


def _text(cls: type) -> str:
    """The docstring of a class; from its source if Python runs without docstrings."""
    if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("):
        return cls.__doc__  # that of a dataclass defaults to its signature, which does not help a user
    try:
        body = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):
        return ""
    return (ast.get_docstring(body) if isinstance(body, ast.ClassDef) else "") or ""


def plain(value: object) -> Any:
    """A default or example in the terms of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: plain(getattr(value, field.name)) for key, (field, _) in keys(type(value)).items()}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def given(options: object) -> dict[str, Any]:
    """The keys of a dataclass of options whose value is not the default, in the terms of JSON."""
    if not dataclasses.is_dataclass(options) or isinstance(options, type):
        return {}
    found = {}
    for key, (field, _) in keys(type(options)).items():
        value = getattr(options, field.name)
        made = field.default_factory
        if value != (field.default if made is dataclasses.MISSING else made()):
            found[key] = plain(value)
    return found


def _field(field: dataclasses.Field[Any], wanted: Any) -> Schema:
    found = _of(wanted)
    if meaning := field.metadata.get("meaning"):
        found["description"] = meaning
    if field.default is not dataclasses.MISSING and field.default is not None:
        found["default"] = plain(field.default)
    elif field.default_factory is not dataclasses.MISSING:
        found["default"] = plain(field.default_factory())
    if field.metadata.get("example") is not None:
        found["examples"] = [plain(field.metadata["example"])]
    return found


def _of(wanted: Any) -> Schema:
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted == Raw:
        return {}
    if origin is typing.Annotated:
        for note in args:
            if isinstance(note, Conditions):
                return {"$ref": f"#/$defs/where-{note.backend}"}
            if isinstance(note, Quantity):
                return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": WHOLE}]}
        return _of(args[0]) | _bounds(_of(args[0]), args)
    if len(members(wanted)) > 1:
        return {"anyOf": [_of(member) for member in members(wanted)]}
    if (origin or wanted) in LISTS:
        return {"type": "array", "items": _of(args[0]) if args else {"type": "string"}}
    if (origin or wanted) in MAPPINGS:
        return {"type": "object", "additionalProperties": _of(args[1]) if args else {"type": "string"}}
    if origin is typing.Literal or (isinstance(wanted, type) and issubclass(wanted, Enum)):
        return {"enum": list(choices(wanted))}
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return of_dataclass(wanted)
    if wanted not in _FLAT:
        raise TypeError(f"a configuration cannot carry a value of type {wanted!r}")
    return dict(_FLAT[wanted])


def _bounds(bounded: Schema, notes: Iterable[Any]) -> Schema:
    low, high = ("minItems", "maxItems") if bounded.get("type") == "array" else ("minimum", "maximum")
    found: Schema = {}
    for note in notes:
        if isinstance(note, Bounds):
            found |= {low: note.low, high: note.high}
        if isinstance(note, Form):
            found |= {"pattern": f"^{note.pattern}$"}
    return found


def options_of(backend: type[Backend]) -> Schema:
    """The object under ``backends.<name>``; any object, where the backend's ``Options`` is faulty."""
    return {"title": f"Options of backend {backend.name}", **_theirs(backend.Options)}


def resource_options_of(backend: type[Backend]) -> Schema:
    """The keys of an entry under ``resources`` that are the backend's, as ``properties`` and ``required``."""
    found = _theirs(backend.ResourceOptions)
    return {"properties": found.get("properties", {}), "required": found.get("required", [])}


def _theirs(cls: type) -> Schema:
    try:
        return of_dataclass(cls)
    except Exception:  # noqa: BLE001 - one third-party class must not break the schema of the others
        return {"type": "object"}


def _resource(backends: Mapping[str, type[Backend]]) -> Schema:
    found = of_dataclass(Resource)
    # what Sharing refuses: overrides beside `of: all`, and members without an attribute
    together = {"of": {"const": Of.ALL.value}, "overrides": {"minItems": 1}}
    in_units = {"required": ["of"], "properties": {"of": {"not": {"enum": [*map(str, Of)]}}}}
    by_amount = {"properties": {"capacity": {"minProperties": 1}}, "required": ["capacity"]}
    singly = {"replicas": {"const": 1}, "overrides": {"maxItems": 0}, "of": {"const": Of.EACH.value}}
    alone = {"properties": singly, "required": ["limit"]}
    found["properties"]["share"] |= {
        "allOf": [
            {"if": by_amount, "then": alone},
            {"if": {"required": ["limit"]}, "then": by_amount},
            {"not": {"properties": together, "required": [*together]}},
            {"if": {"required": ["members"]}, "then": in_units},
        ]
    }
    # what an entry with `serve: dra` cannot have
    by_claims = {"properties": {"of": {"not": {"const": Of.ALL.value}}, "maxPerContainer": False}}
    by_dra = {"properties": _BY_DRA, "required": [*_BY_DRA]}
    none_of_it = {"properties": {"capacity": {"maxProperties": 0}}}
    counting = {
        "properties": {"dra": {"properties": {"counters": {"const": True}}, "required": ["counters"]}}
    }
    given_once = {
        "name": {"not": {"pattern": r"\{"}},
        "exclusive": {"const": True},
        "share": {"properties": singly | none_of_it["properties"]},
    }
    found["allOf"] = [
        {
            "if": {"allOf": [by_dra, counting, {"required": ["dra"]}]},
            "then": {"properties": given_once},
        },
        {
            "if": by_dra,
            "then": {"properties": {"share": by_claims}},
            "else": {"properties": {"share": none_of_it}},
        },
    ]
    if not backends:
        return found  # an empty `enum` is no good JSON schema
    found["properties"]["backend"] |= {"enum": list(backends)}
    own = {name: resource_options_of(backend) for name, backend in backends.items()}
    # every backend's keys are let through here and refused below: `additionalProperties` sees no other place
    keys_of_any = sorted({key for options in own.values() for key in options["properties"]})
    found["properties"] |= {key: {} for key in keys_of_any}
    found["allOf"] += [
        {
            "if": {"properties": {"backend": {"const": name}}, "required": ["backend"]},
            "then": {
                "properties": _by_backend(
                    f"#/$defs/where-{name}", own[name]["properties"], backend.attributes
                )
                | dict.fromkeys(keys_of_any, False)
                | own[name]["properties"],
                "required": own[name]["required"],
            },
        }
        for name, backend in backends.items()
    ]
    return found


def _by_backend(where: str, own: Iterable[str], attributes: Mapping[str, Attribute]) -> Schema:
    override = {"properties": {"where": {"$ref": where}}}
    single = [name for name, one in attributes.items() if one.type is not list]
    of = [_one_of({*map(str, Of), *(name for name in single if not name.endswith("*"))})]
    of += [{"pattern": _family(name)} for name in single if name.endswith("*")]
    return {
        "where": {"$ref": where},
        "healthyWhile": {"$ref": where},
        "share": {"properties": {"overrides": {"items": override}, "of": {"anyOf": of}}},
        "dra": {"properties": {"claimOptions": {"items": _one_of(own)}}},
    }


def _one_of(words: Iterable[str]) -> Schema | bool:
    return {"enum": found} if (found := sorted(words)) else False


def _where(block: str) -> Schema:
    reference = {"$ref": f"#/$defs/{block}"}
    several = {"type": "array", "minItems": 1, "items": reference | {"minProperties": 1}}
    return {"anyOf": [reference, several]}


def _block(name: str, attributes: Mapping[str, Attribute]) -> Schema:
    refusal = _where(f"block-{name}")
    refusal["anyOf"][0] = refusal["anyOf"][0] | {"minProperties": 1}
    exact = {key: _attribute(declared) for key, declared in attributes.items() if not key.endswith("*")}
    families = {
        _family(key): _attribute(declared) for key, declared in attributes.items() if key.endswith("*")
    }
    return {
        "type": "object",
        "description": f"All of these attributes of backend {name} must hold.",
        "properties": exact | {NOT: refusal | {"description": "Devices that hold this are refused."}},
        "patternProperties": families,
        "additionalProperties": False,
    }


def _family(key: str) -> str:
    """A pattern for the attributes of a family, whose key ends in ``*``."""
    return f"^{re.escape(key[:-1])}."


def _attribute(attribute: Attribute) -> Schema:
    one = _value(attribute)
    return {
        "description": attribute.meaning,
        "examples": [plain(attribute.example)],
        "anyOf": [one, {"type": "array", "minItems": 1, "items": one}],
    }


def _value(attribute: Attribute) -> Schema:
    if attribute.type is bool:
        return {"type": "boolean"}
    if attribute.type is int:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _RANGES}]}
    if attribute.words:
        return {"anyOf": [{"enum": list(attribute.words)}, {"type": "string", "pattern": _GLOB}]}
    return {"type": "string", "minLength": 1}
