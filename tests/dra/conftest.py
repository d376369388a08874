"""What the tests of Dynamic Resource Allocation share."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from devhost_testing.dra import ApiServer

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server that has the node ``n1``."""
    async with ApiServer() as server:
        server.node("n1")
        yield server
