"""``make vm``: makes what is missing, boots the machine once, runs the tests in it, and ends as they do.

python -m machine [--shell] [pytest's arguments]
python -m machine --make                           only makes what is missing

The exit code is pytest's, 1 if it did not come to that, and 77 where this computer or its network cannot give
what a machine needs.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from lab.record import FAILED

from . import debian
from .boot import Crashed, Failed, Machine
from .hypervisor import Hypervisor, hypervisor
from .image import image
from .modules import modules
from .packages import packages
from .root import root
from .store import CannotMake, Part, Store, Unavailable, alone, cache

PROJECT = Path(__file__).resolve().parents[3]
TESTS = "tests/vm/guest"
UNAVAILABLE = 77
"""The exit code that test drivers since Automake's take for "skipped"."""

BOOTS = 3
"""How often QEMU may be started for one run."""

SHOWN = ("udev", "iproute2", "rdma-core", "python3-pyverbs", "python3.13")
"""Of several hundred Debian packages, those whose version explains most."""


def say(text: str) -> None:
    """One line about what happens."""
    print(f"vm: {text}", flush=True)


def main(arguments: list[str]) -> int:
    if os.geteuid() != 0:
        return refuse("skipped, the machine is made and run by root", UNAVAILABLE)
    if reason := debian.why_not():
        return refuse(f"skipped, no machine can be made here: {reason}", UNAVAILABLE)
    shell = arguments[:1] == ["--shell"]
    if shell and not sys.stdin.isatty():
        return refuse("a shell needs a terminal")
    try:
        with alone():
            machine = make()
            if arguments[:1] == ["--make"]:
                return 0
            if shell:
                machine.shell()
                return 0
            return test(machine, arguments or [TESTS])
    except Unavailable as error:
        return refuse(f"skipped, a part cannot be had here: {error}", UNAVAILABLE)
    except CannotMake as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        return refuse("interrupted")


def make() -> Machine:
    """A machine, of the parts in the cache or of new ones."""
    store = Store(cache(), say)
    tools = hypervisor(store)
    system = root(store, tools)
    extra = modules(store, tools, system)
    python = packages(store, PROJECT)
    whole = image(store, system, extra, python)
    tell(tools, system, extra, python)
    return Machine(tools, whole, PROJECT, cache() / "run")


def tell(tools: Hypervisor, system: Part, extra: Part, python: Part) -> None:
    """Prints which versions there are."""
    packages = system.versions
    lines = {
        "QEMU": tools.version(),
        "kernel": (system.path / "kernel").read_text().split()[1],
        "Debian": ", ".join(f"{name} {packages[name]}" for name in SHOWN),
        "Python packages": ", ".join(f"{name} {version}" for name, version in python.versions.items()),
    }
    for name, versions in lines.items():
        print(f"  {name:<16} {versions}")
    count = sum(len(part.versions) for part in (tools.part, system, extra))
    print(f"  {'everything':<16} {count} Debian packages: {cache()}/*/versions", flush=True)


def test(machine: Machine, arguments: list[str]) -> int:
    """Boots the machine, runs the tests, and prints the result."""
    began = time.monotonic()
    try:
        status = attempt(machine, ["-p", "no:cacheprovider", "--color=no", "--durations=5", *arguments])
    except Failed as error:
        print(machine.last_words())
        say(f"FAILED: {error}; console: {machine.console}")
        return 1
    took = f"{time.monotonic() - began:.0f} s with the boot"
    if status:
        say(f"FAILED with {status} after {took}; console: {machine.console}")
    else:
        say(f"passed after {took}")
    return status


def attempt(machine: Machine, arguments: list[str]) -> int:
    """Boots and tests, and where QEMU died of itself boots again for the rest; pytest's exit status.

    Raises:
        Failed: the machine did not run its tests to their end.
    """
    ended = ""
    for left in reversed(range(BOOTS)):
        say("booting, in software")
        try:
            status = machine.tests(arguments, ended)
        except Crashed as error:
            if not left:
                raise
            ended = machine.ended.read_text()
            say(f"{error}; once more, for the tests that have not ended")
            continue
        return overall(status, ended)
    raise AssertionError("the last attempt returns or raises")


def overall(status: int, ended: str) -> int:
    """The exit status for a run whose earlier boots ended these tests."""
    if any(line.startswith(FAILED) for line in ended.splitlines()):
        return int(pytest.ExitCode.TESTS_FAILED)
    nothing_left = ended and status == pytest.ExitCode.NO_TESTS_COLLECTED
    return 0 if nothing_left else status


def refuse(reason: str, code: int = 1) -> int:
    """Prints in one line why there is no machine."""
    print(f"vm: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
