"""Fixtures of the breakages: a whole node, and ``devhost`` as an operator runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from kit.command import DEVHOST, completed

sys.path.append(str(Path(__file__).parent))  # for what several test modules share

from reading_node import RESOURCE, ReadingNode

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ReadingNode]:
    """A node on which nothing is wrong."""
    async with ReadingNode(tmp_path) as made:
        await made.kubelet.wait_for(lambda: made.kubelet.allocatable() == {RESOURCE: 3})
        await made.until(lambda: made.get("/readyz") == (200, "ok\n"))
        assert made.document()["problems"] == []
        yield made


@pytest.fixture
def devhost(tmp_path: Path) -> Command:
    """Runs a command to its end, in an empty directory."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment}
        return completed(*DEVHOST, *arguments, cwd=tmp_path, env=env)

    return run
