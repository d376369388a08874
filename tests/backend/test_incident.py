"""A problem is logged once when it begins, and once when it is over."""

from __future__ import annotations

from devhost.backend.incident import MOST, Incident, Recurring


def test_each_reason_is_logged_once_until_the_problem_is_over_which_is_logged_once() -> None:
    incident = Incident()
    assert not incident and not incident.over()
    assert [incident.news(reason) for reason in ("a", "b", "a", "b")] == [True, True, False, False]
    assert incident
    assert [incident.over(), incident.over()] == [True, False]
    assert incident.news("a")


def test_a_problem_with_a_new_reason_each_time_does_not_fill_the_log() -> None:
    incident = Incident()
    assert sum(incident.news(f"failed after {n} ms") for n in range(1000)) == MOST
    assert incident.over()


def test_what_recurs_is_logged_once_in_a_while_with_how_often_it_was_not() -> None:
    now, told = [100.0], []
    recurring = Recurring(60.0, lambda: now[0])
    for at in (0, 1, 59, 60, 61, 200):
        now[0] = 100.0 + at
        recurring.report(told.append)
    assert told == [0, 2, 1]
