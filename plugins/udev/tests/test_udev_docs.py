"""The reference page is complete and its examples are right."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from devhost_udev.options import Group, GroupMount, Member, UsbMember

from devhost.config import loads
from devhost.config.reader import camel
from devhost.discovery import catalog

PAGE = (Path(__file__).parents[3] / "docs/backends/udev.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("option", [Group, Member, UsbMember, GroupMount])
def test_every_option_is_on_the_page(option: type) -> None:
    for field in fields(option):
        assert re.search(rf"`{camel(field.name)}`|\b{camel(field.name)}:\s", PAGE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_right_configuration(number: int) -> None:
    assert loads(EXAMPLES[number], f"example {number}", catalog.load).resources
