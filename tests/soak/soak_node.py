"""A node to be disturbed: a kubelet, a host, the backends' worlds, a configuration file and pods."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devhost_testing.kubelet import (
    ContainerStartError,
    Gate,
    KubeletSimulator,
    Profile,
    UnexpectedAdmissionError,
)
from devhost_testing.kubelet import events as ev
from soak_toys import BACKENDS, Toy, backend

from devhost import config
from devhost.backend.errors import ConfigError, DevhostError
from devhost.config.loader import Loaded
from devhost.discovery.catalog import Catalog, Installed
from devhost.host.host import Host
from devhost.host.service import ResourceService
from devhost.planning.settings import Settings
from devhost.planning.timing import NODE, Timing

END = 60.0
"""Seconds within which a host has to end."""


@dataclass(slots=True)
class Tally:
    """What was done over many nodes: steps, disturbances by kind, quiet periods, findings."""

    steps: int = 0
    quiet: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Node:
    """One node's life. What cannot go on for ever (a pod, a flood) is in ``loose`` until it ends."""

    def __init__(self, profile: Profile, tally: Tally, first_config: str, timing: Timing = NODE) -> None:
        self.tally = tally
        self.timing = timing
        self.directory = Path(tempfile.mkdtemp(prefix="dh"))
        self.nodes = self.directory / "dev"
        self.nodes.mkdir()
        self.toys = {name: Toy(self.nodes) for name in BACKENDS}
        self.config = self.directory / "devhost.yaml"
        self.kubelet = KubeletSimulator(
            self.directory / "device-plugins", profile, dial_timeout=0.5, seed=0, keep_events=4000
        )
        self.kubelet.events.listen(self._heard)
        self.host: Host | None = None
        self.trace: list[str] = [f"kubelet {profile}"]
        self.complaints: list[str] = []
        self.lines: deque[str] = deque(maxlen=60)
        self.candidates: list[Settings] = []
        self.held: dict[tuple[str, str], ResourceService] = {}
        self.loose: set[asyncio.Task[None]] = set()
        self.gates: list[Gate] = []
        self.good_config = first_config
        self._loop = asyncio.get_running_loop()
        self._kinds = {name: backend(name, toy) for name, toy in self.toys.items()}
        self._serving: dict[str, ResourceService | None] = {}
        self._task: asyncio.Task[None] | None = None
        self._pods = 0
        self._listener = _Listener(self)
        self.write(first_config)

    def __enter__(self) -> Node:
        self._loop.set_exception_handler(self._unhandled)
        self._listener.listen()
        return self

    def note(self, kind: str, text: str = "") -> None:
        """Takes down a step."""
        self.tally.steps += 1
        self.tally.kinds[kind] += 1
        self.trace.append(f"{kind} {text}".strip())

    # The configuration

    def load(self) -> Loaded:
        """As ``devhost.config.loader.load``, with the toys for a catalog."""
        installed = {
            name: Installed(kind, "soak", "0", ("devhost_backends",)) for name, kind in self._kinds.items()
        }
        catalog = Catalog(installed)
        return Loaded(config.load(self.config, lambda _paths, _wanted: catalog), catalog)

    def write(self, text: str | bytes | None) -> None:
        """Replaces the file's content; ``None`` removes the file."""
        if text is None:
            self.config.unlink(missing_ok=True)
        else:
            self.config.write_bytes(text if isinstance(text, bytes) else text.encode())
        if (settings := self.valid()) is not None and isinstance(text, str):
            self.candidates.append(settings)
            self.good_config = text

    def valid(self) -> Settings | None:
        """The settings in the file; ``None`` if it is invalid."""
        try:
            return self.load().settings
        except ConfigError:
            return None

    # The host

    @property
    def host_runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def start_host(self) -> None:
        """As a new process: it knows nothing of what was before. Refuses to start on a bad file."""
        try:
            loaded = self.load()
        except ConfigError:
            return
        self.held.clear()
        self.candidates = [loaded.settings]
        self.host = Host(self.config, loaded, self.load, self.kubelet.directory, timing=self.timing)
        self._task = self._loop.create_task(self.host.run(), name="host")

    async def stop_host(self) -> None:
        """As SIGTERM does."""
        if self.host is not None:
            self.host.stop()
        await self._ended()

    async def kill_host(self) -> None:
        """As near to SIGKILL as one process comes: no farewell, and its sockets stay behind, dead."""
        stale = [path for path in self.sockets() if not path.with_suffix(".dead").exists()]
        for path in stale:
            path.with_suffix(".dead").hardlink_to(path)
        await self.stop_host()
        for path in stale:
            if path.with_suffix(".dead").exists():  # a kubelet's start may have wiped it meanwhile
                path.unlink(missing_ok=True)  # renaming a link onto its own file would do nothing
                path.with_suffix(".dead").rename(path)

    async def _ended(self) -> None:
        task, self._task, self.host = self._task, None, None
        if task is None:
            return
        done, _ = await asyncio.wait([task], timeout=END)
        if not done:
            waiting = "\n".join(sorted(map(_where, asyncio.all_tasks())))
            self.complaints.append(f"the host does not end within {END:g} s; tasks:\n{waiting}")
            task.cancel()
        elif not task.cancelled() and (error := task.exception()) is not None:
            self.complaints.append(f"the host failed: {error!r}")

    def look(self, name: str) -> None:
        """An event of this backend."""
        if self.host is not None and name in self.host.scanners:
            self.host.scanners[name].request_scan()

    def doubt(self, name: str) -> None:
        """Requests a probe of this backend: what only a probe finds causes no event."""
        if self.host is not None and name in self.host.scanners:
            self.host.scanners[name].recheck()

    @property
    def pod_resources(self) -> Path:
        """The kubelet's podresources socket."""
        path = self.kubelet.pod_resources
        assert path is not None
        return path

    def sockets(self) -> list[Path]:
        """The sockets of plugins in the kubelet's directory."""
        return sorted(self.kubelet.directory.glob("dh-*.sock"))

    # The kubelet and its pods

    def loosen(self, work: Awaitable[None]) -> None:
        """Starts something that may last."""

        async def run() -> None:
            await work

        task = self._loop.create_task(run())
        self.loose.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.loose.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.complaints.append(f"unexpected {error!r}")

    def admit(self, resource: str, count: int) -> None:
        """A pod comes; it may be rejected."""
        if not self.kubelet.running:
            return
        self._pods += 1
        pod = f"pod-{self._pods}"

        async def live() -> None:
            await self.kubelet.admit(pod, "main", resource, count)
            await self.kubelet.start_container(pod, "main")

        self.loosen(self._in_spite(live()))

    def restart_container(self, number: int) -> None:
        """A container of some pod starts again."""
        held = self.kubelet.allocations() if self.kubelet.running else ()
        if not held:
            return
        pod = held[number % len(held)].pod

        async def again() -> None:
            await self.kubelet.start_container(pod, "main")

        self.loosen(self._in_spite(again()))

    async def _in_spite(self, work: Awaitable[None]) -> None:
        """Counts what the kubelet refuses during disturbances, which is not a finding."""
        try:
            await work
        except UnexpectedAdmissionError:
            self.tally.kinds["(pod rejected)"] += 1
        except ContainerStartError:
            self.tally.kinds["(container not started)"] += 1
        except DevhostError:
            if self.kubelet.running:
                raise

    def release(self, number: int) -> None:
        """Some pod is over."""
        held = self.kubelet.allocations() if self.kubelet.running else ()
        if held:
            self.kubelet.release(held[number % len(held)].pod)

    def unplug_held(self, number: int, over: bool) -> None:
        """The devices of some pod go; with ``over`` the pod goes, too."""
        held = self.kubelet.allocations() if self.kubelet.running else ()
        if not held:
            return
        allocation = held[number % len(held)]
        service = self.host.services.get(allocation.resource) if self.host is not None else None
        if service is not None:
            for name in allocation.device_ids:
                self.toys[service.entry.backend].devices.pop(name.partition("::")[0], None)
            self.look(service.entry.backend)
        if over:
            self.kubelet.release(allocation.pod)

    def _heard(self, event: ev.Event) -> None:
        if isinstance(event, ev.AllocateSent):
            services = self.host.services if self.host is not None else {}
            self._serving[event.pod] = services.get(event.resource)
        elif isinstance(event, ev.Allocated):
            service = self._serving.pop(event.pod, None)
            if service is not None and self.host is not None:
                self.held |= {(event.resource, device): service for device in event.device_ids}

    # Being in order

    def end_faults(self, *, backends: bool) -> None:
        """Ends the kubelet's faults, and those of pods; with ``backends`` also those of discovery."""
        self.kubelet.faults.clear()
        while self.gates:
            self.gates.pop().open()
        for toy in self.toys.values():
            kept = (toy.discover, toy.probe)
            toy.heal()
            if not backends:
                toy.discover, toy.probe = kept
            for device in toy.devices:
                (self.nodes / device).touch()

    def gate(self) -> Gate:
        """A hang that :meth:`end_faults` ends."""
        self.gates.append(Gate())
        return self.gates[-1]

    async def close(self) -> None:
        """Ends everything."""
        self.end_faults(backends=True)
        await self.stop_host()
        await self.kubelet.stop()
        for task in tuple(self.loose):
            task.cancel()
        await asyncio.gather(*self.loose, return_exceptions=True)

    def __exit__(self, *_exc: object) -> None:
        self._listener.rest()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"unhandled: {context.get('message')} {context.get('exception')!r}")


def _where(task: asyncio.Task[Any]) -> str:
    """A task and the places it waits in, outermost first."""
    places, waiting = [], task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        waiting = waiting.cr_await
    return f"  {task.get_name()}: {' > '.join(places)} > {waiting!r}"


class _Listener(logging.Handler):
    """Keeps the host's latest log lines; an exception in them is a finding, as is one within gRPC."""

    _NAMES = ("devhost", "grpc")

    def __init__(self, node: Node) -> None:
        super().__init__(logging.INFO)
        self._node = node
        self._before: list[tuple[logging.Logger, int, bool]] = []

    def listen(self) -> None:
        for logger in map(logging.getLogger, self._NAMES):
            self._before.append((logger, logger.level, logger.propagate))
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(self)

    def rest(self) -> None:
        for logger, level, propagate in self._before:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name}: {record.getMessage()} {getattr(record, 'fields', '')}"
        if record.name == "grpc._common" or "ExecuteBatchError raised in core" in text:
            pass  # gRPC on an answer that is no message, and on an answer whose caller has just gone
        elif record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
            self._node.complaints.append(text)
        elif record.name.startswith("grpc") and record.levelno >= logging.ERROR:
            self._node.complaints.append(text)
        self._node.lines.append(text)
