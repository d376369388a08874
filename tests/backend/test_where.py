"""Conditions: what they take, what they say, and when one surely takes all that another takes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devhost.backend import where
from devhost.backend.model import AttributeValue
from devhost.backend.where import Block, Flag, Pattern, Range, Term, Text

# a busy machine must not fail the tests
patient = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=3 * settings().max_examples,
)
TTY = Block((Term("subsystem", (Text("tty"),)),))


def test_every_term_of_a_block_must_hold() -> None:
    block = Block((Term("a", (Text("1"),)), Term("b", (Range(2, 4),))))
    assert block.holds({"a": "1", "b": 3})
    assert not block.holds({"a": "1", "b": 5})


def test_a_list_of_values_is_any_of_them() -> None:
    block = Block((Term("a", (Text("x"), Text("y*"))),))
    assert block.holds({"a": "x"})
    assert block.holds({"a": "yes"})
    assert not block.holds({"a": "no"})


def test_a_list_of_blocks_is_any_of_them_and_none_takes_everything() -> None:
    assert where.holds((TTY, Block((Term("a", (Text("1"),)),))), {"a": "1"})
    assert where.holds((), {"a": "1"})


def test_an_attribute_that_a_device_lacks_matches_nothing_and_not_on_it_holds() -> None:
    absent = Term("a", (Text("*"),))
    assert not Block((absent,)).holds({})
    assert Block((), (Block((absent,)),)).holds({})


def test_a_list_attribute_matches_by_any_member() -> None:
    block = Block((Term("links", (Text("eth?"),)),))
    assert block.holds({"links": ("ib0", "eth1")})
    assert not block.holds({"links": ()})


def test_case_is_ignored_only_for_hex_ids() -> None:
    assert Text("1A86", fold=True).matches("1a86")
    assert Text("1a*", fold=True).matches("1A86")
    assert not Text("1A86").matches("1a86")


def test_a_plain_string_is_compared_literally() -> None:
    assert Text("a.b+c").matches("a.b+c")
    assert not Text("a.b").matches("axb")
    assert Text("[ab]1").matches("b1")


@pytest.mark.parametrize(
    ("span", "text"),
    [(Range(1, 1), "1"), (Range(1, 3), "1-3"), (Range(4, None), "4-"), (Range(None, 4), "-4")],
)
def test_a_range_reads_as_it_is_written(span: Range, text: str) -> None:
    assert str(span) == text


def test_true_is_not_the_number_one() -> None:
    assert not Range(1, 1).matches(True)
    assert not Flag(True).matches(1)


def test_the_objection_names_the_term_and_the_value_of_the_device() -> None:
    assert where.objection((TTY,), {"subsystem": "drm"}) == "subsystem must be tty, it is drm"
    assert where.objection((TTY,), {}) == "subsystem must be tty, it has none"
    refusing = Block((), (TTY,))
    assert where.objection((refusing,), {"subsystem": "tty"}) == "refused by not: {subsystem: tty}"
    assert where.objection((TTY, TTY), {}).startswith("block 1: ")
    assert where.objection((TTY,), {"subsystem": "tty"}) is None


STATUS = Block((Term("sysattr.device/status", (Text("operational"), Text("in use*"))),))


@pytest.mark.parametrize(
    ("conditions", "attributes", "said"),
    [
        (
            (STATUS,),
            {"sysattr.device/status": "resetting"},
            'sysattr.device/status is "resetting", key wants operational or in use*',
        ),
        ((STATUS,), {}, "the device has no sysattr.device/status, key wants operational or in use*"),
        ((STATUS,), {"sysattr.device/status": "operational"}, None),
        ((Block((Term("n", (Range(0, 3),)),)),), {"n": 7}, "n is 7, key wants 0-3"),
        ((Block((Term("v", (Flag(True),)),)),), {"v": False}, "v is false, key wants true"),
        ((Block((), (TTY,)),), {"subsystem": "tty"}, 'subsystem is "tty", key refuses {subsystem: tty}'),
        (
            (STATUS, TTY),
            {"subsystem": "drm"},
            "the device has no sysattr.device/status, key wants operational or in use*; "
            'subsystem is "drm", key wants tty',
        ),
        (
            (TTY,),
            {"subsystem": "x" * 4096},
            f'subsystem is "{"x" * 79}…", key wants tty',
        ),
        ((TTY,), {"subsystem": "two\nlines"}, 'subsystem is "two lines", key wants tty'),
    ],
)
def test_a_shortfall_names_the_attribute_the_value_found_and_what_is_wanted(
    conditions: where.Where, attributes: dict[str, AttributeValue], said: str | None
) -> None:
    assert where.shortfall(conditions, attributes, "key") == said


def test_a_block_knows_every_attribute_it_looks_at() -> None:
    assert Block(TTY.terms, (Block((Term("x", (Flag(True),)),)),)).attributes() == {"subsystem", "x"}


def one(*patterns: Pattern, refuse: tuple[Block, ...] = ()) -> where.Where:
    """A single block with a condition on the attribute "a"."""
    return (Block((Term("a", patterns),), refuse),)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ((), (TTY,)),
        ((Block(),), ()),
        (
            (TTY,),
            (
                Block(
                    (*TTY.terms, Term("a", (Text("1"),))),
                ),
            ),
        ),
        (one(Text("*")), one(Text("x?"))),
        (one(Text("x*")), one(Text("xy"))),
        (one(Range(0, 9)), one(Range(1, 2), Range(5, 5))),
        ((Block((), (TTY,)),), one(Flag(True), refuse=(TTY,))),
    ],
)
def test_covers_is_true_if_the_conditions_show_it(wide: where.Where, narrow: where.Where) -> None:
    assert where.covers(wide, narrow)


def test_a_case_folding_condition_is_not_covered_by_an_exact_one() -> None:
    exact, folding = one(Text("AB")), one(Text("AB", fold=True))
    assert not where.covers(exact, folding)
    assert where.covers(folding, exact)


names = st.sampled_from(["a", "b"])
words = st.sampled_from(["x", "X", "xy", "y", "*", "x*", "?", "[xy]", "[", ""])
bound = st.none() | st.integers(0, 4)
patterns: st.SearchStrategy[Pattern] = st.one_of(
    st.builds(Text, words, st.booleans()), st.builds(Range, bound, bound), st.builds(Flag, st.booleans())
)
terms = st.builds(Term, names, st.lists(patterns, min_size=1, max_size=3).map(tuple))
leaves = st.builds(Block, st.lists(terms, max_size=2, unique_by=lambda t: t.attribute).map(tuple))
blocks = st.builds(
    Block,
    st.lists(terms, max_size=2, unique_by=lambda t: t.attribute).map(tuple),
    st.lists(leaves, max_size=1).map(tuple),
)
wheres = st.lists(blocks, max_size=2).map(tuple)
values: st.SearchStrategy[AttributeValue] = st.one_of(
    st.sampled_from(["x", "X", "xy", "XY", "y", "[", "z"]),
    st.integers(0, 5),
    st.booleans(),
    st.lists(st.sampled_from(["x", "y", "z"]), max_size=2).map(tuple),
)


@patient
@given(wheres, wheres, st.data())
def test_a_covered_condition_never_selects_more(
    wide: where.Where, narrow: where.Where, data: st.DataObject
) -> None:
    """Two random conditions rarely cover each other; devices are only drawn for those that do."""
    if where.covers(wide, narrow):
        for attributes in data.draw(st.lists(st.dictionaries(names, values), min_size=10, max_size=30)):
            assert not where.holds(narrow, attributes) or where.holds(wide, attributes)


@patient
@given(wheres, st.dictionaries(names, values))
def test_there_is_an_objection_exactly_if_the_condition_does_not_hold(
    conditions: where.Where, attributes: dict[str, AttributeValue]
) -> None:
    assert bool(where.objection(conditions, attributes)) != where.holds(conditions, attributes)
    assert bool(where.shortfall(conditions, attributes, "key")) != where.holds(conditions, attributes)


@patient
@given(wheres)
def test_every_condition_covers_itself(conditions: where.Where) -> None:
    assert where.covers(conditions, conditions)


@patient
@given(st.lists(blocks, max_size=6), blocks)
def test_of_many_blocks_those_that_cover_another_are_found_in_order(many: list[Block], narrow: Block) -> None:
    index: where.Covering[str] = where.Covering()
    for number, one in enumerate(many):
        index.add(one, f"{number}")
    found = [f"{number}" for number, one in enumerate(many) if where.covers((one,), (narrow,))]
    assert list(dict.fromkeys(index.owners(narrow))) == found


NODE = {"devNode": "/dev/ttyUSB0", "devLinks": ("/dev/serial/by-id/a", "/dev/modem0")}


@pytest.mark.parametrize(
    ("pattern", "holds"),
    [
        ("/dev/ttyUSB0", True),
        ("/dev/serial/by-id/a", True),
        ("/dev/serial/by-id/*", True),
        ("/dev/modem?", True),
        ("/dev/s*", False),
        ("/dev/serial/*", False),
        ("/dev/serial/by-id/b", False),
    ],
)
def test_a_condition_also_holds_for_another_name_of_the_same_thing(pattern: str, holds: bool) -> None:
    term = Term("devNode", (Text(pattern),), "devLinks")
    assert Block((term,)).holds(NODE) is holds
    assert Block(refuse=(Block((term,)),)).holds(NODE) is not holds
    assert not term.holds({"devLinks": NODE["devLinks"]})
    assert Block((term,)).attributes() == {"devNode", "devLinks"}
