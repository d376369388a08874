"""A run of the tests that is terminated ends its fixtures, and so what they started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SETTINGS = """\
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
addopts = -p no:cacheprovider
"""

SUITE = """\
import asyncio, os, signal, time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.01)

@pytest.fixture(scope="session")
def server():
    yield
    (HERE / "ending").touch()
    wait("go on")
    (HERE / "ended").touch()

async def test_of_signals(server):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print)
    loop.remove_signal_handler(signal.SIGTERM)

def test_that_is_interrupted(server):
    (HERE / "process").write_text(str(os.getpid()))
    (HERE / "running").touch()
    wait("never")
"""


@pytest.mark.parametrize(
    ("workers", "number"),
    [
        pytest.param(0, signal.SIGTERM, id="terminated"),
        pytest.param(1, signal.SIGTERM, id="worker terminated", marks=pytest.mark.slow),
        pytest.param(1, signal.SIGINT, id="worker interrupted", marks=pytest.mark.slow),
    ],
)
async def test_a_run_that_is_terminated_ends_its_fixtures(until, tmp_path, workers, number):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", f"-n{workers}", f"--basetemp={tmp_path}/t"),
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await until((tmp_path / "running").exists)
        process = int((tmp_path / "process").read_text())
        os.kill(process, number)
        await until((tmp_path / "ending").exists)
        os.kill(process, number)  # timeout and make send it more than once
        (tmp_path / "go on").touch()
        printed, _ = await run.communicate()
    finally:
        if run.returncode is None:
            run.kill()
    assert (tmp_path / "ended").exists()
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert b"1 passed" in printed
