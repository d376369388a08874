"""A real Prometheus for the duration of a test."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from addresses import free_address

PROMETHEUS = shutil.which("prometheus")

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed (apt install prometheus)"
)

PATIENCE = 90.0
"""Seconds until something has come about."""

Ask = Callable[[str], list[dict[str, Any]]]


def until(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"not within {PATIENCE:.0f} s: {what}")


@contextmanager
def scraping(home: Path, jobs: Sequence[dict[str, Any]], rules: Sequence[Path] = ()) -> Iterator[Ask]:
    """A Prometheus with these jobs and rules; yields a function for queries."""
    listen = free_address()
    settings = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    document = {"global": settings, "rule_files": [str(file) for file in rules], "scrape_configs": jobs}
    config = home / "prometheus.yml"
    config.write_text(json.dumps(document))
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={home / 'data'}"]
    command.append(f"--web.listen-address={listen}")

    def ask(expression: str) -> list[dict[str, Any]]:
        url = f"http://{listen}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=240) as answer:
            document = json.load(answer)
        assert document["status"] == "success", expression
        found: list[dict[str, Any]] = document["data"]["result"]
        return found

    with (home / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield ask
        finally:
            process.kill()
