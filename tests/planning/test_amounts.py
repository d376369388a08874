"""Amounts that claims use of a device are valid for the API server, and never more than the device has."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from devhost.backend import Consumed, Device
from devhost.planning.amounts import (
    ENV,
    GREATEST,
    Amount,
    CapacityUse,
    Limit,
    flaw,
    most_claims,
    shortage,
    thousandths,
    whole,
    written,
)

GIB = 2**30
MEMORY = Amount("memory", GIB, 256 * 2**20, usual=4 * GIB, attribute="memory", unit=2**20)
CORES = Amount("cores", 1, usual=1, total=100)

promise = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "number"),
    [("4Gi", 4 * GIB * 1000), ("10", 10_000), ("2500m", 2500), ("1k", 10**6), ("6e3", 6 * 10**6)],
)
def test_a_quantity_is_read_in_thousandths(text: str, number: int) -> None:
    assert thousandths(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1.5Gi", "-1", "1e", "1e-3", "1e999", "1 Gi", "1gi", "٣"])
def test_other_notations_are_no_quantity(text: str) -> None:
    assert thousandths(text) is None and whole(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("2Ki", 2048), ("3E", 3 * 10**18), ("2500m", 3), ("1e3", 1000)],
)
def test_a_quantity_of_whole_things_is_rounded_up(text: str, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ["10G", "80Gi", "1k", "1Ki", "1500M", "0"])
def test_a_number_is_written_in_the_shorter_form(text: str) -> None:
    assert written((thousandths(text) or 0) // 1000) == text


@promise
@given(st.integers(0, GREATEST))
def test_a_written_number_is_read_as_the_same_number(number: int) -> None:
    assert thousandths(written(number)) == number * 1000


@promise
@given(
    st.integers(1, 2**40),
    st.integers(1, 2**40),
    st.none() | st.integers(1, 2**41),
    st.integers(0, 20),
    st.integers(1, 2**42),
)
def test_a_published_policy_is_one_that_the_api_server_takes(
    least: int, step: int, most: int | None, steps: int, size: int
) -> None:
    """``validateRequestPolicyRange`` of Kubernetes 1.37."""
    usual = least + steps * step
    assume(size >= least and (most is None or most >= usual))
    policy = Amount("x", least, step, most, usual).published(size)["requestPolicy"]
    numbers = {key: number(text) for key, text in policy["validRange"].items()}
    low, high = numbers["min"], numbers["max"]
    assert low == least <= number(policy["default"]) <= high <= min(size, most or size)
    if "step" in numbers:
        assert low + step <= size and (number(policy["default"]) - low) % step == (high - low) % step == 0
    else:
        assert low == high


def number(text: str) -> int:
    found = thousandths(text)
    assert found is not None
    return found // 1000


def test_a_device_has_what_its_attribute_counts() -> None:
    assert MEMORY.published(80 * GIB) == {
        "value": "80Gi",
        "requestPolicy": {
            "default": "4Gi",
            "validRange": {"min": "1Gi", "max": "80Gi", "step": "256Mi"},
        },
    }
    assert MEMORY.size({"memory": 81920}) == 80 * GIB
    assert CORES.size({}) == 100
    assert MEMORY.size({"memory": GREATEST}) is None, "no quantity of Kubernetes is so much"


def test_the_default_is_no_more_than_the_device_has() -> None:
    assert MEMORY.published(2 * GIB)["requestPolicy"]["default"] == "2Gi"


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, "it has no memory, of which share.capacity gives claims an amount"),
        ({"memory": "80Gi"}, "it has no memory, of which share.capacity gives claims an amount"),
        ({"memory": 512}, "it has 512Mi of memory, and share.capacity gives 1Gi or more"),
        ({"memory": 1024}, ""),
    ],
)
def test_a_device_that_is_too_small_for_any_claim_is_not_shared(
    attributes: dict[str, int | str], reason: str
) -> None:
    assert flaw((MEMORY, CORES), attributes) == reason


def test_a_device_has_as_many_claims_as_its_scarcest_capacity_allows() -> None:
    assert most_claims((MEMORY, CORES), {"memory": 8192}, 1000) == 8
    assert most_claims((MEMORY, CORES), {"memory": 2**20}, 1000) == 100
    assert most_claims((CORES,), {}, 10) == 10
    assert most_claims((MEMORY,), {}, 10) == 1


def memory(amount: int, total: int = 80) -> tuple[CapacityUse, ...]:
    return (CapacityUse("memory", amount * GIB, total * GIB),)


def test_what_is_left_of_a_device_is_enough_to_the_last_step() -> None:
    held = [memory(40), memory(30)]
    assert not shortage([memory(10)], held)
    assert not shortage([memory(5), memory(5)], held)
    reason = "10Gi of 80Gi memory is free, and the claim needs 11Gi"
    assert shortage([memory(11)], held) == reason
    assert shortage([memory(5), memory(6)], held) == reason


def test_a_holder_of_which_nothing_is_known_has_all_of_the_device() -> None:
    assert shortage([memory(1)], [()]) == "0 of 80Gi memory is free, and the claim needs 1Gi"
    both = (*memory(1), CapacityUse("cores", 1, 100))
    assert "cores" in shortage([both], [memory(1)])


def test_a_device_that_shrank_has_nothing_free() -> None:
    assert shortage([memory(1, 20)], [memory(60)]) == "0 of 20Gi memory is free, and the claim needs 1Gi"


def consumed(amount: int) -> dict[str, Consumed]:
    return {"memory": Consumed(amount * GIB, 80 * GIB)}


def test_variables_have_what_a_claim_uses_of_each_device() -> None:
    limit = Limit(
        ENV, {"LIMIT{index}": "{consumed.memory}", "ALL": "{id}={consumed.memory}"}, {"memory": 2**20}
    )
    found = limit.variables([Device("b"), Device("a")], {"a": consumed(4), "b": consumed(2)})
    assert found == {"LIMIT0": "4096", "LIMIT1": "2048", "ALL": "a=4096,b=2048"}


def test_devices_of_which_a_claim_uses_as_much_have_one_value() -> None:
    limit = Limit(ENV, {"LIMIT": "{consumed.memory}"}, {"memory": 2**30})
    assert limit.variables([Device("a"), Device("b")], {"a": consumed(4), "b": consumed(4)}) == {"LIMIT": "4"}
