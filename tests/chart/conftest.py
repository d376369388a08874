"""The programs that read the manifests; what needs one that is not there skips with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import programs
from rendering import Chart, Types


def _found(name: str) -> Path:
    try:
        return programs.find(name)
    except programs.Missing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def helm() -> Path:
    return _found("helm")


@pytest.fixture(scope="session")
def kustomize() -> Path:
    return _found("kustomize")


@pytest.fixture(scope="session")
def types() -> Types:
    """What knows Kubernetes' own types."""
    return Types(_found("kubetypes"))


@pytest.fixture(scope="session")
def chart(helm: Path) -> Chart:
    return Chart(helm)
