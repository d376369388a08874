"""Problems in any number: each physical device once, some by name and the others counted."""

from __future__ import annotations

import errno
from dataclasses import replace

import asyncinotify
import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from status_values import status

from devhost.backend import Device
from devhost.backend.errors import MAX_MESSAGE
from devhost.backend.model import unhealthy
from devhost.discovery.validation import RefusedDevice
from devhost.host.shown.problems import KINDS, MOST, NAMED, Problem, problems
from devhost.planning.timing import ConfigTiming

TOY = "example.com/toy"


def failing_devices(count: int) -> list[Device]:
    return [Device(id=f"d{n:05}", attributes={}, health=unhealthy("port 1 is down")) for n in range(count)]


def counted(host) -> dict[str, int]:
    return {kind: count for kind, count in problems(host.now()).counts.items() if count}


async def test_a_reason_is_cut_at_the_limit_of_a_message(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        now = host.now()
        complaints = ("x" * MAX_MESSAGE, "y" * (MAX_MESSAGE + 1))
        found = problems(replace(now, last_reload=replace(now.last_reload, complaints=complaints)))
        whole, longer = [one.reason for one in found.shown if one.kind == "config"]
        assert whole == "x" * MAX_MESSAGE and longer == "y" * (MAX_MESSAGE - 1) + "…"


async def test_a_backend_that_fails_at_each_allocation_is_a_problem_until_it_answers(rig, kubelet):
    def fails(_devices: list[Device]) -> None:
        raise RuntimeError("no firmware")

    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        rig.scripts["toy"].on_allocate = fails
        for count in ("1 container", "2 containers"):
            with pytest.raises(UnexpectedAdmissionError):
                await kubelet.admit("pod", count.replace(" ", "-"), TOY, 1)
            reason = f"the backend failed for {count} in a row: backend toy failed: RuntimeError: no firmware"
            assert [one for one in problems(host.now()).shown if one.kind == "resource"] == [
                Problem("resource", TOY, reason)
            ]
        rig.scripts["toy"].on_allocate = lambda devices: None
        await kubelet.admit("pod", "main", TOY, 1)
        assert counted(host) == {}


async def test_a_kubelet_directory_that_hangs_is_a_problem(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: host.ready()[0])
        host.kubelet.unread, host.kubelet.since = "it did not answer within 4 s", 5.0
        (found,) = [one for one in problems(host.now()).shown if one.kind == "kubelet"]
        assert found == Problem("kubelet", str(rig.kubelet_dir), "it did not answer within 4 s", 5.0)


async def test_without_problems_every_kind_counts_zero(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: host.ready()[0] and not host.pod_resources.condition.reason)
        found = problems(host.now())
        assert list(found.shown) == []
        assert found.counts == dict.fromkeys(KINDS, 0)
        assert status(host)["problems"] == []


async def test_a_device_is_one_problem_however_often_it_is_shared(rig, kubelet):
    healthy, failing = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [healthy, replace(failing, health=unhealthy("port 1 is down"))]
    for share in ("{replicas: 50}", "{of: all, replicas: 50}"):
        async with rig.running(f"name: {TOY}, backend: toy, share: {share}") as host:
            await rig.until(lambda: TOY in host.services and counted(host) == {"device": 1})
            (problem,) = problems(host.now()).shown
            assert replace(problem, since=None) == Problem("device", f"{TOY} d1", "port 1 is down")
            assert (problem.since is None) == ("all" in share), "unknown for one of several behind a token"


async def test_some_of_ten_thousand_unhealthy_devices_are_named_and_the_rest_counted(rig, kubelet):
    rig.scripts["toy"].devices = failing_devices(10_000)
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: counted(host).get("device") == 10_000)
        shown = problems(host.now()).shown
        assert [problem.subject for problem in shown[:2]] == [f"{TOY} d00000", f"{TOY} d00001"]
        assert shown[NAMED] == Problem("device", TOY, "9980 more devices are unhealthy", count=9980)
        assert len(shown) == NAMED + 1
        assert [problem["count"] for problem in status(host)["problems"]] == [1] * NAMED + [9980]


async def test_devices_of_many_resources_do_not_hide_other_problems(rig, kubelet):
    rig.scripts["toy"].devices = [
        replace(one, attributes={"model": f"m{n % 10}"}) for n, one in enumerate(failing_devices(1000))
    ]
    async with rig.running("name: 'example.com/toy-{model}', backend: toy") as host:
        await rig.until(lambda: counted(host).get("device") == 1000)
        complaints = "".join(f"  - {{name: a{n}, backend: nobody}}\n" for n in range(40))
        rig.config.write_text(f"version: 1\nresources:\n{complaints}")
        await rig.until(lambda: host.configuration.last_reload.complaints)
        found = problems(host.now())
        assert len(found.shown) == MOST == len(status(host)["problems"])
        assert found.counts["config"] == len(host.configuration.last_reload.complaints) > NAMED
        assert found.shown[NAMED].reason == f"{found.counts['config'] - NAMED} more complaints"
        last = found.shown[-1]
        named = sum(problem.count == 1 for problem in found.shown if problem.kind == "device")
        assert last.kind == "device" and last.reason.endswith(" more devices are unhealthy")
        assert sum(p.count for p in found.shown if p.kind == "device") == 1000 and named > NAMED


async def test_problems_beyond_the_limit_are_counted(rig, kubelet):
    rig.scripts["toy"].devices = failing_devices(1000)
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: problems(host.now()).counts["device"] == 1000)
        now, refused = host.now(), tuple(RefusedDevice(f"x{n}", "no") for n in range(1000))
        toy = replace(now.backends["toy"], condition=replace(now.backends["toy"].condition, refused=refused))
        found = problems(replace(now, backends={"toy": toy, **{f"toy{n}": toy for n in range(5)}}))
        assert len(found.shown) == MOST
        assert found.counts["refused"] == 6000
        assert sum(one.count for one in found.shown) == sum(found.counts.values()) == 7000


async def test_a_device_that_a_container_must_not_share_is_no_problem(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        await kubelet.admit("train", "main", TOY, 1)
        rig.write(f"name: {TOY}, backend: toy, share: {{replicas: 2}}")
        kept = "from before it was shared in this way"
        await rig.until(
            lambda: any(
                kept in device["reason"] for one in status(host)["resources"] for device in one["devices"]
            )
        )
        await rig.until(lambda: [p for p in problems(host.now()).shown if kept in p.reason] == [])


async def test_without_inotify_polled_paths_are_problems_until_inotify_works_again(rig, kubelet, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncinotify, "Inotify", refuse)
    rig.hurry(poll=0.2)
    rig.timing = replace(rig.timing, config=ConfigTiming(poll=0.2))
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: counted(host) == {"events": 2})
        shown = problems(host.now()).shown
        assert {problem.subject for problem in shown} == {str(rig.config), str(host.kubelet.directory)}
        for problem in shown:
            assert "the limit fs.inotify.max_user_instances" in problem.reason
            assert "`sysctl -w fs.inotify.max_user_instances=" in problem.reason
        assert [one["kind"] for one in status(host)["problems"]] == ["events", "events"]
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2}, 60)
        monkeypatch.undo()
        await rig.until(lambda: not counted(host))
