"""A short soak, the same each time; ``make soak`` runs a long one from another seed."""

from __future__ import annotations

import pytest
from soak_run import soak


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.timeout(900)
def test_a_disturbed_node_is_right_again_after_every_quiet_period(seed):
    tally = soak(seed, steps=12, lives=3)
    assert tally.findings == []
    assert tally.steps > 30
