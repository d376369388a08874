"""When a token counts as held, and when a release is believed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from devhost.holding import APART, EAGER, MISSED, PATIENCE, RELAXED, Holder, Holding, Kubelet, Listing

TOY = "example.com/toy"
OLD, NEW = (1, 1, 1), (1, 2, 2)
ONE, TWO = Holder("default", "one", "main"), Holder("default", "two", "main")


@dataclass
class Rig:
    now: float = 1000.0
    holding: Holding = field(init=False)

    def __post_init__(self) -> None:
        self.holding = Holding(lambda: self.now)

    def hear(self, *, kubelet: Kubelet = OLD, pods: int = 5, began: float = 0.0, **tokens: Holder) -> bool:
        """A list that begins now, ``began`` seconds from now."""
        return self.holding.heard(Listing(kubelet, self.now + began, pods, {TOY: tokens}), TOY)

    def held(self) -> dict[str, Holder | None]:
        return {token: self.holding.holder(token) for token in "abc" if token in self.holding}


def test_without_a_list_what_was_allocated_is_held_for_ever() -> None:
    rig = Rig()
    rig.holding.allocated(["a", "b"])
    rig.now += 1e9
    assert rig.held() == {"a": None, "b": None}


def test_a_list_tells_who_holds_what_also_of_tokens_that_were_allocated_before_our_time() -> None:
    rig = Rig()
    rig.holding.allocated(["a"])
    rig.now += 1
    assert rig.hear(a=ONE, b=TWO)
    assert rig.held() == {"a": ONE, "b": TWO}
    assert not rig.hear(a=ONE, b=TWO)
    assert rig.holding.holder("c") is None


def test_another_resource_is_none_of_our_business() -> None:
    rig = Rig()
    assert not rig.holding.heard(Listing(OLD, rig.now, 1, {"example.com/other": {"a": ONE}}), TOY)
    assert rig.held() == {}


def test_a_named_token_is_released_by_two_lists_that_lack_it() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    rig.now += 10
    assert not rig.hear()
    assert rig.held() == {"a": ONE}
    rig.now += APART
    assert rig.hear()
    assert rig.held() == {}


def test_two_lists_right_after_one_another_are_one_witness() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    rig.now += 10
    rig.hear()
    rig.now += APART / 2
    rig.hear()
    assert rig.held() == {"a": ONE}


def test_one_wrong_answer_between_right_ones_releases_nothing() -> None:
    rig = Rig()
    for _ in range(20):
        rig.hear(a=ONE)
        rig.now += APART
        rig.hear(pods=0)
        rig.now += APART
    assert rig.held() == {"a": ONE}


def test_a_list_that_began_before_allocate_says_nothing_of_it() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    rig.now += 10
    rig.holding.allocated(["a"])
    for _ in range(3):
        assert not rig.hear(began=-1.0)
        rig.hear(began=-0.5, a=ONE)
    assert rig.held() == {"a": None}


def test_a_token_that_is_allocated_again_is_believed_released_only_after_patience() -> None:
    """The list may begin before the kubelet has written down what Allocate gave."""
    rig = Rig()
    rig.hear(a=ONE)
    rig.now += 10
    rig.holding.allocated(["a"])
    rig.hear()
    rig.now += APART
    rig.hear()
    assert rig.held() == {"a": None}
    rig.now += PATIENCE - APART - 1
    rig.hear()
    assert rig.held() == {"a": None}
    rig.now += 1
    assert rig.hear()
    assert rig.held() == {}


def test_a_kubelet_that_names_no_pods_releases_nothing_that_it_has_not_named() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    rig.holding.allocated(["b"])
    for _ in range(10):
        rig.now += PATIENCE
        rig.hear(kubelet=NEW, pods=0)
    assert rig.held() == {"a": ONE, "b": None}


def test_another_kubelet_is_believed_after_patience_or_when_it_has_named_the_token_itself() -> None:
    rig = Rig()
    rig.hear(a=ONE, b=TWO)
    rig.now += 10
    rig.hear(kubelet=NEW, b=TWO)
    rig.now += APART
    rig.hear(kubelet=NEW)
    rig.now += APART
    assert rig.hear(kubelet=NEW)
    assert rig.held() == {"a": ONE}
    rig.now += PATIENCE
    assert rig.hear(kubelet=NEW)
    assert rig.held() == {}


def test_lists_of_different_kubelets_are_not_counted_together() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    for _ in range(10):
        rig.now += APART
        rig.hear()
        rig.now += APART
        rig.hear(kubelet=NEW)
    assert rig.held() == {"a": ONE}


def test_a_token_that_passes_to_another_pod_is_news() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    assert rig.hear(a=TWO)
    assert rig.held() == {"a": TWO}


@pytest.mark.parametrize("vanished", [False, True])
def test_nothing_is_due_while_nothing_is_held(vanished: bool) -> None:
    rig = Rig()
    assert rig.holding.due(5.0) == 5.0, "the first list is always wanted"
    rig.hear()
    assert rig.holding.due(rig.now, {"a"} if vanished else ()) is None


def test_a_list_is_wanted_soon_after_allocate_and_then_ever_more_slowly() -> None:
    rig = Rig()
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


def test_a_named_token_is_asked_about_slowly_a_vanished_one_sooner_a_lacking_one_soonest() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    assert rig.holding.due(rig.now) == rig.now + RELAXED
    assert rig.holding.due(rig.now, {"a"}) == rig.now + MISSED
    rig.now += MISSED
    rig.hear()
    assert rig.holding.due(rig.now) == rig.now + APART
