"""The page on testing backends: it has every promise, and its examples do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from devhost.testing.contract import BackendContract

PAGE = Path(__file__).parents[2] / "docs/backends/testing.md"
PROMISES = [name for name in vars(BackendContract) if name.startswith("test_")]


def test_every_promise_is_in_the_documentation_with_its_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \S.* \|$", PAGE.read_text().partition("## What is promised")[2], re.M)
    assert [f"test_{row}" for row in rows] == PROMISES


def blocks(mark: str) -> list[tuple[str, str]]:
    """The page's examples: what stands after the mark, and the code."""
    return re.findall(rf"<!-- {mark}:? ?(\S*) ?-->\n```python\n(.*?)```", PAGE.read_text(), re.S)


def test_the_example_of_the_documentation_keeps_every_promise(tmp_path: Path) -> None:
    for name, code in blocks("file"):
        (tmp_path / name).write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    alone = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "."],
        cwd=tmp_path,
        env=alone | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert f"{len(PROMISES)} passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_trees_of_the_documentation_are_as_it_says(tmp_path: Path) -> None:
    ((_, code),) = blocks("run")
    exec(compile(code, str(PAGE), "exec"), {"root": tmp_path.resolve()})
