"""Which tests of a run have ended, and how, for the run that goes on after QEMU has crashed."""

from __future__ import annotations

from pathlib import Path

import pytest

PASSED, FAILED = "passed", "failed"


class Record:
    """A plugin of pytest: runs no test that has ended, records each that ends, and prints a failure at once.

    Args:
        file: a line for each test that has ended: ``passed`` or ``failed``, a blank, its id.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        ended = set(read(self._file))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in ended])
        items[:] = [item for item in items if item.nodeid not in ended]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
            print(f"\n{report.nodeid} failed in its {report.when}:\n{report.longreprtext}", flush=True)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome = FAILED if nodeid in self._failed else PASSED
        with self._file.open("a") as file:
            print(outcome, nodeid, file=file)


def read(file: Path) -> dict[str, str]:
    """The outcome of each test that has ended, by its id; none without the file."""
    if not file.exists():
        return {}
    lines = (line.partition(" ") for line in file.read_text().splitlines())
    return {nodeid: outcome for outcome, _, nodeid in lines}
