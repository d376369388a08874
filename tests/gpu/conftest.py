"""Runs on a machine with an NVIDIA GPU when ``make gpu`` asks for it; elsewhere everything here skips."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "vm"))

from lab.node import Node
from realgpu import smi
from realgpu.presence import SWITCH
from realgpu.results import Results

HERE = Path(__file__).parent
TIMEOUT = 300
"""Seconds for one test: a GPU without a persistent driver takes several to wake up, each time."""

RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU (make gpu)")
    config.stash[RESULTS] = Results()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    real = str(HERE / "test_real_gpu.py")
    for item in items:
        if str(item.path) == real:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(TIMEOUT))
            if os.environ.get(SWITCH) != "1":
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU (run make gpu)"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if not results.rows:
        return
    for word in ("skipped", "failed", "error"):
        for report in terminalreporter.stats.get(word, ()):
            why = f": {report.longrepr[2]}" if isinstance(report.longrepr, tuple) else ""
            results.say(report.nodeid.rpartition("::")[2].removeprefix("test_"), f"{word}{why}")
    terminalreporter.section("for docs/hardware.md")
    terminalreporter.write_line(f"{datetime.now(UTC):%Y-%m-%d}, Linux {os.uname().release}\n")
    for line in results.table():
        terminalreporter.write_line(line)


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Results:
    """The table."""
    return request.config.stash[RESULTS]


@pytest.fixture(scope="session")
def gpus() -> list[smi.Gpu]:
    """The GPUs that nvidia-smi reports."""
    return smi.gpus()


@pytest.fixture(scope="session")
def instances() -> set[str]:
    """The MIG instances, likewise."""
    return smi.instances()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A kubelet; ``node.serve(…)`` starts devhost. Both have ended after the test."""
    async with Node(tmp_path, tells=True) as node:
        yield node


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An empty directory."""
    place = tmp_path / "empty"
    place.mkdir()
    return place
