"""The command line: arguments in, one call, a printed answer and an exit code out.

Import from here: ``main``, the entry point of the program.
May import: every package.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of the ``devhost`` program."""
    _open_standard_streams()
    if sys.argv[1:2] == ["run"]:
        _run()
    from .program import call

    call()


def _run() -> None:
    """Runs the daemon: what it or anybody in its process prints never makes it wait for a reader."""
    from devhost.host import startup_signals

    startup_signals.hold()  # before anything that takes time is imported
    from devhost.telemetry import log

    with log.unblocked():
        from .program import call

        try:
            call()
        except Exception:  # noqa: BLE001 - a bug: shown as the interpreter does, which would wait
            sys.excepthook(*sys.exc_info())
            sys.exit(1)


def _open_standard_streams() -> None:
    """Opens ``/dev/null`` for each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next socket would get that number, and output to standard error would go into the socket.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - they stay open
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
