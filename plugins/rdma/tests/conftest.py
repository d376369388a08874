"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devhost_rdma import Rdma
from devhost_testing.fixtures import BackendFixture

sys.path.append(str(Path(__file__).parent / "machines"))


@pytest.fixture
def looking() -> Iterator[BackendFixture[Rdma]]:
    """Makes backends on a machine, and ends what they began."""
    with BackendFixture(Rdma) as looking:
        yield looking


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A node without hardware yet, and the commands on it."""
    from rdma_node import Node  # its directory is on the path only now

    return Node(tmp_path)
