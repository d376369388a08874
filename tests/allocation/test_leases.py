"""When a token counts as held, and when a release is believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from devhost.allocation.leases import Kubelet, Leases, Listing
from devhost.backend.model import Holder
from devhost.planning.timing import ALLOCATION as NODE

APART = NODE.release_gap
EAGER = NODE.list_allocated
MISSED = NODE.list_vanished
PATIENCE = NODE.unnamed
RELAXED = NODE.list_held
WATCHED = NODE.list_forgotten

TOY = "example.com/toy"
OLD, NEW, NEWEST = (1, 1, 1), (1, 2, 2), (1, 3, 3)
ONE, TWO = Holder("default", "one", "main"), Holder("default", "two", "main")


@dataclass
class Rig:
    now: float = 1000.0
    holding: Leases = field(init=False)

    def __post_init__(self) -> None:
        self.holding = Leases(lambda: self.now)

    def hear(self, *, kubelet: Kubelet = OLD, pods: int = 5, began: float = 0.0, **tokens: Holder) -> bool:
        """A list that begins now, ``began`` seconds from now; whether it changes anything."""
        return self.holding.apply(Listing(kubelet, self.now + began, pods, {TOY: tokens}), TOY)

    def hear_containers(
        self, kubelet: Kubelet, running: dict[Holder, str], *, recalls: bool = False, pods: int = 5
    ) -> bool:
        """A list that names these containers, each with its tokens of the resource, or with none."""
        tokens = {token: holder for holder, held in running.items() for token in held.split()}
        containers = {holder: bool(held) for holder, held in running.items()}
        listing = Listing(kubelet, self.now, pods, {TOY: tokens}, containers)
        return self.holding.apply(listing, TOY, recalls=recalls or self.holding.recalls(listing, TOY))

    def held(self) -> dict[str, Holder | None]:
        return {token: self.holding.holder(token) for token in "abc" if token in self.holding}


@pytest.fixture
def rig() -> Rig:
    return Rig()


Step = Callable[[Rig], bool]
"""Something that happens, or a look at what is true; whether it is as expected."""


def lists(is_news: bool | None = None, **given: Any) -> Step:
    """A list of the kubelet, with what ``Rig.hear`` gets, and whether it is to change anything."""
    return lambda rig: is_news in (rig.hear(**given), None)


def names(kubelet: Kubelet, running: dict[Holder, str], is_news: bool | None = None, **more: Any) -> Step:
    """The same with what ``Rig.hear_containers`` gets."""
    return lambda rig: is_news in (rig.hear_containers(kubelet, running, **more), None)


def later(seconds: float) -> Step:
    def step(rig: Rig) -> bool:
        rig.now += seconds
        return True

    return step


def allocated(*tokens: str) -> Step:
    return lambda rig: rig.holding.allocated(tokens) is None


def held(**tokens: Holder | None) -> Step:
    return lambda rig: rig.held() == tokens


def forgotten(**tokens: Holder) -> Step:
    return lambda rig: rig.holding.forgotten() == tokens


STORIES: dict[str, list[Step]] = {
    "without_a_list_what_was_allocated_is_held_for_ever": [
        *(allocated("a", "b"), later(1e9), held(a=None, b=None)),
    ],
    "a_list_names_the_holders_of_tokens_allocated_before_the_start": [
        *(
            allocated("a"),
            later(1),
            lists(True, a=ONE, b=TWO),
            held(a=ONE, b=TWO),
            lists(False, a=ONE, b=TWO),
        ),
        lambda rig: rig.holding.holder("c") is None,
    ],
    "another_resource_is_none_of_our_business": [
        lambda rig: not rig.holding.apply(Listing(OLD, rig.now, 1, {"example.com/other": {"a": ONE}}), TOY),
        held(),
    ],
    "a_named_token_is_released_by_two_lists_that_lack_it": [
        *(lists(a=ONE), later(10), lists(False), held(a=ONE)),
        *(later(APART), lists(True), held()),
    ],
    "two_lists_right_after_one_another_are_one_witness": [
        *(lists(a=ONE), later(10), lists(), later(APART / 2), lists(), held(a=ONE)),
    ],
    "one_wrong_answer_between_right_ones_releases_nothing": [
        *(20 * [lists(a=ONE), later(APART), lists(pods=0), later(APART)]),
        held(a=ONE),
    ],
    "a_list_that_began_before_allocate_does_not_count": [
        *(lists(a=ONE), later(10), allocated("a")),
        *(3 * [lists(False, began=-1.0), lists(began=-0.5, a=ONE)]),
        held(a=None),
    ],
    "patience_begins_with_the_first_list_after_allocate": [
        *(lists(), later(10), allocated("a"), lists(began=-5.0)),
        *(later(PATIENCE), lists(), held(a=None)),  # one list after Allocate lacks it
        *(later(PATIENCE), lists(), held()),
    ],
    # the list may begin before the kubelet has written down what Allocate gave
    "a_token_that_is_allocated_again_is_believed_released_only_after_patience": [
        *(lists(a=ONE), later(10), allocated("a"), lists()),
        *(later(APART), lists(), held(a=None)),
        *(later(PATIENCE - APART - 1), lists(), held(a=None)),
        *(later(1), lists(True), held()),
    ],
    "a_kubelet_that_names_no_pods_releases_nothing_that_it_has_not_named": [
        *(lists(a=ONE), allocated("b")),
        *(10 * [later(PATIENCE), lists(kubelet=NEW, pods=0)]),
        held(a=ONE, b=None),
    ],
    "another_kubelet_is_believed_after_patience_or_when_it_has_named_the_token_itself": [
        *(lists(a=ONE, b=TWO), later(10), lists(kubelet=NEW, b=TWO)),
        *(later(APART), lists(kubelet=NEW), later(APART), lists(True, kubelet=NEW), held(a=ONE)),
        *(later(PATIENCE), lists(True, kubelet=NEW), held()),
    ],
    "lists_of_different_kubelets_are_not_counted_together": [
        lists(a=ONE),
        *(10 * [later(APART), lists(), later(APART), lists(kubelet=NEW)]),
        held(a=ONE),
    ],
    "a_token_that_passes_to_another_pod_is_news": [lists(a=ONE), lists(True, a=TWO), held(a=TWO)],
    "a_container_that_a_new_kubelet_lists_without_its_device_still_holds_it": [
        names(OLD, {ONE: "a", TWO: "b"}),
        *(5 * [later(PATIENCE), names(NEW, {ONE: "", TWO: ""})]),
        *(held(a=ONE, b=TWO), forgotten(a=ONE, b=TWO)),
    ],
    "a_forgotten_token_is_news_and_is_released_by_two_lists_without_its_container": [
        *(names(OLD, {ONE: "a"}), names(NEW, {ONE: ""}, True), names(NEW, {ONE: ""}, False)),
        *(later(10), names(NEW, {TWO: ""}, False), held(a=ONE)),
        *(later(APART), names(NEW, {TWO: ""}, True), held()),
    ],
    # a pod of a StatefulSet: one list without it is enough to tell the two apart
    "a_pod_created_again_under_its_name_does_not_keep_what_the_old_one_held": [
        *(names(OLD, {ONE: "a"}), names(NEW, {ONE: ""}), later(10), names(NEW, {})),
        *(2 * [later(APART), names(NEW, {ONE: ""})]),
        held(),
    ],
    # a kubelet that lost its checkpoint gives no devices to a container that runs already
    "a_container_that_has_other_devices_now_is_another_one": [
        *(names(OLD, {ONE: "a"}), names(NEW, {ONE: ""})),
        *(2 * [later(APART), names(NEW, {ONE: "b"})]),
        held(b=ONE),
    ],
    # what it does not list any more has ended, also where a pod of that name is there again
    "a_kubelet_that_read_its_checkpoint_has_forgotten_nothing": [
        *(names(OLD, {ONE: "a", TWO: "b"}), later(10), names(NEW, {ONE: "", TWO: "b"}), forgotten()),
        *(later(APART), names(NEW, {ONE: "", TWO: "b"}, recalls=True), held(b=TWO)),
    ],
    "what_looked_forgotten_is_not_once_the_kubelet_shows_that_it_read_its_checkpoint": [
        *(names(OLD, {ONE: "a", TWO: "b"}), names(NEW, {ONE: ""}), forgotten(a=ONE)),
        *(later(1), names(NEW, {ONE: "", TWO: "b"}, True), forgotten()),
    ],
    "a_kubelet_that_names_what_it_allocated_itself_has_shown_nothing": [
        *(names(OLD, {ONE: "a", TWO: "b"}), later(10), allocated("b")),
        *(later(1), names(NEW, {ONE: "", TWO: "b"}), forgotten(a=ONE)),
    ],
    # a kubelet that has just started knows its pods one after another
    "a_container_that_no_list_has_yet_is_not_gone": [
        *(names(OLD, {ONE: "a"}), names(NEW, {ONE: ""})),
        *(3 * [later(10), names(NEWEST, {TWO: ""})]),
        *(held(a=ONE), names(NEWEST, {ONE: "", TWO: ""}), forgotten(a=ONE)),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_what_is_held(rig: Rig, story: str) -> None:
    for number, step in enumerate(STORIES[story]):
        assert step(rig), f"step {number}: {rig.held()} held, {rig.holding.forgotten()} forgotten"


@pytest.mark.parametrize("vanished", [False, True])
def test_nothing_is_due_while_nothing_is_held(rig: Rig, vanished: bool) -> None:
    assert rig.holding.due(5.0) == 5.0, "the first list is always wanted"
    rig.hear()
    assert rig.holding.due(rig.now, {"a"} if vanished else ()) is None


def test_a_list_is_wanted_soon_after_allocate_and_then_ever_more_slowly(rig: Rig) -> None:
    rig.hear()
    rig.holding.allocated(["a"])
    began, times = rig.now, []
    for _ in range(9):
        due = rig.holding.due(rig.now)
        assert due is not None
        rig.now = due
        rig.hear()
        times.append(due - began)
    assert times == [EAGER, 1, 2, 4, 8, 16, 31, 46, 61]
    assert times[-1] - times[-2] == RELAXED


def test_an_allocate_after_the_last_list_is_given_time_before_the_next(rig: Rig) -> None:
    rig.hear()
    last, rig.now = rig.now, rig.now + 100
    rig.holding.allocated(["a"])
    assert rig.holding.due(last) == rig.now + EAGER


def test_a_named_token_is_asked_about_slowly_a_vanished_one_sooner_a_lacking_one_soonest(rig: Rig) -> None:
    rig.hear(a=ONE)
    assert rig.holding.due(rig.now) == rig.now + RELAXED
    assert rig.holding.due(rig.now, {"a"}) == rig.now + MISSED
    rig.now += MISSED
    rig.hear()
    assert rig.holding.due(rig.now) == rig.now + APART


def test_a_container_without_a_name_does_not_show_that_a_kubelet_read_its_checkpoint(rig: Rig) -> None:
    old, new = (Listing(kubelet, rig.now, 1, {TOY: {"a": None}}) for kubelet in (OLD, NEW))
    rig.holding.apply(old, TOY)
    assert not rig.holding.recalls(new, TOY)


def test_while_a_token_is_forgotten_its_container_is_watched_closely(rig: Rig) -> None:
    rig.hear_containers(OLD, {ONE: "a"})
    rig.hear_containers(NEW, {ONE: ""})
    assert rig.holding.due(rig.now) == rig.now + WATCHED
    rig.now += WATCHED
    rig.hear_containers(NEW, {})
    assert rig.holding.due(rig.now) == rig.now + APART


def test_patience_is_one_however_often_the_kubelet_restarts(rig: Rig) -> None:
    rig.holding.allocated(["a"])
    rig.hear_containers(OLD, {TWO: ""})
    began, kubelet = rig.now, 0
    while rig.held():
        kubelet += 1
        for _ in range(10):
            rig.now += 4
            rig.hear_containers((1, 1, kubelet + 10), {TWO: ""})
    assert PATIENCE <= rig.now - began <= PATIENCE + 40
