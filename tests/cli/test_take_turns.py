"""``devhost run --take-turns`` twice on a machine: one acts, and the next one serves before it has ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from addresses import free_address
from devhost_testing.kubelet import KubeletSimulator
from devhost_testing.kubelet import events as ev
from kit.drop_in import drop_in
from kit.http import get
from kit.process import Prepared, prepared
from kit.waiting import until
from program import devhost

from devhost.config.rollout import RolloutRecord
from devhost.telemetry import ask

TOY = "example.com/toy"


class Instance:
    """One devhost of the node."""

    def __init__(self, process: Prepared, log: Path, status: Path, address: str) -> None:
        self.process, self._log, self._status, self.address = process, log, status, address

    def logged(self, text: str) -> bool:
        return text in self._log.read_text()

    def ask(self, path: str) -> tuple[int, str]:
        return get(self.address, path)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Asks it with a command, which runs in this process."""
        return devhost(*words, "--status-socket", self._status)

    def probe(self, name: str) -> subprocess.CompletedProcess[str]:
        return self.call("ready", f"--probe={name}")

    async def names(self, pod: str) -> None:
        """Waits until the kubelet has told it what this pod holds: one never named may still start."""
        async with asyncio.timeout(60):
            while not any(
                device["holder"] and device["holder"]["pod"] == pod
                for resource in (await ask.fetch(self._status, deadline=60)).json["resources"]
                for device in resource["devices"]
            ):
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 60)

    async def stops(self) -> None:
        self.process.terminate()
        assert await self.ended() == 0


class Machine:
    """A node with a kubelet, on which several devhosts start."""

    def __init__(self, place: Path, toys: Any, kubelet: KubeletSimulator) -> None:
        self._place, self._toys, self.kubelet = place, toys, kubelet
        self._number = 0

    @asynccontextmanager
    async def devhost(
        self, *more: str, turns: bool = True, address: str = "", config: Path | None = None
    ) -> AsyncIterator[Instance]:
        self._number += 1
        address = address or free_address()
        log, status = (self._place / f"{self._number}.{end}" for end in ("log", "status"))
        options = ["--state-dir", self._place / "state", "--status-socket", status, f"--listen={address}"]
        options += [*(["--take-turns"] if turns else []), *more]
        config, root = config or self._toys.config, self._toys.root
        log.touch()
        with prepared(config, root, self.kubelet.directory, *options, log=log) as started:
            yield Instance(started, log, status, address)

    def rollout(self, config: Path) -> Path:
        """The file with the entries that had devices."""
        file = RolloutRecord(self._place / "state", config).file
        assert file is not None
        return file

    def given(self) -> list[dict[str, Any]]:
        """What containers were given, by the file; empty while there is none."""
        files = (self._place / "state").glob("given-*.json")
        return [one for file in files for one in json.loads(file.read_text())["given"]]

    def serving(self) -> int:
        """How many devhosts the kubelet is connected to."""
        return len(self.kubelet.endpoints(TOY))

    async def registered(self, count: int) -> None:
        """Waits until the resource has been registered so often since the start."""
        await self.kubelet.wait_for(lambda: len(self.kubelet.events.of(ev.StreamOpened)) >= count)
        await self.kubelet.wait_for(lambda: self.kubelet.allocatable().get(TOY) == 2)

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[Instance, Instance]]:
        """One that acts, and one that waits for its turn."""
        async with self.devhost() as old:
            await self.registered(1)
            async with self.devhost() as new:
                await waits(new)
                yield old, new

    @asynccontextmanager
    async def pods(self) -> AsyncIterator[set[int]]:
        """Pods start and end all the time, and every one must. Yields what was allocatable at any event."""
        seen: set[int] = set()

        def look(_: ev.Event) -> None:
            if not pods.cancelling():
                seen.add(self.kubelet.allocatable()[TOY])

        async def start() -> None:
            for number in itertools.count():
                await self.kubelet.admit(f"pod-{number}", "main", TOY, 1)
                self.kubelet.release(f"pod-{number}")
                await asyncio.sleep(0.005)

        pods = asyncio.create_task(start())
        self.kubelet.events.listen(look)
        try:
            yield seen
            await asyncio.sleep(0.2)
            if pods.done():
                pods.result()  # raises why a pod has not started
        finally:
            pods.cancel()


@pytest.fixture
async def machine(tmp_path: Path, toys: Any) -> AsyncIterator[Machine]:
    pods = tmp_path / "pod-resources"
    (toys.root / "dev").mkdir()
    (toys.root / "dev" / "null").touch()
    async with KubeletSimulator(tmp_path / "kubelet", "1.37", pod_resources=pods) as kubelet:
        yield Machine(tmp_path, toys, kubelet)


async def waits(instance: Instance) -> None:
    await until(lambda: instance.logged("ready for the turn"))
    assert instance.ask("/readyz") == instance.ask("/healthz") == (200, "ok\n")


@pytest.mark.conformance(42)
async def test_during_an_upgrade_every_pod_starts_and_allocatable_never_changes(machine: Machine) -> None:
    async with machine.devhost() as old:
        await machine.registered(1)
        async with machine.devhost() as new, machine.pods() as seen:
            await waits(new)
            assert machine.serving() == 1
            await old.stops()
            assert machine.serving() == 1
            assert not old.logged("taken over")
        assert seen == {2}
        first, second = machine.kubelet.events.of(ev.StreamOpened)
        over, *_ = machine.kubelet.events.of(ev.StreamEnded)
        assert (over.endpoint, second.endpoint != over.endpoint) == (first.endpoint, True)


HOOK = """
from pathlib import Path
from devhost.backend import Edits, hookimpl

for_backends = ("toy",)
DONE = Path(__file__).with_name("done")

@hookimpl
def devhost_before_container(request):
    return Edits(env={"GROUP": "7"})

@hookimpl
def devhost_after_release(devices):
    with DONE.open("a") as done:
        done.write(" ".join(sorted(device.id for device in devices)) + "\\n")
"""


async def test_hooks_run_once_for_each_release_across_an_upgrade(machine: Machine, toys: Any) -> None:
    (toys.config.parent / "backends" / "hook.py").write_text(HOOK)
    done = toys.config.parent / "backends" / "done"

    def released() -> list[str]:
        return done.read_text().splitlines() if done.exists() else []

    async with machine.devhost() as old:
        await machine.registered(1)
        admitted = await machine.kubelet.admit("one", "main", TOY, 2)
        assert admitted.response.envs["GROUP"] == "7"
        async with machine.devhost() as new:
            await waits(new)
            await old.stops()
            await machine.registered(2)
            assert released() == [], "the pod has its devices throughout"
            machine.kubelet.release("one")
            await machine.kubelet.admit("two", "main", TOY, 2)
            assert released() == ["one two"]


async def test_the_next_one_takes_over_when_the_one_that_acts_is_killed(machine: Machine) -> None:
    async with machine.devhost() as old, machine.devhost() as new:
        await machine.registered(1)
        waiting = "waiting for the turn"
        await until(lambda: new.logged(waiting) or old.logged(waiting))
        acts, next_one = (old, new) if new.logged(waiting) else (new, old)
        await waits(next_one)
        acts.process.kill()
        await machine.registered(2)
        await machine.kubelet.admit("pod", "main", TOY, 1)


async def test_one_that_hangs_keeps_its_turn_until_it_is_killed(machine: Machine) -> None:
    async with machine.two() as (old, _new):
        old.process.send_signal(signal.SIGSTOP)
        old.process.terminate()
        await asyncio.sleep(1)
        assert machine.serving() == 1
        old.process.kill()
        await machine.registered(2)


async def test_without_a_next_one_a_stop_ends_it_at_once(machine: Machine) -> None:
    async with machine.devhost() as only:
        await machine.registered(1)
        async with machine.devhost() as waiting:
            await waits(waiting)
            await waiting.stops()
        assert machine.serving() == 1
        await only.stops()
        assert not only.logged("passing the turn on")
        await machine.kubelet.wait_for(lambda: machine.kubelet.allocatable()[TOY] == 0)


async def test_one_that_passes_the_turn_on_ends_when_the_next_one_is_killed(machine: Machine) -> None:
    async with machine.two() as (old, new):
        new.process.send_signal(signal.SIGSTOP)
        old.process.terminate()
        await until(lambda: old.logged("passing the turn on"))
        await machine.kubelet.admit("pod", "main", TOY, 1)  # it still answers
        new.process.kill()
        assert await old.ended() == 0
    async with machine.devhost():
        await machine.registered(2)


async def test_of_many_that_start_together_one_acts_and_each_gets_its_turn(machine: Machine) -> None:
    async with machine.devhost() as one, machine.devhost() as two, machine.devhost() as three:
        left = [one, two, three]
        for count in (1, 2, 3):
            await machine.registered(count)
            await until(lambda: machine.serving() == 1)
            # the kubelet knows it before the log does
            await until(lambda: any(each.logged("registered resource") for each in left))
            (acts,) = [each for each in left if each.logged("registered resource")]
            await acts.stops()
            left.remove(acts)


async def test_one_that_leaves_is_not_held_up_by_those_that_wait_behind_the_next_one(
    machine: Machine,
) -> None:
    one, two, three = (machine.devhost() for _ in range(3))
    async with machine.two() as (old, new), one as first, two as second, three as third:
        for behind in (first, second, third):
            await waits(behind)
        await old.stops()
        assert not old.logged("the next devhost does not serve yet")
        await new.stops()  # the next of them has waited in the meantime
        await machine.registered(3)


async def test_one_that_takes_no_turns_is_waited_for_and_not_displaced(machine: Machine) -> None:
    async with machine.devhost(turns=False) as old:
        await machine.registered(1)
        async with machine.devhost() as new:
            await until(lambda: new.logged("waiting for a devhost that does not take turns"))
            await waits(new)
            assert machine.serving() == 1
            await old.stops()
            await machine.registered(2)


async def test_the_address_passes_with_the_turn_and_probes_ask_each_process(machine: Machine) -> None:
    async with machine.devhost() as old:
        await machine.registered(1)
        async with machine.devhost(address=old.address) as new:
            await until(lambda: new.logged("waiting for the turn"))
            await until(lambda: new.probe("readyz").returncode == 0)
            assert not new.logged("listening")
            await old.stops()
            await until(lambda: new.logged("listening"))
            await machine.registered(2)
            await until(lambda: new.probe("readyz").stdout == "ok\n")
            assert new.ask("/healthz") == (200, "ok\n")
            assert new.probe("healthz").stdout == "ok\n"
            assert old.probe("readyz").returncode == 3


async def test_the_record_of_what_containers_were_given_passes_on(machine: Machine) -> None:
    def recorded() -> int:
        return sum(len(one["tokens"]) for one in machine.given())

    async with machine.devhost() as old:
        await machine.registered(1)
        await machine.kubelet.admit("first", "main", TOY, 1)
        await until(lambda: recorded() == 1)
        async with machine.devhost() as new:
            await waits(new)
            new.process.send_signal(signal.SIGSTOP)
            old.process.terminate()
            await until(lambda: old.logged("passing the turn on"))
            await machine.kubelet.admit("second", "main", TOY, 1)
            await until(lambda: recorded() == 2)
            new.process.send_signal(signal.SIGCONT)
            assert await old.ended() == 0
            await new.names("first")
            machine.kubelet.release("first")
            await until(lambda: recorded() == 1)


SLOW = drop_in("""
class Slow(Backend):
    name = "slow"

    def discover(self):
        while (self.context.root / "hang").exists():
            time.sleep(0.02)
        return [Device("s", claims=frozenset({"node:/dev/null"}))]

    def allocate(self, request):
        return Edits(nodes=(DeviceNode("/dev/null"),))
""")


async def test_what_the_one_before_gives_until_it_ends_stays_recorded(machine: Machine, toys: Any) -> None:
    """It answers for a resource that the next one cannot register yet."""

    def recorded() -> list[Any]:
        return [one["nodes"] for one in machine.given() if one["resource"] == "example.com/slow"]

    (toys.config.with_name("backends") / "slow.py").write_text(SLOW)
    toys.write(f"name: {TOY}, backend: toy", "name: example.com/slow, backend: slow")
    async with machine.devhost() as old:
        await machine.registered(2)
        async with machine.devhost() as new:
            await waits(new)
            (toys.root / "hang").touch()
            old.process.terminate()
            await machine.registered(3)
            await machine.kubelet.admit("pod", "main", "example.com/slow", 1)
            await until(recorded)
            given = recorded()
            (toys.root / "hang").unlink()
            assert await old.ended() == 0
            await machine.kubelet.admit("another", "main", TOY, 1)
            await until(lambda: TOY in str(machine.given()))
            assert recorded() == given


async def test_an_edit_while_it_waits_is_in_force_from_the_first_list(machine: Machine, toys: Any) -> None:
    async with machine.two() as (old, _new):
        other = "name: example.com/other, backend: toy, where: {model: x200}"
        toys.write(other, f"name: {TOY}, backend: toy")
        await until(lambda: "example.com/other" in machine.kubelet.capacity())
        before = machine.kubelet.endpoints(TOY)
        await old.stops()
        lists = [
            one
            for one in machine.kubelet.events.of(ev.ListReceived)
            if one.endpoint not in before and one.resource == TOY
        ]
        assert {len(one.devices) for one in lists} == {1}


async def test_one_whose_file_is_refused_is_not_ready_until_the_file_is_fixed(
    machine: Machine, toys: Any
) -> None:
    async with machine.devhost() as old:
        await machine.registered(1)
        toys.write(f"name: {TOY}, backend: toy, were: {{}}")
        async with machine.devhost() as new:
            await until(lambda: "configuration refused" in new.ask("/readyz")[1])
            done = new.probe("readyz")
            assert (done.returncode, "answered with status 503" in done.stderr) == (1, True)
            toys.write(f"name: {TOY}, backend: toy")
            await waits(new)
            await old.stops()
            await machine.registered(2)
            await until(lambda: new.ask("/readyz") == (200, "ok\n"))


async def test_one_that_cannot_list_devices_is_not_ready_until_its_drop_in_is_fixed(
    machine: Machine, toys: Any, tmp_path: Path
) -> None:
    async with machine.devhost() as old:
        await machine.registered(1)
        drop_in = tmp_path / "backends" / "toy.py"
        works = drop_in.read_text()
        drop_in.write_text(works.replace("def discover(self):", "def discover(self):\n        1 / 0"))
        async with machine.devhost() as new:
            await until(lambda: "no devices listed: toy (" in new.ask("/readyz")[1])
            assert machine.serving() == 1
            drop_in.write_text(works)
            await waits(new)
            await old.stops()
            await machine.registered(2)


async def test_an_edit_that_selects_nothing_waits_for_accept_while_the_one_before_serves(
    machine: Machine, toys: Any
) -> None:
    async with machine.devhost("--patience=1h") as old:
        await machine.registered(1)
        edited = toys.config.with_name("edited.yaml")  # beside it: another pod has another ConfigMap
        edited.write_text(toys.config.read_text().replace("toy}", "toy, where: {model: none}}"))
        record = machine.rollout(edited)
        await until(machine.rollout(toys.config).exists)
        shutil.copy(machine.rollout(toys.config), record)
        async with machine.devhost("--patience=1h", config=edited) as new:
            await until(lambda: "no devices since the new file" in new.ask("/readyz")[1])
            assert machine.kubelet.allocatable() == {TOY: 2}
            assert new.call("accept").stdout == f"accepted: no devices of {TOY}\n"
            await waits(new)
            await old.stops()
            await until(lambda: TOY not in record.read_text())
            assert new.ask("/readyz") == (200, "ok\n")


async def test_turns_without_a_directory_to_lock_are_refused(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with machine.devhost("--state-dir", str(tmp_path / "file")) as one:
        assert await one.ended() == 3
        assert one.logged(f"cannot take turns with {tmp_path}/file/turn-")
