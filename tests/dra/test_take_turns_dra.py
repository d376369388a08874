"""``devhost run --take-turns`` with a DRA driver: claims are prepared throughout an upgrade."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from devhost_testing.dra import Claim, DraKubelet, Refused
from devhost_testing.kubelet import KubeletSimulator
from kit.dra import DRIVER, Cluster
from kit.drop_in import drop_in
from kit.process import Prepared, prepared

from devhost.runtime.turns import Lock

BACKEND = """
class Cards(Backend):
    name = "cards"

    def discover(self):
        return [Device("c0"), Device("c1")]

    def allocate(self, request):
        return Edits(env={"CARDS": "c"})
"""

CONFIG = f"""
version: 1
backendPaths: [backends]
dra: {{driver: {DRIVER}, metadata: true}}
resources: [{{name: example.com/card, backend: cards, serve: dra}}]
"""


class Machine(Cluster):
    """A node with a kubelet and an API server, on which several devhosts start."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.place = place
        (place / "backends").mkdir()
        (place / "backends" / "cards.py").write_text(drop_in(BACKEND))
        (place / "devhost.yaml").write_text(f"{CONFIG}cdi: {{directory: {place / 'cdi'}}}\n")
        self.options.plugins_registry.mkdir()

    @asynccontextmanager
    async def devhost(self) -> AsyncIterator[Prepared]:
        place = self.place
        words = ["--take-turns", "--state-dir", place / "state", *self.words]
        words += ["--status-socket", place / f"{len(list(place.iterdir()))}.status"]
        config, log = place / "devhost.yaml", place / "log"
        with prepared(config, place, place / "kubelet", *words, log=log) as started:
            yield started

    def logged(self, text: str) -> bool:
        return text in (self.place / "log").read_text()

    def bugs(self) -> list[str]:
        """Errors in the log, but not what gRPC says of a call that is cancelled before it begins."""
        lines = (self.place / "log").read_text().splitlines()
        return [line for line in lines if " ERROR " in line and " grpc._cython.cygrpc " not in line]

    def claim(self, name: str, card: str = "c0") -> Claim:
        """A claim for a card."""
        made = self.allocate(name, self.name_of(card))
        return Claim("default", name, made.uid, ("req",))


async def stopped_with_the_turn(machine: Machine, kubelet: DraKubelet, old: Prepared, new: Prepared) -> None:
    """The old one passes the turn on, and the new one does nothing with it until it gets SIGCONT."""
    await kubelet.until(lambda: machine.logged("waiting for the turn"))
    new.send_signal(signal.SIGSTOP)
    old.terminate()
    await kubelet.until(lambda: machine.logged("passing the turn on"))
    (acting,) = (machine.place / "state").glob("turn-*.acting")
    await kubelet.until(Lock(acting).free)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with (
        Machine(tmp_path) as machine,
        KubeletSimulator(tmp_path / "kubelet", "1.37", pod_resources=tmp_path / "pod-resources"),
    ):
        yield machine


async def test_claims_are_prepared_throughout_an_upgrade_and_slices_stay(machine: Machine) -> None:
    over = asyncio.Event()

    async def use() -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            claim = machine.claim(f"one-{number}")
            await kubelet.prepare(DRIVER, claim)
            await kubelet.unprepare(DRIVER, claim)
            machine.delete_claim(claim.name)

    async with DraKubelet(machine.options.plugins_registry) as kubelet, machine.devhost() as old:
        await kubelet.registered(DRIVER)
        await kubelet.until(lambda: machine.published() == {"example.com/card": {"c0", "c1"}})
        (first,) = machine.options.plugins_registry.iterdir()
        held = Claim("default", "held", machine.allocate("held", machine.name_of("c1")).uid, ("req",))
        await kubelet.prepare(DRIVER, held)
        writes = len(machine.server.writes)
        async with machine.devhost() as new:
            using = asyncio.create_task(use())
            await kubelet.until(lambda: machine.logged("ready for the turn"))
            old.terminate()
            assert await asyncio.to_thread(old.wait, 60) == 0
            await asyncio.sleep(1)
            over.set()
            await using  # raises why a claim was not prepared; a cancelled call might leave one prepared
            (second,) = machine.options.plugins_registry.iterdir()
            assert first != second
            assert len(machine.server.writes) == writes
            await kubelet.unprepare(DRIVER, held)  # which the one before had prepared
            assert list((machine.place / "cdi").glob("*dra_*")) == []
            assert new.is_alive()


async def test_claims_wait_for_the_end_of_the_one_that_may_have_prepared_them(machine: Machine) -> None:
    async with DraKubelet(machine.options.plugins_registry) as kubelet, machine.devhost() as old:
        await kubelet.registered(DRIVER)
        await kubelet.until(lambda: machine.published() == {"example.com/card": {"c0", "c1"}})
        async with machine.devhost() as new:
            await stopped_with_the_turn(machine, kubelet, old, new)
            old.send_signal(signal.SIGSTOP)
            new.send_signal(signal.SIGCONT)
            await kubelet.until(lambda: len(list(machine.options.plugins_registry.iterdir())) == 2)
            await asyncio.sleep(1)
            preparing = asyncio.create_task(kubelet.prepare(DRIVER, machine.claim("one")))
            await asyncio.sleep(1)
            assert not preparing.done()
            old.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(old.wait, 60) == 0
            await preparing


KEEPER = """
class Cards(Cards):
    name = "cards"

    def provision(self):
        if (held := self.context.held()) is None:
            raise NotYet("it is unknown what is held")
        file = Path(self.context.root) / "held.json"
        file.with_suffix(".new").write_text(json.dumps(sorted(held)))
        file.with_suffix(".new").replace(file)
"""


async def test_hardware_is_changed_once_it_is_known_what_the_one_before_gave(machine: Machine) -> None:
    (machine.place / "backends" / "cards.py").write_text(drop_in(BACKEND + KEEPER))
    held = machine.place / "held.json"
    async with DraKubelet(machine.options.plugins_registry) as kubelet, machine.devhost() as old:
        await kubelet.registered(DRIVER)
        await kubelet.until(lambda: machine.published() == {"example.com/card": {"c0", "c1"}})
        await kubelet.until(held.exists)
        async with machine.devhost() as new:
            await kubelet.until(lambda: machine.logged("ready for the turn"))
            new.send_signal(signal.SIGSTOP)
            old.terminate()
            await kubelet.until(lambda: machine.logged("passing the turn on"))
            held.unlink()
            await kubelet.prepare(DRIVER, machine.claim("late"))
            old.send_signal(signal.SIGSTOP)
            new.send_signal(signal.SIGCONT)
            await kubelet.until(lambda: len(list(machine.options.plugins_registry.iterdir())) == 2)
            await asyncio.sleep(1)
            assert not held.exists()
            old.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(old.wait, 60) == 0
            await kubelet.until(held.exists)
            assert "device:cards/c0" in json.loads(held.read_text())


async def test_a_driver_that_cannot_be_served_delays_nothing_of_the_others(machine: Machine) -> None:
    two = drop_in(f'{BACKEND}\nclass Boards(Cards):\n    name = "boards"\n{KEEPER}')
    (machine.place / "backends" / "cards.py").write_text(two)
    file = machine.place / "devhost.yaml"
    other = "{name: example.com/board, backend: boards, serve: dra, dra: {driver: other.example.com}}"
    file.write_text(file.read_text().replace("serve: dra}]", f"serve: dra}}, {other}]"))
    machine.options.plugins_dir.mkdir()
    (machine.options.plugins_dir / "other.example.com").write_text("not a directory")
    async with DraKubelet(machine.options.plugins_registry) as kubelet, machine.devhost() as old:
        await kubelet.registered(DRIVER)
        await kubelet.until(lambda: machine.published() == {"example.com/card": {"c0", "c1"}})
        await kubelet.prepare(DRIVER, machine.claim("one"))
        async with machine.devhost():
            await kubelet.until(lambda: machine.logged("waiting for the turn"))
            held = machine.place / "held.json"
            held.unlink(missing_ok=True)
            old.terminate()
            assert await asyncio.to_thread(old.wait, 60) == 0
            await kubelet.until(held.exists)
            assert "device:cards/c0" in json.loads(held.read_text())


async def test_sockets_that_a_killed_process_left_are_removed(machine: Machine) -> None:
    async with DraKubelet(machine.options.plugins_registry) as kubelet:
        async with machine.devhost() as old:
            await kubelet.registered(DRIVER)
            old.kill()
            await asyncio.to_thread(old.wait, 60)
        left = set(machine.options.plugins_registry.iterdir())
        async with machine.devhost():
            await kubelet.until(lambda: not left & set(machine.options.plugins_registry.iterdir()))
            await kubelet.registered(DRIVER)
            assert len(list((machine.options.plugins_dir / DRIVER).glob("*.sock"))) == 1


async def test_metadata_of_claims_passes_on_with_the_names_of_an_edit(machine: Machine) -> None:
    def names(claim: Claim) -> set[str]:
        files = (machine.options.plugins_dir / DRIVER / "dra-device-metadata").glob(f"*{claim.uid}*")
        first = [json.loads(file.read_text().splitlines()[0]) for file in files]
        ((device,),) = [request["devices"] for one in first for request in one["requests"]]
        return set(device["attributes"])

    async with DraKubelet(machine.options.plugins_registry) as kubelet, machine.devhost() as old:
        await kubelet.registered(DRIVER)
        await kubelet.until(lambda: machine.published() == {"example.com/card": {"c0", "c1"}})
        first, second = (machine.claim(name, card) for name, card in (("a", "c0"), ("b", "c1")))
        await kubelet.prepare(DRIVER, first)
        assert "type" not in names(first)
        async with machine.devhost() as new:
            await stopped_with_the_turn(machine, kubelet, old, new)
            await kubelet.prepare(DRIVER, second)  # by the one before
            file = machine.place / "devhost.yaml"
            edited = file.read_text().replace("serve: dra", "serve: dra, dra: {attributes: {type: id}}")
            file.write_text(edited)
            new.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(old.wait, 60) == 0
            await kubelet.until(lambda: "type" in names(first) and "type" in names(second))
            await kubelet.unprepare(DRIVER, first, second)
            left = machine.options.plugins_dir / DRIVER / "dra-device-metadata"
            assert list(left.iterdir()) == list((machine.place / "cdi").glob("*dra_*")) == []


PARTS = drop_in("""
class Parts(Backend):
    name = "parts"
    attributes = {
        "model": Attribute(str, "model", "pf"),
        "memory": Attribute(int, "memory", 8192, unit="Mi"),
    }

    def discover(self):
        whole = frozenset({claim.pci("0000:01:00.0")})
        yield Device("pf", {"model": "pf"}, claims=whole, withheld="it is divided", divided=True)
        for n in (1, 2):
            function = frozenset({claim.pci(f"0000:01:00.{n}")})
            yield Device(f"vf{n}", {"model": "vf"}, claims=function, part_of=whole)
        card = frozenset({claim.pci("0000:02:00.0")})
        yield Device("m0", {"model": "card", "memory": 8192}, claims=card)

    def allocate(self, request):
        return Edits(env={"PARTS": ",".join(one.id for one in request.devices)})
""")


def parts(machine: Machine, nic: str, card: str) -> None:
    """Configures a driver for functions that exclude each other, and one for a card by amount."""
    entries = (
        f"{{name: example.com/nic, backend: parts, where: {{model: [pf, vf]}}, serve: dra, "
        f"dra: {{driver: {nic}, counters: true}}}}",
        f"{{name: example.com/card, backend: parts, where: {{model: card}}, serve: dra, "
        f"dra: {{driver: {card}}}, share: {{capacity: {{memory: {{min: 1Gi}}}}, limit: none}}}}",
    )
    (machine.place / "devhost.yaml").write_text(
        f"version: 1\nbackendPaths: [backends]\ndra: {{driver: {DRIVER}, metadata: true, status: true}}\n"
        f"cdi: {{directory: {machine.place / 'cdi'}}}\nresources: [{', '.join(entries)}]\n"
    )


async def test_entries_that_change_drivers_in_an_upgrade_keep_what_claims_of_both_have(
    machine: Machine,
) -> None:
    other = "other.example.com"
    (machine.place / "backends" / "cards.py").write_text(PARTS)
    parts(machine, DRIVER, other)

    def claim(name: str, *devices: tuple[str, str], amount: str = "6Gi") -> Claim:
        made = machine.allocate(
            name,
            *(machine.name_of(device) for device, _ in devices),
            drivers=[driver for _, driver in devices],
            share=name,
            consumed={"memory": amount},
        )
        return Claim("default", name, made.uid, ("req",))

    async with DraKubelet(machine.options.plugins_registry) as kubelet, machine.devhost() as old:
        for driver in (DRIVER, other):
            await kubelet.registered(driver)
        nic = {"pf", "vf1", "vf2"}
        await kubelet.until(lambda: machine.drivers() == {DRIVER: nic, other: {"m0"}})
        both = claim("both", ("pf", DRIVER), ("m0", other))
        excluded = claim("excluded", ("vf1", DRIVER))
        more = claim("more", ("m0", other), amount="3Gi")
        await kubelet.prepare(DRIVER, both)
        async with machine.devhost() as new:
            await stopped_with_the_turn(machine, kubelet, old, new)
            await kubelet.prepare(other, both)  # by the one before
            parts(machine, other, DRIVER)
            new.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(old.wait, 60) == 0
            await kubelet.until(lambda: not any(machine.drivers().values()))
            for driver in (DRIVER, other):
                await kubelet.prepare(driver, both)
            with pytest.raises(Refused, match="2Gi of 8Gi memory is free"):
                await kubelet.prepare(other, more)
            with pytest.raises(Refused, match="is in use: a claim holds pf"):
                await kubelet.prepare(DRIVER, excluded)
            for driver in (DRIVER, other):
                await kubelet.unprepare(driver, both)
            await kubelet.prepare(other, more)
            await kubelet.prepare(DRIVER, excluded)
            assert machine.bugs() == []
