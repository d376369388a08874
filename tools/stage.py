"""A node for the plays of the documentation: a machine of plain files, a simulated kubelet and a devhost.

Kubelet and devhost are separate processes, so a page quotes what a user's terminal shows. Only paths differ:
those in a temporary directory are replaced by those on a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

PATIENCE = 60.0
"""Seconds to wait for anything; a busy machine takes long."""


NOT_AS_ROOT = "; a devhost that runs as root answers only root"
"""The part of a hint that only users other than root see; pages quote the hint for root."""


class Stage:
    """A node in an empty directory.

    Pages show ``config`` as ``/etc/devhost/devhost.yaml``, the machine ``tree`` as ``/host``, and
    ``kubelet_dir`` as ``/var/lib/kubelet/device-plugins``, unless ``shown`` has other paths. With ``at_home``
    the commands of the page use ``/`` as the tree.
    """

    def __init__(self, place: Path, shown: Sequence[tuple[str, str]] = (), *, at_home: bool = False) -> None:
        self.place = place
        self.tree = Tree(place / "host")
        self.kubelet_dir = place / "node" / "device-plugins"
        self.config = place / "etc" / "devhost.yaml"
        self._at_home = at_home
        self.files: dict[str, str] = {}
        self._runtime = place / "run"
        self._shown = [
            *shown,
            (str(self.kubelet_dir), "/var/lib/kubelet/device-plugins"),
            (str(self.kubelet_dir.parent), "/var/lib/kubelet"),
            (str(self.config.parent), "/etc/devhost"),
            (str(self._runtime), "/run/devhost"),
            (str(self.tree.root), "/host"),
        ]
        self._kubelet: subprocess.Popen[str] | None = None
        self._host: subprocess.Popen[bytes] | None = None
        self._said = place / "kubelet.log"
        self._read = 0
        for directory in (self.config.parent, self._runtime, self.kubelet_dir.parent):
            directory.mkdir(parents=True, mode=0o700)
        self.tree.root.mkdir(exist_ok=True)

    def usb_serial(self, name: str, product: str = "7523", serial: str = "A10B") -> None:
        """Plugs a USB serial adapter of vendor 1a86 into a free port."""
        number = int(name.removeprefix("ttyUSB"))
        port = f"pci0000:00/0000:00:14.0/usb1/1-{number + 1}"
        self.tree.pci("pci0000:00/0000:00:14.0", driver="xhci_hcd")
        facts = {"idVendor": "1a86", "idProduct": product, "devpath": str(number + 1), "serial": serial}
        node, minor = f"bus/usb/001/{number + 2:03}", f"189:{number + 1}"
        self.tree.device(port, "usb", node, minor, facts, DEVTYPE="usb_device", DRIVER="usb")
        place = f"{port}/1-{number + 1}:1.0"
        self.tree.device(place, "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface")
        self.tree.device(f"{place}/{name}", "usb-serial", DRIVER="ch341-uart")
        self.tree.device(f"{place}/{name}/tty/{name}", "tty", name, f"188:{number}")

    def configure(self, text: str) -> None:
        """Replaces the configuration in one step, like an editor."""
        new = self.config.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.config)

    def start_kubelet(self) -> None:
        """Starts a simulated kubelet, which answers when this returns."""
        with self._said.open("a", encoding="utf-8") as said:
            self._kubelet = subprocess.Popen(
                [sys.executable, "-m", "devhost", "kubelet", "--dir", str(self.kubelet_dir)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.hear("started")

    def type(self, line: str, until: str) -> None:
        """Sends a command to the kubelet, and waits for a line of its answer that contains ``until``."""
        assert self._kubelet is not None
        assert self._kubelet.stdin is not None
        begin = len(self._said.read_text(encoding="utf-8"))
        self._kubelet.stdin.write(f"{line}\n")
        self._kubelet.stdin.flush()
        self.hear(until, begin)

    def hear(self, words: str, begin: int | None = None) -> None:
        """Waits until the kubelet has printed something since the last :meth:`printed`."""
        start = self._read if begin is None else begin
        self._until(
            lambda: words in self._said.read_text(encoding="utf-8")[start:], f"the kubelet's {words!r}"
        )

    def printed(self) -> str:
        """The output of the kubelet's terminal since the last call, without calls of podresources."""
        text = self._said.read_text(encoding="utf-8")
        new, self._read = text[self._read :], len(text)
        return "".join(line for line in new.splitlines(keepends=True) if " pods-listed " not in line)

    def serve(self, *arguments: str) -> None:
        """Starts a devhost on this node, which serves its status when this returns."""
        command = ["run", f"--config={self.config}", f"--kubelet-dir={self.kubelet_dir}"]
        command += [f"--root={self.tree.root}", "--listen=127.0.0.1:0"]
        log = self.place / "devhost.log"
        with log.open("wb") as written:
            self._host = subprocess.Popen(
                [sys.executable, "-m", "devhost", *command, *arguments],
                stdout=written,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )
        self._until(lambda: self.document() is not None, "devhost")

    def reload(self) -> None:
        """Makes devhost reload its file and scan everything."""
        assert self._host is not None
        self._host.send_signal(signal.SIGHUP)

    def document(self) -> dict[str, Any] | None:
        """The status document; ``None`` while devhost does not answer."""
        done = self._run(["status", "--output", "json"])
        return dict(json.loads(done.stdout)) if done.returncode == 0 else None

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Waits until the status fulfils a condition."""
        self._until(lambda: (now := self.document()) is not None and holds(now), what)

    def registered(self, resource: str, healthy: int) -> None:
        """Waits until the kubelet has this number of healthy devices of a resource."""

        def holds(document: dict[str, Any]) -> bool:
            return any(
                one["name"] == resource and one["state"] == "registered" and one["allocatable"] == healthy
                for one in document["resources"]
            )

        self.until(holds, f"{healthy} of {resource}")

    def output(self, command: str) -> str:
        """The output of a command of a page, on both streams, with the paths of a node.

        A command may end in ``| head -N`` and ``| tail -N``.
        """
        command, *filters = command.split(" | ")
        words = shlex.split(command)
        if words[0] == "curl":
            return self.shown(self._fetch(words[-1]))
        assert words[0] == "devhost", command
        words = [self._real(word) for word in words[1:]]
        if self._at_home and words[0] in ("discover", "explain"):
            words += ["--root", str(self.tree.root)]
        done = self._run(words)
        text = self.shown(done.stdout + done.stderr)
        for kind, number in (one.split(" -") for one in filters):
            lines = text.splitlines(keepends=True)
            text = "".join(lines[: int(number)] if kind == "head" else lines[-int(number) :])
        return text

    def shown(self, text: str) -> str:
        """A text with the paths of a node; a table that contains them is aligned again."""
        parts = re.split(r"(\n\n)", text.replace(NOT_AS_ROOT, ""))
        return re.sub(r"pid \d+", "pid 4711", "".join(map(self._paragraph, parts)))

    def _paragraph(self, text: str) -> str:
        headers, *rows = text.splitlines() or [""]
        if not headers.startswith("PROBLEM "):
            return self._renamed(text)
        starts = [found.start() for found in re.finditer(r"\S+( \S+)*", headers)]
        ends = [*starts[1:], None]
        table = [
            [self._renamed(line[start:end].rstrip()) for start, end in zip(starts, ends, strict=True)]
            for line in (headers, *rows)
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        ]
        return "\n".join(line.rstrip() for line in lines) + "\n" * text.endswith("\n")

    def _renamed(self, text: str) -> str:
        for real, name in self._shown:
            text = text.replace(real, name)
        return text

    def close(self) -> None:
        """Ends both processes."""
        for process in (self._host, self._kubelet):
            if process is not None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def _real(self, word: str) -> str:
        for real, name in self._shown:
            if word == name or word.startswith(f"{name}/"):
                return real + word[len(name) :]
        return word

    def _fetch(self, address: str) -> str:
        path = address.partition("/")[2]
        log = (self.place / "devhost.log").read_text(encoding="utf-8")
        found = re.search(r"127\.0\.0\.1:(\d+)", log)
        assert found is not None, log
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/{path}", timeout=PATIENCE) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "devhost", *words],
            capture_output=True,
            text=True,
            env=self._environment(),
            timeout=PATIENCE,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        own = {"DEVHOST_RUNTIME_DIR": str(self._runtime), "DEVHOST_STATE_DIR": str(self.place / "state")}
        return os.environ | own | {"COLUMNS": "200"}

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                log = self.place / "devhost.log"
                raise TimeoutError(f"no {what}\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.05)
