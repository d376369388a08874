"""Verdicts in force: on which devices, until when, and what has no effect."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.backend import Plain
from kit.clock import FakeClock
from kit.waiting import background, until

from devhost.backend import Attribute, Backend, Device
from devhost.discovery.health import ALL
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.discovery.verdict_follower import GAP, VerdictFollower
from devhost.discovery.verdicts import OLD, Applied, Flaw, matched
from devhost.planning.timing import DISCOVERY as NODE
from devhost.planning.timing import DiscoveryTiming
from devhost.runtime.reconciler import LOOP_CLOCK, Clock
from devhost.telemetry.metrics import Metrics

CORDON = {"devices": ["d0"], "kind": "cordon", "reason": "fan", "by": "alice"}


class Cards(Plain):
    """The cards that a file in the tree lists as JSON: id, claims, attributes, and what it is part of."""

    name = "cards"
    attributes: ClassVar = {
        "serial": Attribute(str, "serial", "s"),
        "pciBusID": Attribute(str, "address", "0000:3b:00.0", hex=True),
    }

    def discover(self) -> Iterator[Device]:
        for name, claims, attributes, *parts in json.loads((self.context.root / self.name).read_text()):
            yield Device(name, attributes=attributes, claims=frozenset(claims), part_of=frozenset(*parts))


class Nodes(Cards):
    name = "nodes"


class Machine:
    """Two backends, a directory of verdicts, and what they lead to."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        (self.root / "dev").mkdir(parents=True)
        self.clock, self.wall = FakeClock(), 1e9
        self.kinds: Mapping[str, type[Backend]] = {"cards": Cards, "nodes": Nodes}
        self.scanners: dict[str, Scanner] = {}
        self.directory = place / "state" / "verdicts"
        self.plans: list[float | None] = []
        self.changes = 0
        self.follower = self.made()

    def made(self, clock: Clock | None = None, timing: DiscoveryTiming = NODE) -> VerdictFollower:
        return VerdictFollower(
            self.directory,
            self.root,
            self.scanners,
            self._plan,
            self._changed,
            timing,
            clock=clock or self.clock,
            wall=lambda: self.wall,
        )

    def _plan(self, caused_at: float | None) -> None:
        self.plans.append(caused_at)

    def _changed(self) -> None:
        self.changes += 1

    async def plug(self, backend: str, *devices: Any) -> None:
        """Makes a backend find devices: id, claims and attributes of each."""
        (self.root / backend).write_text(json.dumps(devices))
        if backend not in self.scanners:
            runner = BackendRunner(self.kinds[backend], None, self.root)
            self.scanners[backend] = Scanner(runner, Metrics(), lambda caused_at: None)
        await self.scanners[backend].scan_once()

    def put(self, name: str = "a.json", **values: Any) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / name
        file.write_text(json.dumps({**CORDON, **values}))
        return file

    def applied(self) -> list[Applied]:
        """The verdicts in force, with the devices that they apply to."""
        now = self.follower.now()
        return [*matched({name: one.now() for name, one in self.scanners.items()}, now.in_force, now.ends)]

    async def look(self) -> dict[str, str]:
        """Why devices are unhealthy, after a reading and a plan."""
        await self.follower.look()
        return self.reasons()

    def reasons(self) -> dict[str, str]:
        if self.follower.judge is not None:
            self.follower.judge.apply()
        found = (
            (f"{name}/{device.id}", scanner.health.of(device, self.clock.time()))
            for name, scanner in self.scanners.items()
            for device in scanner.devices.values()
        )
        return {name: health.reason or "" for name, health in found if not health.healthy}

    def close(self) -> None:
        self.follower.close()
        for scanner in self.scanners.values():
            scanner.runner.close()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    await made.plug(
        "cards", ["d0", ["pci:0000:3b:00.0", "node:/dev/card0"], {"serial": "S0"}], ["d1", [], {}]
    )
    yield made
    made.close()


FAN = "cordoned by alice: fan"


@pytest.mark.parametrize("name", ["d0", "cards/d0", "D0", "S0", "/dev/card0", "/dev/my-card"])
async def test_a_device_is_named_by_any_of_its_names(machine: Machine, name: str) -> None:
    (machine.root / "dev/my-card").symlink_to("card0")
    machine.put(devices=[name])
    assert await machine.look() == {"cards/d0": FAN}
    assert [one.devices for one in machine.applied()] == [(("cards", "d0"),)]
    assert machine.follower.now().flaws == []


async def test_the_directory_is_never_looked_for_in_the_event_loop(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put()
    looked: set[int] = set()

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **options: Any) -> Any:
            if str(machine.directory) in str(path):
                looked.add(threading.get_ident())
            return call(path, *args, **options)

        return look

    for name in ("stat", "lstat", "listdir", "open"):
        monkeypatch.setattr(os, name, noted(getattr(os, name)))
    machine.follower = machine.made(LOOP_CLOCK)
    async with following(machine):
        await until(lambda: machine.plans)
    assert looked and threading.main_thread().ident not in looked


async def test_what_does_not_answer_when_it_is_looked_for_is_read_and_is_a_problem(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(path))

    machine.directory.parent.mkdir()
    machine.directory.write_text("no directory")
    monkeypatch.setattr(os.path, "lexists", refuse)
    assert await machine.look() == {}
    assert [one.file for one in machine.follower.now().flaws] == [str(machine.directory)]


async def test_without_a_directory_nothing_happens(machine: Machine) -> None:
    assert await machine.look() == {}
    assert (machine.plans, machine.applied(), machine.follower.now().flaws) == ([], [], ())


async def test_a_name_means_what_it_means_now_and_an_id_stays(machine: Machine) -> None:
    machine.put("node.json", devices=["/dev/card0"], reason="by node")
    machine.put("id.json", devices=["d0"], reason="by id")
    assert await machine.look() == {"cards/d0": "cordoned by alice: by id; cordoned by alice: by node"}
    await machine.plug("cards", ["d0", ["node:/dev/card1"], {}], ["d1", ["node:/dev/card0"], {}])
    assert machine.reasons() == {
        "cards/d0": "cordoned by alice: by id",
        "cards/d1": "cordoned by alice: by node",
    }


async def test_a_cordon_holds_when_a_device_is_plugged_in_again(machine: Machine) -> None:
    machine.put()
    assert await machine.look() == {"cards/d0": FAN}
    await machine.plug("cards", ["d1", [], {}])
    assert machine.reasons() == {}
    await machine.plug("cards", ["d1", [], {}], ["d0", [], {}])
    assert machine.reasons() == {"cards/d0": FAN}


async def test_a_new_backend_object_and_a_restart_change_nothing(machine: Machine) -> None:
    machine.put()
    assert await machine.look() == {"cards/d0": FAN}
    machine.scanners.pop("cards").runner.close()
    await machine.plug("cards", ["d0", [], {}])
    assert machine.reasons() == {"cards/d0": FAN}
    machine.follower.close()
    machine.follower = machine.made()
    assert await machine.look() == {"cards/d0": FAN}


async def test_maintenance_is_about_all_devices_also_later_ones(machine: Machine) -> None:
    file = machine.put(devices=[ALL], reason="power")
    power = "cordoned by alice: power"
    assert await machine.look() == {"cards/d0": power, "cards/d1": power}
    await machine.plug("cards", ["d2", [], {}])
    await machine.plug("nodes", ["n0", [], {}])
    assert machine.reasons() == {"cards/d2": power, "nodes/n0": power}
    file.unlink()
    assert await machine.look() == {}


async def test_a_device_that_two_backends_find_is_one(machine: Machine) -> None:
    await machine.plug("nodes", ["n0", ["node:/dev/card0"], {}])
    machine.put(devices=["/dev/card0"])
    assert await machine.look() == {"cards/d0": FAN, "nodes/n0": FAN}
    assert machine.follower.now().flaws == []


PCI, GROUP = "pci:0000:3b:00.0", "iommu:7"


@pytest.mark.parametrize("name", ["gpu", "0000:3b:00.0", "3b:00.0", "S"])
async def test_a_verdict_on_a_device_counts_for_its_parts(machine: Machine, name: str) -> None:
    common = {"serial": "S", "pciBusID": "0000:3b:00.0"}
    parts = [[f"mig{n}", [f"mig:{n}"], common, [PCI]] for n in range(2)]
    await machine.plug("cards", ["gpu", [PCI, GROUP], common], *parts, ["other", [], {}, [GROUP]])
    machine.put(devices=[name])
    await machine.plug("nodes", ["vf", [], {}, [PCI]])
    assert await machine.look() == dict.fromkeys(("cards/gpu", "cards/mig0", "cards/mig1", "nodes/vf"), FAN)
    assert machine.follower.now().flaws == []
    (applied,) = machine.applied()
    assert {device for _, device in applied.devices} == {"gpu", "mig0", "mig1", "vf"}


async def test_a_name_of_two_parts_is_one_of_several_devices(machine: Machine) -> None:
    parts = [[f"mig{n}", [f"mig:{n}"], {"serial": "1g.10gb"}, [PCI]] for n in range(2)]
    await machine.plug("cards", ["gpu", [PCI], {"serial": "S"}], *parts)
    machine.put(devices=["1g.10gb", "mig0"])
    assert await machine.look() == {"cards/mig0": FAN}
    (flaw,) = machine.follower.now().flaws
    assert flaw.reason == "1g.10gb is a name of cards/mig0, cards/mig1 (write the one that is meant)"


async def test_a_name_of_several_devices_changes_none_and_its_file_keeps_its_other_names(
    machine: Machine,
) -> None:
    await machine.plug("cards", ["d0", [], {"serial": "S"}], ["d1", [], {"serial": "S"}], ["d2", [], {}])
    file = machine.put(devices=["S", "d2"])
    assert await machine.look() == {"cards/d2": FAN}
    reason = "S is a name of cards/d0, cards/d1 (write the one that is meant)"
    assert machine.follower.now().flaws == [Flaw(str(file), reason)]


async def test_a_name_of_no_device_is_a_problem_once_every_backend_has_listed(machine: Machine) -> None:
    file = machine.put(devices=["d7", "d0"])
    runner = BackendRunner(Nodes, None, machine.root)
    machine.scanners["nodes"] = Scanner(runner, Metrics(), lambda caused_at: None)
    assert await machine.look() == {"cards/d0": FAN}
    assert machine.follower.now().flaws == []
    await machine.plug("nodes")
    assert machine.reasons() == {"cards/d0": FAN}
    reason = "no device is called d7 (correct the name, or remove the file)"
    assert machine.follower.now().flaws == [Flaw(str(file), reason)]


async def test_only_a_cordon_counts_as_one(machine: Machine) -> None:
    machine.put("c.json")
    machine.put("u.json", kind="unhealthy", devices=["d1"], reason="XID 79", by="dcgm")
    assert await machine.look() == {"cards/d0": FAN, "cards/d1": "XID 79 (dcgm)"}
    now = machine.scanners["cards"].now()
    assert (now.is_cordoned("d0"), now.is_cordoned("d1")) == (True, False)


async def test_a_plan_is_made_only_if_something_else_is_in_force(machine: Machine) -> None:
    file = machine.put()
    await machine.look()
    assert machine.plans == [machine.clock.time()]
    await machine.look()
    file.touch()
    file.write_text(file.read_text() + "\n")
    machine.put("bad.json", devices=[])
    await machine.look()
    assert [one for one in machine.plans if one is not None][:1] == [machine.clock.time()]
    file.unlink()
    plans = len(machine.plans)
    await machine.look()
    assert len(machine.plans) == plans + 1


@asynccontextmanager
async def following(machine: Machine) -> AsyncIterator[None]:
    async with background(machine.follower.run()):
        yield


async def test_a_verdict_ends_at_its_time_by_the_clock_of_the_wall(machine: Machine) -> None:
    machine.put(until="2001-09-09T01:47:40Z")  # a minute after the beginning
    assert await machine.look() == {"cards/d0": FAN}
    assert await machine.follower.look() == pytest.approx(60.0)
    machine.wall += 59.0
    assert await machine.look() == {"cards/d0": FAN}
    machine.wall += 1.0
    assert await machine.look() == {}
    assert machine.applied() == []
    # the clock was wrong, and is set back
    machine.wall -= 3600.0
    assert await machine.look() == {"cards/d0": FAN}
    machine.wall += 86400.0
    assert await machine.look() == {}


async def test_the_end_needs_no_change_of_a_file(machine: Machine) -> None:
    machine.follower = machine.made(timing=DiscoveryTiming(verdicts=3600.0))
    machine.put(until="2001-09-09T01:47:40Z")
    async with following(machine):
        await until(lambda: machine.reasons() == {"cards/d0": FAN})

        async def waits_for_the_end() -> None:
            while not any(when - machine.clock.now > 30.0 for when in machine.clock.timers):
                await machine.clock.advance(GAP)  # the change of the directory may be another reason to look
                await asyncio.sleep(0.005)

        await asyncio.wait_for(waits_for_the_end(), 60.0)
        machine.wall += 60.0
        await machine.clock.advance(60.0)
        await until(lambda: machine.reasons() == {})


async def test_changes_are_followed_from_before_there_is_a_directory(machine: Machine) -> None:
    machine.follower = machine.made(LOOP_CLOCK)
    machine.directory.parent.mkdir()
    async with following(machine):
        for _ in range(3):
            file = machine.put()
            await until(lambda: machine.reasons() == {"cards/d0": FAN})
            file.unlink()
            await until(lambda: machine.reasons() == {})
            machine.directory.rmdir()


async def test_a_directory_that_cannot_be_read_keeps_what_it_had(machine: Machine) -> None:
    machine.put()
    assert await machine.look() == {"cards/d0": FAN}
    away = machine.directory.rename(machine.directory.with_name("away"))
    machine.directory.touch()
    assert await machine.look() == {"cards/d0": FAN}
    ((file, reason),) = [(one.file, one.reason) for one in machine.follower.now().flaws]
    assert (file, reason) == (str(machine.directory), f"cannot read {machine.directory}: Not a directory")
    machine.directory.unlink()
    away.rename(machine.directory)
    assert await machine.look() == {"cards/d0": FAN}
    assert machine.follower.now().flaws == []


async def test_a_file_instead_of_the_directory_is_a_problem(machine: Machine) -> None:
    machine.directory.parent.mkdir()
    machine.directory.touch()
    assert await machine.look() == {}
    assert [one.file for one in machine.follower.now().flaws] == [str(machine.directory)]


async def test_only_an_old_cordon_may_have_been_forgotten(machine: Machine) -> None:
    machine.put("c.json")
    machine.put("u.json", kind="unhealthy", devices=["d1"])
    await machine.look()
    since = machine.applied()[0].verdict.since
    machine.wall = since + OLD
    assert machine.follower.now().forgotten == []
    machine.wall += 1.0
    assert [one.file for one in machine.follower.now().forgotten] == ["c.json"]


async def test_a_problem_is_logged_once_and_once_more_when_it_ends(machine: Machine, caplog: Any) -> None:
    caplog.set_level("INFO")
    machine.put(devices=["d7"])
    for _ in range(3):
        await machine.look()
    machine.put(devices=["d0"])
    for _ in range(3):
        await machine.look()
    said = [record.getMessage() for record in caplog.records if "verdict" in record.getMessage()]
    assert said == ["a verdict has no effect", "a verdict is no longer without effect"]
