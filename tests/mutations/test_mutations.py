"""The planted faults still fit the code; `make mutations` shows that each is noticed."""

from __future__ import annotations

import symtable
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import groupby

import pytest
from planted import ROOT, DoesNotApply, Fault, faults

FEWEST = 150
AREAS = {
    "plugins",
    "backend",
    "telemetry",
    "planning",
    "discovery",
    "config",
    "allocation",
    "kubelet",
    "host",
}
"""Packages of the host, and the plugin packages together, in each of which there are faults."""

FAULTS = faults()


def package(fault: Fault) -> str:
    """The package that a fault is planted in."""
    parts = fault.file.split("/")
    return parts[2] if parts[0] == "src" else parts[0]


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def why_useless(fault: Fault) -> str:
    """Why no test can notice a fault; empty if one can."""
    try:
        changed = fault.applied(text(fault.file))
    except (OSError, DoesNotApply) as error:
        return str(error)
    if changed == text(fault.file):
        return "changes nothing"
    file, _, name = fault.test.partition("::")
    function = name.rpartition("::")[2].partition("[")[0]
    if not (ROOT / file).is_file() or (function and f"def {function}(" not in text(file)):
        return f"there is no {fault.test}"
    return ""


def why_invalid(file: str, faults: Iterable[Fault]) -> dict[str, str]:
    """Which faults make Python refuse their file, and why.

    As many as possible are planted together, because Python takes long to read a file; one by one if it
    refuses that.
    """
    left, found = list(faults), dict[str, str]()
    while left:
        changed, together, later = text(file), list[Fault](), list[Fault]()
        for fault in left:
            try:
                changed = fault.applied(changed)
                together.append(fault)
            except DoesNotApply:  # another one has changed the same line
                later.append(fault)
        try:
            symtable.symtable(changed, file, "exec")  # half as long as to make a tree
        except SyntaxError as error:
            if len(together) == 1:
                found[str(together[0])] = str(error)
            else:
                for fault in together:
                    found |= why_invalid(file, [fault])
        left = later
    return found


@pytest.mark.parametrize("area", sorted({fault.area for fault in FAULTS}))
def test_a_fault_changes_exactly_one_place_and_names_a_test_that_there_is(area: str) -> None:
    planted = sorted((fault for fault in FAULTS if fault.area == area), key=lambda fault: fault.file)
    assert {str(fault): why for fault in planted if (why := why_useless(fault))} == {}
    for file, some in groupby(planted, key=lambda fault: fault.file):
        assert not file.endswith(".py") or why_invalid(file, some) == {}


def test_there_are_enough_faults_in_every_area() -> None:
    assert len(FAULTS) >= FEWEST
    count = Counter(map(package, FAULTS))
    assert {one: count[one] for one in sorted(AREAS) if count[one] < 3} == {}


def test_no_two_faults_are_the_same() -> None:
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("old", "text"),
    [("x = 1\n", "x = 1\nx = 1\n"), ("y\n", "x = 1\n")],
    ids=["twice", "never"],
)
def test_a_fault_that_fits_no_single_place_does_not_apply(old: str, text: str) -> None:
    with pytest.raises(DoesNotApply):
        Fault("a", "f.py", old, "x = 2\n", "t").applied(text)


def test_a_block_is_found_in_the_indentation_that_it_has_in_the_file() -> None:
    text = "def f():\n    if a:\n        b\n"
    fault = Fault("a", "f.py", "if a:\n    b\n", "if a:\n    c\n", "t")
    assert fault.applied(text) == "def f():\n    if a:\n        c\n"
