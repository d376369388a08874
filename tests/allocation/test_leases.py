"""When a token counts as held, and when a release is believed."""

from __future__ import annotations

from dataclasses import dataclass, field

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
OLD, NEW = (1, 1, 1), (1, 2, 2)
ONE, TWO = Holder("default", "one", "main"), Holder("default", "two", "main")


@dataclass
class Rig:
    now: float = 1000.0
    holding: Leases = field(init=False)

    def __post_init__(self) -> None:
        self.holding = Leases(lambda: self.now)

    def hear(self, *, kubelet: Kubelet = OLD, pods: int = 5, began: float = 0.0, **tokens: Holder) -> bool:
        """A list that begins now, ``began`` seconds from now."""
        return self.holding.apply(Listing(kubelet, self.now + began, pods, {TOY: tokens}), TOY)

    def held(self) -> dict[str, Holder | None]:
        return {token: self.holding.holder(token) for token in "abc" if token in self.holding}


def test_without_a_list_what_was_allocated_is_held_for_ever() -> None:
    rig = Rig()
    rig.holding.allocated(["a", "b"])
    rig.now += 1e9
    assert rig.held() == {"a": None, "b": None}


def test_a_list_names_the_holders_of_tokens_allocated_before_the_start() -> None:
    rig = Rig()
    rig.holding.allocated(["a"])
    rig.now += 1
    assert rig.hear(a=ONE, b=TWO)
    assert rig.held() == {"a": ONE, "b": TWO}
    assert not rig.hear(a=ONE, b=TWO)
    assert rig.holding.holder("c") is None


def test_another_resource_is_none_of_our_business() -> None:
    rig = Rig()
    assert not rig.holding.apply(Listing(OLD, rig.now, 1, {"example.com/other": {"a": ONE}}), TOY)
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


def test_a_list_that_began_before_allocate_does_not_count() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    rig.now += 10
    rig.holding.allocated(["a"])
    for _ in range(3):
        assert not rig.hear(began=-1.0)
        rig.hear(began=-0.5, a=ONE)
    assert rig.held() == {"a": None}


def test_patience_begins_with_the_first_list_after_allocate() -> None:
    rig = Rig()
    rig.hear()
    rig.now += 10
    rig.holding.allocated(["a"])
    rig.hear(began=-5.0)
    rig.now += PATIENCE
    rig.hear()
    assert rig.held() == {"a": None}, "one list after Allocate lacks it"
    rig.now += PATIENCE
    rig.hear()
    assert rig.held() == {}


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


def test_an_allocate_after_the_last_list_is_given_time_before_the_next() -> None:
    rig = Rig()
    rig.hear()
    last, rig.now = rig.now, rig.now + 100
    rig.holding.allocated(["a"])
    assert rig.holding.due(last) == rig.now + EAGER


def test_a_named_token_is_asked_about_slowly_a_vanished_one_sooner_a_lacking_one_soonest() -> None:
    rig = Rig()
    rig.hear(a=ONE)
    assert rig.holding.due(rig.now) == rig.now + RELAXED
    assert rig.holding.due(rig.now, {"a"}) == rig.now + MISSED
    rig.now += MISSED
    rig.hear()
    assert rig.holding.due(rig.now) == rig.now + APART


def hear_containers(
    rig: Rig, kubelet: Kubelet, running: dict[Holder, str], *, recalls: bool = False, pods: int = 5
) -> bool:
    """A list that names these containers, each with its tokens of the resource, or with none."""
    tokens = {token: holder for holder, held in running.items() for token in held.split()}
    containers = {holder: bool(held) for holder, held in running.items()}
    listing = Listing(kubelet, rig.now, pods, {TOY: tokens}, containers)
    return rig.holding.apply(listing, TOY, recalls=recalls or rig.holding.recalls(listing, TOY))


def test_a_container_that_a_new_kubelet_lists_without_its_device_still_holds_it() -> None:
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a", TWO: "b"})
    for _ in range(5):
        rig.now += PATIENCE
        hear_containers(rig, NEW, {ONE: "", TWO: ""})
    assert rig.held() == {"a": ONE, "b": TWO}
    assert rig.holding.forgotten() == {"a": ONE, "b": TWO}


def test_a_forgotten_token_is_news_and_is_released_by_two_lists_without_its_container() -> None:
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a"})
    assert hear_containers(rig, NEW, {ONE: ""})
    assert not hear_containers(rig, NEW, {ONE: ""})
    rig.now += 10
    assert not hear_containers(rig, NEW, {TWO: ""})
    assert rig.held() == {"a": ONE}
    rig.now += APART
    assert hear_containers(rig, NEW, {TWO: ""})
    assert rig.held() == {}


def test_a_pod_created_again_under_its_name_does_not_keep_what_the_old_one_held() -> None:
    """A pod of a StatefulSet: one list without it is enough to tell the two apart."""
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a"})
    hear_containers(rig, NEW, {ONE: ""})
    rig.now += 10
    hear_containers(rig, NEW, {})
    for _ in range(2):
        rig.now += APART
        hear_containers(rig, NEW, {ONE: ""})
    assert rig.held() == {}


def test_a_container_that_has_other_devices_now_is_another_one() -> None:
    """A kubelet that lost its checkpoint gives no devices to a container that runs already."""
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a"})
    hear_containers(rig, NEW, {ONE: ""})
    for _ in range(2):
        rig.now += APART
        hear_containers(rig, NEW, {ONE: "b"})
    assert rig.held() == {"b": ONE}


def test_a_kubelet_that_read_its_checkpoint_has_forgotten_nothing() -> None:
    """What it does not list any more has ended, also where a pod of that name is there again."""
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a", TWO: "b"})
    rig.now += 10
    hear_containers(rig, NEW, {ONE: "", TWO: "b"})
    assert rig.holding.forgotten() == {}
    rig.now += APART
    hear_containers(rig, NEW, {ONE: "", TWO: "b"}, recalls=True)
    assert rig.held() == {"b": TWO}


def test_what_looked_forgotten_is_not_once_the_kubelet_shows_that_it_read_its_checkpoint() -> None:
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a", TWO: "b"})
    hear_containers(rig, NEW, {ONE: ""})
    assert rig.holding.forgotten() == {"a": ONE}
    rig.now += 1
    assert hear_containers(rig, NEW, {ONE: "", TWO: "b"})
    assert rig.holding.forgotten() == {}


def test_a_kubelet_that_names_what_it_allocated_itself_has_shown_nothing() -> None:
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a", TWO: "b"})
    rig.now += 10
    rig.holding.allocated(["b"])
    rig.now += 1
    hear_containers(rig, NEW, {ONE: "", TWO: "b"})
    assert rig.holding.forgotten() == {"a": ONE}


def test_a_container_without_a_name_does_not_show_that_a_kubelet_read_its_checkpoint() -> None:
    rig = Rig()
    old, new = (Listing(kubelet, rig.now, 1, {TOY: {"a": None}}) for kubelet in (OLD, NEW))
    rig.holding.apply(old, TOY)
    assert not rig.holding.recalls(new, TOY)


def test_a_container_that_no_list_has_yet_is_not_gone() -> None:
    """A kubelet that has just started knows its pods one after another."""
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a"})
    hear_containers(rig, NEW, {ONE: ""})
    newest = (1, 3, 3)
    for _ in range(3):
        rig.now += 10
        hear_containers(rig, newest, {TWO: ""})
    assert rig.held() == {"a": ONE}
    hear_containers(rig, newest, {ONE: "", TWO: ""})
    assert rig.holding.forgotten() == {"a": ONE}


def test_while_a_token_is_forgotten_its_container_is_watched_closely() -> None:
    rig = Rig()
    hear_containers(rig, OLD, {ONE: "a"})
    hear_containers(rig, NEW, {ONE: ""})
    assert rig.holding.due(rig.now) == rig.now + WATCHED
    rig.now += WATCHED
    hear_containers(rig, NEW, {})
    assert rig.holding.due(rig.now) == rig.now + APART


def test_patience_is_one_however_often_the_kubelet_restarts() -> None:
    rig = Rig()
    rig.holding.allocated(["a"])
    hear_containers(rig, OLD, {TWO: ""})
    began, kubelet = rig.now, 0
    while rig.held():
        kubelet += 1
        for _ in range(10):
            rig.now += 4
            hear_containers(rig, (1, 1, kubelet + 10), {TWO: ""})
    assert PATIENCE <= rig.now - began <= PATIENCE + 40
