"""``devhost explain`` shows which choices among linked devices are not proven best."""

from __future__ import annotations

import json

import pytest

REMARK = "a choice of 3 or more of the 40 linked devices is not proven best"

CLOSENESS = "__import__('zlib').crc32(min(a.id, b.id).encode() + max(a.id, b.id).encode()) % 10"
"""Links of all sorts, the same from both ends."""


@pytest.fixture
def linked(toys):
    """Makes a number of toys and links them."""

    def make(count: int, closeness: str = CLOSENESS, **resource: str) -> None:
        backend = toys.config.parent / "backends" / "toy.py"
        method = f"    def links(self, a, b):\n        return {closeness}\n\n    def allocate"
        backend.write_text(backend.read_text().replace("    def allocate", method))
        toys.plug(*(f"t{number}=x100" for number in range(count)))
        more = {"name": "example.com/toy", "backend": "toy"} | resource
        toys.write(", ".join(f"{key}: {value}" for key, value in more.items()))

    return make


def preference(toys, name: str) -> str:
    """What the text says about preference, which the document says, too."""
    done = toys.devhost("explain", name)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("  preference: ")]
    (text,) = said or [""]
    if name == "t1":
        (document,) = json.loads(toys.devhost("explain", name, "--output", "json").stdout)
        assert document["verdicts"][0]["preference"] == text.removeprefix("  preference: ")
    return text.removeprefix("  preference: ")


@pytest.mark.parametrize("name", ["t1", "example.com/toy"])
def test_explain_shows_that_a_choice_is_not_proven_best(toys, linked, name):
    linked(40)
    assert preference(toys, name) == REMARK


@pytest.mark.parametrize(
    "make",
    [
        {"count": 16},
        {"count": 40, "closeness": "int(a.id[:2] == b.id[:2])"},
        {"count": 65},
        {"count": 40, "closeness": "1 / 0"},
        {"count": 40, "prefer": "pack"},
        {"count": 40, "share": "{replicas: 2, of: all}"},
    ],
    ids=["few", "alike", "too many", "unknown", "pack", "together"],
)
def test_explain_shows_nothing_of_preference_where_a_choice_is_proven_best(toys, linked, make):
    linked(**make)
    assert preference(toys, "t1") == ""


def test_explain_shows_that_shares_of_linked_devices_are_not_proven_best(toys, linked):
    linked(4, share="{replicas: 3}")
    assert preference(toys, "t1") == "a choice of 2 or more of the 4 linked devices is not proven best"
