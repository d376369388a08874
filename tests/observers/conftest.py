"""The drop-ins of examples/observers; ``trail`` is a module beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trail import Trail


@pytest.fixture
def trail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trail:
    return Trail(tmp_path, monkeypatch)
