"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from devhost_testing.fixtures import BackendFixture

sys.path.append(str(Path(__file__).parent / "machines"))

if TYPE_CHECKING:
    from devhost_fpga.backend import Fpga
    from fpga_backend import Faults


@pytest.fixture
def faults() -> Faults:
    """Errors of drivers, which plain files cannot have."""
    from fpga_backend import Faults

    return Faults()


@pytest.fixture
def looking(faults: Faults) -> Iterator[BackendFixture[Fpga]]:
    """Creates backends on a machine with these faults, and closes them."""
    from fpga_backend import reading

    with BackendFixture(reading(faults.sysfs)) as looking:
        yield looking
