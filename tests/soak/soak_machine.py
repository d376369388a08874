"""The random life of a node: hypothesis chooses what happens, everything at once, and how soon after."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, ClassVar

from devhost_testing.kubelet import Point, answer, cut, delay, disturbances, fail, refuse
from grpc import StatusCode
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from soak_hurry import TIMING
from soak_node import Node, Tally
from soak_toys import BACKENDS, JUNK, MODES
from soak_verdict import footprint, leftovers, quiet

from devhost.backend.model import HEALTHY, Device, Health, unhealthy

VARIANTS: dict[str, tuple[str, ...]] = {
    "example.com/toy-{model}": ("backend: toy, where: {index: '4-9'}",),
    "example.com/toy": (
        "backend: toy",
        "backend: toy, where: {index: '0-2'}, prefer: spread",
        "backend: toy, share: {replicas: 3}",
        "backend: toy, share: {replicas: 3, of: all}",
        "backend: toy, share: {of: all}",
        "backend: other, prefer: pack",
    ),
    "example.com/other": (
        "backend: other",
        "backend: other, where: {model: 'y*'}, whenEmpty: register",
        "backend: other, where: {not: {index: 1}}, share: {replicas: 2}",
    ),
    "example.com/prep": (
        "backend: prep, prefer: distinct",
        "backend: prep, share: {replicas: 2}",
        "backend: toy, where: {index: 3}",
    ),
}
"""What an entry of each name may be; the file holds one of them, or none."""

BAD: tuple[bytes | None, ...] = (
    None,
    b"",
    b"\x00\xff\xfe",
    b"version: 1\nresources: [",
    b"version: 1\nresources:\n  - {name: broken, backend: toy}\n",
    b"version: 1\nresources:\n  - {name: example.com/toy, backend: nobody}\n",
)

RESOURCES = ("example.com/toy", "example.com/other", "example.com/prep", "example.com/toy-x100")

FAULTS = {
    "refused": fail("disk full"),
    "already connected": fail("device plugin already connected: /path"),
    "cut": cut,
    "delayed": delay(0.1),
    "throttled": refuse(StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
    "wrong answer": answer(b"\xff\xff\xff"),
    "strange answer": answer(b"\x0a\x03abc"),
}
HANG = "hung"


def text(choice: dict[str, int | None]) -> str:
    """The file that has these variants."""
    lines = [
        f"  - {{name: '{name}', {VARIANTS[name][number]}}}\n"
        for name, number in choice.items()
        if number is not None
    ]
    return "version: 1\nresources:\n" + "".join(lines) if lines else "version: 1\nresources: []\n"


configs = st.fixed_dictionaries(
    {name: st.none() | st.integers(0, len(variants) - 1) for name, variants in VARIANTS.items()}
)
every_resource = text(dict.fromkeys(VARIANTS, 0))
backends = st.sampled_from(BACKENDS)
resources = st.sampled_from(RESOURCES)
numbers = st.integers(0, 5)
pauses = st.sampled_from((0.0, 0.002, 0.02, 0.1, 0.25))


def device(number: int, model: str = "x100", numa: int = 0, health: Health = HEALTHY) -> Device:
    """The device ``d<number>``; the kernel's -1 for its NUMA node means that it has none."""
    attributes = {"model": model, "index": number}
    return Device(id=f"d{number}", attributes=attributes, numa_nodes=(numa,), health=health)


class Soak(RuleBasedStateMachine):
    """One node from its first start to its end. Each rule is one step; a finding is an AssertionError."""

    tally: ClassVar[Tally] = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.node: Node | None = None

    @initialize(profile=st.sampled_from(("1.36", "1.37")), first=st.booleans())
    def begin(self, profile: str, first: bool) -> None:
        async def start() -> None:
            self.before = footprint()
            self.node = Node(profile, self.tally, every_resource, TIMING).__enter__()
            for toy in self.node.toys.values():
                for number in range(3):
                    toy.devices[f"d{number}"] = device(number)
                    (self.node.nodes / f"d{number}").touch()
            if first:
                await self.node.kubelet.start()
            self.node.start_host()

        self.runner.run(start())

    # Devices

    @rule(
        name=backends,
        number=numbers,
        numa=st.integers(-1, 1),
        model=st.sampled_from(("x100", "y+2")),
        pause=pauses,
    )
    def plug(self, name: str, number: int, numa: int, model: str, pause: float) -> None:
        self.did("plug", f"{name} d{number} {model} numa {numa}")
        (self.at.nodes / f"d{number}").touch()
        self.at.toys[name].devices[f"d{number}"] = device(number, model, numa)
        self.look(name, pause)

    @rule(name=backends, number=numbers, pause=pauses)
    def unplug(self, name: str, number: int, pause: float) -> None:
        self.did("unplug", f"{name} d{number}")
        self.at.toys[name].devices.pop(f"d{number}", None)
        self.look(name, pause)

    @rule(name=backends, number=numbers, pause=pauses)
    def turn_sick_or_well(self, name: str, number: int, pause: float) -> None:
        self.did("health", f"{name} d{number}")
        devices = self.at.toys[name].devices
        if known := devices.get(f"d{number}"):
            health = unhealthy("too hot") if known.health.healthy else HEALTHY
            devices[known.id] = replace(known, health=health)
        self.look(name, pause)

    @rule(number=numbers, pause=pauses)
    def probe_differently(self, number: int, pause: float) -> None:
        self.did("probe", f"d{number}")
        probed = self.at.toys["prep"].probed
        if probed.pop(f"d{number}", None) is None:
            probed[f"d{number}"] = unhealthy("link down")
        self.at.doubt("prep")
        self.look("prep", pause)

    @rule(name=backends, junk=st.lists(st.sampled_from(JUNK), max_size=3), twice=st.booleans(), pause=pauses)
    def return_junk(self, name: str, junk: list[object], twice: bool, pause: float) -> None:
        self.did("junk devices", f"{name} {len(junk)} twice={twice}")
        toy = self.at.toys[name]
        toy.junk, toy.twice = junk, twice
        self.look(name, pause)

    @rule(name=backends, pause=pauses)
    def storm(self, name: str, pause: float) -> None:
        self.did("event storm", name)
        for _ in range(500):
            self.look(name, 0.0)
        self.run(asyncio.sleep(pause))

    # Backends

    @rule(
        name=backends,
        call=st.sampled_from(("discover", "allocate", "prepare", "probe", "watch")),
        mode=st.sampled_from(MODES),
        pause=pauses,
    )
    def break_backend(self, name: str, call: str, mode: str, pause: float) -> None:
        if call == "probe" and name != "prep":
            call = "discover"
        self.did(f"backend {mode}", f"{name}.{call}")
        setattr(self.at.toys[name], call, mode)
        self.at.doubt(name)
        self.look(name, pause)

    @rule(name=backends, number=numbers, pause=pauses)
    def lose_node(self, name: str, number: int, pause: float) -> None:
        self.did("node lost", f"d{number}")
        (self.at.nodes / f"d{number}").unlink(missing_ok=True)
        self.look(name, pause)

    # Pods

    @rule(resource=resources, count=st.integers(1, 3), pause=pauses)
    def admit(self, resource: str, count: int, pause: float) -> None:
        self.did("pod", f"{count} of {resource}")
        self.at.admit(resource, count)
        self.run(asyncio.sleep(pause))

    @rule(number=numbers, pause=pauses)
    def restart_container(self, number: int, pause: float) -> None:
        self.did("container restart")
        self.at.restart_container(number)
        self.run(asyncio.sleep(pause))

    @rule(number=numbers)
    def release(self, number: int) -> None:
        self.did("pod over")
        self.at.release(number)

    @rule(resource=resources, number=numbers, over=st.booleans(), pause=pauses)
    def unplug_held(self, resource: str, number: int, over: bool, pause: float) -> None:
        self.did("held device unplugged", f"{resource}{', its pod over' if over else ''}")
        self.at.admit(resource, 1)
        self.run(asyncio.sleep(pause))
        self.at.unplug_held(number, over)
        self.run(asyncio.sleep(pause))

    # Configuration

    @rule(choice=configs, pause=pauses)
    def configure(self, choice: dict[str, int | None], pause: float) -> None:
        self.did("config", str(list(choice.values())))
        self.at.write(text(choice))
        self.run(asyncio.sleep(pause))

    @rule(bad=st.sampled_from(BAD), pause=pauses)
    def configure_badly(self, bad: bytes | None, pause: float) -> None:
        self.did("bad config", repr(bad))
        self.at.write(bad)
        self.run(asyncio.sleep(pause))

    @rule(pause=pauses)
    def hang_up(self, pause: float) -> None:
        self.did("SIGHUP")
        if self.at.host is not None:
            self.at.host.reload()
        self.run(asyncio.sleep(pause))

    # The kubelet

    @rule(crash=st.booleans(), slow=st.sampled_from((0.0, 0.0, 0.3)), between=pauses, pause=pauses)
    def restart_kubelet(self, crash: bool, slow: float, between: float, pause: float) -> None:
        self.did("kubelet crash" if crash else "kubelet restart", f"{between} s, serving after {slow} s")
        self.run(self._restart_kubelet(crash, slow, between), pause)

    async def _restart_kubelet(self, crash: bool, slow: float = 0.0, between: float = 0.0) -> None:
        await self.at.kubelet.stop(crash)
        await asyncio.sleep(between)
        await self.at.kubelet.start(slow)

    @rule(first=st.booleans(), second=st.booleans(), between=pauses, pause=pauses)
    def restart_kubelet_twice(self, first: bool, second: bool, between: float, pause: float) -> None:
        self.did("two kubelet restarts", f"{between} s apart")
        self.run(self._restart_kubelet(first))
        self.run(asyncio.sleep(between))
        self.run(self._restart_kubelet(second), pause)

    @rule(crash=st.booleans(), pause=pauses)
    def stop_kubelet(self, crash: bool, pause: float) -> None:
        self.did("kubelet gone")
        self.run(self.at.kubelet.stop(crash), pause)

    @rule(pause=pauses)
    def start_kubelet(self, pause: float) -> None:
        self.did("kubelet back")
        if not self.at.kubelet.running:
            self.run(self.at.kubelet.start(), pause)

    @rule(resource=resources, pause=pauses)
    def cut_stream(self, resource: str, pause: float) -> None:
        self.did("stream cut", resource)
        if self.at.kubelet.running:
            self.at.kubelet.kill_stream(resource)
        self.run(asyncio.sleep(pause))

    @rule(
        point=st.sampled_from(list(Point)),
        fault=st.sampled_from((*FAULTS, HANG)),
        resource=st.just("") | resources,
        times=st.integers(1, 4),
    )
    def inject(self, point: Point, fault: str, resource: str, times: int) -> None:
        if "answer" in fault and point is not Point.POD_RESOURCES:
            point = Point.REGISTER
        if point is Point.POD_RESOURCES:
            resource = ""
        self.did(f"kubelet {point} {fault}", f"{resource or 'any'} x{times}")
        action = self.at.gate().wait if fault == HANG else FAULTS[fault]
        self.at.kubelet.faults.inject(point, action, resource, times)

    @rule(resource=resources, callers=st.integers(1, 8), pause=pauses)
    def flood(self, resource: str, callers: int, pause: float) -> None:
        self.did("flood", f"{resource} {callers}")
        if self.at.kubelet.running:

            async def strangers() -> None:
                await disturbances.flood(self.at.kubelet, resource, callers)

            self.at.loosen(strangers())
        self.run(asyncio.sleep(pause))

    @rule(
        what=st.sampled_from(
            ("kubelet.sock lost", "podresources lost", "sockets wiped", "directory replaced")
        ),
        pause=pauses,
    )
    def lose_files(self, what: str, pause: float) -> None:
        self.did(what)
        act = {
            "kubelet.sock lost": disturbances.lose_socket,
            "podresources lost": disturbances.lose_pod_resources,
            "sockets wiped": disturbances.wipe,
            "directory replaced": disturbances.replace_directory,
        }[what]
        if self.at.kubelet.directory.exists():
            act(self.at.kubelet)
        self.run(asyncio.sleep(pause))

    # The host

    @rule(kill=st.booleans(), between=pauses, pause=pauses)
    def restart_host(self, kill: bool, between: float, pause: float) -> None:
        self.did("host killed" if kill else "host restart", f"{between} s")
        self.run(self._restart_host(kill, between), pause)

    @rule(kill=st.booleans(), pause=pauses)
    def lose_host(self, kill: bool, pause: float) -> None:
        self.did("host gone", "killed" if kill else "")
        self.run(self.at.kill_host() if kill else self.at.stop_host(), pause)

    async def _restart_host(self, kill: bool, between: float = 0.0) -> None:
        await (self.at.kill_host() if kill else self.at.stop_host())
        await asyncio.sleep(between)
        self.at.start_host()

    @rule(kill=st.booleans(), crash=st.booleans(), pause=pauses)
    def restart_both(self, kill: bool, crash: bool, pause: float) -> None:
        self.did("host and kubelet restart at once")

        async def both() -> None:
            await asyncio.gather(self._restart_host(kill), self._restart_kubelet(crash))

        self.run(both(), pause)

    # The end of a disturbance

    @rule(all_well=st.booleans())
    def rest(self, all_well: bool) -> None:
        self.did("(quiet)", "all well" if all_well else "broken backends stay so")
        self.tally.quiet += 1
        self.found(self.run(quiet(self.at, all_well=all_well)))

    def teardown(self) -> None:
        try:
            if self.node is not None:
                self.end(self.node)
        finally:
            self.runner.close()

    def end(self, node: Node) -> None:
        try:
            if not self.failed:
                self.did("(end)")
                self.tally.quiet += 1
                self.found(self.run(quiet(node, all_well=True)))
        finally:
            self.run(node.close())
            left = self.run(leftovers(node, self.before))
            node.__exit__()
            if not self.failed:
                self.found(left)

    failed = False

    def found(self, wrong: list[str]) -> None:
        """A finding, if there is anything wrong.

        Raises:
            AssertionError: with everything that led to it.
        """
        if not wrong:
            return
        self.failed = True
        report = "\n".join(
            [
                *(f"wrong: {line}" for line in wrong),
                *(f"step {number}: {line}" for number, line in enumerate(self.at.trace)),
                *(f"kubelet: {event}"[:300] for event in list(self.at.kubelet.events)[-30:]),
                *(f"log: {line}" for line in self.at.lines),
            ]
        )
        self.tally.findings.append(report)
        raise AssertionError(report)

    @property
    def at(self) -> Node:
        assert self.node is not None
        return self.node

    def did(self, kind: str, what: str = "") -> None:
        self.at.note(kind, what)

    def look(self, name: str, pause: float) -> None:
        self.at.look(name)
        self.run(asyncio.sleep(pause))

    def run(self, work: Coroutine[Any, Any, Any], pause: float = 0.0) -> Any:
        async def then() -> Any:
            result = await work
            await asyncio.sleep(pause)
            return result

        return self.runner.run(then())
