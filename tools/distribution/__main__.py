"""Makes ``dist/``: wheels and source archives of the host and of every plugin, checked, installed and tested.

    PYTHONPATH=tools python -m distribution

The exit code is 77 if the package index cannot be reached, and 1 after an error.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import checkout
from running import UNAVAILABLE, Failed, Unavailable, leave_on_sigterm

from . import smoke
from .build import backend, build, distributions, rebuild, write_sums
from .checks import complaints


def say(text: str) -> None:
    """Prints a line of progress."""
    sys.stdout.write(f"dist: {text}\n")
    sys.stdout.flush()


def packages() -> dict[str, Path]:
    """The source package of each distribution; the host is the first."""
    found = {"devhost": checkout.ROOT / "src" / "devhost"}
    for package in checkout.packages():
        found[f"devhost-{package.name}"] = package / "src" / f"devhost_{package.name}"
    return found


def make(work: Path) -> None:
    """Builds into a new directory, which replaces ``dist`` on success."""
    python, new = backend(checkout.ROOT / "build"), work / "dist"
    for directory in (checkout.ROOT, *checkout.packages()):
        build(python, directory, new)
    if found := list(complaints(new, packages(), checkout.version())):
        raise Failed("\n".join(found))
    write_sums(new)
    version = checkout.version()
    say(
        f"{len(distributions(new))} files of version {version}: name, licence, types, content and pins "
        f"are correct"
    )
    rebuild(python, new, work)
    say("rebuilt from the source archives: identical")

    needed = work / "needed"
    smoke.fetch(python, new, needed)
    version_line = smoke.everything(work, new, needed)
    say(f"pip install 'devhost[all]': {version_line}; every backend is installed, check and demo work")
    smoke.one_plugin(work, new, needed)
    say("pip install devhost-udev: installs exactly its host")
    smoke.other_version(python, work, new, needed)
    say("a plugin of another version: refused by pip")

    target, beside = checkout.ROOT / "dist", checkout.ROOT / "build" / "dist"
    shutil.rmtree(beside, ignore_errors=True)
    # this is a copy if the work directory is on another disk; an interrupted copy must not remain
    shutil.move(new, beside)
    shutil.rmtree(target, ignore_errors=True)
    beside.rename(target)


def main() -> int:
    """The exit code."""
    leave_on_sigterm()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="devhost-dist-") as work:
            make(Path(work))
    except Unavailable as error:
        say(f"skipped: the package index cannot be reached: {error}")
        return UNAVAILABLE
    except Failed as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    for file in distributions(checkout.ROOT / "dist"):
        say(f"dist/{file.name} {file.stat().st_size / 1000:.0f} kB")
    say(f"done after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
