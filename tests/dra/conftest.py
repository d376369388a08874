"""What the tests of Dynamic Resource Allocation share."""

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from devhost_testing.dra import ApiServer
from kit import kube

sys.path.append(str(Path(__file__).parent))

connect, files, secure = kube.connect, kube.files, kube.secure


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for a node; ``tmp_path`` is too long for a socket."""
    # a thread of devhost may still write
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server that has the node ``n1``."""
    async with ApiServer() as server:
        server.node("n1")
        yield server
