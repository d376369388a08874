"""One run of the machine: boot, follow the output of the guest, end. Only files in ``run`` are left."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import hardware
from .command import BOUND
from .hypervisor import Hypervisor
from .image import Image

BOOT_LIMIT = 600.0
"""Seconds until the first output of the guest; an idle machine takes 15."""

SUITE_LIMIT = 3300.0
"""Seconds from there to the end of the tests."""

LEAVE_LIMIT = 30.0
"""Seconds to power off once the tests have ended."""

TAIL = 15
"""Lines of the console that a failed boot shows."""


class Failed(Exception):
    """The machine did not run its tests to their end; one line, and perhaps the end of the console."""


class Crashed(Failed):
    """QEMU itself went wrong, which says nothing about what ran in the machine.

    QEMU 10.0 dies of a signal in about one of fifteen boots of this machine: several of its threads translate
    addresses while a device's memory is moved (``iotlb_to_section: Assertion … failed``). More seldom the
    emulated processor resets, and QEMU ends as after any reset. A kernel that dies says so first.
    """


DYING = re.compile(r"Kernel panic|Oops|BUG:|Call Trace|Out of memory")
"""Messages of a kernel on the console when it kills a process or panics."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that can be run once at a time.

    Args:
        run: a directory for the files of one run, emptied before the next.
    """

    hypervisor: Hypervisor
    image: Image
    project: Path
    run: Path

    @property
    def console(self) -> Path:
        """What kernel, udev and backends printed."""
        return self.run / "console"

    @property
    def ended(self) -> Path:
        """Which tests of the last run have ended, and how (``lab/record.py``)."""
        return self.run / "out/ended"

    def tests(self, arguments: Sequence[str], ended: str = "") -> int:
        """Runs pytest in the guest, shows its output, and returns its exit status.

        Args:
            ended: what :attr:`ended` had after a run that crashed. These tests do not run again.

        Raises:
            Crashed: there is no exit status, because QEMU crashed.
            Failed: there is no exit status for another reason.
        """
        self._prepare()
        (self.run / "out/arguments").write_bytes(b"".join(one.encode() + b"\0" for one in arguments))
        self.ended.write_text(ended)
        report, log = self.run / "report", (self.run / "qemu.log")
        report.touch()
        with log.open("wb") as errors, self._qemu("-serial", "file:console", output=errors) as qemu:
            self._follow(qemu, report)
        try:
            return int((self.run / "out/status").read_text())
        except (OSError, ValueError):
            said = log.read_text(errors="replace").strip()
            reset = qemu.returncode == 0 and not DYING.search(self._spoken())
            kind = Crashed if qemu.returncode < 0 or reset else Failed
            raise kind(f"it ended without a result (QEMU: {qemu.returncode}{said and f', {said}'})") from None

    def shell(self) -> None:
        """Runs a shell on the guest's console, which is this terminal, until it is left."""
        self._prepare()
        with self._qemu("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console") as qemu:
            qemu.wait()

    def last_words(self) -> str:
        """The end of the console."""
        return "\n".join(self._spoken().splitlines()[-TAIL:])

    def _spoken(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def _prepare(self) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        (self.run / "out").mkdir(parents=True)

    @contextmanager
    def _qemu(self, *more: str, output: object = None) -> Iterator[subprocess.Popen[bytes]]:
        command = [*BOUND, *self.hypervisor.command]
        command += hardware.arguments(self.image, self.project, self.run / "out")
        stdin = None if output is None else subprocess.DEVNULL
        process = subprocess.Popen(
            [*command, *more],
            cwd=self.run,
            stdin=stdin,
            stdout=output,
            stderr=output,  # type: ignore[call-overload]
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _follow(self, qemu: subprocess.Popen[bytes], report: Path) -> None:
        """Shows the report as it grows, until QEMU ends."""
        deadline, due = time.monotonic() + BOOT_LIMIT, "up"
        status = self.run / "out/status"
        with report.open("rb") as lines:
            while True:
                ended = qemu.poll() is not None
                while said := lines.read(1 << 16):
                    if due == "up":
                        deadline, due = time.monotonic() + SUITE_LIMIT, "done with the tests"
                    sys.stdout.write(said.decode(errors="replace").replace("\r\n", "\n"))
                    sys.stdout.flush()
                if ended:
                    return
                if due == "done with the tests" and status.exists():
                    deadline, due = time.monotonic() + LEAVE_LIMIT, "off"
                if time.monotonic() > deadline:
                    if due == "off":  # the tests have ended, and that is what counts
                        return
                    raise Failed(f"it was not {due} in time")
                time.sleep(0.1)
