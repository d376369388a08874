"""The command line: arguments in, one call, a printed answer and an exit code out.

Import from here: ``main``, the entry point of the program.
May import: every package.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn

from devhost.missing import missing_package


def main() -> NoReturn:
    _open_standard_streams()
    code = 1
    try:
        if sys.argv[1:2] == ["run"]:
            code = _run()
        else:
            from devhost.telemetry.ending import own_streams

            from .program import call

            if sys.argv[1:2] not in (["kubelet"], ["demo"]):  # they end with their reader
                own_streams()
            code = call()
    except ImportError as error:
        if (missing := missing_package(error)) is None:
            sys.excepthook(type(error), error, error.__traceback__)
        else:
            sys.stderr.write(f"devhost: {missing[0]} ({missing[1]})\n")
            code = 3
    leave(code)


PATIENCE = 7.0
"""Seconds that a process waits at its end for threads that are not daemons: one of them waits, for up to 6 s,
until a child process has released a driver."""


def leave(code: int) -> NoReturn:
    """Ends the process without the shutdown of the interpreter.

    The interpreter waits without limit for some threads, and aborts if a daemon thread returns from C code
    or writes meanwhile. Backends and libraries have such threads.
    """
    until = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
    os._exit(code)


def _run() -> int:
    """Runs the daemon: what it prints, or a library in its process, never makes it wait for a reader."""
    from devhost.host import startup_signals

    startup_signals.hold()  # before anything that takes time is imported
    from .memory import collect_rarely, defer_rare_modules, import_without_libraries, use_one_heap

    collect_rarely()
    use_one_heap()
    defer_rare_modules()
    import_without_libraries()
    from devhost.runtime import log

    with log.unblocked():
        try:
            return _serve()
        except ImportError:
            raise
        except BaseException as error:  # noqa: BLE001 - shown while no reader can block it
            sys.excepthook(type(error), error, error.__traceback__)
            return 1


def _serve() -> int:
    from .serve import parsed, serve

    if (options := parsed(sys.argv[2:])) is None:
        from .program import call

        return call()
    from devhost.telemetry.ending import ended

    return ended(lambda: serve(**options))


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
