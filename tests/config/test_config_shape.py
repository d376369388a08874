"""Options of backends: every type is read strictly, and every refusal says how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.backend import Attribute, option
from devhost.backend.errors import Diagnostic
from devhost.config.diagnostics import Diagnostics, KeyPath, one_line, suggest
from devhost.config.document import parse
from devhost.config.reader import WRONG, camel
from devhost.config.reader import read as read_node
from devhost.planning.settings import Settings

Read = Callable[[str], Settings]
Complain = Callable[[str], tuple[Diagnostic, ...]]


def options(body: str) -> str:
    return f"version: 1\nresources: []\nbackends:\n  card: {{{body}}}\n"


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ("driverRoot: /run/driver", "driver_root", Path("/run/driver")),
        ("level: high", "level", "high"),
        ("mode: safe", "mode", "safe"),
        ("env: {A: '1', B: x}", "env", {"A": "1", "B": "x"}),
        ("timeout: 3", "timeout", 3.0),
        ("timeout: 0.25", "timeout", 0.25),
        ("limit: 7", "limit", 7),
        ("limit: null", "limit", None),
        ("verbose: true", "verbose", True),
        ("node: /dev/x", "node", "/dev/x"),
        ("names: [a, b]", "names", ["a", "b"]),
        ("names: a", "names", "a"),
        ("", "level", "low"),
    ],
)
def test_an_option_of_every_type_is_read(read: Read, body: str, field: str, value: object) -> None:
    found = read(options(body)).backends["card"]
    assert getattr(found, field) == value
    assert type(getattr(found, field)) is type(value) or field == "mode"


def test_nested_options_become_their_dataclasses(read: Read) -> None:
    found: Any = read(options("groups: [{paths: [/dev/a, /dev/b], count: 2}], node: {paths: [/x]}")).backends[
        "card"
    ]
    assert [(group.paths, group.count) for group in found.groups] == [(["/dev/a", "/dev/b"], 2)]
    assert found.node.paths == ["/x"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("driverRot: /x", ':10: backends.card: unknown key "driverRot" (did you mean driverRoot?)'),
        ("driver_root: /x", 'unknown key "driver_root" (did you mean driverRoot?)'),
        ("qqqq: /x", "(known keys: driverRoot, env, groups,"),
        ("driverRoot: 3", 'backends.card.driverRoot: must be text, not the number 3 (put it in quotes: "3")'),
        ("driverRoot: ''", "must be a path"),
        ("driverRoot: []", "must be text, not an empty list"),
        ("level: hihg", 'must be one of low, high, not the text "hihg" (did you mean high?)'),
        ("mode: 3", "must be one of fast, safe, not the number 3"),
        ("env: {A: 1}", 'backends.card.env.A: must be text, not the number 1 (put it in quotes: "1")'),
        ("env: {A: no}", 'not no, which YAML reads as true or false (put it in quotes: "no")'),
        ("env: [A=1]", "must be a mapping, not a list"),
        ("env: ", "(write {} for an empty mapping)"),
        ("timeout: soon", 'must be a number, not the text "soon"'),
        ("timeout: .inf", "must be a number"),
        ("timeout: 1:30.5", "must be a number"),
        ("timeout: !!float ''", "must be a number"),
        ("timeout: !!float x1", "must be a number"),
        ("timeout: <<", "must be a number, not the merge key <<"),
        ("limit: '7'", 'must be a whole number, not the text "7" (remove the quotes)'),
        ("limit: 010", "(write it in plain decimals"),
        ("limit: 0x10", "(write it in plain decimals"),
        ("limit: 1:30", "(write it in plain decimals"),
        ("limit: " + "9" * 5000, "(write it in plain decimals"),
        ("limit: 1.5", "must be a whole number, not the number 1.5"),
        ("limit: 2024-01-01", "must be a whole number, not the date 2024-01-01"),
        ("verbose: yes", "must be true or false, not yes, which YAML reads as true or false (write true)"),
        ("verbose: 'off'", 'must be true or false, not the text "off" (write false)'),
        ("verbose: 1", "must be true or false, not the number 1"),
        ("verbose: ", "not an empty value (give it a value or remove the key)"),
        ("groups: {}", "must be a list, not an empty mapping"),
        ("groups: [{paths: /x}]", "(put it in brackets: [/x])"),
        ("groups: x", 'must be a list, not the text "x"'),
        ("groups: ", "(write [] for an empty list)"),
        ("groups: [3]", "backends.card.groups[0]: must be a mapping, not the number 3"),
        (
            "groups: [{}]",
            "backends.card.groups[0]: the key paths is required (for example paths: ['/dev/x*'])",
        ),
        ("groups: [{paths: []}]", "backends.card.groups[0].paths: has no paths (name one)"),
        ("groups: [{paths: [/a, b]}]", "backends.card.groups[0].paths[1]: b is relative (begin with /)"),
        ("groups: [{paths: [/a], count: 13}]", "backends.card.groups[0]: 13 is unlucky"),
        ("groups: [{paths: [/a], count: 14}]", "failed: RuntimeError: boom\\nsecond line"),
        ("node: 3", 'must be text or a mapping, not the number 3 (put it in quotes: "3")'),
        ("node: {path: [/x]}", 'backends.card.node: unknown key "path" (did you mean paths?)'),
        ("names: [a, 3]", "backends.card.names[1]: must be text, not the number 3"),
        ('"odd\\nkey": 1', r'unknown key "odd\nkey"'),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_wanted(complaints: Complain, body: str, said: str) -> None:
    found = [str(complaint) for complaint in complaints(options(body))]
    assert any(said in line for line in found), found


def test_all_wrong_options_come_at_once_in_file_order(complaints: Complain) -> None:
    found = complaints(options("verbose: 3, level: x, limit: y, nope: 1"))
    assert [c.path.rpartition(".")[2] for c in found] == ["verbose", "level", "limit", "card"]
    assert [c.line for c in found] == [4, 4, 4, 4]


def test_a_path_of_strange_keys_stays_readable(complaints: Complain) -> None:
    found = complaints(options('env: {"a b\\n": 1}'))
    assert found[0].path == 'backends.card.env["a b\\n"]'


@dataclass(frozen=True)
class _Untyped:
    what: complex = option(1j, "A type that YAML does not have.")


class Level(Enum):
    LOW = 1
    HIGH = 2


def _node(text: str, wanted: object) -> tuple[object, Diagnostics]:
    complaints = Diagnostics("f")
    return read_node(parse(text.encode(), complaints), wanted, KeyPath(complaints, "x")), complaints


@pytest.mark.parametrize("wanted", [complex, _Untyped, tuple[int, str], object])
def test_a_type_that_yaml_cannot_carry_is_its_authors_mistake(wanted: object) -> None:
    with pytest.raises(TypeError):
        _node("what: [1]" if wanted is _Untyped else "[1]", wanted)


@pytest.mark.parametrize(
    ("text", "wanted", "value"),
    [
        ("[a, b]", tuple[str, ...], ("a", "b")),
        ("[a, a]", frozenset[str], frozenset({"a"})),
        ("[a, a]", set[str], {"a"}),
        ("[[1], []]", list[list[int]], [[1], []]),
        ("{a: [1]}", dict[str, list[int]], {"a": [1]}),
        ("3", int | str, 3),
        ("'3'", int | str, "3"),
        ("true", bool | str, True),
        ("~", str | None, None),
        ("1_000.5", float, 1000.5),
        ("true", Literal[True, "auto"], True),
        ("auto", Literal[True, "auto"], "auto"),
        ("2", Level, Level.HIGH),
    ],
)
def test_types_nest(text: str, wanted: object, value: object) -> None:
    assert _node(text, wanted)[0] == value


def test_a_wrong_member_spoils_the_list_but_all_are_named() -> None:
    value, complaints = _node("[1, x, 2, y]", list[int])
    assert value is WRONG
    assert [path for _, path, _, _ in complaints.found] == ["x[1]", "x[3]"]


@pytest.mark.parametrize(
    ("name", "key"), [("driver_root", "driverRoot"), ("pf", "pf"), ("class_", "class"), ("a_b_c", "aBC")]
)
def test_snake_case_fields_are_camel_case_keys(name: str, key: str) -> None:
    assert camel(name) == key


def test_a_suggestion_needs_something_near() -> None:
    assert suggest("subsytem", ["subsystem", "driver"], "attributes") == "did you mean subsystem?"
    assert suggest("zzz", ["subsystem", "driver"], "attributes") == "known attributes: driver, subsystem"
    assert suggest("zzz", [], "attributes") == "there are no attributes to choose from"
    assert suggest("zzz", [f"name{n}" for n in range(20)], "keys").endswith(" and 4 more")


GPU = {
    "product": Attribute(str, "name of the model, as its driver reports it", "Card 1"),
    "numaNode": Attribute(int, "NUMA node near the device", 0),
    "pciBusID": Attribute(str, "PCI address; of a partition, that of its GPU", "0000:3b:00.0"),
    "index": Attribute(int, "number from 0: the vendor's, else by PCI address", 0),
    "renderNode": Attribute(str, "DRM node for rendering and computing", "/dev/dri/renderD128"),
    "cardNode": Attribute(str, "DRM node for mode setting", "/dev/dri/card0"),
}


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("model", "did you mean product?"),
        ("modelName", "did you mean product?"),
        ("pciAddress", "did you mean pciBusID?"),
        ("drm_node", "did you mean renderNode or cardNode?"),
        ("numanod", "did you mean numaNode?"),
        ("temperature", "known attributes: cardNode, index, numaNode, pciBusID, product, renderNode"),
    ],
)
def test_another_word_for_an_attribute_suggests_the_one_with_this_meaning(word: str, hint: str) -> None:
    assert suggest(word, GPU, "attributes") == hint


@given(st.text(st.characters(), max_size=700))
def test_any_text_becomes_one_short_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert text.isprintable() is False or len(one_line(text)) <= 500
