"""The kubelet is asked as rarely as possible."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.kubelet.podresources_poller import PollSchedule
from devhost.planning.timing import ALLOCATION
from devhost.planning.timing import KUBELET as NODE

RELAXED = ALLOCATION.list_held

GAP, FIRST, PATIENCE = NODE.question_gap, NODE.question_first, NODE.question_new

OLD, NEW = (1, 1, 1), (1, 2, 2)
NEVER = float("-inf")


def test_the_kubelet_is_asked_at_once_at_the_start() -> None:
    assert PollSchedule().due(None) == NEVER
    assert PollSchedule().last == NEVER


def test_a_new_kubelet_is_asked_at_growing_intervals_and_then_not_at_all() -> None:
    table, now, times = PollSchedule(), 1000.0, []
    table.answered(now, OLD)
    while (due := table.due(None)) is not None:
        times.append(due - 1000.0)
        table.answered(due, OLD)
    assert times == [FIRST * 2**n for n in range(9)]
    assert times[-1] >= PATIENCE
    assert table.due(None) is None


def test_a_restarted_kubelet_counts_as_new() -> None:
    table = PollSchedule()
    table.answered(0.0, OLD)
    table.answered(PATIENCE, OLD)
    assert table.due(None) is None
    table.answered(PATIENCE + 1, NEW)
    assert table.due(None) == PATIENCE + 1 + FIRST


def test_a_wanted_list_is_requested_but_never_within_the_gap() -> None:
    table = PollSchedule()
    table.answered(0.0, OLD)
    table.answered(PATIENCE, OLD)
    assert table.due(PATIENCE + 7) == PATIENCE + 7
    assert table.due(PATIENCE) == PATIENCE + GAP
    assert table.due(NEVER) == PATIENCE + GAP


def test_after_a_failure_a_wanted_list_does_not_shorten_the_back_off() -> None:
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


def test_the_back_off_has_jitter_so_that_nodes_do_not_ask_in_step() -> None:
    early, late = PollSchedule(draw=lambda: 1.0), PollSchedule(draw=lambda: 0.0)
    for table in (early, late):
        for _ in range(4):
            table.failed(0.0, 0.0)
    assert (early.due(None), late.due(None)) == (4.0, 8.0)


def test_a_new_kubelet_is_asked_soon_after_a_failure_only() -> None:
    table = PollSchedule(draw=lambda: 0.0)
    for _ in range(9):
        table.failed(0.0, 0.0)
    table.restarted(10.0)
    assert table.due(None) == 10.0 + GAP
    table.answered(10.5, NEW)
    before = table.due(None)
    table.restarted(11.0)
    assert table.due(None) == before


def test_a_new_kubelet_is_asked_soon_while_anything_is_held() -> None:
    """A pod that it has never named counts as ended only after minutes."""
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
def test_two_calls_are_never_closer_than_the_gap(history: list[tuple[str, float]]) -> None:
    """At most two a second: a kubelet serves a hundred to all clients."""
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
