"""A node: the kubelet simulator, and ``devhost run`` as a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from devhost_testing.kubelet import Allocation, KubeletSimulator, events

from devhost.backend.model import Device
from devhost.cli.scan_once import scan_once
from devhost.config.loader import load
from devhost.telemetry import ask

from .waiting import LIMIT, until

STOP_LIMIT = 120.0

WITHOUT_PYVERBS = "raise ModuleNotFoundError(\"No module named 'pyverbs'\", name='pyverbs')\n"


class Node:
    """A context in which a kubelet runs; ``serve`` starts devhost. At its end both have ended without errors.

    Args:
        directory: for the configuration, the log and the kubelet's sockets.
        tells: whether the kubelet reports who holds what. If not, pods keep what they got.
    """

    def __init__(self, directory: Path, *, tells: bool = False) -> None:
        self._directory = directory
        self.config = directory / "devhost.yaml"
        self.log = directory / "devhost.log"
        pod_resources = directory / "pod-resources" if tells else None
        self.kubelet = KubeletSimulator(directory / "kubelet", pod_resources=pod_resources)
        self._environment = dict(os.environ)
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Node:
        await self.kubelet.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = await self.stop()
        await self.kubelet.stop()
        assert error is not None or code == 0, f"devhost ended with {code}: {self.said()}"

    def hide_pyverbs(self) -> None:
        """Makes devhost not find pyverbs, as on a machine without it."""
        hidden = self._directory / "hidden"
        hidden.mkdir()
        # A directory on the path before Debian's own. That a module is there and cannot be imported is what a
        # broken installation looks like, too.
        (hidden / "pyverbs.py").write_text(WITHOUT_PYVERBS)
        self._environment["PYTHONPATH"] = f"{hidden}:{self._environment['PYTHONPATH']}"

    async def serve(self, *resources: Mapping[str, Any], backends: Mapping[str, Any] | None = None) -> None:
        """Writes a configuration and starts devhost, or lets the running one reload it.

        Args:
            resources: as in the configuration; each must offer something, or have ``whenEmpty: register``.

        Raises:
            TimeoutError: not all of them were registered with the kubelet.
        """
        self.write(*resources, backends=backends)
        if self._process is None:
            self._start()
        wanted = {str(resource["name"]) for resource in resources}
        await until(
            f"the kubelet knows {wanted}",
            lambda: wanted <= self._listed() or self._ended(),
            seen=lambda: f"{self._listed()}, {self.said()}",
        )
        assert not self._ended(), self.said()

    def _start(self) -> None:
        command = [sys.executable, "-m", "devhost", "run", "--config", str(self.config)]
        command += ["--kubelet-dir", str(self.kubelet.directory), "--log-level", "debug"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def write(self, *resources: Mapping[str, Any], backends: Mapping[str, Any] | None = None) -> None:
        """Writes the configuration; JSON is YAML too."""
        document = {"version": 1, "backends": backends or {}, "resources": resources}
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1))
        new.replace(self.config)

    async def stop(self) -> int:
        """Ends devhost by SIGTERM; returns its exit code, 0 if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(process.wait, STOP_LIMIT)
        finally:
            process.kill()
            process.wait()

    @property
    def pid(self) -> int:
        """Of devhost."""
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """devhost's log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def complaints(self) -> list[str]:
        """Lines of its log that nothing in the test explains: no unhealthy, missing or slow devices."""
        lines = self.said().splitlines()
        bad = [line for line in lines if any(word in line for word in (" WARNING ", " ERROR ", "Traceback"))]
        usual = (
            " devhost.host.shown.device_log ",
            " devhost.host.shown.shortages ",
            " devhost.runtime.watchdog ",
            "did not return within",
        )
        return [line for line in bad if not any(words in line for words in usual)]

    async def shows(self, resource: str, *, healthy: int, total: int | None = None) -> None:
        """Waits until the kubelet has a list with this many devices, by default all of them healthy.

        Raises:
            TimeoutError: it has not.
        """
        wanted = (healthy, healthy if total is None else total)
        await until(
            f"{resource} has {wanted[0]} of {wanted[1]} devices healthy",
            lambda: self._counts(resource) == wanted,
            seen=lambda: f"{self._counts(resource)}, {self.said()[-4000:]}",
        )

    async def device(self, resource: str, token: str) -> Mapping[str, Any]:
        """The entry of a token in devhost's status.

        Raises:
            KeyError: there is none.
        """
        for one in (await self.status())["resources"]:
            for device in one["devices"]:
                if (one["name"], device["id"]) == (resource, token):
                    found: Mapping[str, Any] = device
                    return found
        raise KeyError(token)

    async def released(self, pod: str, resource: str, token: str) -> None:
        """Ends the pod that holds this, and waits until devhost knows it; ``resource`` must be configured.

        Raises:
            TimeoutError: devhost did not notice who held it, or that it was released.
        """
        # first the name: a pod that was never named may still be about to start, and keeps what it got
        await self.known(resource, token)
        self.kubelet.release(pod)
        await self._until_device(resource, token, lambda device: not device["allocated"])

    async def known(self, resource: str, token: str) -> None:
        """Waits until the kubelet has reported to devhost which pod has this.

        Raises:
            TimeoutError: it has not.
        """
        await self._until_device(resource, token, lambda device: device["holder"] is not None)

    async def _until_device(
        self, resource: str, token: str, condition: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        end = time.monotonic() + LIMIT
        while not condition(device := await self.device(resource, token)):
            if time.monotonic() > end:
                raise TimeoutError(f"{resource}: {device}; {self.said()[-3000:]}")
            await asyncio.sleep(0.2)

    async def status(self) -> Mapping[str, Any]:
        """devhost's status document."""
        found: Mapping[str, Any] = (await ask.fetch(await ask.find(self.kubelet.directory))).json
        return found

    async def admit(self, pod: str, resource: str, count: int = 1) -> Allocation:
        """A pod that asks for devices; what its container gets."""
        return await self.kubelet.admit(pod, "main", resource, count)

    def lists(self, resource: str, since: int = 0) -> Sequence[events.ListReceived]:
        """The lists that the kubelet received from a position in its events on."""
        return [
            one
            for one in self.kubelet.events.of(events.ListReceived, since=since)
            if one.resource == resource
        ]

    async def look(self, root: Path = Path("/")) -> Mapping[str, Device]:
        """All devices that the configuration's backends find below ``root``, with all attributes, by id."""
        found = await scan_once(load(self.config), root, everything=True)
        return {device.id: device for _, device in found.devices()}

    def open_files(self) -> list[str]:
        """What devhost has open: paths, and sockets and the like as the kernel names them."""
        found = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except FileNotFoundError:
                continue  # it has been closed
        return sorted(found)

    def threads(self) -> int:
        """How many threads devhost has."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def _listed(self) -> set[str]:
        return set(self.kubelet.capacity())

    def _counts(self, resource: str) -> tuple[int, int]:
        return self.kubelet.allocatable().get(resource, 0), self.kubelet.capacity().get(resource, 0)

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None
