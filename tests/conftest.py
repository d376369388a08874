"""What all tests share: no devhost that a test starts leaves a copy of its configuration outside the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for what test modules of several directories share


@pytest.fixture(autouse=True, scope="session")
def _state_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes inherit it; ``/var/lib/devhost`` and a home directory are the node's and the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVHOST_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield
