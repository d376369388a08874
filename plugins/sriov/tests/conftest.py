"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from devhost_sriov import Sriov
from devhost_testing.fixtures import BackendFixture

sys.path.append(str(Path(__file__).parent / "machines"))


@pytest.fixture
def looking() -> Iterator[BackendFixture[Sriov]]:
    """Makes backends on a machine, and ends what they began. Trees change at once: nothing is waited for."""
    from sriov_backend import Modelled

    with BackendFixture[Sriov](Modelled) as looking:
        yield looking
