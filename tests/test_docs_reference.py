"""The generated pages of the reference are what the code says now, and leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import generate_reference

from devhost import backend
from devhost.backend import observe
from devhost.config.schema import options_of, resource_options_of
from devhost.discovery import catalog

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "reference"
OURS = sorted(project.parent.name for project in ROOT.glob("plugins/*/pyproject.toml"))
NAMES = ["backends.md", "plugin-api.md"]


def test_the_reference_is_up_to_date() -> None:
    shown = {name: (PLACE / name).read_text(encoding="utf-8") for name in NAMES}
    assert shown == {name: make() for name, make in generate_reference.PAGES.items()}, "run `make docs`"


def test_every_page_of_the_reference_is_generated() -> None:
    assert sorted(file.name for file in PLACE.iterdir()) == sorted(generate_reference.PAGES) == NAMES


def test_every_option_and_attribute_of_a_backend_has_a_line() -> None:
    missing = []
    for name in OURS:
        text = (PLACE / "backends.md").read_text(encoding="utf-8").partition(f"\n## {name}\n")[2]
        text = text.partition("\n## ")[0]
        kind = catalog.load().installed[name].backend
        words = [*kind.attributes, *_properties(options_of(kind)), *_properties(resource_options_of(kind))]
        missing += [word for word in words if not re.search(rf"(?m)^- `([^`]+\.)?{re.escape(word)}`", text)]
    assert missing == []


def test_the_reference_gives_each_attribute_its_type_and_its_values() -> None:
    page = (PLACE / "backends.md").read_text(encoding="utf-8")
    types = {int: " (number)", bool: " (true/false)", list: " (list)"}
    missing = []
    for name in OURS:
        text = page.partition(f"\n### Attributes of {name}\n")[2]
        for word, attribute in catalog.load().installed[name].backend.attributes.items():
            kind = " (hex)" if attribute.hex else types.get(attribute.type, "")
            row = re.search(rf"(?m)^- `{re.escape(word)}`{re.escape(kind)}: .*$", text)
            values = [one for one in attribute.words if row is None or f"`{one}`" not in row[0]]
            if row is None or values:
                missing.append((name, f"`{word}`{kind}", values))
    assert missing == []


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
