"""What differs between two mappings is found by identity, in any order of keys."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.planning.plan import differences

promise = settings(deadline=None, derandomize=True)

VALUES = [[number % 2] for number in range(4)]
"""Some are equal, and none is another."""

mappings = st.dictionaries(st.sampled_from("abc"), st.sampled_from(VALUES))


@promise
@given(mappings, mappings)
def test_differences_are_what_is_new_another_object_or_gone(
    before: Mapping[str, list[int]], now: Mapping[str, list[int]]
) -> None:
    found = differences(before, now)
    assert found.keys() == {key for key in before.keys() | now if before.get(key) is not now.get(key)}
    assert all(found[key] is now.get(key) for key in found)


def test_keys_in_another_order_are_no_difference() -> None:
    one, other = object(), object()
    assert differences({"a": one, "b": other}, {"b": other, "a": one}) == {}
    assert differences({"a": one, "b": other}, {"b": one, "a": one}) == {"b": one}
