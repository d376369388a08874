"""Hooks before a container gets devices and after it has released them, of a whole host."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from cdi_scene import TOY_LINE
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.kubelet.faults import Point, fail
from scraped_series import value
from status_values import status

from devhost.backend import ContainerRequest, Device, DeviceNode, Edits, hookimpl
from devhost.discovery.handover import MAX_BYTES, MOST_GONE

TOY = "example.com/toy"
OTHER = "example.com/other"
LINE = f"name: {TOY}, backend: toy"


@dataclass
class Hooks:
    """Both hooks, for one backend."""

    for_backends: ClassVar = ("toy",)
    requests: list[ContainerRequest] = field(default_factory=list)
    released: list[list[str]] = field(default_factory=list)
    additions: Edits | None = None
    refusal: str = ""
    failure: str = ""
    go: threading.Event = field(default_factory=threading.Event)

    @hookimpl
    def devhost_before_container(self, request: ContainerRequest) -> Edits | None:
        self.requests.append(request)
        if self.refusal:
            raise RuntimeError(self.refusal)
        return self.additions

    @hookimpl
    def devhost_after_release(self, backend: str, devices: tuple[Device, ...]) -> None:
        self.released.append([device.id for device in devices])
        self.go.wait(60)
        if self.failure:
            raise OSError(self.failure)


@pytest.fixture
def hooks(rig):
    found = Hooks()
    rig.hurry_discovery(handover_pauses=(0.05, 0.1))
    rig.scripts["toy"].devices = rig.scripts["toy"].devices[:1]
    rig.observe(found)
    yield found
    found.go.set()


def reason(host, resource=TOY):
    """The reason of the only device."""
    (entry,) = host.services[resource].inventory.snapshot.entries.values()
    return entry.health.reason or ""


async def used(rig, kubelet, pod="one"):
    """A pod gets the device, and ends."""
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 1)
    await kubelet.admit(pod, "main", TOY, 1)
    await rig.until(lambda: any(one.holder for one in rig.host.allocations.held()))
    kubelet.release(pod)


async def prepared(kubelet, hooks, count=1):
    """The hook is called and returns. The kubelet has both lists, so that none comes during an admission."""
    await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0})
    hooks.go.set()
    await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: count})
    hooks.go.clear()


async def test_a_released_device_is_unhealthy_until_the_hook_returns(rig, kubelet, hooks):
    async with rig.running(LINE) as host:
        await used(rig, kubelet)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0})
        assert reason(host) == "being prepared for the next container"
        hooks.go.set()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
    assert hooks.released == [["d0"]]


async def test_a_failed_hook_is_called_again_and_the_device_has_the_reason(rig, kubelet, hooks):
    rig.write(LINE)
    hooks.go.set()
    hooks.failure = "the reset timed out"
    async with rig.running() as host:
        await used(rig, kubelet)
        await rig.until(lambda: len(hooks.released) > 2)
        await rig.until(lambda: "the reset timed out" in reason(host))
        assert reason(host).startswith("being prepared for the next container: devhost_after_release of ")
        labels = {"observer": "observer0", "kind": "error"}
        assert value(host.metrics, "devhost_observer_failures_total", **labels) >= 2
        hooks.failure = ""
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})


async def test_a_hanging_hook_is_reported_and_never_runs_twice_at_once(rig, kubelet, hooks):
    rig.write(LINE)
    rig.hurry_discovery(handover_after=0.1)
    async with rig.running() as host:
        await used(rig, kubelet)
        await rig.until(lambda: "did not answer within 0.1 s" in reason(host))
        with pytest.raises(TimeoutError):
            await rig.until(lambda: hooks.released[1:], 0.5)
        hooks.go.set()
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
    assert hooks.released[1:]


async def test_a_container_gets_what_the_hook_adds(rig, kubelet, hooks):
    hooks.additions = Edits(nodes=(DeviceNode("/dev/zero"),), env={"GROUP": "7", "DEVICES": "other"})
    async with rig.running(LINE, allocatable={TOY: 1}):
        answer = (await kubelet.admit("one", "main", TOY, 1)).response
    assert [spec.host_path for spec in answer.devices] == ["/dev/null", "/dev/zero"]
    assert dict(answer.envs) == {"GROUP": "7", "DEVICES": "d0"}
    (request,) = hooks.requests
    assert (request.backend, request.resource, request.claim) == ("toy", TOY, None)
    assert [device.id for device in request.devices] == ["d0"]


async def test_an_error_of_the_hook_refuses_the_pod_with_its_text(rig, kubelet, hooks):
    hooks.refusal = "burn-in failed: 3 errors"
    hooks.go.set()
    async with rig.running(LINE, allocatable={TOY: 1}):
        with pytest.raises(UnexpectedAdmissionError, match="burn-in failed: 3 errors"):
            await kubelet.admit("one", "main", TOY, 1)
        await rig.until(lambda: hooks.released == [["d0"]])  # what the hook has begun is undone


async def test_the_status_counts_calls_of_hooks_and_their_failures(rig, kubelet, hooks):
    """A hook that refuses every pod is not shown as one that is never called."""

    def counts(host):
        (shown,) = status(host)["observers"]
        return shown["calls"], shown["failures"]

    hooks.refusal = "burn-in failed"
    hooks.go.set()
    async with rig.running(LINE, allocatable={TOY: 1}) as host:
        assert counts(host) == (0, 0)
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("one", "main", TOY, 1)
        await rig.until(lambda: counts(host) == (2, 1))  # the second is the hook after the release


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("yes", "it answered str, not Edits"),
        (Edits(env={"GROUP": 7}), "it answered env that is not a mapping of str to str"),
        (Edits(env={"A=B": "7"}), "it answered an unusable variable name 'A=B'"),
        (Edits(nodes=("/dev/zero",)), "it answered nodes that are not a tuple of DeviceNode"),
        (
            Edits(nodes=(DeviceNode("dev/zero"),)),
            "it answered a device node whose path is not absolute: 'dev/zero'",
        ),
        (
            Edits(env={"GROUP": "7" * (1 << 16)}),
            "it answered variables and annotations of 65541 characters, more than 65536",
        ),
    ],
)
async def test_an_unusable_answer_of_a_hook_is_its_fault(rig, kubelet, hooks, answer, text):
    hooks.additions = answer
    hooks.go.set()
    async with rig.running(LINE, allocatable={TOY: 1}) as host:
        with pytest.raises(UnexpectedAdmissionError) as refused:
            await kubelet.admit("one", "main", TOY, 1)
        assert f"{TOY}: devhost_before_container of observer0: {text}" in str(refused.value)
        assert value(host.metrics, "devhost_observer_failures_total", observer="observer0", kind="error") == 1


async def test_a_device_does_not_wait_for_a_path_that_only_a_hook_makes(rig, kubelet, hooks):
    hooks.additions = Edits(nodes=(DeviceNode("/dev/group7"), DeviceNode("/dev/group8", required=False)))
    async with rig.running(LINE, allocatable={TOY: 1}):
        with pytest.raises(UnexpectedAdmissionError) as refused:
            await kubelet.admit("one", "main", TOY, 1)
        assert f"{TOY}: /dev/group7 does not exist on the node: a hook gave it" in str(refused.value)
        hooks.additions = Edits(nodes=(DeviceNode("/dev/zero"),))
        await prepared(kubelet, hooks)
        assert hooks.released == [["d0"]]
        answer = (await kubelet.admit("two", "main", TOY, 1)).response
        assert [spec.host_path for spec in answer.devices] == ["/dev/null", "/dev/zero"]


async def test_a_hook_and_the_backend_together_give_a_bounded_number_of_nodes(rig, kubelet, hooks):
    hooks.additions = Edits(nodes=tuple(DeviceNode("/dev/zero", f"/dev/x{n}") for n in range(1024)))
    hooks.go.set()
    async with rig.running(LINE, allocatable={TOY: 1}):
        with pytest.raises(
            UnexpectedAdmissionError, match="with hooks, a container would get 1025 device nodes"
        ):
            await kubelet.admit("one", "main", TOY, 1)


async def test_a_container_that_follows_at_once_waits_for_the_hook(rig, kubelet, hooks):
    rig.write(LINE)
    rig.hurry_discovery(handover_wait=0.1, handover_pod=0.0)
    async with rig.running():
        await used(rig, kubelet)
        # the release is not known before the third pod has the device
        kubelet.faults.inject(Point.POD_RESOURCES, fail("it is busy"), times=None)
        with pytest.raises(
            UnexpectedAdmissionError, match="d0 is unhealthy: being prepared for the next container"
        ):
            await kubelet.admit("two", "main", TOY, 1)
        await prepared(kubelet, hooks)
        await kubelet.admit("three", "main", TOY, 1)
    assert hooks.released == [["d0"]]


async def test_containers_of_one_pod_pass_a_device_on_without_the_hook(rig, kubelet, hooks):
    async with rig.running(LINE, allocatable={TOY: 1}):
        await kubelet.admit("one", "first", TOY, 1, role="init")
        await kubelet.admit("one", "main", TOY, 1)
    assert (len(hooks.requests), hooks.released) == (2, [])


async def test_a_restart_does_not_offer_a_device_that_is_not_prepared(rig, kubelet, hooks, tmp_path):
    async with rig.running(LINE, state_dir=tmp_path / "state"):
        await used(rig, kubelet)
        await rig.until(lambda: hooks.released)
    async with rig.running(state_dir=tmp_path / "state") as host:
        await rig.until(lambda: len(hooks.released) == 2)
        await kubelet.wait_for(lambda: kubelet.devices(TOY) and kubelet.settled(TOY))
        assert reason(host) == "being prepared for the next container"
        await prepared(kubelet, hooks)


async def test_a_device_released_while_devhost_is_stopped_is_prepared_later(rig, kubelet, hooks, tmp_path):
    rig.write(LINE)
    rig.hurry_discovery(handover_pod=0.0)
    hooks.go.set()
    async with rig.running(allocatable={TOY: 1}, state_dir=tmp_path / "state"):
        await kubelet.admit("one", "main", TOY, 1)
    kubelet.release("one")
    assert hooks.released == []
    # only Allocate of the next pod tells that the device is free
    kubelet.faults.inject(Point.POD_RESOURCES, fail("it is busy"), times=None)
    async with rig.running(allocatable={TOY: 1}, state_dir=tmp_path / "state"):
        await kubelet.admit("two", "main", TOY, 1)
        assert hooks.released == [["d0"]]


DAMAGED = [
    "[" * 100_000,
    '{"given": null}',
    *('"tokens": [["d0"]]', '"resource": ["a"]', '"devices": "d0"', '"used": 5', '"env": [1]'),
]


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
async def test_hooks_are_called_although_the_record_is_damaged(rig, kubelet, hooks, tmp_path, caplog, damage):
    rig.write(LINE)
    hooks.go.set()
    async with rig.running(allocatable={TOY: 1}, state_dir=tmp_path / "state"):
        await kubelet.admit("one", "main", TOY, 1)
    (record,) = (tmp_path / "state").rglob("used*")
    if not damage.startswith(("[", "{")):
        row = json.dumps(json.loads(record.read_text())["given"][0])
        damage = f'{{"given": [{row[:-1]}, {damage}}}]}}'
    record.write_text(damage)
    async with rig.running(state_dir=tmp_path / "state") as host:
        await rig.until(lambda: "the record of used devices is not read" in caplog.text)
        await rig.until(lambda: any(one.holder for one in host.allocations.held()))
        kubelet.release("one")
        await rig.until(lambda: hooks.released == [["d0"]])
        assert not host.tasks.failing


async def test_hooks_for_a_backend_that_there_cannot_be_are_a_problem(rig, kubelet, hooks, monkeypatch):
    monkeypatch.setattr(Hooks, "for_backends", ("toy", "gpu", "tyo"))  # gpu may not be installed
    rig.observe(hooks)
    async with rig.running(LINE, allocatable={TOY: 1}) as host:
        assert [(one["kind"], one["subject"], one["reason"]) for one in status(host)["problems"]] == [
            (
                "plugin",
                "observer0",
                "its hooks are for the backend tyo, which is unknown (correct for_backends)",
            )
        ]
        monkeypatch.setattr(Hooks, "for_backends", ("toy",))
        rig.observe(hooks)
        host.reload()
        await rig.until(lambda: not status(host)["problems"])


async def test_a_record_that_cannot_be_written_is_a_problem_and_is_written_later(
    rig, kubelet, hooks, tmp_path
):
    state = tmp_path / "state"
    state.write_text("a file")

    def unrecorded(host):
        about = "used devices are not recorded: "
        found = status(host)["problems"]
        return [one["subject"] for one in found if one["kind"] == "record" and about in one["reason"]]

    async with rig.running(LINE, allocatable={TOY: 1}, state_dir=state) as host:
        assert unrecorded(host) == []  # nothing is used
        await kubelet.admit("one", "main", TOY, 1)
        (file,) = unrecorded(host)
        state.unlink()
        await rig.until(lambda: unrecorded(host) == [])
        (record,) = state.rglob("used*")
        assert str(record) == file and json.loads(record.read_text())["given"][0]["used"] == ["d0"]


def recorded(tmp_path):
    """The used devices in the record."""
    files = [*(tmp_path / "state").rglob("used*")]
    rows = json.loads(files[0].read_text())["given"] if files else []
    return sorted(device for row in rows for device in row["used"])


async def test_only_the_last_of_many_used_devices_that_are_gone_are_remembered(rig, kubelet, hooks, tmp_path):
    many = [Device(f"gone-{n:04}") for n in range(MOST_GONE + 2)]
    rig.scripts["toy"].devices = many
    async with rig.running(LINE, allocatable={TOY: len(many)}, state_dir=tmp_path / "state"):
        await kubelet.admit("one", "main", TOY, len(many))
        assert len(recorded(tmp_path)) == len(many)
        await rig.until(lambda: any(one.holder for one in rig.host.allocations.held()))
        rig.change("toy", [Device("new")])
        await rig.until(lambda: not rig.host.scanners["toy"].devices.keys() - {"new"})
        kubelet.release("one")
        await rig.until(lambda: not rig.host.allocations.held())
        await kubelet.admit("two", "main", TOY, 1)
        await rig.until(lambda: len(recorded(tmp_path)) == MOST_GONE + 1)
        assert "new" in recorded(tmp_path)


async def test_what_does_not_fit_into_the_record_is_a_problem(rig, kubelet, hooks, tmp_path):
    many = rig.scripts["toy"].devices = [Device(f"d{n}") for n in range(MAX_BYTES // 65536 + 1)]
    hooks.additions = Edits(env={"GROUP": "7" * 65000})
    async with rig.running(LINE, allocatable={TOY: len(many)}, state_dir=tmp_path / "state") as host:
        for n in range(len(many)):
            await kubelet.admit(f"pod-{n}", "main", TOY, 1)
        (why,) = [one["reason"] for one in status(host)["problems"] if one["kind"] == "record"]
        assert why == "used devices are not recorded: it would be larger than 8 MiB"
        assert recorded(tmp_path) == sorted(one.id for one in many)  # only what the hook added is too much


async def test_a_record_that_is_removed_meanwhile_is_written_again(rig, kubelet, hooks, tmp_path):
    rig.hurry_discovery(handover_record=0.1)
    state = tmp_path / "state"
    async with rig.running(LINE, allocatable={TOY: 1}, state_dir=state):
        await kubelet.admit("one", "main", TOY, 1)
        state.rename(tmp_path / "lost")
        await rig.until(lambda: any("d0" in record.read_text() for record in state.rglob("used*")))


async def test_a_running_container_keeps_its_additions_over_a_restart(rig, kubelet, hooks, tmp_path):
    hooks.additions = Edits(env={"GROUP": "7"})
    async with rig.running(LINE, allocatable={TOY: 1}, state_dir=tmp_path / "state"):
        await kubelet.admit("one", "main", TOY, 1)
    async with rig.running(state_dir=tmp_path / "state") as host:
        await rig.until(lambda: TOY in host.services)
        scanner = host.scanners["toy"]
        kept = scanner.handover.additions("toy", tuple(scanner.devices.values()))
        assert dict(kept.env) == {"GROUP": "7"}
    assert (len(hooks.requests), hooks.released) == (1, [])


async def test_only_devices_of_the_named_backends_are_affected(rig, kubelet, hooks):
    async with rig.running(f"name: {OTHER}, backend: other", allocatable={OTHER: 1}) as host:
        await kubelet.admit("one", "main", OTHER, 1)
        await rig.until(lambda: any(one.holder for one in host.allocations.held()))
        kubelet.release("one")
        await rig.until(lambda: not host.allocations.held())
        assert host.scanners["other"].handover is None
    assert (hooks.requests, hooks.released) == ([], [])


async def test_a_hook_added_by_a_reload_is_called_for_what_containers_have_already(rig, kubelet, hooks):
    rig.observe()
    async with rig.running(LINE, allocatable={TOY: 1}) as host:
        await kubelet.admit("one", "main", TOY, 1)
        await rig.until(lambda: any(one.holder for one in host.allocations.held()))
        rig.observe(hooks)
        host.reload()
        await rig.until(lambda: host.scanners["toy"].handover)
        kubelet.release("one")
        await rig.until(lambda: hooks.released == [["d0"]])


async def test_without_hooks_nothing_of_them_is_imported(rig, kubelet):
    rig.write(LINE)
    package = "devhost.discovery.handover"

    def loaded():
        return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]

    before = {name: sys.modules.pop(name) for name in loaded()}
    try:
        async with rig.running():
            await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        assert loaded() == []
    finally:
        sys.modules.update(before)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_container_gets_what_the_hook_adds_through_cdi(rig, kubelet, hooks, specs, count):
    rig.scripts["toy"].devices = [Device("d0"), Device("d1")][:count]
    async with rig.running(TOY_LINE, allocatable={TOY: count}):
        for number in range(2):  # the second container of the device gets what is added for it
            hooks.additions = Edits(nodes=(DeviceNode("/dev/zero"),), env={"GROUP": str(number)})
            answer = (await kubelet.admit(f"pod-{number}", "main", TOY, count)).response
            found = specs.resolve(answer)
            assert found["env", "GROUP"] == str(number)
            assert ("node", "/dev/zero") in found
            await rig.until(lambda: any(one.holder for one in rig.host.allocations.held()))
            kubelet.release(f"pod-{number}")
            await prepared(kubelet, hooks, count)
