"""The kubelet is asked as seldom as can be, whoever wants to know and whatever it answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.allocation.timing import NODE as ALLOCATION
from devhost.kubelet.poll_schedule import PollSchedule
from devhost.kubelet.timing import NODE

RELAXED = ALLOCATION.list_held

GAP, FIRST, PATIENCE = NODE.question_gap, NODE.question_first, NODE.question_new

OLD, NEW = (1, 1, 1), (1, 2, 2)
NEVER = float("-inf")


def test_the_first_question_is_asked_at_once() -> None:
    assert PollSchedule().due(None) == NEVER
    assert PollSchedule().last == NEVER


def test_a_kubelet_just_met_is_asked_ever_more_slowly_and_then_left_alone() -> None:
    table, now, times = PollSchedule(), 1000.0, []
    table.answered(now, OLD)
    while (due := table.due(None)) is not None:
        times.append(due - 1000.0)
        table.answered(due, OLD)
    assert times == [FIRST * 2**n for n in range(9)]
    assert times[-1] >= PATIENCE
    assert table.due(None) is None


def test_a_restarted_kubelet_is_met_anew() -> None:
    table = PollSchedule()
    table.answered(0.0, OLD)
    table.answered(PATIENCE, OLD)
    assert table.due(None) is None
    table.answered(PATIENCE + 1, NEW)
    assert table.due(None) == PATIENCE + 1 + FIRST


def test_a_wish_is_met_but_never_within_the_gap() -> None:
    table = PollSchedule()
    table.answered(0.0, OLD)
    table.answered(PATIENCE, OLD)
    assert table.due(PATIENCE + 7) == PATIENCE + 7
    assert table.due(PATIENCE) == PATIENCE + GAP
    assert table.due(NEVER) == PATIENCE + GAP


def test_after_a_failure_nobodys_wish_shortens_the_back_off() -> None:
    table, now, waits = PollSchedule(draw=lambda: 0.0), 0.0, []
    for _ in range(9):
        table.failed(now, now)
        due = table.due(now)
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    table.answered(now, OLD)
    table.failed(now, now)
    assert table.due(NEVER) == now + 1


def test_the_back_off_is_spread_so_that_a_cluster_of_nodes_does_not_ask_in_step() -> None:
    early, late = PollSchedule(draw=lambda: 1.0), PollSchedule(draw=lambda: 0.0)
    for table in (early, late):
        for _ in range(4):
            table.failed(0.0, 0.0)
    assert (early.due(None), late.due(None)) == (4.0, 8.0)


def test_another_kubelet_is_tried_soon_and_a_healthy_one_is_not_asked_for_it() -> None:
    table = PollSchedule(draw=lambda: 0.0)
    for _ in range(9):
        table.failed(0.0, 0.0)
    table.restarted(10.0)
    assert table.due(None) == 10.0 + GAP
    table.answered(10.5, NEW)
    before = table.due(None)
    table.restarted(11.0)
    assert table.due(None) == before


def test_another_kubelet_is_asked_soon_while_something_is_held() -> None:
    """A pod that it has never named is believed to be over only after minutes."""
    table = PollSchedule()
    table.answered(0.0, OLD)
    table.answered(PATIENCE, OLD)
    wanted = PATIENCE + RELAXED
    assert table.due(wanted) == wanted
    table.restarted(PATIENCE + 1)
    assert table.due(wanted) == PATIENCE + GAP
    table.answered(PATIENCE + 1, NEW)
    assert table.due(wanted) == PATIENCE + 1 + FIRST


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["answer", "fail", "restart"]), st.floats(0, 100)), max_size=60))
def test_no_two_questions_are_ever_closer_than_the_gap(history: list[tuple[str, float]]) -> None:
    """Two a second at the very most: a kubelet serves a hundred, to all who ask."""
    table, now, last = PollSchedule(draw=lambda: 0.5), 0.0, NEVER
    for what, wish in history:
        if what == "restart":
            table.restarted(now)
            continue
        due = table.due(now - RELAXED + wish)
        assert due is not None
        now = max(now, due)
        assert now >= last + GAP
        last = now
        if what == "answer":
            table.answered(now, OLD)
        else:
            table.failed(now, now)
