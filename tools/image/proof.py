"""Tests an image in a container like that of the DaemonSet."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import checkout
from running import Failed, run

from . import machine
from .archive import Archive
from .telling import say

RUNNING = 10
"""Seconds that devhost runs."""

LIMIT = 120.0
"""The time limit of each program in seconds; a fast machine needs one second."""

LOOK = """\
import json, os, pathlib, socket, sys
import grpc, h11, markupsafe, pynvml, pyroute2, pyudev, pyverbs.device, yaml


def must(condition, text):  # the image's Python omits assert statements
    if not condition:
        sys.exit(text)


status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
must(os.getuid() == os.geteuid() == 0, "not root")
must(int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, "capabilities")
must(int(status["NoNewPrivs"]) == 1, "it could gain privileges")
must([name for _, name in socket.if_nameindex()] == ["lo"], "a network")
must(not sys.executable.startswith("/usr"), "not the environment's own Python")
for directory in ("/", "/opt/devhost", "/tmp", "/var/lib", "/etc/devhost", "/host/tmp"):
    try:
        pathlib.Path(directory, "written").touch()
    except OSError as error:
        must(error.errno == 30, f"{directory}: {error}")
    else:
        sys.exit(f"{directory} can be written")
pyudev.Context()
for module in (grpc, h11, json, markupsafe, pyudev, yaml):
    must(pathlib.Path(module.__cached__).exists(), f"{module.__name__} was not compiled beforehand")
print(f"Python {sys.version.split()[0]}, pyverbs from {pathlib.Path(pyverbs.__file__).parent}")
"""
"""Runs in the container: checks its restrictions and all imports of the backends."""


class Container:
    """Runs programs of an unpacked image, each in separate namespaces."""

    def __init__(self, root: Path, archive: Archive) -> None:
        self._root = root
        self._entry = list(archive.config["Entrypoint"])
        self._environment = dict(entry.split("=", 1) for entry in archive.config["Env"])

    def devhost(self, *arguments: str) -> str:
        """The output of the image's entry point.

        Raises:
            Failed: it failed, or took too long.
        """
        return self.run(*self._entry, *arguments)

    def run(self, *command: str) -> str:
        """The output of any program of the image."""
        cell, config = Path(__file__).with_name("cell.py"), checkout.ROOT / "config"
        start = [sys.executable, cell, self._root, config, self._environment["PATH"]]
        outer = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        inside = ["unshare", *machine.NAMESPACES, *start, *command]
        return run(inside, limit=LIMIT, environment=outer | self._environment)


def prove(root: Path, archive: Archive) -> None:
    """Tests the image and reports the results.

    Raises:
        Failed: a test failed.
    """
    container = Container(root, archive)
    version = container.devhost("--version").strip()
    if version != f"devhost, version {checkout.version()}":
        raise Failed(f"devhost --version prints {version!r}")
    say(version)
    say(container.run("python3", "-c", LOOK).strip())
    say(f"backends: {', '.join(_backends(container))}; none refused")
    container.devhost("check", "/etc/devhost/devhost.yaml")
    say("devhost check: the default configuration is valid")
    container.devhost("discover", "--root=/host", "--config=/etc/devhost/devhost.yaml")
    say("devhost discover: it scanned this machine's devices through /host")
    said = container.run(
        "sh", "-c", f"timeout --foreground --preserve-status {RUNNING} devhost run --root=/host 2>&1"
    )
    if "kubelet.sock is absent: waiting for the kubelet" not in said or "stopping" not in said:
        raise Failed(f"devhost run did not serve until it was stopped: {said}")
    say("devhost run: it waits for a kubelet and can be stopped")
    for command in ("import", "demo", "kubelet"):
        said = container.run("sh", "-c", f"devhost {command} 2>&1 || true")
        if "is not installed: it is in the package" not in said:
            raise Failed(f"devhost {command} prints {said!r}")


def _backends(container: Container) -> list[str]:
    """Every backend's name.

    Raises:
        Failed: a package in plugins/ has no backend, or a plugin was refused.
    """
    plugins = json.loads(container.devhost("plugins", "--output=json"))
    names = sorted(backend["name"] for backend in plugins["backends"])
    wanted = [directory.name for directory in checkout.plugins()]
    if names != wanted or plugins["refused"]:
        raise Failed(
            f"the image has the backends {names} and refuses {plugins['refused']}; expected: {wanted}"
        )
    return names
