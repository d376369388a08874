"""The status of devices in claims: what is written of it, when, and what is left alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import ApiServer
from devhost_testing.dra.api_objects import claims
from kit.claims import uid
from kit.clock import FakeClock
from kit.dra import DRIVER, DraNode
from kit.publisher import Talking
from kit.waiting import background

from devhost.allocation.claims import ClaimedDevice, ClaimRecord
from devhost.backend.model import ClaimHolder, Device
from devhost.dra.answers import MESSAGE, AllocatedDevice
from devhost.dra.claim_status import BURST, GAP, INTERVAL, PATIENCE, RETRY, SETTLE, ClaimStatus
from devhost.dra.inventory import DeviceHealth
from devhost.dra.prepare import MOST_REFUSALS, FailedClaim, Refusals
from devhost.host.shown.problems import problems

POOL = "node-1/example-com-card"
OTHER = "other.example.com"
CLAIMS = claims("default")


class Present:
    """A device as its backend finds it."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.device = Device("x", attributes)


class Devices:
    """The devices of claims, and their health; those that have no attributes are gone."""

    def __init__(self) -> None:
        self.health: dict[str, DeviceHealth] = {}
        self.attributes: dict[str, Mapping[str, Any]] = {}
        self._callbacks: list[Callable[[], None]] = []

    def devices(self) -> list[DeviceHealth]:
        return list(self.health.values())

    def present(self, one: ClaimedDevice) -> Any:
        found = self.attributes.get(one.device)
        return None if found is None else Present(found)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def changed(self) -> None:
        for callback in self._callbacks:
            callback()


class Records:
    """The prepared claims."""

    def __init__(self) -> None:
        self.records: dict[str, ClaimRecord] = {}


class Scene(Talking):
    """Prepared claims, and what follows their status."""

    def __init__(self, server: ApiServer, driver: str = DRIVER) -> None:
        super().__init__(server, FakeClock())
        self.driver = driver
        self.devices = Devices()
        self.files = Records()
        self.refusals = Refusals()
        self.refusals.keep(True)
        self.status: ClaimStatus

    def allocate(
        self, number: int, *devices: str, drivers: tuple[str, ...] = (), made: str = "", **more: Any
    ) -> ClaimHolder:
        """A claim that has these devices allocated; ``made`` is its uid."""
        name = f"claim-{number}"
        results = [
            {"request": "req", "driver": driver, "pool": POOL, "device": device, **more}
            for device, driver in zip(devices, drivers or (self.driver,) * len(devices), strict=True)
        ]
        status = {"allocation": {"devices": {"results": results}}}
        metadata = {"name": name, "namespace": "default", "uid": made or uid(number)}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        self.server.put(CLAIMS, {**body, "status": status})
        return ClaimHolder("default", name, uid(number))

    def prepare(self, claim: ClaimHolder, *devices: str, share: str = "") -> None:
        """The claim is prepared with these devices."""
        found = (
            ClaimedDevice("req", POOL, one, share, ("cards", one), "example.com/card") for one in devices
        )
        self.files.records[claim.uid] = ClaimRecord(claim, self.driver, tuple(found))
        for one in devices:
            self.devices.attributes.setdefault(one, {})
            self.devices.health.setdefault(one, DeviceHealth(POOL, one, True))

    def claim(self, number: int, *devices: str) -> ClaimHolder:
        """A claim that has these devices, and is prepared."""
        claim = self.allocate(number, *devices)
        self.prepare(claim, *devices)
        return claim

    def health(self, device: str, reason: str | None) -> None:
        self.devices.health[device] = DeviceHealth(POOL, device, reason is None, reason or "")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        api: Any = self.connect()
        parts: Any = (self.devices, self.files)
        self.status = ClaimStatus(
            self.driver, api, *parts, self.refusals, clock=self.clock, wall=lambda: self.clock.now
        )
        try:
            async with background(self.status.run()):
                yield
        finally:
            api.close()

    async def changes(self, seconds: float = SETTLE + GAP) -> None:
        """Something has changed, and so much time passes."""
        self.devices.changed()
        await self.passes(seconds)

    def shown(self, claim: ClaimHolder) -> dict[str, dict[str, Any]]:
        """What the status of a claim has of each device of the driver."""
        (found,) = self.server.stored(f"{CLAIMS}/{claim.name}")
        devices = found["status"].get("devices", ())
        return {one["device"]: one for one in devices if one["driver"] == self.driver}

    def ready(self, claim: ClaimHolder) -> dict[str, tuple[str, str, str]]:
        """The condition of each device."""
        found = {}
        for name, one in self.shown(claim).items():
            (condition,) = one["conditions"]
            assert condition["type"] == "Ready"
            found[name] = condition["status"], condition["reason"], condition["message"]
        return found

    def since(self, claim: ClaimHolder, device: str) -> str:
        found: str = self.shown(claim)[device]["conditions"][0]["lastTransitionTime"]
        return found


PREPARED = ("True", "Prepared", "")


@pytest.fixture
def scene(server: ApiServer) -> Scene:
    return Scene(server)


@pytest.mark.conformance(127)
async def test_one_write_has_all_devices_of_a_claim(scene: Scene) -> None:
    claim = scene.claim(1, "c0", "c1")
    async with scene.running():
        await scene.changes()
    assert scene.ready(claim) == {"c0": PREPARED, "c1": PREPARED}
    (write,) = scene.server.writes
    assert (write.verb, write.path) == ("patch", f"{CLAIMS}/{claim.name}/status")
    request = scene.server.requests[-1]
    assert request.headers["content-type"] == "application/apply-patch+yaml"
    assert request.query == {"fieldManager": DRIVER, "force": "false"}
    assert write.body["metadata"]["uid"] == claim.uid, "it is only for this claim"


@pytest.mark.conformance(127)
async def test_a_condition_follows_the_health_and_keeps_its_time_as_long_as_it_is_the_same(
    scene: Scene,
) -> None:
    claim = scene.claim(1, "c0", "c1")
    async with scene.running():
        await scene.changes()
        first = scene.since(claim, "c0")
        scene.health("c0", "it is hot")
        await scene.changes()
        assert scene.ready(claim) == {"c0": ("False", "Unhealthy", "it is hot"), "c1": PREPARED}
        second = scene.since(claim, "c0")
        assert (scene.since(claim, "c1"), first < second) == (first, True)
        scene.health("c0", "it is very hot\x1b[2J")
        await scene.changes()
        assert "\x1b" not in str(scene.ready(claim))
        assert scene.since(claim, "c0") == second
        scene.health("c0", None)
        await scene.changes()
        assert scene.ready(claim)["c0"] == PREPARED
        for _ in range(10):
            await scene.changes()
    assert len(scene.server.writes) == 4


@pytest.mark.conformance(129)
async def test_a_restart_writes_nothing_and_the_times_last(scene: Scene) -> None:
    claim = scene.claim(1, "c0", "c1")
    scene.health("c1", "it is hot")
    async with scene.running():
        await scene.changes()
    before = scene.shown(claim)
    async with scene.running():
        await scene.changes()
        assert len(scene.server.writes) == 1
        scene.health("c1", "it is very hot")
        await scene.changes()
    assert scene.since(claim, "c1") == before["c1"]["conditions"][0]["lastTransitionTime"]


async def test_a_health_that_is_not_known_after_a_start_is_written_only_if_it_stays_so(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    scene.devices.health["c0"] = DeviceHealth(POOL, "c0", None, "devhost is looking for the device")
    async with scene.running():
        await scene.changes(PATIENCE - 1.0)
        assert scene.shown(claim) == {}
        await scene.passes(2.0)
        assert scene.ready(claim) == {"c0": ("Unknown", "HealthUnknown", "devhost is looking for the device")}


@pytest.mark.conformance(128)
async def test_what_other_drivers_and_programs_have_written_stays(scene: Scene) -> None:
    claim = scene.allocate(1, "c0", "n0", drivers=(DRIVER, OTHER))
    scene.prepare(claim, "c0")
    scene.devices.attributes["c0"] = {"netDevs": ("eth7",), "mac": "02:00:00:00:00:01"}
    (stored,) = scene.server.stored(f"{CLAIMS}/{claim.name}")
    theirs = {"driver": OTHER, "pool": POOL, "device": "n0", "networkData": {"interfaceName": "net1"}}
    mine = {"driver": DRIVER, "pool": POOL, "device": "c0", "networkData": {"ips": ["10.0.0.2/24"]}}
    scene.server.put(CLAIMS, {**stored, "status": {**stored["status"], "devices": [theirs, mine]}})
    async with scene.running():
        await scene.changes()
    (stored,) = scene.server.stored(f"{CLAIMS}/{claim.name}")
    assert theirs in stored["status"]["devices"]
    assert scene.ready(claim) == {"c0": PREPARED}
    assert scene.shown(claim)["c0"]["networkData"] == {
        "ips": ["10.0.0.2/24"],
        "interfaceName": "eth7",
        "hardwareAddress": "02:00:00:00:00:01",
    }


@pytest.mark.conformance(128)
async def test_two_drivers_keep_the_status_of_one_claim(server: ApiServer) -> None:
    one, two = Scene(server), Scene(server, OTHER)
    claim = one.allocate(1, "c0", "n0", drivers=(DRIVER, OTHER))
    one.prepare(claim, "c0")
    two.prepare(claim, "n0")
    async with one.running(), two.running():
        for scene in (one, two, one):
            await scene.changes()
        one.health("c0", "it is hot")
        await one.changes()
        await two.changes()
    assert one.ready(claim) == {"c0": ("False", "Unhealthy", "it is hot")}
    assert two.ready(claim) == {"n0": PREPARED}


@pytest.mark.conformance(128)
async def test_an_interface_that_another_program_has_named_keeps_that_name(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    scene.devices.attributes["c0"] = {"netDevs": ("eth7",), "mac": "02:00:00:00:00:01"}
    (stored,) = scene.server.stored(f"{CLAIMS}/{claim.name}")
    cni = {"driver": DRIVER, "pool": POOL, "device": "c0", "networkData": {"interfaceName": "net1"}}
    scene.server.put(CLAIMS, {**stored, "status": {**stored["status"], "devices": [cni]}})
    async with scene.running():
        await scene.changes()
        assert scene.shown(claim)["c0"]["networkData"] == {"interfaceName": "net1"}
        assert scene.ready(claim) == {"c0": PREPARED}
        assert scene.status.failure == ""


async def test_the_interface_of_a_device_that_is_gone_is_still_shown(scene: Scene) -> None:
    claim = scene.claim(1, "c0", "c1")
    scene.devices.attributes["c0"] = {"netDevs": ("eth7", "eth8")}
    scene.devices.attributes["c1"] = {"netDevs": ("e" * 257,), "mac": "1" * 129}
    async with scene.running():
        await scene.changes()
        del scene.devices.attributes["c0"]
        scene.health("c0", "the device is gone")
        await scene.changes()
    assert scene.ready(claim)["c0"][0] == "False"
    assert scene.shown(claim)["c0"]["networkData"] == {"interfaceName": "eth7"}
    assert "networkData" not in scene.shown(claim)["c1"], "the API would refuse the whole status"


async def test_a_claim_that_is_gone_replaced_or_allocated_again_is_not_written(scene: Scene) -> None:
    gone, replaced, elsewhere = (scene.claim(number, f"c{number}") for number in (1, 2, 3))
    scene.server.remove(f"{CLAIMS}/{gone.name}")
    scene.server.remove(f"{CLAIMS}/{replaced.name}")
    scene.allocate(2, "c2", made=uid(77))
    scene.allocate(3, "another")
    async with scene.running():
        await scene.changes()
        assert scene.server.writes == []
        assert scene.status.failure == ""
        scene.allocate(3, "c3")
        scene.prepare(elsewhere, "c3")
        await scene.changes()
        assert scene.ready(elsewhere) == {"c3": PREPARED}


async def test_a_claim_that_is_deleted_or_replaced_later_is_no_failure(scene: Scene) -> None:
    gone, replaced, elsewhere, other = (scene.claim(number, f"c{number}") for number in (1, 2, 3, 4))
    async with scene.running():
        await scene.changes()
        scene.server.remove(f"{CLAIMS}/{gone.name}")
        scene.server.remove(f"{CLAIMS}/{replaced.name}")
        scene.allocate(2, "c2", made=uid(77))
        scene.allocate(3, "another")
        for number in (1, 2, 3, 4):
            scene.health(f"c{number}", "it burns")
        await scene.changes()
        assert scene.ready(other)["c4"][0] == "False"
        assert scene.ready(replaced) == scene.ready(elsewhere) == {}
        assert scene.status.failure == ""


@pytest.mark.parametrize(
    "text",
    [
        "is forbidden: ValidatingAdmissionPolicy 'nodes' with binding 'nodes' denied request: not here",
        'admission webhook "nodes.example.com" denied the request: not here',
    ],
)
async def test_a_claim_that_a_policy_refuses_does_not_delay_others(scene: Scene, text: str) -> None:
    refused, other = scene.claim(1, "c0"), scene.claim(2, "c1")
    body = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": text}
    scene.server.answer_write(403, json.dumps(body).encode())
    async with scene.running():
        await scene.changes()
        assert scene.ready(other) == {"c1": PREPARED}
        assert scene.status.failure == f"{refused}: permission denied to patch resourceclaims: {text}"
        await scene.passes(RETRY)
        assert scene.ready(refused) == {"c0": PREPARED}
        assert scene.status.failure == ""


async def test_a_claim_that_is_prepared_again_is_written_again(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    async with scene.running():
        await scene.changes()
        scene.allocate(1, "c0")
        (stored,) = scene.server.stored(f"{CLAIMS}/{claim.name}")
        assert "devices" not in stored["status"], "the API server has removed it"
        scene.prepare(claim, "c0")
        await scene.changes()
        assert scene.ready(claim) == {"c0": PREPARED}


async def test_nothing_is_written_while_no_status_is_wanted(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    scene.refusals.keep(False)
    async with scene.running():
        await scene.changes()
        assert not scene.server.requests
        scene.refusals.keep(True)
        await scene.changes()
        assert scene.ready(claim) == {"c0": PREPARED}
        scene.refusals.keep(False)
        scene.health("c0", "it is hot")
        await scene.changes()
        assert scene.ready(claim) == {"c0": PREPARED}


async def test_shares_of_one_device_are_distinguished(scene: Scene) -> None:
    claim = scene.allocate(1, "c0", shareID=uid(9))
    scene.prepare(claim, "c0", share=uid(9))
    async with scene.running():
        await scene.changes()
    assert scene.shown(claim)["c0"]["shareID"] == uid(9)


@pytest.mark.conformance(129)
async def test_many_claims_are_written_a_few_at_a_time(scene: Scene) -> None:
    count = BURST + 30
    for number in range(1, count + 1):
        scene.claim(number, f"c{number}")
    async with scene.running():
        await scene.passes(INTERVAL / 2)
        assert len(scene.server.writes) == BURST
        await scene.passes(30 * INTERVAL + 0.1)
        assert len(scene.server.writes) == count


@pytest.mark.conformance(129)
async def test_a_device_that_flaps_causes_few_writes(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    async with scene.running():
        for number in range(120):
            scene.health("c0", f"{number} errors")
            await scene.changes(0.5)
    assert scene.ready(claim)["c0"][0] == "False"
    assert 60 / GAP - 2 <= len(scene.server.writes) <= 60 / GAP + 1


@pytest.mark.conformance(129)
async def test_an_api_server_that_is_away_is_asked_again_with_back_off(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    scene.claim(2, "c1")
    scene.server.fail_next(503, n=12)
    async with scene.running():
        for _ in range(30):
            await scene.changes(1.0)
        assert "HTTP 503" in scene.status.failure
        assert 4 <= len(scene.server.requests) <= 8, "changes do not end the back-off"
        await scene.passes(7 * 60.0)
        assert scene.status.failure == ""
        assert scene.ready(claim) == {"c0": PREPARED}


@pytest.mark.conformance(129)
async def test_a_claim_that_the_api_server_refuses_does_not_delay_others(scene: Scene) -> None:
    refused, other = scene.claim(1, "c0"), scene.claim(2, "c1")
    scene.server.fail_next(422, methods=("PATCH",))
    async with scene.running():
        await scene.changes()
        assert scene.ready(other) == {"c1": PREPARED}
        assert str(refused) in scene.status.failure
        await scene.passes(RETRY)
        assert scene.ready(refused) == {"c0": PREPARED}
        assert scene.status.failure == ""


async def test_an_api_server_that_drops_the_status_is_reported(scene: Scene) -> None:
    scene.claim(1, "c0")
    scene.server.drop_fields("devices")
    async with scene.running():
        await scene.changes()
        assert "drops the status of devices" in scene.status.failure
        assert "DRAResourceClaimDeviceStatus" in scene.status.failure


async def test_messages_are_cut_and_the_number_of_refused_claims_is_bounded(scene: Scene) -> None:
    claim = scene.claim(1, "c0")
    scene.health("c0", "x" * (MESSAGE + 1))
    async with scene.running():
        await scene.changes()
    assert scene.ready(claim)["c0"][2] == "x" * (MESSAGE - 3) + "…"
    for number in range(MOST_REFUSALS + 5):
        holder = ClaimHolder("default", f"claim-{number}", uid(number))
        scene.refusals.add(FailedClaim(holder, (AllocatedDevice("req", POOL, "c0"),), "no"))
    assert len(scene.refusals.found) == MOST_REFUSALS
    assert uid(4) not in scene.refusals.found
    scene.refusals.keep(False)
    assert not scene.refusals.found


def shown(node: DraNode, name: str) -> dict[str, tuple[str, str, str]]:
    """The conditions of the devices of a claim."""
    (claim,) = node.server.stored(f"{CLAIMS}/{name}")
    return {
        one["device"]: tuple(one["conditions"][0][key] for key in ("status", "reason", "message"))
        for one in claim["status"].get("devices", ())
    }


def configure(node: DraNode, *, status: bool = True) -> None:
    dra = f"dra: {{driver: {DRIVER}{', status: true' if status else ''}}}"
    node.node.configure(f"{dra}\nresources: [{{name: example.com/card, backend: cards, serve: dra}}]")


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    node = DraNode(place)
    configure(node)
    async with node, node.node.served():
        await published(node)
        yield node


async def published(node: DraNode) -> None:
    await node.until(lambda: node.published() == {"example.com/card": {"c0", "c1"}})


async def test_a_claim_is_ready_from_prepare_on_and_shows_what_is_wrong_with_its_device(
    node: DraNode,
) -> None:
    pool, device = node.name_of("c0")
    claim = node.allocate("mine", (pool, device))
    assert not (await node.prepare(claim))[claim.uid].error
    await node.until(lambda: shown(node, "mine") == {device: PREPARED})
    node.cards("c0 ill", "c1")
    node.node.look("cards")
    await node.until(lambda: shown(node, "mine") == {device: ("False", "Unhealthy", "it is hot")})


@pytest.mark.conformance(127)
async def test_a_claim_that_cannot_be_prepared_shows_why(node: DraNode) -> None:
    pool, device = node.name_of("c0")
    holder, claim = node.allocate("first", (pool, device)), node.allocate("second", (pool, device))
    assert not (await node.prepare(holder))[holder.uid].error
    error = (await node.prepare(claim))[claim.uid].error
    assert "a claim holds it" in error
    await node.until(lambda: shown(node, "second") == {device: ("False", "PrepareFailed", error)})
    await node.unprepare(holder)
    assert not (await node.prepare(claim))[claim.uid].error
    await node.until(lambda: shown(node, "second") == {device: PREPARED})


@pytest.mark.conformance(129)
async def test_a_right_that_is_missing_is_a_problem_and_claims_are_prepared(node: DraNode) -> None:
    node.server.fail_next(403, n=1000, methods=("PATCH",))
    claim = node.allocate("mine", node.name_of("c0"))
    assert not (await node.prepare(claim))[claim.uid].error
    await node.until(lambda: any("patch resourceclaims" in one for one in reasons(node)))
    assert not node.report()["error"], "pods can use the driver"


def reasons(node: DraNode) -> list[str]:
    return [one.reason for one in problems(node.host.now()).shown if one.kind == "dra"]


async def test_without_the_key_nothing_is_written(place: Path) -> None:
    node = DraNode(place)
    configure(node, status=False)
    async with node, node.node.served():
        await published(node)
        claim = node.allocate("mine", node.name_of("c0"))
        assert not (await node.prepare(claim))[claim.uid].error
        await node.settled(2 * SETTLE)
        assert not [one for one in node.server.requests if one.method == "PATCH"]
        configure(node)
        await node.reload()
        await node.until(lambda: shown(node, "mine"))
