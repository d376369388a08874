"""The page on observers tells of every hook, every kind of news and every field, as the code has them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest

from devhost.backend import observe
from devhost.backend.observe import News, ObserverHooks

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "observers.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "plugin-api.md").read_text(encoding="utf-8")
HOOKS = {name: hook for name, hook in vars(ObserverHooks).items() if not name.startswith("_")}
KINDS = {
    kind.__name__: kind
    for kind in vars(observe).values()
    if isinstance(kind, type)
    and issubclass(kind, News)
    and hasattr(kind, "hook")
    and isinstance(kind.hook, str)
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_takes_its_kind_of_news_and_is_described_in_the_codes_own_words(name: str) -> None:
    (kind,) = [kind for kind in KINDS.values() if kind.hook == name]
    hints = typing.get_type_hints(HOOKS[name])
    assert list(inspect.signature(HOOKS[name]).parameters) == ["self", "news", "missed"]
    assert hints["news"] == tuple[kind, ...]  # type: ignore[valid-type]
    assert f"| `{name}` | `{kind.__name__}` | {inspect.getdoc(HOOKS[name])} |" in TEXT


def test_each_kind_of_news_has_a_hook() -> None:
    assert {kind.hook for kind in KINDS.values()} == set(HOOKS)


@pytest.mark.parametrize("name", KINDS)
def test_every_field_of_news_is_described(name: str) -> None:
    row = re.search(rf"(?m)^\| `{name}`[^|]*\| (.*) \|$", REFERENCE.partition("## News for observers")[2])
    assert row is not None
    inherited = {field.name for field in dataclasses.fields(observe.DeviceNews)}
    own = {field.name for field in dataclasses.fields(KINDS[name])} - inherited
    assert sorted(field for field in own if f"`{field}: " not in row[1]) == []


@pytest.mark.parametrize("word", observe.__all__)
def test_every_public_name_is_described(word: str) -> None:
    assert re.search(rf"`{word}\b", TEXT + REFERENCE)
