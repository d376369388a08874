"""What all tests share: the marker ``slow`` by path, a line for each reason not to run, a state directory."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

sys.path.append(str(ROOT / "tests"))  # for what test modules of several directories share

SLOW = (
    "plugins/udev/tests/test_udev_examples.py",
    "tests/breakages/",
    "tests/chart/",
    "tests/page/test_page_browser.py",
    "tests/test_bench.py",
    "tests/test_docs_picture.py",
    "tests/test_docs_sessions.py",
    "tests/test_first_steps.py",
    "tests/test_tutorial.py",
)
"""What ``make test`` leaves to ``make test-all``: rendering of the chart, quoted output, and whole processes.

Single tests, modules and parameters elsewhere have the marker themselves.
"""

WORKERS_PER_CORE = 3
WORKERS_LIMIT = 24
"""Most tests wait for other threads and processes, so more workers than cores are faster."""


def pytest_xdist_auto_num_workers() -> int:
    """What ``-n auto`` means."""
    cores = len(os.sched_getaffinity(0))
    return max(cores, min(WORKERS_PER_CORE * cores, WORKERS_LIMIT))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(ROOT).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {count} {'test' if count == 1 else 'tests'}: {reason}")


@pytest.fixture(autouse=True, scope="session")
def _state_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process that a test starts leaves a copy of its configuration outside the test.

    Processes inherit it; ``/var/lib/devhost`` and a home directory are the node's and the user's.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVHOST_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield
