"""Runs the machine: for a number of lives, or for a time, always the same for one seed."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from soak_hurry import hurried
from soak_machine import Soak
from soak_node import Tally

LIVES = 10
"""Lives per seed; the first of them is the simplest that hypothesis can think of."""


class Over(BaseException):
    """Time is up. Not an Exception, which hypothesis would take for a finding."""


def soak(
    first_seed: int,
    *,
    steps: int,
    lives: int = LIVES,
    seconds: float = 0.0,
    tell: Callable[[int, Tally], None] = lambda _seed, _tally: None,
) -> Tally:
    """Runs nodes and disturbs them; returns what was done and found.

    Args:
        first_seed: the seed of the first batch of ``lives``; each batch uses the next seed.
        steps: disturbances in one life.
        seconds: no life begins after this time; without it there is one batch.
        tell: called after each batch, with its seed.
    """
    tally = Tally()
    end = time.monotonic() + seconds

    class Timed(Soak):
        def __init__(self) -> None:
            if seconds and time.monotonic() > end:
                raise Over
            super().__init__()

    Timed.tally = tally
    options = settings(
        max_examples=lives,
        stateful_step_count=steps,
        phases=(Phase.generate,),  # a life is not repeatable to the millisecond: nothing to shrink
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    number = first_seed
    with hurried():
        while True:
            try:
                run_state_machine_as_test(seed(number)(Timed), settings=options)
            except (Over, Exception):
                if seconds and time.monotonic() > end:
                    return tally  # also where hypothesis wonders why the last life drew nothing
                if not tally.findings:
                    raise
            tell(number, tally)
            if not seconds:
                return tally
            number += 1
