"""``devhost run`` with ``serve: dra`` as a process, and what the other commands show of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import ClaimDevice, KubeletSimulator
from kit.command import DEVHOST, completed
from kit.dra import DRIVER, SLICES, Cluster
from kit.drop_in import drop_in
from kit.http import get
from kit.process import running
from kit.waiting import until

pytestmark = pytest.mark.slow

PATIENCE = 120.0
RESOURCE = "example.com/card"
NAMES = "{attributes: {product: model, x.y/of: resource}, capacity: {memory: memory}}"
CARDS = drop_in('''
class Cards(Backend):
    """Cards as the file "cards" of the tree lists them, one id a line; ``c0.a`` is a part of ``c0``."""

    name = "cards"
    attributes = {
        "model": Attribute(str, "model", "x100"),
        "memory": Attribute(int, "memory in MiB", 1024, unit="Mi"),
        "ports": Attribute(list, "ports", ("p0",)),
    }

    def discover(self):
        for name in (self.context.root / "cards").read_text().split():
            whole, is_part, _ = name.partition(".")
            places = {"claims": frozenset({f"node:/dev/{name}"})}
            if is_part:
                places["part_of"] = frozenset({f"node:/dev/{whole}"})
            yield Device(name, {"model": "x100", "memory": 1024, "ports": ("p0",)}, **places)

    def allocate(self, request):
        return Edits(env={"CARDS": ",".join(one.id for one in request.devices)})
''')


class Machine:
    """A node on which ``devhost run`` serves two cards through DRA."""

    def __init__(self, place: Path) -> None:
        self.cluster = Cluster(place)
        self.root = place / "root"
        self.root.mkdir()
        (self.root / "cards").write_text("c0 c1")
        (place / "backends").mkdir()
        (place / "backends" / "cards.py").write_text(CARDS)
        self.config = place / "devhost.yaml"
        self.serve("dra")
        self.kubelet = KubeletSimulator(place / "kubelet", pod_resources=place / "pod-resources")
        self._log = place / "log"
        self._run = place / "run"

    def serve(self, side: str, terms: str = NAMES) -> None:
        """Makes the file offer the cards on one side."""
        self.config.write_text(
            f"version: 1\ndra: {{driver: {DRIVER}}}\nbackendPaths: [backends]\n"
            f"resources: [{{name: {RESOURCE}, backend: cards, serve: {side}, dra: {terms}}}]\n"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The program runs; gives the address of its page."""
        options = [*self.cluster.words, "--listen", "127.0.0.1:0", "--show-pods"]
        place = self.config, self.root, self.kubelet.directory
        async with self.cluster, self.kubelet:
            with self._log.open("w") as log, running(*place, *options, log=log, runtime=self._run) as process:
                yield await self._address()
                process.terminate()
                assert await asyncio.to_thread(process.wait, PATIENCE) == 0, self._log.read_text()

    async def _address(self) -> str:
        """Where the page is, by the log."""
        after = await until(lambda: self._log.read_text().partition(" address=")[2])
        return after.split()[0]

    async def shows(self, condition: Callable[[str], object], *command: str) -> str:
        """The output of a command, as soon as it fulfils a condition."""
        words = [*DEVHOST, *command]
        if command[0] == "explain":
            words += ["--config", str(self.config), "--root", str(self.root)]
        environment = {**os.environ, "DEVHOST_RUNTIME_DIR": str(self._run)}
        text, end = "", time.monotonic() + PATIENCE
        while not condition(text):
            assert time.monotonic() < end, f"{text}\n{self._log.read_text()}"
            done = await asyncio.to_thread(completed, *words, env=environment)
            assert "Traceback" not in done.stderr
            text = "\n".join(" ".join(line.split()) for line in done.stdout.splitlines())
        return text

    async def document(self) -> dict[str, Any]:
        """The part of the status document that is about DRA."""
        text = await self.shows(lambda text: text, "status", "--output", "json")
        found: dict[str, Any] = json.loads(text)["dra"]
        return found


async def page(address: str, path: str = "") -> str:
    """The text of the status page, or of another one."""
    _, text = await asyncio.to_thread(get, address, f"/{path}")
    return text.replace("<wbr>", "")  # where a browser may break a line


async def test_devices_claims_and_moves_are_shown_by_every_command(place: Path) -> None:
    machine = Machine(place)
    cluster = machine.cluster
    async with machine.running() as address:
        await machine.shows(lambda text: f"{DRIVER} waiting" in text, "status")
        await cluster.register()
        text = await machine.shows(
            lambda text: f"Healthy {DRIVER}-" in text and re.search(f"{DRIVER} registered 1 [12] ", text),
            "status",
        )
        (name,) = (one["metadata"]["name"] for one in cluster.server.stored(SLICES))
        assert f"{RESOURCE} c0 Healthy {name} -" in text
        pool, device = cluster.name_of("c0")

        claim = cluster.allocate("mine", (pool, device))
        answer = (await cluster.prepare(claim))[claim.uid]
        assert answer.error == ""
        (prepared,) = answer.devices
        machine.kubelet.use_claim(
            "train", "main", "mine", [ClaimDevice(DRIVER, pool, device, tuple(prepared.cdi_device_ids))]
        )
        text = await machine.shows(lambda text: "default/train" in text, "status")
        assert "default/mine c0 default/train" in text
        text = await machine.shows(bool, "explain", "c0")
        assert "held by: ResourceClaim default/mine, used by default/train through " + RESOURCE in text
        held = json.loads(await machine.shows(bool, "explain", "c0", "--output", "json"))[0]["heldBy"]
        assert [(one["resource"], one["holder"]["claim"]) for one in held] == [(RESOURCE, "mine")]
        assert f"slice: {name}" in text
        assert f"pool: {pool}, device {device}" in text
        assert "model: x100" in text.partition("slice:")[2]
        (stored,) = (one["spec"]["devices"][0] for one in cluster.server.stored(SLICES))
        assert (
            stored["attributes"].items()
            >= {
                "product": {"string": "x100"},
                "x.y/of": {"string": RESOURCE},
            }.items()
        )
        assert stored["capacity"] == {"memory": {"value": "1Gi"}}
        names = ("memory: 1024", "product: x100", f"x.y/of: {RESOURCE}", "memory (capacity): 1Gi")
        assert all(f"{name}\n" in text for name in names)
        found = await page(address)
        assert "Dynamic Resource Allocation" in found and name in found and "default/mine" in found

        machine.serve("plugin")
        text = await machine.shows(lambda text: " DRA " in text and "devhost waits" in text, "status")
        await machine.shows(lambda text: "moving: it is moving away from DRA" in text, "explain", "c0")
        assert "Devices that change sides" in await page(address)
        assert [one["device"] for one in (await machine.document())["claims"][0]["devices"]] == ["c0"]


async def test_each_member_shows_what_is_published_of_its_unit(place: Path) -> None:
    machine = Machine(place)
    text = machine.config.read_text()
    machine.config.write_text(text.replace("serve: dra", "serve: dra, share: {of: model}"))
    other = CARDS.replace('"memory": 1024,', '"memory": 1024 + int(name[1:]),')
    (place / "backends" / "cards.py").write_text(other)
    async with machine.running():
        for card in ("c0", "c1"):
            shown = await machine.shows(lambda text: f"slice: {DRIVER}" in text, "explain", card)
            assert ", device x100\n" in shown and "id: x100\n" in shown
            assert "as a member of x100" in shown
            assert "memory" not in shown.partition("slice: ")[2], "only what all members share is published"
        (pool,) = (await machine.document())["pools"]
        assert [(one["device"], one["members"]) for one in pool["devices"]] == [("x100", ["c0", "c1"])]


async def test_shared_counters_and_what_is_left_of_them_are_shown_by_every_command(place: Path) -> None:
    machine = Machine(place)
    (machine.root / "cards").write_text("c0 c0.a c0.b")
    machine.serve("dra", "{counters: true}")
    counter = "node--dev-c0-"
    async with machine.running() as address:
        await machine.shows(lambda text: f"{DRIVER} waiting" in text, "status")
        await machine.cluster.register()
        text = await machine.shows(lambda text: "slice: " in text, "explain", "c0")
        assert re.search(r"\(counter of c0\): 2 of 2$", text, re.M)
        part = await machine.shows(lambda text: "slice: " in text, "explain", "c0.a")
        assert re.search(r"\(counter of c0\): 1 of 2$", part, re.M)
        await until(lambda: machine.cluster.published() == {RESOURCE: {"c0", "c0.a", "c0.b"}})
        claim = machine.cluster.allocate("mine", machine.cluster.name_of("c0.a"))
        assert (await machine.cluster.prepare(claim))[claim.uid].error == ""
        status = await machine.shows(lambda text: "default/mine" in text, "status")
        assert re.search(rf"^{RESOURCE} c0 {counter}\S+ 1 of 2$", status, re.M), status
        (pool,) = (await machine.document())["pools"]
        ((name, left),) = [(one["name"], one) for one in pool["counters"]]
        assert left == {"set": "c0", "name": name, "total": 2, "used": 1, "free": 1}
        amounts = {one["device"]: one["consumes"] for one in pool["devices"]}
        assert amounts["c0"] == [{"set": "c0", "name": name, "amount": 2}]
        in_use = f"{name} 1 of 2 (it takes 2)"
        assert f"in use: {in_use}" in await machine.shows(bool, "explain", "c0")
        assert in_use in await page(address)
        classes = await machine.shows(bool, "dra", "classes", "--config", str(machine.config))
        assert "# its devices may exclude each other: shared counters" in classes


async def test_explain_shows_attributes_as_the_api_server_has_them(place: Path) -> None:
    machine = Machine(place)
    machine.serve("dra", "{attributes: {port: ports}, lists: true}")
    server = machine.cluster.server
    server.drop_fields("strings")
    server.refuse_attribute("model")
    async with machine.running():
        await machine.shows(lambda text: f"Healthy {DRIVER}-" in text, "status")
        (found,) = json.loads(await machine.shows(bool, "explain", "c0", "--output", "json"))
        published = found["published"][0]["attributes"]
        (device, _) = machine.cluster.slices()[0]["devices"]
        assert published == {
            name: str(next(iter(value.values()))) for name, value in device["attributes"].items()
        }
        assert published["port"] == "p0"


async def test_what_claims_use_of_a_device_is_shown_by_every_command(place: Path) -> None:
    machine = Machine(place)
    cluster = machine.cluster
    shared = "{capacity: {memory: {min: 1Mi}, cores: {total: 10, min: 1}}, limit: none}"
    text = machine.config.read_text()
    machine.config.write_text(text.replace("serve: dra", f"serve: dra, share: {shared}"))
    async with machine.running() as address:
        await machine.shows(lambda text: f"Healthy {DRIVER}-" in text, "status")
        name = cluster.name_of("c0")
        claim = cluster.allocate("mine", name, share="s", consumed={"memory": "512Mi", "cores": "3"})
        assert (await cluster.prepare(claim))[claim.uid].error == ""
        in_use = "memory 512Mi of 1Gi, cores 3 of 10"
        assert f"{RESOURCE} c0 {in_use}\n" in await machine.shows(
            lambda text: "default/mine" in text, "status"
        )
        text = await machine.shows(bool, "explain", "c0")
        assert f"in use: {in_use}" in text and "memory (capacity): 1Gi" in text
        (found,) = json.loads(await machine.shows(bool, "explain", "c0", "--output", "json"))
        assert found["published"][0]["inUse"] == in_use
        assert in_use in await page(address)
        labels = f'{{capacity="cores",device="c0",resource="{RESOURCE}"}}'
        metrics = await page(address, "metrics")
        assert f"devhost_device_capacity{labels} 10.0\n" in metrics
        assert f"devhost_device_capacity_used{labels} 3.0\n" in metrics
