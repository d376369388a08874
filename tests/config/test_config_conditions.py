"""Options of a backend that are written like ``where``, and words of a user's that its options refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
from jsonschema import Draft202012Validator
from kit.backend import Plain

from devhost.backend import (
    Attribute,
    Conditions,
    OptionError,
    option,
)
from devhost.backend.errors import ConfigError
from devhost.backend.where import Where
from devhost.config import loads
from devhost.config.schema import schema
from devhost.discovery.catalog import Catalog, Installed

ATTRIBUTES: Mapping[str, Attribute] = {
    "kind": Attribute(str, "What it is.", "port", words=("port", "card")),
    "index": Attribute(int, "Its number.", 0),
}


@dataclass(frozen=True)
class PortOptions:
    spare: Annotated[Where, Conditions("port", ATTRIBUTES)] = option((), "Which are left alone.")
    color: str = option("red", "What it looks like.")

    def __post_init__(self) -> None:
        if self.color not in ("red", "green"):
            raise OptionError("no such color", key="color", word=self.color, known=("red", "green"))


class Port(Plain):
    name = "port"
    Options = PortOptions
    attributes: ClassVar[Mapping[str, Attribute]] = ATTRIBUTES


CATALOG = Catalog({"port": Installed(Port, "this test", "", ())})
FILE = "version: 1\nbackends:\n  port: {%s}\nresources: []\n"
Read = Callable[[str], Any]


@pytest.fixture
def read() -> Read:
    return lambda options: loads(FILE % options, "f.yaml", lambda *_: CATALOG).backends["port"]


def test_an_option_may_be_written_like_where(read: Read) -> None:
    (block,) = read("spare: {kind: port, index: 0-3, not: {kind: card}}").spare
    assert str(block) == "kind: port, index: 0-3, not: {kind: card}"
    assert len(read("spare: [{kind: port}, {index: 7}]").spare) == 2
    assert read("color: red").spare == ()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("spare: {knd: port}", '3:18: backends.port.spare: backend port has no attribute "knd"'),
        ("spare: {kind: prt}", "3:24: backends.port.spare.kind: "),
        ("spare: x", "3:17: backends.port.spare: must be a mapping"),
        ("color: gren", "3:17: backends.port.color: no such color (did you mean green?)"),
        ("color: xxxxxx", "3:17: backends.port.color: no such color (known words: green, red)"),
    ],
)
def test_an_error_is_reported_at_its_position(read: Read, options: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(options)
    assert f"f.yaml:{complaint}" in str(refusal.value)


def test_the_schema_knows_the_attributes_there() -> None:
    validator = Draft202012Validator(schema(CATALOG))
    for spare, good in (({"kind": "port"}, True), ({"knd": "port"}, False), ([{"index": 1}], True)):
        text = {"version": 1, "resources": [], "backends": {"port": {"spare": spare}}}
        assert validator.is_valid(text) is good
