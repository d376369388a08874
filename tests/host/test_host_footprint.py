"""Missing hardware costs nothing: the modules that a running devhost imports, and its threads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.http import get
from kit.waiting import wait_until

WAIT = 60.0
"""Seconds in which a condition must come true, also on a busy machine."""

BACKENDS = ("udev", "gpu", "rdma", "sriov", "fpga", "neuron")

HEAVY = {
    "_ssl",
    "asyncio.sslproto",
    "calendar",
    "decimal",
    "difflib",
    "email.message",
    "html.entities",
    "http.client",
    "http.server",
    "importlib.metadata",
    "ipaddress",
    "jsonschema",
    "locale",
    "prometheus_client",
    "pynvml",
    "pyroute2",
    "pyverbs",
    "shutil",
    "tempfile",
    "tokenize",
    "urllib.request",
    "zipfile",
}
"""Modules of 0.1 MB and more that a node without the hardware has no use for."""


class Running:
    """A ``devhost run`` as the DaemonSet starts it, on a machine without any device."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    @property
    def imported(self) -> set[str]:
        """The modules imported so far, from ``-X importtime``."""
        return set(re.findall(r"^import time: .*\| +(\S+)$", self.log, re.MULTILINE))

    def has_looked(self, backends: tuple[str, ...]) -> bool:
        """Whether each of these backends has scanned."""
        wait_until(lambda: " address=" in self.log)
        _, text = get(self.log.partition(" address=")[2].split()[0], "/metrics")
        return all(
            re.search(rf'^devhost_discovery_seconds_count\{{backend="{name}"\}} [1-9]', text, re.MULTILINE)
            for name in backends
        )


@contextmanager
def devhost(directory: Path, backends: tuple[str, ...]) -> Iterator[Running]:
    for name in ("root/sys", "root/dev", "kubelet"):
        (directory / name).mkdir(parents=True)
    entries = "".join(f"  - {{name: example.com/{name}, backend: {name}}}\n" for name in backends)
    entries = entries.replace("backend: udev", "backend: udev, where: {subsystem: misc}")
    (directory / "devhost.yaml").write_text(f"version: 1\nresources:\n{entries}")
    command = [
        *(sys.executable, "-X", "importtime", "-m", "devhost", "run", "--listen", "127.0.0.1:0"),
        *("--config", f"{directory}/devhost.yaml", "--kubelet-dir", f"{directory}/kubelet"),
        *("--root", f"{directory}/root", "--status-socket", f"{directory}/s.sock"),
        *("--state-dir", f"{directory}/state"),
    ]
    log = directory / "log"
    with log.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        try:
            yield Running(process.pid, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT)


@pytest.mark.slow
def test_all_backends_without_hardware_import_no_heavy_library(tmp_path: Path) -> None:
    """Other projects run one plugin for each kind of hardware; one devhost has the code for all kinds."""
    with devhost(tmp_path, BACKENDS) as running:
        wait_until(lambda: running.has_looked(BACKENDS))
        imported = running.imported
    assert {"devhost.host.host", "devhost_sriov.network", "devhost.telemetry.exposition"} <= imported
    assert imported & HEAVY == set()


@pytest.mark.slow
def test_all_backends_without_hardware_keep_at_most_one_thread_more_than_udev(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("n")  # a socket's path has at most 107 bytes
    with devhost(place / "one", ("udev",)) as alone, devhost(place / "all", BACKENDS) as every:
        wait_until(lambda: alone.has_looked(("udev",)))
        wait_until(lambda: every.has_looked(BACKENDS))
        wait_until(lambda: every.threads <= alone.threads + 1)


VERDICTS = {f"devhost.discovery.{name}" for name in ("named", "verdicts")}


def test_the_code_for_verdicts_is_imported_once_there_are_any(tmp_path: Path) -> None:
    with devhost(tmp_path, ("udev",)) as running:
        wait_until(lambda: running.has_looked(("udev",)))
        assert "devhost.discovery.verdict_follower" in running.imported
        assert running.imported & VERDICTS == set()
        (tmp_path / "state/verdicts").mkdir(parents=True)
        wait_until(lambda: running.imported >= VERDICTS)
