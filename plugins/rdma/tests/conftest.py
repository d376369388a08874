"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from devhost_rdma import Rdma

from devhost.testing.fixtures import Looking

sys.path.append(str(Path(__file__).parent / "machines"))


@pytest.fixture
def looking() -> Iterator[Looking[Rdma]]:
    """Makes backends on a machine, and ends what they began."""
    with Looking(Rdma) as looking:
        yield looking
