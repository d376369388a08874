"""A short soak, the same each time; ``make soak`` runs a long one from another seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from soak_run import soak


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.timeout(900)
def test_a_disturbed_node_is_right_again_after_every_quiet_period(seed):
    tally = soak(seed, steps=12, lives=3)
    assert tally.findings == []
    assert tally.steps > 30


def test_the_program_of_make_soak_runs():
    done = subprocess.run(
        [sys.executable, Path(__file__).parent],
        env=os.environ | {"DEVHOST_SOAK_SECONDS": "0.001", "DEVHOST_SOAK_SEED": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("soak: 0.001 s from seed 3\n")
