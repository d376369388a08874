"""The kernel the tests run on: programs that talk to it, its files, and its complaints."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

RUN_LIMIT = 240.0
UDEVD = "/usr/lib/systemd/systemd-udevd"

COMPLAINT = re.compile(
    r"BUG:|Oops|WARNING: CPU|general protection|blocked for more than|refcount_t|Call Trace"
)
"""Messages of the kernel about a bug in it, rather than a problem with a device."""


KNOWN = re.compile(r"drm_mm_takedown")
"""In a report of virtio_gpu 6.12: it asks the device to free its picture, and warns of a leak where the
answer comes only after the device was removed."""


def serious(messages: Iterable[str]) -> list[str]:
    """The complaints among messages, without those of reports whose cause is known and the kernel's own."""
    reports: list[list[str]] = [[]]
    for message in messages:
        if "[ cut here ]" in message:
            reports.append([])
        reports[-1].append(message)
        if "[ end trace" in message:
            reports.append([])
    strange = (report for report in reports if not any(map(KNOWN.search, report)))
    return [message for report in strange for message in report if COMPLAINT.search(message)]


def run(*command: str) -> str:
    """Runs a program to its end; returns its output.

    Raises:
        AssertionError: it failed; the text has its output.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_LIMIT, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


def insist(*command: str, busy: Sequence[str]) -> str:
    """Runs a program again while it reports that something is busy; returns its output.

    Args:
        busy: the message for that, in lower case.

    Raises:
        AssertionError: it failed for another reason, or still reports that after :data:`RUN_LIMIT`.
    """
    until = time.monotonic() + RUN_LIMIT
    while True:
        try:
            return run(*command)
        except AssertionError as error:
            if time.monotonic() > until or not any(words in str(error).lower() for words in busy):
                raise
            time.sleep(0.05)


def unload(module: str) -> None:
    """Removes a module once it is not in use: a process may have used its device a moment ago.

    Raises:
        AssertionError: it cannot be removed, or is still in use after :data:`RUN_LIMIT`.
    """
    insist("modprobe", "--remove", module, busy=("in use", "temporarily unavailable"))


def text(path: str | Path) -> str:
    """A file of sysfs or procfs, without the white space around it; empty if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def settle() -> None:
    """Waits until udevd has worked through every event so far."""
    run("udevadm", "settle", "--timeout=180")


class Udevd:
    """The device daemon of the machine, which a test may take away for a while."""

    def stop(self) -> None:
        """Ends it; nodes still come and go, which devtmpfs does, but rules and links do not."""
        run("udevadm", "control", "--exit", "--timeout=180")

    def start(self) -> None:
        """Starts it and lets it see everything there is."""
        run(UDEVD, "--daemon")
        run("udevadm", "trigger", "--action=add")
        settle()

    def restart(self) -> None:
        self.stop()
        self.start()


class Messages:
    """The kernel's messages from a moment on."""

    def __init__(self) -> None:
        self._messages = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._messages, 0, os.SEEK_END)

    def complaints(self) -> list[str]:
        """Those since the last call, or since the beginning, that no healthy kernel has."""
        return serious(self._new())

    def close(self) -> None:
        os.close(self._messages)

    def _new(self) -> Iterator[str]:
        while True:
            try:
                record = os.read(self._messages, 8192)
            except OSError as error:
                if (
                    error.errno == errno.EPIPE
                ):  # older ones were overwritten; the next read goes on after them
                    continue
                if error.errno == errno.EAGAIN:
                    return
                raise
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]
