"""A run of the tests that is terminated ends its fixtures, and continuous integration what takes too long."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.waiting import until

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
    raise RuntimeError("the server was terminated as well")

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
async def test_a_run_that_is_terminated_ends_its_fixtures(tmp_path, workers, number):
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


CUT = """\
shift 2
"$@"
exit 124
"""
"""A ``timeout`` that ends each command at its limit."""

PART = """\
minutes_left() { echo 10; }
part "$1" 1 "$2" printf '%b' "$3" >&2 || true
echo "failed=${failed[*]} skipped=${skipped[*]}"
"""

PASSED = "tests/test_a.py::test_one PASSED [ 50%]\\ntests/test_a.py::test_two "
FAILED = "tests/test_a.py::test_one FAILED [ 50%]\\ntests/test_a.py::test_two "
DOTS = "......F...."
SUMMARY = "FAILED tests/test_a.py::test_one - AssertionError\\n==== 1 failed, 10 passed in 60s ===="
SHORT, FULL = "30", "5"
"""Limits in minutes: more and less than the ten that are left."""


@pytest.mark.parametrize(
    ("name", "limit", "printed", "failed"),
    [
        pytest.param("e2e", FULL, PASSED, False, id="tests passed"),
        pytest.param("tests", FULL, "......\\n6 passed in 60s", False, id="dots and a summary"),
        pytest.param("e2e", FULL, FAILED, True, id="a test failed"),
        pytest.param("tests", FULL, f"{DOTS}\\n{SUMMARY}", True, id="dots and a summary of failures"),
        pytest.param("e2e", SHORT, FAILED, True, id="a test failed in less than the limit"),
        pytest.param("vm", FULL, "vm: booting", True, id="no test within the limit"),
        pytest.param("vm", SHORT, "vm: booting", False, id="no test in less than the limit"),
        pytest.param("making the image", FULL, "image: building", False, id="making something"),
    ],
)
def test_a_part_ended_at_its_limit_is_skipped_unless_a_test_failed_or_it_hangs(
    tmp_path, name, limit, printed, failed
):
    functions, _, _ = (ROOT / ".ci" / "run").read_text().partition("\ntools/packages all")
    script, timeout = tmp_path / ".ci" / "run", tmp_path / "bin" / "timeout"
    for file, text in ((script, f"{functions}\n{PART}"), (timeout, f"#!/bin/sh\n{CUT}")):
        file.parent.mkdir()
        file.write_text(text)
        file.chmod(0o755)
    done = subprocess.run(
        ["bash", script, name, limit, printed],
        env={**os.environ, "PATH": f"{timeout.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    verdict = f"failed={name} skipped=" if failed else f"failed= skipped={name} (the rest of it)"
    assert done.stdout.splitlines()[-1] == verdict
