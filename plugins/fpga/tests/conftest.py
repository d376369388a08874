"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from devhost_fpga.backend import Fpga

from devhost.testing.fixtures import BackendFixture

sys.path.append(str(Path(__file__).parent / "machines"))

if TYPE_CHECKING:
    from fpga_backend import Faults


@pytest.fixture
def looking() -> Iterator[BackendFixture[Fpga]]:
    """Makes backends on a machine, and ends what they began."""
    with BackendFixture(Fpga) as looking:
        yield looking


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Errors of drivers, which plain files cannot have."""
    from fpga_backend import Faults

    made = Faults()
    monkeypatch.setattr("devhost_fpga.model.os", made)
    return made
