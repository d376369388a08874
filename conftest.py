"""What all tests share: what ``make test`` leaves out, a line for each reason not to run, a state path."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent

for shared in (
    "tests",
    "tools",
):  # what test modules of several directories share, and the programs they test
    sys.path.append(str(ROOT / shared))

CHECKS = (
    "tests/test_docs.py",
    "tests/test_imports.py",
    "tests/test_references.py",
    "tests/test_repository.py",
    "tests/test_tests.py",
    "tests/test_ways.py",
    "tests/test_wording.py",
)
"""The form of code and pages: ``make check`` runs these."""

SLOW = (
    "plugins/udev/tests/test_udev_examples.py",
    "tests/breakages/",
    "tests/chart/",
    "tests/cli/test_descriptors.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_discover.py",
    "tests/cli/test_hostile_text.py",
    "tests/cli/test_missing_packages.py",
    "tests/cli/test_paths.py",
    "tests/cli/test_record.py",
    "tests/cli/test_release.py",
    "tests/cli/test_run.py",
    "tests/cli/test_run_page.py",
    "tests/cli/test_run_signals.py",
    "tests/cli/test_running.py",
    "tests/cli/test_status_refused.py",
    "tests/cli/test_streams.py",
    "tests/conformance/test_conformance_page.py",
    "tests/conformance/test_conformance_process.py",
    "tests/gpu/test_gpu_parts.py",
    "tests/image/test_image_commands.py",
    "tests/image/test_image_tool.py",
    "tests/monitoring/test_alerts.py",
    "tests/monitoring/test_real_prometheus.py",
    "tests/page/test_page_browser.py",
    "tests/soak/",
    "tests/systemd/test_run_notify.py",
    "tests/test_bench.py",
    "tests/test_docs_picture.py",
    "tests/test_docs_sessions.py",
    "tests/test_first_steps.py",
    *CHECKS,
    "tests/test_tutorial.py",
    "packages/testing/tests/test_contract_page.py",
    "packages/testing/tests/test_kubelet_command.py",
)
"""What ``make test`` leaves to ``make test-all``: rendering of the chart, quoted output, and whole processes.

Single tests, modules and parameters elsewhere have the marker themselves.
"""

WAITING = (
    "tests/cli/test_run_node_condition.py",
    "tests/dra/test_dra_bounds.py",
    "tests/host/test_host_bounds.py",
)
"""Single tests here wait for ten seconds. Each worker does some early, or one of them ends a run alone."""

SEEDS = 2
"""So many values of a parameter that is a random seed are for ``make test``; all others are slow."""
SEED_PARAMETERS = ("seed", "part", "batch")

EXAMPLES = 15
EXAMPLES_ALL = 100
"""Of each property that hypothesis tries in ``make test``, and in ``make test-all``."""

SLOW_PROMISES = (
    "test_no_other_damage_makes_discover_fail",
    "test_no_other_later_damage_makes_probe_fail",
)
"""Of the contract of backends: ``make test`` tries a sample of the same cases."""

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""This process, if it is one of several: ``gw0``, …"""

WORKERS_PER_CORE = 3
WORKERS_LIMIT = 24
"""Most tests wait for other threads and processes, so more workers than cores are faster."""


@pytest.hookimpl(optionalhook=True)  # some places run a few tests without xdist
def pytest_xdist_auto_num_workers() -> int:
    """What ``-n auto`` means."""
    cores = len(os.sched_getaffinity(0))
    return max(cores, min(WORKERS_PER_CORE * cores, WORKERS_LIMIT))


def _name(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def quick(config: pytest.Config) -> bool:
    """Whether slow tests are left out."""
    return bool(config.option.markexpr == "not slow")


PLACE = "dh-"
"""The beginning of the names of directories for the temporary files of one run."""

KEPT = 86400.0
"""Seconds that the directory of a failed run is kept."""


MEMORY = "/dev/shm"
"""A file system in memory, where making a file takes a tenth of the time; tests make a million."""

MEMORY_LEAST = 2 << 30
"""Bytes that must be free there; only files of running and failed tests are kept."""


def short_place() -> Path:
    """A new directory for temporary files, whose path has the same length for every user and run.

    pytest's own has the login and a number in its path. A socket's path has at most 107 bytes, of which tests
    and sockets need all others.
    """
    directory = tempfile.gettempdir()
    if _is_usable_memory():
        directory = MEMORY
    elif len(os.fsencode(directory)) > len("/tmp") and os.access("/tmp", os.W_OK | os.X_OK):
        directory = "/tmp"
    for old in Path(directory).glob(f"{PLACE}????????"):
        with suppress(OSError):
            found = old.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > KEPT:
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PLACE, dir=directory))


def _is_usable_memory() -> bool:
    """Whether tests can do there what they do in ``/tmp``: run programs, and open device nodes as root."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    is_limited = found.f_flag & (os.ST_NOEXEC | os.ST_NODEV | os.ST_RDONLY)
    has_room = found.f_bavail * found.f_frsize >= MEMORY_LEAST
    return not is_limited and has_room and os.access(MEMORY, os.W_OK | os.X_OK)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None:
        config.option.basetemp = str(short_place() / "t")
    elif WORKER:  # xdist's own name of it, popen-gw0, has the eight bytes that sockets need
        config.option.basetemp = str(Path(config.option.basetemp).with_name(WORKER[2:]))
    try:
        import hypothesis
    except ImportError:  # the guest of the virtual machine has none, and no test that needs it
        return
    # before the modules make settings of their own; a busy machine is no failure, and each run tries the same
    for name, examples in (("quick", EXAMPLES), ("all", EXAMPLES_ALL)):
        hypothesis.settings.register_profile(
            name,
            max_examples=examples,
            derandomize=True,
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )
    hypothesis.settings.load_profile("quick" if quick(config) else "all")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # not importing them saves each worker a second
    left_out = quick(config) and _name(collection_path).startswith(SLOW)
    return True if left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives as long as the process, so no search for garbage looks at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Each worker begins to import at another place, so that it compiles only a part, and reads the rest."""
    report = yield
    if WORKER and isinstance(collector, pytest.Session | pytest.Directory):
        start = int(WORKER[2:]) * len(report.result) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = [*report.result[start:], *report.result[:start]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WORKER:  # all workers need the same order
        items.sort(key=lambda item: str(item.path))
    tried: dict[str, list[object]] = {}
    for item in items:
        if item.nodeid.startswith(SLOW) or item.name in SLOW_PROMISES or _is_later_seed(item, tried):
            item.add_marker(pytest.mark.slow)
    if WORKER:
        items[:] = _dealt(items, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def _is_later_seed(item: pytest.Item, tried: dict[str, list[object]]) -> bool:
    """Whether enough seeds of the same test came before this one, with any values of other parameters.

    ``callspec.indices`` counts the combinations of all parameters instead.
    """
    params = item.callspec.params if hasattr(item, "callspec") else {}
    for name in SEED_PARAMETERS:
        if name in params:
            seeds = tried.setdefault(f"{item.nodeid.partition('[')[0]} {name}", [])
            if params[name] not in seeds:
                seeds.append(params[name])
            if seeds.index(params[name]) >= SEEDS:
                return True
    return False


def _dealt(items: list[pytest.Item], workers: int) -> Iterator[pytest.Item]:
    """In the order of equal parts, of which each worker gets one.

    The first worker begins with its share of what waits, the others come to theirs one after another: a core
    has nothing to do while all of them wait.
    """
    waiting = [item for item in items if item.nodeid.startswith(WAITING)]
    rest = [item for item in items if not item.nodeid.startswith(WAITING)]
    for worker in range(workers):
        start, end = (place * len(rest) // workers for place in (worker, worker + 1))
        turn = start + worker * (end - start) // (2 * workers)
        yield from rest[start:turn]
        yield from waiting[worker::workers]
        yield from rest[turn:end]


def pytest_runtest_logstart() -> None:
    """SIGTERM ends a run as Ctrl-C does: fixtures end what they started, and results are shown.

    Workers of xdist otherwise ignore SIGINT, which they also receive when xdist itself is gone. This precedes
    each test, because asyncio restores the default action when it removes a handler.
    """
    for number in (signal.SIGTERM, signal.SIGINT) if WORKER else (signal.SIGTERM,):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    # timeout and make send SIGTERM several times; the later ones must not interrupt the fixtures
    for each in (signal.SIGTERM, number):
        signal.signal(each, lambda number, frame: None)
    raise KeyboardInterrupt


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    try:
        yield
    except Exception:
        if exitstatus != pytest.ExitCode.INTERRUPTED:
            raise
        traceback.print_exc()  # what fixtures need was terminated as well; results are still shown
    place = Path(session.config.option.basetemp).parent
    if exitstatus == pytest.ExitCode.OK and place.name.startswith(PLACE):
        shutil.rmtree(place, ignore_errors=True)


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


CAPABILITIES_VERSION = 0x20080522
DAC_OVERRIDE, DAC_READ_SEARCH = 1 << 1, 1 << 2
SET_SECUREBITS = 28
NOROOT, NO_SETUID_FIXUP = 1 << 0, 1 << 2


class _Capabilities(ctypes.Structure):
    """``struct __user_cap_data_struct``; the kernel wants two of them."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@pytest.fixture
def ordinary_rights() -> Iterator[None]:
    """File permissions apply to this thread, and to the threads and processes it starts, also for root."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (_Capabilities * 2)()
    if libc.capget(header, data):
        pytest.skip(f"capabilities cannot be read: {os.strerror(ctypes.get_errno())}")
    before = data[0].effective
    # access(2) uses the effective set instead of the permitted one, and exec(2) adds nothing to it
    if libc.prctl(SET_SECUREBITS, NOROOT | NO_SETUID_FIXUP, 0, 0, 0):
        pytest.skip(f"capabilities cannot be dropped: {os.strerror(ctypes.get_errno())}")
    data[0].effective = before & ~(DAC_OVERRIDE | DAC_READ_SEARCH)
    dropped = libc.capset(header, data) == 0
    try:
        assert dropped
        yield
    finally:
        data[0].effective = before
        assert libc.capset(header, data) == 0
        assert libc.prctl(SET_SECUREBITS, 0, 0, 0, 0) == 0
