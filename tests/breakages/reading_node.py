"""``devhost run`` as a process with the kubelet simulator, and all outputs that an operator can read."""

from __future__ import annotations

import asyncio
import html
import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from addresses import free_address
from devhost_testing.kubelet import KubeletSimulator
from kit.command import DEVHOST, completed
from kit.drop_in import drop_in
from kit.files import replace
from kit.http import get
from kit.waiting import until
from prometheus_client.parser import text_string_to_metric_families

PATIENCE = 240.0
RESOURCE = "example.com/toy"
TOY = drop_in('''
ILLEGIBLE = "port 1\\x1b[1A\\n\\udcff\\u202e <is> \\"down\\""


class Toy(Backend):
    """Devices as the file "toys" of the tree lists them, one id a line; "mood" says how looking fares."""

    name = "toy"
    attributes = {"model": Attribute(str, "model", "x100")}
    discover_deadline = 3.0

    def discover(self):
        mood = self.context.root / "mood"
        if (said := mood.read_text()) == "fail":
            raise OSError(5, "the firmware does not answer")
        if said == "killed":
            subprocess.run(["sh", "-c", "kill -9 $$"], check=True)
        while mood.read_text() == "hang":
            time.sleep(0.02)
        for line in (self.context.root / "toys").read_text().split():
            reason = ILLEGIBLE if line.startswith("illegible") else "port 1 is down"
            ill = {"health": unhealthy(reason)} if line.startswith("ill") else {}
            name = line.removeprefix("ill").removeprefix("egible")
            yield Device(id=name, attributes={} if line == "bare" else {"model": "x100"}, **ill)
            if line == "twice":
                yield Device(id=line, attributes={"model": "x100"})

    def allocate(self, request):
        return Edits(env={"TOYS": ",".join(device.id for device in request.devices)})
''')


class ReadingNode:
    """A node whose devhost is a separate process.

    Attributes:
        kubelet: the simulator; it runs while the node is entered, unless a test stops it.
        config: the configuration file.
        state: where devhost keeps a copy of it.
        drop_ins: the directory of drop-in backends.
    """

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.root.mkdir()
        self.drop_ins = place / "backends"
        self.drop_ins.mkdir()
        (self.drop_ins / "toy.py").write_text(TOY)
        self.config = place / "devhost.yaml"
        self.state = place / "state"
        self.mood("well")
        self.plug("a", "b", "c")
        self.configure(f"{{name: {RESOURCE}, backend: toy}}")
        self.kubelet = KubeletSimulator(place / "kubelet", pod_resources=place / "pod-resources")
        self._socket = place / "status.sock"
        self._log = place / "log"
        self._process: subprocess.Popen[bytes]
        self._address = free_address()

    async def __aenter__(self) -> Self:
        await self.kubelet.start()
        self._start()
        return self

    def _start(self, *options: str) -> None:
        command = [*DEVHOST, "run", "--config", str(self.config)]
        command += ["--root", str(self.root), "--kubelet-dir", str(self.kubelet.directory)]
        command += ["--listen", self._address, "--show-pods", "--status-socket", str(self._socket)]
        command += ["--pod-resources", str(self.kubelet.pod_resources), "--log-format", "json"]
        command += ["--state-dir", str(self.state), *options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait, PATIENCE)
        await self.kubelet.stop()

    async def again(self, *options: str) -> None:
        """Kills devhost, and starts it again with a new log."""
        await self._restarted(*options)
        await self.until(lambda: self.get("/status.json")[0] == 200)

    async def refused(self, *options: str) -> list[str]:
        """Kills devhost and starts it again, which must end with exit code 2; returns the logged reasons."""
        await self._restarted(*options)
        assert await asyncio.to_thread(self._process.wait, PATIENCE) == 2
        return [line["reason"] for line in self.log(message="cannot start")]

    async def _restarted(self, *options: str) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait, PATIENCE)
        self._start(*options)

    def plug(self, *toys: str) -> None:
        """Makes exactly these devices exist; :meth:`look` makes devhost notice."""
        replace(self.root / "toys", "\n".join(toys))

    def replug(self, *toys: str) -> None:
        """Makes exactly these devices exist, and devhost notices."""
        self.plug(*toys)
        self.look()

    def mood(self, mood: str) -> None:
        """Makes the backend ``well``, ``fail`` or ``hang``, or its program ``killed``."""
        replace(self.root / "mood", mood)

    def look(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def configure(self, *entries: str) -> None:
        """Makes the file hold these resources, as one step, as an editor or a ConfigMap does."""
        lines = "".join(f"  - {entry}\n" for entry in entries)
        replace(self.config, f"version: 1\nbackendPaths: [backends]\nresources:\n{lines}")

    async def until(self, condition: Callable[[], object]) -> None:
        await until(lambda: asyncio.to_thread(condition))

    def get(self, path: str) -> tuple[int, str]:
        """The answer of the listener."""
        return get(self._address, path)

    def page(self) -> str:
        """The page, without the places where a browser may break a line."""
        return html.unescape(self.get("/")[1].replace("<wbr>", ""))

    def document(self) -> Any:
        """``/status.json``."""
        return json.loads(self.get("/status.json")[1])

    def status(self, *arguments: str) -> str:
        """What ``devhost status`` prints."""
        return completed(*DEVHOST, "status", "--socket", self._socket, *arguments, check=True).stdout

    def log(self, **fields: object) -> list[dict[str, Any]]:
        """The lines of the log that have these fields."""
        whole = self._log.read_bytes().rpartition(b"\n")[0].decode()  # devhost may be writing the next line
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if fields.items() <= line.items()]

    def series(self, name: str, **labels: str) -> list[Mapping[str, str]]:
        """The labels of every series of a metric that is not zero and has these labels."""
        return [found for found, value in self._samples(name) if value and labels.items() <= found.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the first series that has these labels."""
        return next((value for found, value in self._samples(name) if labels.items() <= found.items()), None)

    def _samples(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name:
                    yield sample.labels, sample.value

    def problems(self, kind: str) -> list[dict[str, Any]]:
        """The problems of one kind in ``/status.json``."""
        return [problem for problem in self.document()["problems"] if problem["kind"] == kind]

    def unsaid(self, kind: str, subject: str, reason: str) -> list[str]:
        """The places that do not show a problem with these words; none if all do."""
        places = {
            "/status.json": any(
                (problem["subject"], problem["reason"]) == (subject, reason)
                for problem in self.problems(kind)
            ),
            "the page": reason in self.page(),
            "devhost status": any(
                # the containers that the reason means follow it in brackets
                line.startswith(kind) and f"  {reason} (" in f"{line} (" and subject in line
                for line in self.status().splitlines()
            ),
            "devhost status --output json": any(
                problem["reason"] == reason
                for problem in json.loads(self.status("--output", "json"))["problems"]
            ),
            "the log": bool(self.log(reason=reason)),
            "devhost_problem_info": bool(
                self.series("devhost_problem_info", kind=kind, subject=subject, reason=reason)
            ),
            "devhost_problems": bool(self.value("devhost_problems", kind=kind)),
        }
        return [place for place, said in places.items() if not said]
