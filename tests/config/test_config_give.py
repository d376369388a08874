"""`give` of an entry: what is wrong with it is found when the file is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from devhost.backend import Attribute, Backend
from devhost.backend.errors import ConfigError
from devhost.backend.frozen import frozen
from devhost.config import loads
from devhost.discovery.catalog import BACKENDS, Catalog, Installed
from devhost.planning.give import LONGEST, MOST, Give, GiveMount, GiveNode, GiveVariable, When


@frozen
class CardOptions:
    @property
    def variables(self) -> Mapping[str, tuple[str, ...]]:
        return {"pair": ("PAIR*_ID",)}


class Card(Backend):
    name = "card"
    Options = CardOptions
    variables = ("CARDS", "CARD_*")
    attributes: ClassVar = {
        "group": Attribute(str, "several cards", "pair", reveals=True),
        "pciBusID": Attribute(str, "address", "0000:3b:00.0"),
        "sysattr.*": Attribute(str, "file", "1"),
    }


CATALOG = Catalog({"card": Installed(Card, "this test", "", (BACKENDS,))})


def loaded(give: str, more: str = "", top: str = ""):
    entry = f"- {{name: example.com/card, backend: card, give: {give}{more}}}"
    return loads(f"version: 1\n{top}resources:\n{entry}\n", "f.yaml", lambda *_: CATALOG).resources[0]


def errors(give: str, more: str = "", top: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(give, more, top)
    return [f"{one.path}: {one.message} ({one.hint})" for one in caught.value.diagnostics]


def test_every_key_is_read() -> None:
    entry = loaded(
        "{nodes: [{path: /dev/kfd},"
        " {path: /dev/x, containerPath: '/dev/{id}', permissions: r, optional: true}],"
        " mounts: [{path: /opt}, {path: /tmp/logs, containerPath: /logs, readOnly: false, optional: true}],"
        " env: {'QAT{index}': '{pciBusID}', SOME: {value: '{sysattr.device/module_id}', when: partial}},"
        " annotations: {example.com/cards: '{count}'}, cdiDevices: [vendor.com/net=all]}"
    )
    assert entry.give == Give(
        nodes=(GiveNode("/dev/kfd"), GiveNode("/dev/x", "/dev/{id}", "r", optional=True)),
        mounts=(GiveMount("/opt"), GiveMount("/tmp/logs", "/logs", read_only=False, optional=True)),
        env={
            "QAT{index}": "{pciBusID}",
            "SOME": GiveVariable("{sysattr.device/module_id}", When.PARTIAL),
        },
        annotations={"example.com/cards": "{count}"},
        cdi_devices=("vendor.com/net=all",),
    )


def test_the_backend_is_asked_for_the_attributes_that_are_given() -> None:
    """A backend need not read what no entry uses."""
    entry = loaded("{env: {A: '{sysattr.device/x}'}, nodes: [{path: /dev/x, containerPath: '/x{pciBusID}'}]}")
    assert entry.wanted() == {"sysattr.device/x", "pciBusID"}


def test_an_entry_without_give_gives_nothing() -> None:
    assert not loaded("{}").give
    assert not loaded("{}").give.depends_on_count


@pytest.mark.parametrize(
    ("give", "where", "message"),
    [
        (
            "{env: {A: '{pciBus}'}}",
            "env.A",
            "there is no attribute 'pciBus' to put here (did you mean pciBusID?)",
        ),
        (
            "{env: {A: '{sysattr.x*}'}}",
            "env.A",
            "there is no attribute 'sysattr.x*' to put here (write one name, with something in place of *)",
        ),
        ("{env: {A: '{RESOURCE}'}}", "env.A", "there is no attribute 'RESOURCE' to put here"),
        ("{annotations: {a: '{b}'}}", "annotations.a", "there is no attribute 'b' to put here"),
        ("{cdiDevices: ['a.b/c={d}']}", "cdiDevices[0]", "there is no attribute 'd' to put here"),
        (
            "{nodes: [{path: /dev/x, containerPath: '/{y}'}]}",
            "nodes[0].containerPath",
            "there is no attribute 'y' to put here",
        ),
        ("{nodes: [/dev/x]}", "nodes[0]", 'must be a mapping, not the text "/dev/x" (write {path: /dev/x})'),
        ("{env: {A: {when: partial}}}", "env.A", "the key value is required (for example value: {sysattr"),
        ("{env: {A: '{id'}}", "env.A", "'{id' has a brace without its counterpart (write {id})"),
        ("{annotations: {a: 'id}'}}", "annotations.a", "'id}' has a brace without its counterpart"),
        ("{env: {CARDS: a}}", "env.CARDS", "backend card sets this variable (remove it)"),
        ("{env: {'CARD_{RESOURCE}': a}}", "", "backend card sets this variable (remove it)"),
        ("{env: {1A: a}}", "env.1A", "'1A' is not a variable's name"),
        (
            "{nodes: [{path: '/dev/{id}'}]}",
            "nodes[0].path",
            "a path of the host cannot have a placeholder such as {id} (write the path without it)",
        ),
        ("{nodes: [{path: dev/x}]}", "nodes[0].path", "'dev/x' is not absolute (start it with /)"),
        ("{nodes: [{path: /dev/../x}]}", "nodes[0].path", "'/dev/../x' contains .."),
        ("{nodes: [{path: '/dev/x*'}]}", "nodes[0].path", "a path cannot be a glob"),
        ('{mounts: [{path: "/a\\tb"}]}', "mounts[0].path", "a path cannot contain a character that does not"),
        ('{mounts: [{path: "/a\\0b"}]}', "mounts[0].path", "a path cannot contain a NUL character"),
        (
            "{mounts: [{path: /a, containerPath: /b/}]}",
            "mounts[0].containerPath",
            "'/b/' ends in / (remove the last /)",
        ),
        (
            "{mounts: [{path: /a, containerPath: '/{id}/../b'}]}",
            "mounts[0].containerPath",
            "'/{id}/../b' contains ..",
        ),
        (
            "{nodes: [{path: /dev/x, permissions: m}]}",
            "nodes[0].permissions",
            "must be r, w or rw, with or without m, not 'm'",
        ),
        (
            "{nodes: [{path: /dev/x}], mounts: [{path: /y, containerPath: /dev/x}]}",
            "mounts[0]",
            "give has /dev/x in the container twice (remove one)",
        ),
        (
            "{nodes: [{path: /dev/x}], mounts: [{path: /y, containerPath: //dev//./x}]}",
            "mounts[0]",
            "give has /dev/x in the container twice (remove one)",
        ),
        ("{annotations: {-a/b: x}}", "annotations", "'-a/b' is not the name of an annotation"),
        ("{cdiDevices: [net]}", "cdiDevices[0]", "'net' is not the name of a CDI device"),
        ("{cdiDevices: ['a.b/c=x(1)']}", "cdiDevices[0]", "'a.b/c=x(1)' is not the name of a CDI device"),
        ("{cdiDevices: ['a.b/{id}=-{id}']}", "cdiDevices[0]", "'a.b/{id}=-{id}' is not the name of a CDI"),
        ("{env: {'A{index}': a, A10: b}}", "env.A10", "A{index} becomes A10, too (rename one)"),
        (
            "{env: {'{RESOURCE}': a, EXAMPLE_COM_CARD: b}}",
            "env.EXAMPLE_COM_CARD",
            "{RESOURCE} and EXAMPLE_COM_CARD are both EXAMPLE_COM_CARD (rename one)",
        ),
        ('{env: {A: "\\e[1m"}}', "env.A", "must not have a character that does not print"),
        (
            "{env: {A: {value: x, when: part}}}",
            "env.A.when",
            'must be one of always, partial, not the text "part" (did you mean partial?)',
        ),
        (f"{{env: {{A: {'x' * (LONGEST + 1)}}}}}", "env.A", f"must have at most {LONGEST} characters, not"),
        (
            f"{{mounts: [{{path: /{'x' * LONGEST}}}]}}",
            "mounts[0].path",
            f"must have at most {LONGEST} characters, not {LONGEST + 1}",
        ),
        (
            f"{{env: {{{', '.join(f'A{n}: x' for n in range(MOST + 1))}}}}}",
            "env",
            f"must have at most {MOST} members, not {MOST + 1}",
        ),
        (
            f"{{cdiDevices: [{', '.join(f'a.b/c={n}' for n in range(MOST + 1))}]}}",
            "cdiDevices",
            f"must have at most {MOST} members, not {MOST + 1}",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(give: str, where: str, message: str) -> None:
    (found,) = errors(give)
    place, _, text = found.partition(": ")
    assert place.startswith("resources[0].give")
    if where:
        assert place == f"resources[0].give.{where}"
    assert text.startswith(message)


def test_all_unknown_attributes_are_named() -> None:
    assert len(errors("{env: {A: '{b}', C: '{d}'}, annotations: {e: '{f}'}}")) == 3


def test_several_lines_that_the_user_wrote_are_a_value() -> None:
    assert loaded('{env: {A: "one\\ntwo"}}').give.env == {"A": "one\ntwo"}


def test_claims_cannot_give_annotations() -> None:
    """A DRA driver answers with CDI names, and nothing else reaches the runtime."""
    (found,) = errors("{annotations: {a: b}}", ", serve: dra", "dra: {driver: devhost.example.com}\n")
    expected = "resources[0].give.annotations: claims give no annotations (remove them, or set serve: plugin)"
    assert found == expected


@pytest.mark.parametrize("where", ["{group: pair}", "{group: 'p*'}", "[{pciBusID: '0*'}, {group: pair}]"])
def test_a_variable_that_the_backend_sets_for_what_is_selected_is_an_error(where: str) -> None:
    (found,) = errors("{env: {'PAIR{index}_ID': x, OTHER: x}}", f", where: {where}")
    assert found == (
        'resources[0].give.env["PAIR{index}_ID"]: backends.card sets this variable for "pair" '
        "(remove one of the two)"
    )


@pytest.mark.parametrize("where", ["{group: other}", "{pciBusID: pair}", "{not: {group: pair}}"])
def test_a_variable_that_the_backend_sets_for_other_devices_is_no_error(where: str) -> None:
    assert loaded("{env: {PAIR0_ID: x}}", f", where: {where}").give
