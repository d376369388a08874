"""A toy drop-in backend in a separate directory, and the devhost program that uses it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from kit import process
from kit.command import DEVHOST, completed
from kit.drop_in import drop_in
from kit.files import replace
from program import devhost

sys.path.append(str(Path(__file__).parent))  # for what several test modules share

TOY = drop_in('''
class Toy(Backend):
    """Devices as the file "devices" beside this one lists them, one id a line."""

    name = "toy"
    attributes = {"model": Attribute(str, "model", "x100"), "serial": Attribute(str, "serial", "s1")}

    def discover(self):
        for line in (self.context.root / "toys").read_text().split():
            name, _, model = line.partition("=")
            health = {"health": unhealthy("it is broken")} if name == "broken" else {}
            claims = frozenset({"node:/dev/toys/" + name})
            whole = frozenset({"node:/dev/toys/" + model[3:]} if model.startswith("of-") else ())
            attributes = {"model": model, "serial": "s-" + name}
            yield Device(id=name, attributes=attributes, claims=claims, part_of=whole, **health)

    def allocate(self, request):
        return Edits(nodes=(DeviceNode("/dev/null"),))
''')


class Toys:
    """A configuration, its drop-in backend, and the tree with the list of toys."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.config = directory / "devhost.yaml"
        (directory / "backends").mkdir()
        (directory / "backends" / "toy.py").write_text(TOY)
        self.plug("one=x100", "two=x200")
        self.write("name: example.com/toy, backend: toy")

    def plug(self, *toys: str) -> None:
        """Sets the list of existing toys, each as ``id=model``; the model ``of-one`` is a part of ``one``."""
        replace(self.root / "toys", "\n".join(toys))

    def write(self, *resources: str) -> None:
        """Writes the configuration with these resources, each in YAML's flow style."""
        lines = "".join(f"  - {{{resource}}}\n" for resource in resources)
        replace(self.config, f"version: 1\nbackendPaths: [backends]\nresources:\n{lines}")

    def devhost(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with this configuration and this tree, and waits for its end."""
        return self.call(*arguments, "--config", str(self.config), "--root", str(self.root))

    def running(
        self, kubelet: Path, *options: object, **more: Any
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """``devhost run`` with this configuration and this tree: see ``kit.process``."""
        return process.running(self.config, self.root, kubelet, *options, **more)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with nothing else, and waits for its end."""
        if arguments[0] != "run":
            return devhost(*arguments)
        return completed(*DEVHOST, *arguments)  # it logs to descriptor 2


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    return Toys(tmp_path)


@pytest.fixture
def no_installed_plugins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the installed plugins behind empty packages of the same names, earlier on the path.

    Also in processes that the test starts.
    """
    site = tmp_path_factory.mktemp("site")
    for point in importlib.metadata.entry_points(group="devhost"):
        if point.dist is not None:
            (site / f"{point.dist.name.replace('-', '_')}-0.dist-info").mkdir(exist_ok=True)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
