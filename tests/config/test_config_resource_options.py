"""An entry's own options for its backend: read, refused, compared and shown as every other key is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
from jsonschema import Draft202012Validator
from kit.backend import Plain as Base

from devhost.backend import Attribute, Edits, OptionError, option
from devhost.backend.errors import ConfigError, Diagnostic
from devhost.config import loads
from devhost.config.difference import difference
from devhost.config.language import Resource
from devhost.config.reader import keys
from devhost.config.schema import schema
from devhost.discovery.catalog import ENTRY_KEYS, Catalog, Installed, flaws
from devhost.planning.settings import ResourceSettings, Settings


@dataclass(frozen=True)
class Program:
    bitstream: str = option(meaning="The file.", example="/srv/a.gbs")

    def __post_init__(self) -> None:
        if not self.bitstream.startswith("/"):
            raise OptionError("must be an absolute path", key="bitstream", hint="begin with /")


@dataclass(frozen=True)
class RegionUse:
    development: bool = option(False, "Whether programs may program it.")
    program: Program | None = option(None, "What is programmed.")
    link_speed: Literal[10, 25] = option(10, "Gigabits.")
    fault: str = option("", "What goes wrong.")

    @property
    def uses(self) -> object:
        if self.fault == "word":
            return "fast"
        return [7] if self.fault == "seven" else ["fast"]

    @property
    def why_alone(self) -> str:
        if self.fault == "alone":
            raise RuntimeError("no\nidea")
        if self.fault == "typed":
            return 7  # type: ignore[return-value]
        return "a device that is programmed has one user" if self.program else ""

    def __post_init__(self) -> None:
        if self.development and self.program:
            raise OptionError("has no meaning with development", key="program.bitstream", hint="choose one")
        if self.fault == "made":
            raise RuntimeError("boom")


class Region(Base):
    name = "region"
    ResourceOptions = RegionUse
    attributes: ClassVar[Mapping[str, Attribute]] = {"kind": Attribute(str, "What it is.", "port")}


@dataclass(frozen=True)
class Size:
    size: int = option(meaning="How big.", example=4)


class Sized(Region):
    name = "sized"
    ResourceOptions = Size


class Plain(Base):
    name = "plain"


CATALOG = Catalog({b.name: Installed(b, "tests", "1.0", ()) for b in (Region, Sized, Plain)})


def read(body: str, catalog: Catalog = CATALOG) -> Settings:
    """A file with one entry of these keys, one a line from line 4."""
    lines = "".join(f"  {line}\n" for line in body.split("; "))
    return loads(f"version: 1\nresources:\n- name: a.b/c\n{lines}", "f.yaml", lambda _paths, _wanted: catalog)


def refused(body: str, catalog: Catalog = CATALOG) -> tuple[Diagnostic, ...]:
    with pytest.raises(ConfigError) as caught:
        read(body, catalog)
    return caught.value.diagnostics


def said(body: str) -> list[str]:
    return [str(one) for one in refused(body)]


def options(body: str) -> object:
    return read(body).resources[0].options


def test_an_entry_carries_the_value_its_backend_understands() -> None:
    assert options("backend: region; program: {bitstream: /a}; linkSpeed: 25") == RegionUse(
        program=Program("/a"), link_speed=25
    )
    assert options("backend: region") == RegionUse()


def test_a_backend_that_takes_none_gets_none() -> None:
    assert options("backend: plain") is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "backend: region; developement: true",
            'f.yaml:5:3: resources[0]: unknown key "developement" (did you mean development?)',
        ),
        (
            "backend: region; prefers: pack",
            'f.yaml:5:3: resources[0]: unknown key "prefers" (did you mean prefer?)',
        ),
        (
            "backend: region; development: 1",
            "f.yaml:5:16: resources[0].development: must be true or false, not the number 1",
        ),
        (
            "backend: region; program: {bitstream: a}",
            "f.yaml:5:24: resources[0].program.bitstream: must be an absolute path (begin with /)",
        ),
        (
            "backend: region; program: {bitstream: /a}; development: true",
            "f.yaml:5:24: resources[0].program.bitstream: has no meaning with development (choose one)",
        ),
        ("backend: sized", "f.yaml:3:3: resources[0]: the key size is required (for example size: 4)"),
        (
            "backend: plain; development: true",
            'f.yaml:5:3: resources[0]: unknown key "development" (known keys: backend, checkStarts, dra, '
            "exclusive, expect, give, healthyWhile, inject, name, nameMap, optional, permissions, prefer, "
            "serve, share, takeOver and 3 more)",
        ),
    ],
)
def test_an_error_is_reported_with_its_position(body: str, complaint: str) -> None:
    assert said(body) == [complaint]


@dataclass(frozen=True)
class Speed:
    speed: int = option(1, "Of all of them.")


class Quick(Region):
    name = "quick"
    Options = Speed


def test_a_key_of_an_entry_that_the_backend_is_given_is_refused_with_where_it_goes() -> None:
    text = "version: 1\nbackends:\n  quick:\n    speed: 2\n    development: true\nresources: []\n"
    catalog = Catalog({"quick": Installed(Quick, "tests", "1.0", ())})
    with pytest.raises(ConfigError) as caught:
        loads(text, "f.yaml", lambda _paths, _wanted: catalog)
    assert [str(one) for one in caught.value.diagnostics] == [
        'f.yaml:5:5: backends.quick: "development" is a key of an entry, not of the backend '
        "(put it into each entry under resources that needs it, beside backend: quick)"
    ]


def test_an_option_of_the_backend_in_an_entry_is_refused_with_where_it_goes() -> None:
    catalog = Catalog({"quick": Installed(Quick, "tests", "1.0", ())})
    (complaint,) = refused("backend: quick; speed: 2", catalog)
    assert str(complaint) == (
        'f.yaml:5:3: resources[0]: unknown key "speed" (it is an option of the backend: backends.quick.speed)'
    )


def test_everything_wrong_comes_at_once_in_the_order_of_the_file() -> None:
    lines = said("backend: region; development: maybe; whree: {}; prefer: packed; linkSpeed: 11")
    assert [line.split(": ")[0] for line in lines] == [
        "f.yaml:5:16",
        "f.yaml:6:3",
        "f.yaml:7:11",
        "f.yaml:8:14",
    ]


def test_a_backend_that_is_not_installed_is_the_only_complaint_about_its_entry() -> None:
    (line,) = said("backend: regoin; development: true; exclude: [1]; prefre: pack")
    assert (
        line == 'f.yaml:4:12: resources[0].backend: backend "regoin" is not installed (did you mean region?)'
    )


def test_without_a_backend_only_the_languages_own_keys_are_called_misspelt() -> None:
    lines = said("bakend: region; development: true")
    assert [line.partition(": ")[2] for line in lines] == [
        "resources[0]: the key backend is required (for example backend: udev)",
        'resources[0]: unknown key "bakend" (did you mean backend?)',
    ]


ALONE = (
    "a device that is programmed has one user (remove share, or add a separate entry for what may be shared)"
)


@pytest.mark.parametrize(
    "share",
    ["{replicas: 2}", "{of: all, replicas: 2}", "{overrides: [{where: {kind: port}, replicas: 3}]}"],
)
def test_what_cannot_be_shared_is_refused_at_share(share: str) -> None:
    (line,) = said(f"backend: region; share: {share}; program: {{bitstream: /a}}")
    assert line == f"f.yaml:5:10: resources[0].share: {ALONE}"


@pytest.mark.parametrize("share", ["{replicas: 1}", "{of: all}"])
def test_what_one_container_has_at_a_time_is_not_shared(share: str) -> None:
    read(f"backend: region; share: {share}; program: {{bitstream: /a}}")


def test_what_cannot_be_shared_serves_no_second_resource_either() -> None:
    (line,) = said("backend: region; program: {bitstream: /a}; exclusive: false")
    assert line.startswith("f.yaml:6:14: resources[0].exclusive: a device that is programmed has one user (")


def test_what_may_be_shared_is() -> None:
    assert read("backend: region; share: {replicas: 2}").resources[0].share.replicas == 2


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("made", "RuntimeError: boom"),
        ("alone", "no\\nidea"),
        ("typed", "why_alone is int, not text"),
        ("word", "uses is str, not a collection of texts"),
        ("seven", "uses has 7 in it, which is not text"),
    ],
)
def test_a_class_that_fails_is_its_authors_fault_in_one_line(fault: str, text: str) -> None:
    (line,) = said(f"backend: region; fault: {fault}")
    assert "the resource options of backend region failed: " in line
    assert text in line
    assert line.endswith("(report it to its author)")


@pytest.mark.parametrize("member", ["provisions", "variables", "words", "counted"])
def test_options_of_a_backend_that_fail_are_their_authors_fault_in_one_line(member: str) -> None:
    def fails(self: Any) -> None:
        raise RuntimeError("boom")

    options = dataclass(frozen=True)(type("OddOptions", (), {member: property(fails)}))
    kind = type("OddOne", (Region,), {"name": "odd", "Options": options})
    catalog = Catalog({"odd": Installed(kind, "tests", "1", ())})
    (complaint,) = refused("backend: odd; give: {env: {A: b}}", catalog)
    assert "the options of backend odd failed: RuntimeError: boom (report it to its author)" in str(complaint)


def test_a_class_without_usable_types_is_reported_to_its_author() -> None:
    @dataclass(frozen=True)
    class Odd:
        odd: Any = option(0, "Odd.")

    Odd.__annotations__["odd"] = "Nowhere"
    kind = type("OddOne", (Region,), {"name": "odd", "ResourceOptions": Odd})
    catalog = Catalog({"odd": Installed(kind, "tests", "1", ())})
    (complaint,) = refused("backend: odd; odd: 1", catalog)
    assert "the resource options of backend odd failed: NameError" in str(complaint)
    schema(catalog)


def test_the_keys_no_backend_may_have_are_those_of_the_language() -> None:
    assert set(keys(Resource)) == ENTRY_KEYS


@dataclass(frozen=True)
class Collides:
    when_empty: bool = option(False, "Says what the language says.")
    share_: bool = option(False, "So does this.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ResourceOptions": 7}, "ResourceOptions is not a dataclass"),
        (
            {"ResourceOptions": Collides},
            "ResourceOptions has the field when_empty, and whenEmpty is a key of every entry; "
            "ResourceOptions has the field share_, and share is a key of every entry",
        ),
        (
            {"allocate": lambda self, devices, use: Edits()},
            "allocate() takes one request: def allocate(self, request), see docs/backends/writing.md",
        ),
        (
            {"prepare": lambda self: None},
            "prepare() takes one request: def prepare(self, request), see docs/backends/writing.md",
        ),
        (
            {"device_info": lambda self, device: None},
            "device_info() takes a device and the request: def device_info(self, device, request), "
            "see docs/backends/writing.md",
        ),
    ],
)
def test_a_backend_that_does_not_take_the_request_is_refused_when_it_is_loaded(
    changes: dict[str, Any], reason: str
) -> None:
    assert "; ".join(flaws(type("Bad", (Region,), changes))) == reason


@pytest.mark.parametrize("make", [staticmethod, classmethod])
def test_methods_of_any_kind_may_take_the_request(make: Callable[[Any], Any]) -> None:
    function: Any = (lambda request: None) if make is staticmethod else (lambda cls, request: None)
    assert not list(flaws(type("Good", (Region,), {"prepare": make(function)})))


def test_a_changed_value_is_a_change_of_the_entry_by_its_key() -> None:
    old = read("backend: region; program: {bitstream: /a}; development: false")
    new = read("backend: region; program: {bitstream: /b}; prefer: pack")
    assert difference(old, new) == "changed a.b/c (prefer, program); 0 unchanged"


def test_an_equal_value_of_a_class_imported_again_is_no_change() -> None:
    again = dataclass(frozen=True)(
        type("Size", (), {"__annotations__": {"size": int}, "size": 0, "__qualname__": Size.__qualname__})
    )
    kind = type("SizedAgain", (Sized,), {"ResourceOptions": again})
    catalog = Catalog({"sized": Installed(kind, "tests", "1.1", ())})
    assert not difference(read("backend: sized; size: 4"), read("backend: sized; size: 4", catalog))


@cache
def validator() -> Draft202012Validator:
    """For the schema with this file's backends, which must be a schema itself."""
    found = schema(CATALOG)
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


@pytest.mark.parametrize(
    ("entry", "right"),
    [
        ({"backend": "region", "development": True, "program": {"bitstream": "/a"}}, True),
        ({"backend": "region", "program": None, "linkSpeed": 25}, True),
        ({"backend": "region", "development": "yes"}, False),
        ({"backend": "region", "size": 4}, False),
        ({"backend": "region", "program": {}}, False),
        ({"backend": "sized", "size": 4}, True),
        ({"backend": "sized"}, False),
        ({"backend": "sized", "size": 4, "development": True}, False),
        ({"backend": "plain"}, True),
        ({"backend": "plain", "development": True}, False),
        ({"backend": "plain", "what": 1}, False),
    ],
)
def test_the_schema_takes_the_keys_of_the_backend_named_and_no_others(
    entry: dict[str, Any], right: bool
) -> None:
    document = {"version": 1, "resources": [{"name": "a.b/c", **entry}]}
    assert validator().is_valid(document) is right


@pytest.mark.parametrize(
    ("options", "check", "prepare", "acts"),
    [
        (None, False, True, True),
        (RegionUse(), False, True, True),
        (SimpleNamespace(prepares=False), False, True, False),
        (SimpleNamespace(prepares=False), True, True, True),
        (RegionUse(), False, False, False),
        (RegionUse(), True, False, True),
    ],
)
def test_starts_are_announced_to_check_them_and_to_backends_whose_options_do_not_disable_it(
    options: object, check: bool, prepare: bool, acts: bool
) -> None:
    entry = ResourceSettings(0, "a.b/c", "region", options=options, check_starts=check)
    assert entry.acts_before_start(prepare=prepare) is acts
