"""What the kubelet gets for a claim, and what is left of a claim afterwards."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from devhost_testing import runtime
from kit.claims import (
    DRIVER,
    KIND,
    PATIENT,
    POOL,
    RESOURCE,
    CardOptions,
    Cards,
    Scene,
    Together,
    WithCdi,
    config,
    result,
    uid,
)
from kit.waiting import until

from devhost.backend import Device, claim, option
from devhost.backend.model import ClaimHolder, Edits, unhealthy
from devhost.dra.kube import ApiError
from devhost.planning.claims import held_by_claims

SCHEMA = Path(__file__).parents[1] / "allocation" / "cdi.schema.json"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = await Scene(tmp_path).start()
    yield made
    made.close()


@pytest.fixture
async def scenes(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[Scene] = []

    async def make(kind: type[Cards] = Cards, **more: Any) -> Scene:
        made.append(await Scene(tmp_path, kind, **more).start())
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Puts the clock of the event loop forward."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)

    def put(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    return put


@pytest.mark.conformance(72)
async def test_a_prepared_claim_has_its_file_before_the_answer(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    (device,) = await scene.devices(ref)
    assert device.base == "gpu" and (device.pool, device.device) == (POOL, "a")
    assert device.cdi_ids == (f"{KIND}={uid(1)}-gpu-0",)
    assert scene.left == [f"devhost-dra_{uid(1)}.json"]
    assert scene.container(ref, [device]) == {"CARD_A_MODE": "safe"}
    assert scene.cards.prepared == [["a"]]
    assert scene.held == ["a"]


async def test_a_container_runtime_can_load_the_file_of_a_claim(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"), result("gpu", "b"))
    await scene.devices(ref)
    text = scene.file(ref).read_text()
    jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert runtime.load(text) == json.loads(text)
    *devices, record = scene.spec(ref)["devices"]
    assert all(one["containerEdits"]["deviceNodes"] for one in devices) and record["name"].startswith(
        "record"
    )


@pytest.mark.conformance(73)
async def test_the_same_claim_twice_gets_the_same_answer_and_the_file_is_untouched(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a", shareID="s-1"), result("gpu", "b"))
    first = await scene.devices(ref)
    before = scene.file(ref).stat()
    scene.offer("a", unhealthy("it is hot"))
    assert await scene.devices(ref) == first
    after = scene.file(ref).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert scene.cards.prepared == [["a", "b"]]


async def test_a_prepared_claim_is_answered_while_the_api_server_is_down(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    first = await scene.devices(ref)
    scene.api.down = True
    assert await scene.devices(ref) == first


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_a_prepared_claim_is_answered_while_the_api_server_refuses(scene: Scene, status: int) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    first = await scene.devices(ref)
    scene.api.error = ApiError(status)
    assert await scene.devices(ref) == first


@pytest.mark.parametrize("body", [{}, {"metadata": {"uid": uid(1)}, "status": []}])
async def test_a_prepared_claim_is_answered_while_something_else_answers(scene: Scene, body: Any) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    before = await scene.devices(ref)
    scene.api.claims["team", ref.name] = body
    assert await scene.devices(ref) == before


async def test_a_claim_that_was_allocated_again_gets_its_new_devices(scene: Scene) -> None:
    await scene.devices(scene.claim(1, result("gpu", "a")))
    (device,) = await scene.devices(scene.claim(1, result("gpu", "b")))
    assert device.device == "b" and scene.held == ["b"]


async def test_a_claim_of_an_earlier_driver_name_is_prepared_again_with_the_new_one(scene: Scene) -> None:
    await scene.devices(scene.claim(1, result("gpu", "a")))
    scene.restart("renamed.example.com")
    (device,) = await scene.devices(scene.claim(1, result("gpu", "a", "renamed.example.com")))
    assert device.cdi_ids == (f"renamed.example.com/claim={uid(1)}-gpu-0",)
    assert scene.held == ["a"]


@pytest.mark.conformance(74)
async def test_an_error_of_one_claim_is_not_one_of_the_others(scene: Scene) -> None:
    good, bad = scene.claim(1, result("gpu", "a")), scene.claim(2, result("gpu", "nothing"))
    first, second = await scene.prepare(good, bad)
    assert not isinstance(first, str) and isinstance(second, str)
    assert scene.held == ["a"] and scene.left == [f"devhost-dra_{good.uid}.json"]


@pytest.mark.conformance(75)
async def test_each_reason_why_there_is_nothing_to_prepare_has_its_own_text(scene: Scene) -> None:
    scene.claim(2, result("gpu", "a"), name="again")
    texts = [
        await scene.error(ClaimHolder("team", "none", uid(1))),
        await scene.error(ClaimHolder("team", "again", uid(1))),
        await scene.error(scene.claim(3)),
        await scene.error(scene.claim(4, result("gpu", "a", "other.example.com"))),
    ]
    assert texts == [
        "ResourceClaim team/none does not exist",
        f"ResourceClaim team/again was deleted and created again: its uid is {uid(2)}, not {uid(1)}",
        "ResourceClaim team/claim-3 is not allocated",
        f"ResourceClaim team/claim-4 has no device of driver {DRIVER}",
    ]
    assert scene.left == [] and scene.held == []


@pytest.mark.conformance(76)
async def test_devices_and_options_of_other_drivers_are_ignored(scene: Scene) -> None:
    ref = scene.claim(
        1,
        result("nic", "a", "other.example.com"),
        result("gpu", "b"),
        config=[config({"nonsense": 1}, driver="other.example.com")],
    )
    (device,) = await scene.devices(ref)
    assert device.device == "b" and scene.held == ["b"]


@pytest.mark.conformance(77)
async def test_a_device_of_a_subrequest_is_named_by_its_request(scene: Scene) -> None:
    (device,) = await scene.devices(scene.claim(1, result("gpu/big", "a")))
    assert device.base == "gpu" and device.cdi_ids == (f"{KIND}={uid(1)}-gpu-0",)


@pytest.mark.conformance(78)
async def test_the_options_of_a_claim_replace_those_of_its_class(scene: Scene) -> None:
    ref = scene.claim(
        1,
        result("x", "a"),
        result("y", "b"),
        config=[config({"mode": "safe"}, "FromClaim", "y"), config({"mode": "fast", "depth": 4})],
    )
    devices = await scene.devices(ref)
    assert scene.container(ref, devices) == {"CARD_A_MODE": "fast", "CARD_B_MODE": "safe"}


@pytest.mark.conformance(78)
async def test_an_unknown_option_is_refused_with_its_path(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"), config=[config({}), config({"mod": "fast"})])
    assert await scene.error(ref) == (
        "config[1].opaque.parameters.options.mod: unknown key (did you mean mode?)"
    )
    assert scene.left == [] and scene.held == []


@pytest.mark.conformance(79)
async def test_no_cdi_name_is_twice_in_a_container_and_the_first_is_of_one_device(scenes: Any) -> None:
    for kind in (Cards, Together, WithCdi):
        scene = await scenes(kind)
        ref = scene.claim(1, result("gpu", "a"), result("gpu", "b"))
        devices = await scene.devices(ref)
        names = [name for device in devices for name in device.cdi_ids]
        assert len(set(names)) == len(names)
        assert len({device.cdi_ids[0] for device in devices}) == 2
        await scene.unprepare(ref)


async def test_devices_that_give_more_together_share_one_more_name(scenes: Any) -> None:
    scene = await scenes(Together)
    ref = scene.claim(1, result("gpu", "a"), result("gpu", "b"))
    first, second = await scene.devices(ref)
    assert first.cdi_ids == (f"{KIND}={uid(1)}-gpu-0", f"{KIND}={uid(1)}-gpu-set")
    assert second.cdi_ids == (f"{KIND}={uid(1)}-gpu-1",)
    assert scene.container(ref, [first, second])["CARDS"] == "a,b"
    assert await scene.devices(ref) == (first, second)


async def test_the_names_of_other_specifications_are_passed_on_and_kept(scenes: Any) -> None:
    scene = await scenes(WithCdi)
    ref = scene.claim(1, result("gpu", "a"), result("gpu", "b"))
    answer = await scene.devices(ref)
    assert [device.cdi_ids[1:] for device in answer] == [
        ("example.com/extra=a", "example.com/driver=lib"),
        ("example.com/extra=b",),
    ]
    assert await scene.devices(ref) == answer


async def test_cdi_names_that_several_devices_have_together_replace_their_own(scenes: Any) -> None:
    class Paired(Cards):
        def allocate(self, request: Any) -> Edits:
            names = "_".join(device.id for device in request.devices)
            return Edits(cdi_devices=(f"example.com/pair={names}",))

    scene = await scenes(Paired)
    first, second = await scene.devices(scene.claim(1, result("gpu", "a"), result("gpu", "b")))
    assert first.cdi_ids[1:] == ("example.com/pair=a_b",) and second.cdi_ids[1:] == ()


@pytest.mark.conformance(80)
async def test_containers_with_different_requests_get_only_their_own(scenes: Any) -> None:
    scene = await scenes(Together)
    ref = scene.claim(1, result("x", "a"), result("y", "b"))
    first, second = await scene.devices(ref)
    assert scene.container(ref, [first]) == {"CARD_A_MODE": "safe", "CARDS": "a"}
    assert scene.container(ref, [second]) == {"CARD_B_MODE": "safe", "CARDS": "b"}


@pytest.mark.conformance(81)
async def test_a_device_that_cannot_be_used_is_named_with_the_reason(scene: Scene) -> None:
    scene.resources.reasons["gone"] = "the configuration has no resource with it"
    scene.offer("c", unhealthy("its fan is broken"))
    texts = [
        await scene.error(scene.claim(n, result("gpu", name))) for n, name in enumerate(("x", "gone", "c"))
    ]
    assert texts == [
        f"device {POOL}/x is not available: devhost has no such device",
        f"device {POOL}/gone is not available: the configuration has no resource with it",
        f"device {POOL}/c is unhealthy: its fan is broken",
    ]


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": f"{DRIVER}/unhealthy", "operator": "Exists", "effect": "NoSchedule"},
        {"key": f"{DRIVER}/unhealthy", "value": "fan"},
    ],
)
async def test_an_unhealthy_device_is_prepared_for_a_claim_that_tolerates_it(
    scene: Scene, toleration: dict[str, str]
) -> None:
    scene.offer("a", unhealthy("its fan is broken"))
    assert await scene.devices(scene.claim(1, result("gpu", "a", tolerations=[toleration])))


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "other.example.com/unhealthy", "operator": "Exists"},
        {"operator": "Exists", "effect": "NoExecute"},
        {"effect": "NoSchedule"},
    ],
)
async def test_other_tolerations_do_not_help(scene: Scene, toleration: dict[str, str]) -> None:
    scene.offer("a", unhealthy("its fan is broken"))
    ref = scene.claim(1, result("gpu", "a", tolerations=[toleration]))
    assert "is unhealthy" in await scene.error(ref)


@pytest.mark.conformance(81)
async def test_a_device_without_its_node_is_named_and_reported_as_unhealthy(scene: Scene) -> None:
    scene.cards.node = "/dev/no-such-node"
    error = await scene.error(scene.claim(1, result("gpu", "a")))
    assert error == f"{RESOURCE}: /dev/no-such-node does not exist on the node"
    assert scene.scanner.denied == {"a": ["/dev/no-such-node"]} and scene.held == []


async def test_the_refusal_of_a_backend_is_the_error_of_the_claim(scene: Scene) -> None:
    scene.cards.refuse.add("a")
    assert await scene.error(scene.claim(1, result("gpu", "a"))) == "a is being reset"


@pytest.mark.conformance(82)
async def test_a_held_device_is_refused_with_its_holder(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.devices(scene.claim(1, result("gpu", "a")))
    scene.node.give(Device("b"), RESOURCE, "cards")
    scene.node.hear(card="b")
    assert "a claim holds it" in await scene.error(scene.claim(2, result("gpu", "a")))
    (line,) = (one for one in caplog.records if one.message == "a claim cannot be prepared")
    assert getattr(line, "fields", {})["holder"] == "ResourceClaim team/claim-1"
    assert "a pod holds it" in await scene.error(scene.claim(3, result("gpu", "b")))
    assert scene.left == [f"devhost-dra_{uid(1)}.json"]


@pytest.mark.conformance(84)
async def test_admin_access_never_holds_and_is_never_refused_for_that(scene: Scene) -> None:
    await scene.devices(scene.claim(1, result("gpu", "a")))
    admin = scene.claim(2, result("look", "a", adminAccess=True), result("look", "b", adminAccess=True))
    assert len(await scene.devices(admin)) == 2
    assert scene.held == ["a"]
    assert await scene.devices(scene.claim(3, result("gpu", "b")))
    record = await scene.files.read(admin.uid)
    assert record is not None and all(device.admin for device in record.devices)


@pytest.mark.conformance(85)
async def test_a_shared_device_is_prepared_as_often_as_it_is_shared(scenes: Any) -> None:
    scene = await scenes(replicas=2)
    refs = [scene.claim(n, result("gpu", "a", shareID=f"share-{n}")) for n in range(3)]
    first, second = await scene.devices(refs[0]), await scene.devices(refs[1])
    assert [first[0].share, second[0].share] == ["share-0", "share-1"]
    assert "all 2 shares are in use" in await scene.error(refs[2])
    await scene.unprepare(refs[0])
    assert await scene.devices(refs[2])


@pytest.mark.parametrize("slots", ["1500m", "2"])
async def test_slots_are_rounded_up(scenes: Any, slots: str) -> None:
    scene = await scenes(replicas=3)
    used = {f"{DRIVER}/slots": slots}
    (one,) = await scene.devices(scene.claim(1, result("gpu", "a", shareID="s", consumedCapacity=used)))
    assert one.slots == 2


@pytest.mark.parametrize("slots", ["99999999999999999999", "100u", "two", None])
async def test_a_number_of_slots_that_cannot_be_read_is_refused(scenes: Any, slots: Any) -> None:
    """The device might not have so many."""
    scene = await scenes(replicas=3)
    used = {f"{DRIVER}/slots": slots}
    ref = scene.claim(1, result("gpu", "a", shareID="s", consumedCapacity=used))
    assert await scene.error(ref) == f"{slots} is no quantity of slots that devhost knows"


@pytest.mark.conformance(85)
async def test_two_shares_of_one_device_in_one_claim_are_two_devices_with_their_names(scenes: Any) -> None:
    scene = await scenes(replicas=2)
    ref = scene.claim(1, result("gpu", "a", shareID="s-1"), result("gpu", "a", shareID="s-2"))
    first, second = await scene.devices(ref)
    assert (first.share, second.share) == ("s-1", "s-2")
    assert first.cdi_ids[0] != second.cdi_ids[0]
    assert scene.container(ref, [first, second]) == {"CARD_A_MODE": "safe"}


async def test_a_backend_that_takes_shares_gets_those_of_each_request(scenes: Any) -> None:
    seen: list[dict[str, str]] = []

    class Sliced(Together):
        takes_shares = True

        def allocate(self, request: Any) -> Edits:
            seen.append({name: str(part) for name, part in request.shares.items()})
            return super().allocate(request)

    scene = await scenes(Sliced, replicas=4)
    half = {"consumedCapacity": {f"{DRIVER}/slots": "2"}}
    await scene.devices(scene.claim(1, result("gpu", "a", shareID="s-1", **half), result("gpu", "b")))
    assert seen == [{"a": "1/2", "b": "1/4"}, {"a": "1/2"}, {"b": "1/4"}]


async def test_an_option_for_which_a_device_is_unusable_is_refused(scenes: Any) -> None:
    @dataclass(frozen=True)
    class Using(CardOptions):
        rdma: bool = option(False, "whether it has RDMA")

        @property
        def uses(self) -> tuple[str, ...]:
            return ("rdma",) if self.rdma else ()

    class Nics(Cards):
        ResourceOptions = Using

    scene = await scenes(Nics, options=Using())
    offered = scene.resources.offered["a"]
    device = replace(offered.device, unusable_for={"rdma": "it has no uverbs node"})
    scene.resources.offered["a"] = replace(offered, device=device)
    refused = scene.claim(1, result("nic", "a"), config=[config({"rdma": True})])
    assert await scene.error(refused) == f"device {POOL}/a is unhealthy: it has no uverbs node"
    assert await scene.devices(scene.claim(2, result("nic", "a")))


@pytest.mark.conformance(86)
async def test_releasing_is_done_for_an_unknown_claim_and_again(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    assert await scene.unprepare(ref) == [""]
    await scene.devices(ref)
    assert await scene.unprepare(ref) == [""] and await scene.unprepare(ref) == [""]
    assert await scene.unprepare(ClaimHolder("team", "odd", "../../etc/passwd")) == [""]
    assert scene.left == [] and scene.held == []


@pytest.mark.conformance(87)
async def test_a_claim_is_released_while_the_api_server_is_down(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    scene.api.down = True
    scene.api.claims.clear()
    assert await scene.unprepare(ref) == [""]
    assert scene.left == [] and scene.held == []


async def test_an_unreachable_api_server_is_an_error_and_leaves_nothing(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    scene.api.down = True
    assert "connection refused" in await scene.error(ref)
    assert scene.left == [] and scene.held == []


@pytest.mark.parametrize("silent", [False, True])
async def test_fifty_claims_of_one_call_use_few_connections_and_fail_together(
    scenes: Any, silent: bool, later: Callable[[float], None]
) -> None:
    """Waiting for a turn is not silence of the API server, and silence is not waited for once for each."""

    async def ten_seconds_pass() -> None:
        await asyncio.sleep(0)  # the requests beside it begin
        later(10.0)

    scene = await scenes(api_deadline=0.2 if silent else 100.0, deadline=1e6, timing=PATIENT)
    refs = [scene.claim(number, result("look", "a", adminAccess=True)) for number in range(1, 51)]
    if silent:
        scene.api.gate.clear()
    else:
        scene.api.answering = ten_seconds_pass  # all together take longer than the deadline
    answers = await scene.prepare(*refs)
    assert scene.api.most == 4
    assert len(scene.api.gets) == (4 if silent else 50)
    assert {isinstance(one, str) for one in answers} == {silent}


async def test_a_monitor_gets_what_works_of_broken_devices(scene: Scene) -> None:
    scene.offer("a", unhealthy("it is hot"))
    scene.cards.refuse = {"b"}
    ref = scene.claim(1, *(result("look", name, adminAccess=True) for name in "abc"))
    devices = await scene.devices(ref)
    assert scene.container(ref, devices) == {"CARD_A_MODE": "safe", "CARD_C_MODE": "safe"}
    assert scene.cards.prepared == [], "another claim may use them"
    assert "unhealthy: it is hot" in await scene.error(scene.claim(2, result("gpu", "a")))


@pytest.mark.conformance(88)
async def test_a_silent_api_server_is_an_error_in_time_and_blocks_no_other_claim(
    scenes: Any, later: Callable[[float], None]
) -> None:
    scene = await scenes(api_deadline=100.0, deadline=1e6, timing=PATIENT)
    hung, good = scene.claim(1, result("gpu", "a")), scene.claim(2, result("gpu", "b"))
    scene.api.slow, scene.api.gate = {"claim-1"}, asyncio.Event()
    first = asyncio.create_task(scene.preparer.prepare([hung]))
    assert await scene.devices(good)
    later(100.0)
    assert await first == {hung.uid: "the API server did not answer within 100 s"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ApiError(403, "Forbidden", "no"), "permission denied to get an object: no (devhost's ClusterRole"),
        (
            ApiError(500, "InternalError", "etcd\nis slow"),
            "refused to get an object (HTTP 500): etcd is slow",
        ),
    ],
)
async def test_a_refusal_of_the_api_server_is_one_line(scene: Scene, error: ApiError, text: str) -> None:
    scene.api.error = error
    found = await scene.error(scene.claim(1, result("gpu", "a")))
    assert text in found and "\n" not in found


@pytest.mark.conformance(89)
async def test_a_cancelled_prepare_leaves_nothing(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    scene.api.gate.clear()
    task = asyncio.create_task(scene.preparer.prepare([ref]))
    await until(lambda: scene.api.gets)
    task.cancel()
    await asyncio.wait([task])
    scene.api.gate.set()
    assert task.cancelled()
    assert scene.left == [] and scene.held == [] and not held_by_claims(scene.node.allocations.held())


@pytest.mark.conformance(89)
async def test_a_prepare_that_ends_after_its_claim_was_released_leaves_nothing(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    scene.api.gate.clear()
    task = asyncio.create_task(scene.preparer.prepare([ref]))
    await until(lambda: scene.api.gets)
    assert await scene.unprepare(ref) == [""]
    scene.api.gate.set()
    assert await task == {ref.uid: f"{ref} was released while it was being prepared"}
    assert scene.left == [] and scene.held == []
    assert await scene.devices(ref)  # a new call is a new one


async def test_a_release_while_the_backend_answers_leaves_nothing(scenes: Any) -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(Cards):
        def prepare(self, request: Any) -> None:
            entered.set()
            go.wait(60)

    scene = await scenes(Slow)
    ref = scene.claim(1, result("gpu", "a"))
    task = asyncio.create_task(scene.preparer.prepare([ref]))
    await asyncio.to_thread(entered.wait, 60)
    release = asyncio.create_task(scene.preparer.unprepare([ref]))
    await asyncio.sleep(0)
    go.set()
    assert await task == {ref.uid: f"{ref} was released while it was being prepared"}
    assert await release == {ref.uid: ""}
    assert scene.left == [] and scene.held == []


async def test_a_backend_that_hangs_is_an_error_before_the_kubelet_gives_up(scenes: Any) -> None:
    go = threading.Event()

    class Hung(Cards):
        def prepare(self, request: Any) -> None:
            go.wait(60)

    scene = await scenes(Hung, deadline=0.1)
    ref = scene.claim(1, result("gpu", "a"))
    assert await scene.error(ref) == f"{ref} could not be prepared within 0.1 s"
    go.set()
    assert scene.left == [] and scene.held == [] and not held_by_claims(scene.node.allocations.held())


@pytest.mark.conformance(90)
async def test_a_full_disk_is_an_error_without_a_file_and_without_a_holder(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ref = scene.claim(1, result("gpu", "a"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        error = await scene.error(ref)
        assert scene.files.unwritten == error
        await scene.files.check()
        assert scene.files.unwritten.startswith(f"cannot write {scene.file(ref).parent}: No space left")
    assert error.startswith(f"cannot write {scene.file(ref)}: No space left on device")
    assert scene.left == [] and scene.held == [] and not held_by_claims(scene.node.allocations.held())
    await scene.files.check()
    assert scene.files.unwritten == "" and scene.left == []
    assert await scene.devices(ref)


async def test_an_earlier_directory_that_takes_no_files_does_not_matter_once_another_is_configured(
    scene: Scene,
) -> None:
    (scene.place / "cdi").write_text("in the way")
    assert await scene.error(scene.claim(1, result("gpu", "a"))) == scene.files.unwritten != ""
    scene.files.move(scene.place / "other")
    await scene.files.check()
    assert scene.files.unwritten == ""


async def test_a_claim_stays_held_if_its_file_cannot_be_removed(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    file = scene.file(ref)
    file.unlink()
    file.mkdir()
    (error,) = await scene.unprepare(ref)
    assert error.startswith(f"cannot remove {file}")
    assert scene.held == ["a"]


async def test_a_claim_without_file_is_released_although_the_file_system_is_read_only(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))  # Linux does so for missing files too

    ref = scene.claim(1, result("gpu", "a"))
    monkeypatch.setattr(Path, "unlink", refused)
    assert await scene.unprepare(ref) == [""]


@pytest.mark.conformance(91)
async def test_a_restart_between_prepare_and_release_changes_nothing(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"), result("gpu", "b", adminAccess=True))
    answer = await scene.devices(ref)
    scene.restart()
    for record in await scene.files.read_all():
        scene.ledger.prepared(record.claim, record.devices, record.driver)
    assert scene.held == ["a"]
    scene.api.down = True
    assert await scene.devices(ref) == answer
    assert await scene.unprepare(ref) == [""]
    assert scene.left == [] and scene.held == []


@pytest.mark.conformance(92)
async def test_a_claim_of_an_earlier_boot_is_prepared_again(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    scene.boot = "boot-2"
    scene.restart()
    assert await scene.files.read_all() == [] and scene.left == []
    assert await scene.devices(ref)
    assert scene.cards.prepared == [["a"], ["a"]]


async def test_a_removed_file_is_restored_at_the_next_prepare(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    answer = await scene.devices(ref)
    text = scene.file(ref).read_text()
    scene.file(ref).unlink()
    assert await scene.devices(ref) == answer
    assert scene.file(ref).read_text() == text
    assert scene.cards.prepared == [["a"]]


async def test_a_claim_that_is_answered_from_its_record_holds_its_devices(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    answer = await scene.devices(ref)
    scene.restart()
    assert await scene.devices(ref) == answer and scene.held == ["a"]
    scene.restart()
    scene.node.give(Device("a"), RESOURCE, "cards")
    scene.node.hear(card="a")
    assert "a pod holds it" in await scene.error(ref)


@pytest.mark.conformance(95)
async def test_a_claim_of_two_pods_is_held_until_it_is_released(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    await scene.devices(ref)
    assert "a claim holds it" in await scene.error(scene.claim(2, result("gpu", "a")))
    await scene.unprepare(ref)
    assert await scene.devices(scene.claim(2, result("gpu", "a")))


async def test_a_claim_is_refused_a_node_that_a_container_has_although_the_backend_forgot_it(
    scene: Scene,
) -> None:
    terminal, other_end = os.openpty()
    try:
        scene.cards.node = os.ttyname(other_end)
        scene.node.give(Device("other", claims=frozenset({claim.node(scene.cards.node)})))
        ref = scene.claim(1, result("gpu", "a"))
        error = await scene.error(ref)
        assert f"node:{scene.cards.node} is in use" in error and "gives it without a claim" in error
        assert (scene.left, scene.cards.prepared) == ([], [])
        scene.node.allocations.of(RESOURCE).release(["other"])
        assert await scene.devices(ref)
    finally:
        os.close(terminal)
        os.close(other_end)


async def test_a_prepared_claim_whose_device_is_gone_is_refused_until_it_is_back(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    answer = await scene.devices(ref)
    scene.resources.gone = {"a"}
    assert await scene.error(ref) == f"device {POOL}/a is not available: the device is gone"
    scene.api.down = True
    assert await scene.error(ref) == f"device {POOL}/a is not available: the device is gone"
    scene.resources.gone = set()
    assert await scene.devices(ref) == answer


async def test_what_the_containers_of_a_claim_are_given_is_known(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    assert [node.path for node in scene.node.allocations.given.claims[ref.uid].nodes] == ["/dev/null"]
