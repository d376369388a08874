"""The page on testing backends lists every contract test, and its examples work."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from devhost_testing.contract import BackendContract
from kit.command import completed

PAGE = Path(__file__).parents[3] / "docs/backends/testing.md"
PROMISES = [name for name in vars(BackendContract) if name.startswith("test_")]


def test_every_contract_test_is_documented() -> None:
    section = PAGE.read_text().partition("## What is promised")[2].partition("\n## ")[0]
    rows = re.findall(r"^- `(\w+)`: \S.*$", section, re.M)
    assert [f"test_{row}" for row in rows] == PROMISES


def blocks(mark: str) -> list[tuple[str, str]]:
    """The page's examples: the text after the mark, and the code."""
    return re.findall(rf"<!-- {mark}:? ?(\S*) ?-->\n```python\n(.*?)```", PAGE.read_text(), re.S)


def run(place: Path, ini: str, *arguments: str, path: str = "") -> str:
    """The output of pytest for the files in a directory, in a separate process.

    Args:
        path: a directory with programs for the tests.
    """
    (place / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}")
    alone = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    with tempfile.TemporaryDirectory() as own:  # not the directory that all runs of pytest share and clean up
        env = alone | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": f"{path}:{os.environ['PATH']}"}
        words = ("pytest", "-q", f"--basetemp={own}/run", *arguments, ".")
        ran = completed(sys.executable, "-m", *words, cwd=place, env=env)
    return ran.stdout + ran.stderr


def test_the_documented_example_passes_the_contract(tmp_path: Path) -> None:
    for name, code in blocks("file"):
        (tmp_path / name).write_text(code)
    printed = run(tmp_path, "")
    assert f"{len(PROMISES)} passed" in printed, printed


@pytest.mark.parametrize("mark", ["looking", "node"])
def test_the_other_documented_tests_pass_with_the_example(tmp_path: Path, mark: str) -> None:
    (backend,) = (code for name, code in blocks("file") if name == "mycard.py")
    (tmp_path / "mycard.py").write_text(backend)
    ((name, code),) = blocks(mark)
    (tmp_path / name).write_text(code)
    ini = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    printed = run(tmp_path, ini, "-p", "pytest_asyncio.plugin")
    assert "1 passed" in printed, printed


DRIVER = """\
#!{python}
import asyncio
import signal
import sys
from pathlib import Path

from devhost.allocation.claims import ClaimedDevice
from devhost.dra.server import DraServer
from devhost.planning.settings import DraOptions
from devhost.telemetry.metrics import Metrics


class Driver:
    async def prepare(self, claims):
        return {{one.uid: [self.device(one.uid)] for one in claims}}

    def device(self, uid):
        names = (f"gpu.example.com/claim={{uid}}",)
        return ClaimedDevice("gpu", "p", "gpu-0", "", ("gpu", "0"), "example.com/gpu", names)

    async def unprepare(self, claims):
        return {{one.uid: "" for one in claims}}

    def devices(self):
        return []

    def subscribe(self, callback):
        return lambda: None


async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    place = Path(sys.argv[1])
    options = DraOptions(place / "registry", place, "node-1")
    server = DraServer(Driver(), Driver(), "gpu.example.com", options, Metrics())
    await server.start()
    await stop.wait()
    await server.stop()


asyncio.run(main())
"""


def test_the_documented_test_of_a_driver_passes_with_one() -> None:
    ((name, code),) = blocks("driver")
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is too long for a socket
        place = Path(directory)
        (place / name).write_text(code)
        driver = place / "my-driver"
        driver.write_text(DRIVER.format(python=sys.executable))
        driver.chmod(0o755)
        ini = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        printed = run(place, ini, "-p", "pytest_asyncio.plugin", path=directory)
    assert "1 passed" in printed, printed


def test_the_documented_trees_are_correct(tmp_path: Path) -> None:
    ((_, code),) = blocks("run")
    exec(compile(code, str(PAGE), "exec"), {"root": tmp_path.resolve()})
