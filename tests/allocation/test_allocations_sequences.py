"""Ten thousand random histories, in none of which one thing is given to two containers."""

from __future__ import annotations

import random

import pytest
from claims_node import Node

HISTORIES = 10_000
PARTS = 80
STEPS = 14


@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_gives_one_thing_to_two_containers(part: int) -> None:
    for number in range(part, HISTORIES, PARTS):
        dice = random.Random(number)
        node = Node(dice)
        node.plug()
        history = []
        for _ in range(STEPS):
            step = dice.choices(
                (node.admit, node.plug, node.reload, node.end, node.tell, node.wait, node.restart),
                (8, 4, 3, 2, 4, 2, 1),
            )[0]
            history.append(step.__name__)
            try:
                step()
                node.check()
            except AssertionError as error:
                raise AssertionError(f"history {number}, {' '.join(history)}: {error}") from error
