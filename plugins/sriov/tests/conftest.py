"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent / "machines"))

if TYPE_CHECKING:
    from sriov_desk import Looking


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looking]:
    """Makes backends on a machine, and ends what they began. Trees change at once: nothing is waited for."""
    monkeypatch.setattr("devhost_sriov.settling.QUIET", 0.0)
    from sriov_desk import lookers  # only now can it be found

    with lookers() as make:
        yield make
