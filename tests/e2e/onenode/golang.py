"""Compiles programs from their Go modules, on a machine that may lack Go, a network or memory."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from .fetching import Unavailable, Unreachable, run

MEMORY_OF_A_COMPILER = 1 << 20
"""Kilobytes; the largest package takes about that."""

NETWORK = re.compile(
    r"dial (tcp|udp)|no such host|connection (refused|reset)|i/o timeout|TLS handshake|\bEOF\b"
    r"|(network|host) is unreachable|no route to host|server misbehaving|proxyconnect|Client\.Timeout"
    r"|\b(403|408|429|50\d) [A-Z]"
)
"""Go's messages about failed downloads."""

MACHINE = re.compile(
    r"requires go >= \S+|toolchain not available|GOPROXY=off|signal: killed|no space left on device"
    r"|cannot allocate memory"
)
"""Go's messages about a lack of memory or disk space, or about too old a Go."""


class CannotBuild(Exception):
    """Why a program does not compile; one line."""


def compilers() -> int:
    """How many compilers can run at once in the free memory."""
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    assert available, "since Linux 3.14"
    room = int(available[1]) // MEMORY_OF_A_COMPILER
    return max(1, min(len(os.sched_getaffinity(0)), room))


def go(
    directory: Path, limit: float, *arguments: str, progress: Callable[[str], str] = lambda _: "fetching"
) -> str:
    """Runs Go; returns its output.

    Raises:
        Unreachable: a download failed.
        Unavailable: the machine lacks memory or disk space, or it took too long.
        CannotBuild: it failed for another reason.
    """
    name = f"go {' '.join(arguments[: 1 + (arguments[0] == 'mod')])}"
    environment = {"HOME": str(Path.home()), **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    try:
        done = run(
            ["nice", "go", *arguments],
            directory=directory,
            environment=environment,
            limit=limit,
            progress=progress,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} took longer than {limit:.0f} s") from None
    if done.returncode:
        log = directory / "failure.log"
        log.write_text(done.stdout + done.stderr)
        raise _error(name, done.stdout + done.stderr, log)
    return done.stdout


def _error(name: str, output: str, log: Path) -> Exception:
    lines = output.strip().splitlines() or ["no reason was given"]
    for kind, pattern in ((Unavailable, MACHINE), (Unreachable, NETWORK)):
        if telling := [line.strip('\t ",') for line in lines if pattern.search(line)]:
            said = telling[-1].removeprefix('Error": "')  # go mod download -json
            return kind(f"{name}: {said}")
    return CannotBuild(f"{name}: {lines[-1].strip()} (see {log})")
