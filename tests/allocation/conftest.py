"""The rig that tests of allocators have, and what they share is on the path."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.allocator import Supply

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Supply]:
    """A resource whose devices a, b and c have their nodes; its list is empty."""
    made = Supply(tmp_path)
    made.make("abc")
    yield made
    made.runner.close()
