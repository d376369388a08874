"""Installs the wheels and their requirements in an environment outside the checkout, like a user."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import checkout
from running import Failed, run

from . import build
from .checks import Wheel

LIMIT = 600.0
COMMAND_LIMIT = 120.0


class Environment:
    """A virtual environment that uses only the wheels in some directories, without an index.

    An index could have a package of the same name, which would take precedence.
    """

    def __init__(self, directory: Path, wheels: Iterable[Path]) -> None:
        run(
            [sys.executable, "-m", "venv", directory],
            limit=LIMIT,
            environment=_plain(),
            directory=directory.parent,
        )
        self._directory = directory
        self._links = [f"--find-links={one}" for one in wheels]

    def install(self, *requirements: str) -> None:
        """Installs packages; raises ``Failed`` with the reason."""
        self.run("python", "-m", "pip", "install", "--quiet", "--no-index", *self._links, *requirements)

    def installed(self) -> dict[str, str]:
        """The versions of all installed packages of this project."""
        printed = self.run("python", "-m", "pip", "list", "--format=json")
        rows = json.loads(printed)
        return {row["name"]: row["version"] for row in rows if row["name"].startswith("devhost")}

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of the environment; raises ``Failed`` if it fails."""
        command = [str(self._directory / "bin" / program), *arguments]
        limit = LIMIT if program == "python" else COMMAND_LIMIT
        return run(command, limit=limit, environment=_plain(), directory=self._directory)


def fetch(python: Path, wheels: Path, into: Path) -> None:
    """Downloads the requirements of the wheels from the index, except packages of this project.

    Args:
        python: a Python with pip.

    Raises:
        Unavailable: the index does not answer.
    """
    wanted = set()
    for file in wheels.glob("*.whl"):
        for requirement in Wheel(file).requirements:
            if not requirement.startswith("devhost"):
                wanted.add(requirement.partition(";")[0].strip())
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # an extra of a plugin without wheels is provided by the Linux distribution
    wanted.discard("pyverbs")
    run([*pip, "download", "--only-binary", ":all:", f"--dest={into}", *sorted(wanted)], limit=LIMIT)


def everything(work: Path, wheels: Path, needed: Path) -> str:
    """Checks that ``pip install 'devhost[all]'`` installs a working devhost; returns its version line.

    Raises:
        Failed: it does not work.
    """
    version, kinds = checkout.version(), [plugin.name for plugin in checkout.plugins()]
    environment = Environment(work / "all", (wheels, needed))
    environment.install("devhost[all]")
    wanted = {"devhost": version} | {f"devhost-{one.name}": version for one in checkout.packages()}
    if environment.installed() != wanted:
        raise Failed(f"devhost[all] installs {environment.installed()}, not {wanted}")
    environment.run("python", "-m", "pip", "check")
    printed = environment.run("devhost", "--version").strip()
    if printed != f"devhost, version {version}":
        raise Failed(f"devhost --version prints {printed!r}")
    plugins = json.loads(environment.run("devhost", "plugins", "--output=json"))
    if sorted(backend["name"] for backend in plugins["backends"]) != kinds or plugins["refused"]:
        raise Failed(f"devhost plugins does not list {', '.join(kinds)}: {plugins}")
    environment.run("devhost", "check", str(checkout.ROOT / "config" / "devhost.yaml"))
    environment.run("devhost", "demo")
    return printed


def one_plugin(work: Path, wheels: Path, needed: Path) -> None:
    """Checks that a plugin alone installs exactly its host.

    Raises:
        Failed: it installs something else.
    """
    environment, version = Environment(work / "one", (wheels, needed)), checkout.version()
    environment.install("devhost-udev")
    if environment.installed() != {"devhost": version, "devhost-udev": version}:
        raise Failed(f"devhost-udev installs {environment.installed()}")


def other_version(python: Path, work: Path, wheels: Path, needed: Path) -> None:
    """Checks that pip refuses a plugin of another version.

    Raises:
        Failed: it is installed, or refused for another reason.
    """
    version, other, source = checkout.version(), f"{checkout.version()}.post1", work / "other-udev"
    shutil.copytree(checkout.ROOT / "plugins" / "udev", source, ignore=shutil.ignore_patterns("__pycache__"))
    project = source / "pyproject.toml"
    project.write_text(project.read_text(encoding="utf-8").replace(version, other), encoding="utf-8")
    build.build(python, source, work / "other", ("wheel",))
    environment = Environment(work / "refusing", (wheels, needed, work / "other"))
    try:
        environment.install(f"devhost=={version}", f"devhost-udev=={other}")
    except Failed as error:
        if "conflict" in str(error):
            return
        raise
    raise Failed(f"pip installed devhost-udev {other} with devhost {version}")


def _plain() -> dict[str, str]:
    """The environment without variables that refer to the checkout."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
