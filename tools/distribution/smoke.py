"""A stranger's machine: an environment outside the checkout, with the wheels and what they need."""

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
    """A virtual environment that knows the wheels in some directories, and no index.

    An index could have a package of the same name, and would be asked first.
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
        """Installs, or says why not: ``Failed``."""
        self.run("python", "-m", "pip", "install", "--quiet", "--no-index", *self._links, *requirements)

    def installed(self) -> dict[str, str]:
        """Versions of everything of ours that is installed."""
        printed = self.run("python", "-m", "pip", "list", "--format=json")
        rows = json.loads(printed)
        return {row["name"]: row["version"] for row in rows if row["name"].startswith("devhost")}

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints; ``Failed`` where it fails."""
        command = [str(self._directory / "bin" / program), *arguments]
        limit = LIMIT if program == "python" else COMMAND_LIMIT
        return run(command, limit=limit, environment=_plain(), directory=self._directory)


def fetch(python: Path, wheels: Path, into: Path) -> None:
    """Gets what the wheels need from the index; none of ours is looked for there.

    Args:
        python: one that has pip.

    Raises:
        Unavailable: the index does not answer.
    """
    wanted = set()
    for file in wheels.glob("*.whl"):
        for requirement in Wheel(file).requirements:
            if not requirement.startswith("devhost"):
                wanted.add(requirement.partition(";")[0].strip())
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # a plugin's extra that only has sources is a matter of the distribution
    wanted.discard("pyverbs")
    run([*pip, "download", "--only-binary", ":all:", f"--dest={into}", *sorted(wanted)], limit=LIMIT)


def everything(work: Path, wheels: Path, needed: Path) -> str:
    """``pip install 'devhost[all]'`` gives a devhost that works; returns what ``devhost --version`` says.

    Raises:
        Failed: it does not.
    """
    version, kinds = checkout.version(), [plugin.name for plugin in checkout.plugins()]
    environment = Environment(work / "all", (wheels, needed))
    environment.install("devhost[all]")
    wanted = {"devhost": version} | {f"devhost-{kind}": version for kind in kinds}
    if environment.installed() != wanted:
        raise Failed(f"devhost[all] installs {environment.installed()}, and not {wanted}")
    environment.run("python", "-m", "pip", "check")
    said = environment.run("devhost", "--version").strip()
    if said != f"devhost, version {version}":
        raise Failed(f"devhost --version says {said!r}")
    plugins = json.loads(environment.run("devhost", "plugins", "--output=json"))
    if sorted(backend["name"] for backend in plugins["backends"]) != kinds or plugins["refused"]:
        raise Failed(f"devhost plugins does not show {', '.join(kinds)}: {plugins}")
    environment.run("devhost", "check", str(checkout.ROOT / "config" / "devhost.yaml"))
    environment.run("devhost", "demo")
    return said


def one_plugin(work: Path, wheels: Path, needed: Path) -> None:
    """A plugin alone brings exactly its host.

    Raises:
        Failed: it does not.
    """
    environment, version = Environment(work / "one", (wheels, needed)), checkout.version()
    environment.install("devhost-udev")
    if environment.installed() != {"devhost": version, "devhost-udev": version}:
        raise Failed(f"devhost-udev installs {environment.installed()}")


def other_version(python: Path, work: Path, wheels: Path, needed: Path) -> None:
    """A plugin of another version is refused by pip.

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
    raise Failed(f"pip installed devhost-udev {other} beside devhost {version}")


def _plain() -> dict[str, str]:
    """The environment without what would bring the checkout along."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
