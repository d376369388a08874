"""The generated pages of the reference are what the code says now, and leave nothing out."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from devhost import backend
from devhost.backend import observe
from devhost.config.schema import options_of, resource_options_of
from devhost.discovery import catalog

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "reference"
OURS = sorted(project.parent.name for project in ROOT.glob("plugins/*/pyproject.toml"))
NAMES = ["backends.md", "plugin-api.md"]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("generate_reference")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_up_to_date(generator: ModuleType, name: str) -> None:
    assert (PLACE / name).read_text(encoding="utf-8") == generator.PAGES[name](), "run `make docs`"


def test_every_page_of_the_reference_is_generated(generator: ModuleType) -> None:
    assert sorted(file.name for file in PLACE.iterdir()) == sorted(generator.PAGES) == NAMES


@pytest.mark.parametrize("name", OURS)
def test_every_option_and_attribute_of_a_backend_has_a_line(name: str) -> None:
    text = (PLACE / "backends.md").read_text(encoding="utf-8").partition(f"\n## {name}\n")[2]
    text = text.partition("\n## ")[0]
    kind = catalog.load().installed[name].backend
    words = [*kind.attributes, *_properties(options_of(kind)), *_properties(resource_options_of(kind))]
    assert [word for word in words if not re.search(rf"(?m)^- `([^`]+\.)?{re.escape(word)}`", text)] == []


@pytest.mark.parametrize("name", OURS)
def test_the_reference_gives_each_attribute_its_type_and_its_values(name: str) -> None:
    text = (PLACE / "backends.md").read_text(encoding="utf-8").partition(f"\n### Attributes of {name}\n")[2]
    types = {int: " (number)", bool: " (true/false)", list: " (list)"}
    for word, attribute in catalog.load().installed[name].backend.attributes.items():
        kind = " (hex)" if attribute.hex else types.get(attribute.type, "")
        row = re.search(rf"(?m)^- `{re.escape(word)}`{re.escape(kind)}: .*$", text)
        assert row, f"no line begins with `{word}`{kind}"
        assert [one for one in attribute.words if f"`{one}`" not in row[0]] == [], word


def _properties(schema: Mapping[str, Any]) -> list[str]:
    """Every key of an object, at any depth."""
    found = list(schema.get("properties", {}))
    for value in schema.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Mapping):
                found += _properties(inner)
    return found


def test_every_public_name_of_the_api_is_described() -> None:
    text = (PLACE / "plugin-api.md").read_text(encoding="utf-8")
    news = [
        name
        for name in observe.__all__
        if name not in ("AttributeValue", "ClaimHolder", "Device", "Health", "Holder")
    ]
    assert [name for name in (*backend.__all__, *news) if f"`{name}" not in text] == []
