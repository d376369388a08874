"""Plants each fault in a copy of the sources and looks whether its test notices: docs/development.md."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from planted import ROOT, DoesNotApply, Fault, faults
from supervisor import LATE

SUPERVISOR = Path(__file__).with_name("supervisor.py")

LIMIT = 300.0
"""Seconds for the test of one fault."""
HANGS, SLOWER = 15.0, 10.0
"""A test that waits for what a fault prevents has failed after this many seconds, and this many times as long
as without a fault on the same machine."""
LIMIT_UNCHANGED = 1800.0
"""Seconds for all tests together without a fault."""


class Copy:
    """The tracked files of the repository in a directory of its own, with which Python imports them."""

    def __init__(self, place: Path, source: Path, names: Sequence[str]) -> None:
        self.place = place
        self._source = source
        self._faults = 0
        for name in names:
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source == ROOT:
                shutil.copy2(source / name, target, follow_symlinks=False)
            else:
                os.link(source / name, target, follow_symlinks=False)
        environment = ROOT / ".venv"
        if environment.exists():
            (place / ".venv").symlink_to(environment)

    def run(self, *arguments: str, limit: float) -> subprocess.CompletedProcess[str]:
        """Runs Python with the copy's sources before those that are installed.

        The exit code is :data:`LATE` after ``limit`` seconds. What it started has ended, too.
        """
        sources = [self.place / "src", *sorted(self.place.glob("*/*/src"))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "PYTHONPYCACHEPREFIX": str(self.place / ".pycache"),
        }
        return subprocess.run(
            [sys.executable, SUPERVISOR, str(limit), sys.executable, *arguments],
            cwd=self.place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )

    def pytest(self, *arguments: str, limit: float) -> subprocess.CompletedProcess[str]:
        """Runs tests of the copy. Their files are not kept, although most tests fail."""
        options = ("-q", "-p", "no:cacheprovider", "-o", "tmp_path_retention_policy=none")
        return self.run("-m", "pytest", *options, *arguments, limit=limit)

    def plant(self, fault: Fault) -> None:
        """Puts a fault into the copy, in a new file: others have links to the old one."""
        file = self.place / fault.file
        text = fault.applied(file.read_text(encoding="utf-8"))
        file.unlink()
        file.write_text(text, encoding="utf-8")
        self._faults += 1
        os.utime(file, (0, 2_000_000_000 + self._faults))  # no bytecode of another fault fits

    def restore(self, fault: Fault) -> None:
        """Takes it out again."""
        file = self.place / fault.file
        file.unlink(missing_ok=True)
        os.link(self._source / fault.file, file)


def main() -> int:
    """Prints a line for each fault; the exit code is 1 unless every one is noticed."""
    parser = argparse.ArgumentParser(prog="make mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults with one of these words in area, file or test")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [
        fault
        for fault in faults()
        if not options.words or any(w in f"{fault.area} {fault.file} {fault.test}" for w in options.words)
    ]
    if not chosen:
        sys.exit(f"no fault has one of these words in area, file or test: {' '.join(options.words)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dh-mut-") as directory:
        wrong = _try_all(chosen, Path(directory), max(1, options.jobs))
    caught, seconds = len(chosen) - wrong, time.monotonic() - began
    print(f"{caught} of {len(chosen)} faults are noticed, in {seconds:.0f} s")
    return 1 if wrong else 0


def _try_all(chosen: Sequence[Fault], directory: Path, jobs: int) -> int:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)]
    base = Copy(directory / "base", ROOT, names)
    _check_imports(base)
    tests = sorted({fault.test for fault in chosen})
    unchanged = base.pytest("-n", str(jobs), "-vv", "--durations=0", *tests, limit=LIMIT_UNCHANGED)
    if unchanged.returncode:
        print(unchanged.stdout)
        print("these tests fail without any fault; their output is above")
        return len(chosen)
    usual = _durations(unchanged.stdout)
    free: SimpleQueue[Copy] = SimpleQueue()
    for number in range(jobs):
        free.put(Copy(directory / str(number), base.place, names))

    def attempt(fault: Fault) -> bool:
        copy = free.get()
        try:
            verdict = _verdict(copy, fault, HANGS + SLOWER * usual(fault.test))
        finally:
            free.put(copy)
        print(f"{verdict:<12} {fault}  ({fault.test})", flush=True)
        return verdict == "noticed"

    with ThreadPoolExecutor(jobs) as pool:
        return sum(not noticed for noticed in pool.map(attempt, chosen))


def _check_imports(copy: Copy) -> None:
    """Stops where an installed package would be tested instead of the copy."""
    packages = ["devhost", *(file.name for file in copy.place.glob("*/*/src/devhost_*"))]
    code = "import importlib, sys\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    found = copy.run("-c", code, *packages, limit=60)
    outside = [line for line in found.stdout.splitlines() if not Path(line).is_relative_to(copy.place)]
    if found.returncode or outside:
        sys.exit(f"Python does not import the copy in {copy.place}:\n{found.stdout}")


def _durations(report: str) -> Callable[[str], float]:
    """The seconds of each test, the longest where it has parameters, from what pytest prints of durations."""
    longest: dict[str, float] = {}
    for seconds, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(\S.*)$", report, re.MULTILINE):
        for name in {test, test.partition("[")[0]}:
            longest[name] = max(longest.get(name, 0.0), float(seconds))
    return lambda test: longest.get(test, 0.0)


def _verdict(copy: Copy, fault: Fault, hangs: float) -> str:
    try:
        copy.plant(fault)
    except (DoesNotApply, OSError) as error:
        return f"ERROR {error}"
    try:
        result = copy.pytest("-x", "-o", f"timeout={hangs:.1f}", fault.test, limit=LIMIT)
    finally:
        copy.restore(fault)
    known = {0: "NOT NOTICED", 1: "noticed", LATE: f"ERROR its test takes longer than {LIMIT:.0f} s"}
    return known.get(result.returncode, f"ERROR pytest ended with {result.returncode}")


if __name__ == "__main__":
    sys.exit(main())
