"""Threads where the process may have no further one."""

from __future__ import annotations

import sys
import threading

import pytest
from kit.command import completed

from devhost.backend.threads import elsewhere

WITHOUT_MEMORY = """
import resource
from devhost.backend.threads import NoThread, start

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), used + (1 << 20)))  # a stack takes 8 MiB
try:
    start("extra", print)
except NoThread as error:
    print(error)
"""


def test_a_thread_that_cannot_be_started_is_one_line() -> None:
    done = completed(sys.executable, "-c", WITHOUT_MEMORY)
    assert done.stdout.startswith("the process cannot start another thread (raise its limit of memory")
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_a_thread_does_not_keep_the_process_from_ending() -> None:
    code = "import threading\nfrom devhost.backend.threads import start\nstart('x', threading.Event().wait)"
    assert completed(sys.executable, "-c", code).returncode == 0


async def test_a_computation_runs_on_a_thread_and_its_error_is_the_callers() -> None:
    assert await elsewhere(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await elsewhere(lambda: 1 // 0)
