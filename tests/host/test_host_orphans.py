"""Allocations that no list shows are reported with the right reason; only vanished devices count as gone."""

from __future__ import annotations

from dataclasses import replace

from status_values import status

from devhost.backend import Device
from devhost.host.shown.now import GONE
from devhost.host.shown.problems import problems
from devhost.host.shown.shortages import OTHER_BACKEND, SHARED_OTHERWISE, UNSERVED

TOY = "example.com/toy"
LINE = f"name: {TOY}, backend: toy"


def reasons(host) -> dict[str, str]:
    return {one["id"]: one["reason"] for one in status(host)["held"]}


def device_problems(host) -> list[tuple[str, str]]:
    return [(one.subject, one.reason) for one in problems(host.now()).shown if one.kind == "device"]


async def handed_out(rig, kubelet, line: str, count: int, resource: str = TOY) -> None:
    """Allocates so much of a resource to a pod before devhost restarts."""
    async with rig.running(line, allocatable={resource: count}):
        await kubelet.admit("pod", "main", resource, count)


async def settled(rig, host, condition) -> None:
    """Waits for a condition, and until every backend has scanned."""
    await rig.until(lambda: host.planned and host.allocations.known and condition())
    await rig.until(lambda: all(one.listed for one in host.scanners.values()))


async def test_a_device_that_vanished_while_devhost_was_stopped_is_a_problem_until_it_returns(rig, kubelet):
    await handed_out(rig, kubelet, LINE, 2)
    both = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = both[:1]
    async with rig.running() as host:
        await settled(rig, host, lambda: reasons(host) == {"d1": GONE})
        assert device_problems(host) == [(f"{TOY} d1", GONE)]
        rig.change("toy", both)
        await rig.until(lambda: not device_problems(host) and not reasons(host))


async def test_a_vanished_device_is_a_problem_even_if_its_resource_has_no_devices(rig, kubelet):
    await handed_out(rig, kubelet, LINE, 2)
    rig.scripts["toy"].devices = []
    async with rig.running() as host:
        await settled(rig, host, lambda: reasons(host) == dict.fromkeys(("d0", "d1"), GONE))
        assert problems(host.now()).counts["device"] == 2


async def test_a_resource_that_matches_a_template_may_belong_to_another_plugin(rig, kubelet):
    rig.scripts["other"].devices = [Device(id="o0", attributes={"model": "special", "index": 0})]
    await handed_out(rig, kubelet, "name: example.com/special, backend: other", 1, "example.com/special")
    async with rig.running("name: 'example.com/{model}', backend: toy") as host:
        await settled(rig, host, lambda: reasons(host))
        assert reasons(host) == {"o0": UNSERVED}
        assert device_problems(host) == []


async def test_a_resource_that_changed_its_backend_has_lost_no_device(rig, kubelet):
    rig.scripts["other"].devices = [Device(id="o0", attributes={"model": "x100", "index": 0})]
    async with rig.running(LINE, allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(host.allocations.held)
        rig.write(f"name: {TOY}, backend: other", "name: example.com/still, backend: toy")
        await settled(rig, host, lambda: host.scanners.keys() == {"other", "toy"} and reasons(host))
        await rig.until(lambda: list(reasons(host).values()) == [OTHER_BACKEND])
        assert device_problems(host) == []


async def test_only_the_vanished_one_of_devices_allocated_together_is_gone(rig, kubelet):
    await handed_out(rig, kubelet, LINE + ", share: {replicas: 4, of: all}", 4)
    async with rig.running(LINE) as host:
        await settled(rig, host, lambda: len(reasons(host)) == 4)
        await rig.until(lambda: all(one["devices"] for one in status(host)["held"]))
        assert set(reasons(host).values()) == {SHARED_OTHERWISE}
        rig.change("toy", rig.scripts["toy"].devices[:1])
        await rig.until(lambda: [subject for subject, _ in device_problems(host)] == [f"{TOY} d1"])
        assert GONE not in reasons(host).values()


async def test_a_device_with_some_replicas_listed_is_one_problem(rig, kubelet):
    await handed_out(rig, kubelet, LINE + ", share: {replicas: 4}", 8)
    async with rig.running(LINE + ", share: {replicas: 2}") as host:
        await settled(rig, host, lambda: len(reasons(host)) == 4)
        rig.change("toy", rig.scripts["toy"].devices[:1])
        await rig.until(lambda: GONE in reasons(host).values())
        assert device_problems(host) == [(f"{TOY} d1", GONE)]
        assert problems(host.now()).counts["device"] == 1


async def test_a_device_that_is_refused_as_unusable_is_not_gone(rig, kubelet):
    await handed_out(rig, kubelet, LINE, 2)
    one, two = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [one, replace(two, attributes={"model": 7, "index": 1})]
    async with rig.running() as host:
        await settled(rig, host, lambda: "d1" in reasons(host))
        assert "model" in reasons(host)["d1"]
        assert device_problems(host) == []
        assert problems(host.now()).counts["refused"] == 1


async def test_no_device_of_a_backend_that_has_not_answered_is_gone(rig, kubelet):
    await handed_out(rig, kubelet, LINE, 2)

    def fail() -> None:
        raise RuntimeError("no driver")

    rig.scripts["toy"].on_discover = fail
    async with rig.running() as host:
        await rig.until(lambda: problems(host.now()).counts["backend"] and len(reasons(host)) == 2)
        assert set(reasons(host).values()) == {UNSERVED}
        assert device_problems(host) == []
