"""`docs/configuration.md` is complete, and its examples are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from devhost.config import loads
from devhost.config.language import (
    Cdi,
    DeviceInfo,
    Dra,
    File,
    Labels,
    Override,
    Resource,
    ResourceDra,
    Sharing,
    Taints,
)
from devhost.config.reader import keys
from devhost.discovery import catalog
from devhost.planning.give import Give, GiveMount, GiveNode, GiveVariable, When
from devhost.planning.settings import Inject, Of, Prefer, Serve, WhenEmpty

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
TEXT = PAGE.read_text(encoding="utf-8")


def _examples() -> Iterator[object]:
    for found in re.finditer(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        line = TEXT[: found.start()].count("\n") + 1
        yield pytest.param(found[1], id=f"line-{line}")


@pytest.mark.parametrize("example", list(_examples()))
def test_every_example_is_a_right_configuration(example: str) -> None:
    found = catalog.load()
    if "udev" not in found.installed:
        pytest.skip("the package devhost-udev is not installed")
    loads(example, str(PAGE), lambda _paths, _wanted: found)


@pytest.mark.parametrize(
    "cls",
    [
        File,
        Resource,
        Sharing,
        Override,
        Cdi,
        DeviceInfo,
        Labels,
        Dra,
        ResourceDra,
        Taints,
        Give,
        GiveNode,
        GiveMount,
        GiveVariable,
    ],
)
def test_every_key_is_documented(cls: type) -> None:
    missing = [key for key in keys(cls) if f"`{key}`" not in TEXT and f".{key}`" not in TEXT]
    assert missing == []


@pytest.mark.parametrize("values", [Prefer, Inject, WhenEmpty, Of, Serve, When])
def test_every_value_is_documented(values: type[StrEnum]) -> None:
    assert [value for value in values if f"`{value}`" not in TEXT] == []
