"""Which requests are taken for one container's: by order and pauses, and what the kubelet says later."""

from __future__ import annotations

import random

import pytest

from devhost.allocation.request_grouping import (
    LONGEST,
    PATIENCE,
    PENDING,
    Admission,
    RequestGrouping,
)
from devhost.planning.affinity.topology import Level
from devhost.planning.timing import ALLOCATION as NODE
from devhost.telemetry.metrics import Guess

WITHIN, BETWEEN = 0.001, 0.02
"""Pauses of a kubelet: from resource to resource of a container, and from container to container."""


class Node:
    """Admissions with a clock; tokens are named after the container and the resource."""

    def __init__(self) -> None:
        self.now = 100.0
        self.guesses: list[tuple[Guess, str, str]] = []
        self.holders: dict[str, str] = {}
        self.admissions = RequestGrouping(lambda: self.now, lambda *guess: self.guesses.append(guess))

    def asks(self, who: str, resource: str, *, allocates: bool = True, prefers: bool = True) -> Admission:
        """One request from end to end; gives what was thought to belong to it."""
        token, began, seen = f"{who} {resource}", self.now, Admission()
        places = [((Level.NODE, who),)]
        if prefers:
            seen = self.admissions.asked(resource)
            self.now += 0.0002
            self.admissions.preferred(resource, began, [token], places, seen.same)
        if allocates:
            self.now += 0.0002
            began = self.now
            self.now += 0.0003
            self.admissions.allocated(resource, began, [token], places)
        return seen

    def container(self, who: str, *resources: str) -> list[list[str]]:
        """One container after another; gives for each request the containers it was drawn to."""
        self.now += BETWEEN
        found = []
        for resource in resources:
            found.append(same(self.asks(who, resource)))
            self.now += WITHIN
        return found

    def settle(self) -> None:
        self.admissions.settle(lambda resource, token: self.holders.get(token))


def same(admission: Admission) -> list[str]:
    return [call.tokens[0].split()[0] for call in admission.same]


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_resources_of_one_container_belong_together(node: Node) -> None:
    assert node.container("a", "gpu", "hca", "fpga") == [[], ["a"], ["a", "a"]]


def test_the_next_container_asks_for_the_same_again(node: Node) -> None:
    node.container("a", "gpu", "hca")
    assert node.container("b", "gpu", "hca") == [[], ["b"]]
    assert node.container("c", "hca", "gpu") == [[], ["c"]]
    assert node.container("d", "gpu", "hca") == [[], ["d"]]


def test_a_resource_asked_again_puts_the_border_where_the_pause_was_widest(node: Node) -> None:
    """a wants a GPU only; b's first request is mistaken for a's, the second not any more."""
    node.container("a", "gpu")
    assert node.container("b", "hca", "gpu") == [["a"], ["b"]]
    assert node.container("c", "fpga", "hca", "gpu") == [["b", "b"], ["c"], ["c", "c"]]


def test_equal_containers_are_separated_in_any_order_of_requests(node: Node) -> None:
    rng = random.Random(3)
    for number in range(200):
        kinds = rng.sample(["gpu", "hca", "fpga"], 3)
        found = node.container(f"c{number}", *kinds)
        assert all(who == f"c{number}" for some in found[1:] for who in some)
        assert [len(some) for some in found[1:]] == [1, 2] or number == 0


def test_unclear_pauses_leave_the_border_at_the_repeated_request(node: Node) -> None:
    """Pods of one deployment that are admitted without a pause all want the same."""
    rng = random.Random(4)
    for number in range(50):
        for count, resource in enumerate(("gpu", "hca")):
            assert same(node.asks(f"c{number}", resource)) == [f"c{number}"] * count
            node.now += rng.uniform(0.0001, 0.0029)


def test_what_came_before_the_border_is_still_known_as_perhaps_the_same_pod(node: Node) -> None:
    node.container("a", "gpu", "hca")
    node.now += BETWEEN
    seen = node.asks("b", "hca")
    assert (same(seen), [call.tokens[0] for call in seen.before]) == ([], ["a gpu", "a hca"])


def test_after_a_pause_nothing_belongs_together(node: Node) -> None:
    node.container("a", "gpu")
    node.now += NODE.together + 0.01
    assert node.asks("b", "hca") == Admission()


def test_a_slow_answer_is_no_pause(node: Node) -> None:
    seen, began = node.admissions.asked("gpu"), node.now
    node.now += 5
    node.admissions.preferred("gpu", began, ["a gpu"], [()], seen.same)
    began = node.now
    node.now += 8
    node.admissions.allocated("gpu", began, ["a gpu"], [()])
    node.now += WITHIN
    assert same(node.asks("a", "hca")) == ["a"]


def test_allocate_alone_counts_too(node: Node) -> None:
    """A container that takes over the devices of an init container is asked for no preference."""
    node.now += BETWEEN
    node.asks("a", "gpu", prefers=False)
    node.now += WITHIN
    assert same(node.asks("a", "hca")) == ["a"]


def test_what_was_preferred_and_not_taken_is_replaced_by_what_was(node: Node) -> None:
    node.admissions.preferred("gpu", node.now, ["x gpu"], [()], ())
    node.asks("a", "gpu", prefers=False)
    assert same(node.asks("a", "hca")) == ["a"]


def test_a_preference_asked_again_is_no_new_container(node: Node) -> None:
    node.asks("a", "hca")
    node.asks("a", "gpu", allocates=False)
    node.now += WITHIN
    assert same(node.asks("a", "gpu")) == ["a"]


def test_the_same_allocated_again_is_another_container(node: Node) -> None:
    node.container("a", "gpu", "hca")
    node.now += BETWEEN
    node.asks("a", "gpu", prefers=False)
    assert [call.resource for call in node.asks("a", "hca").same] == ["gpu"]


def test_requests_that_overlap_belong_together(node: Node) -> None:
    first, second = node.now, node.now + 0.0001
    assert node.admissions.asked("gpu") == Admission()
    assert node.admissions.asked("hca") == Admission()
    node.now += 0.001
    node.admissions.preferred("gpu", first, ["a gpu"], [()], ())
    node.admissions.preferred("hca", second, ["a hca"], [()], ())
    node.admissions.allocated("hca", node.now, ["a hca"], [()])
    node.admissions.allocated("gpu", node.now, ["a gpu"], [()])
    assert [call.resource for call in node.asks("a", "fpga").same] == ["gpu", "hca"]


def test_each_guess_is_counted_after_the_kubelet_has_named_the_holders(node: Node) -> None:
    node.container("a", "gpu")
    node.container("b", "hca", "gpu")
    node.settle()
    assert node.guesses == []
    node.holders |= {"b hca": "pod b", "b gpu": "pod b"}
    node.settle()
    assert node.guesses == [(Guess.RIGHT, "gpu", "hca")]
    node.holders["a gpu"] = "pod a"
    node.settle()
    node.settle()
    assert node.guesses == [(Guess.RIGHT, "gpu", "hca"), (Guess.WRONG, "hca", "gpu")]


def test_requests_with_a_known_container_no_longer_attract_others(node: Node) -> None:
    node.container("a", "gpu")
    node.holders["a gpu"] = "pod a"
    node.settle()
    assert same(node.asks("b", "hca")) == []


def test_what_the_kubelet_never_names_is_given_up(node: Node) -> None:
    node.container("a", "gpu", "hca")
    node.now += PATIENCE + 1
    node.settle()
    node.settle()
    assert node.guesses == [(Guess.UNKNOWN, "hca", "gpu")]


def test_an_endless_burst_keeps_a_bounded_number_of_requests(node: Node) -> None:
    for number in range(3 * (LONGEST + PENDING)):
        node.container(f"c{number}", "gpu", "hca")
    seen = node.asks("last", "fpga")
    assert len(seen.same) + len(seen.before) <= LONGEST
    node.now += PATIENCE + 1
    node.settle()
    assert len(node.guesses) <= PENDING + 2
