"""The guest's Python packages: wheels for its Python, chosen by what the project's own files ask for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import command
from .store import CannotMake, Part, Store, Unavailable

PYTHON = "3.13"
"""That of :data:`.root.SUITE`."""

PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
TESTING = re.compile(r"pytest(-asyncio|-timeout)?(?![\w-])")
"""Of the dependency group ``test``, those without which no test runs. In the guest each costs a second."""

OWN = re.compile(r"devhost(?![\w.])")
"""The project itself is not installed: the guest sees the working tree."""

LIMIT = 600.0


def packages(store: Store, project: Path) -> Part:
    """The installed packages, as a directory ``site``.

    Raises:
        CannotMake: a ``pyproject.toml`` cannot be read.
        Unavailable: pip cannot fetch a wheel.
    """
    wanted = sorted(set(requirements(project)))

    def make(directory: Path, log: Path) -> None:
        site = directory / "site"
        platforms = [f"--platform={platform}" for platform in PLATFORMS]
        command.run(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", site),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", *platforms),
            *wanted,
            log=log,
            limit=LIMIT,
            error=Unavailable,
        )
        command_line = [sys.executable, "-m", "pip", "list", "--format=freeze", "--path", str(site)]
        told = subprocess.run(command_line, capture_output=True, text=True, timeout=60, check=True).stdout
        (directory / "versions").write_text(told.replace("==", "\t"))

    return store.part("packages", make, Path(__file__), *wanted)


def requirements(project: Path) -> Iterator[str]:
    """What the host and every package in ``plugins/`` and ``packages/`` depend on, and what runs the tests.

    Raises:
        CannotMake: a ``pyproject.toml`` cannot be read.
    """
    for file in (project / "pyproject.toml", *sorted(project.glob("p*/*/pyproject.toml"))):
        try:
            content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
            depends = content["project"].get("dependencies", [])
        except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
            raise CannotMake(f"{file}: {error}") from None
        yield from (one for one in depends if not OWN.match(one))
        tests = content.get("dependency-groups", {}).get("test", [])
        yield from (one for one in tests if isinstance(one, str) and TESTING.match(one))
