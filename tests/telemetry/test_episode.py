from __future__ import annotations

from devhost.backend.incident import MOST, Incident, Recurring


def test_each_reason_is_news_once_until_the_trouble_is_over_which_is_told_once() -> None:
    episode = Incident()
    assert not episode and not episode.over()
    assert [episode.news(reason) for reason in ("a", "b", "a", "b")] == [True, True, False, False]
    assert episode
    assert [episode.over(), episode.over()] == [True, False]
    assert episode.news("a")


def test_a_trouble_whose_reason_is_another_each_time_does_not_fill_the_log() -> None:
    episode = Incident()
    assert sum(episode.news(f"failed after {n} ms") for n in range(1000)) == MOST
    assert episode.over()


def test_what_recurs_is_logged_once_in_a_while_with_how_often_it_was_not() -> None:
    now, told = [100.0], []
    recurring = Recurring(60.0, lambda: now[0])
    for at in (0, 1, 59, 60, 61, 200):
        now[0] = 100.0 + at
        recurring.tell(told.append)
    assert told == [0, 2, 1]
