"""Two plugins for one resource: which one has it, which one waits, and what is reported."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import socket
from contextlib import asynccontextmanager

import grpc
import pytest
from devhost_testing.kubelet import OtherPlugin, Point, refuse
from devhost_testing.kubelet import events as ev
from status_values import status

from devhost.host.host import Host
from devhost.host.shown.problems import problems
from devhost.kubelet.server import socket_name

TOY, OTHER = "example.com/toy", "example.com/other"
TOY_LINE, OTHER_LINE = f"name: {TOY}, backend: toy", f"name: {OTHER}, backend: other"


def shown(host, name: str = TOY) -> dict:
    return next(resource for resource in status(host)["resources"] if resource["name"] == name)


def reported(host, name: str = TOY) -> list[str]:
    """The reasons of the resource's problems."""
    return [
        problem.reason
        for problem in problems(host.now()).shown
        if (problem.subject, problem.kind) == (name, "resource")
    ]


def registrations(kubelet, name: str = TOY) -> list[str]:
    return [event.endpoint for event in kubelet.events.of(ev.Registered, name)]


def ids(kubelet, name: str = TOY) -> set[str]:
    return {device.id for device in kubelet.devices(name)}


async def allocatable(kubelet, **expected: int) -> None:
    want = {f"example.com/{name}": count for name, count in expected.items()}
    await kubelet.wait_for(lambda: kubelet.allocatable() == want)


@asynccontextmanager
async def plugin_of(kubelet, *devices, resource: str = TOY):
    """Another vendor's plugin, from when the kubelet has its devices."""
    async with OtherPlugin(kubelet.directory, resource, devices) as plugin:
        await kubelet.wait_for(lambda: ids(kubelet, resource) == {*devices} and kubelet.settled(resource))
        yield plugin


@asynccontextmanager
async def another(rig, *resources):
    """A second devhost on the same kubelet, with a separate file."""
    second = copy.copy(rig)
    second.config = rig.config.with_name("second.yaml")
    second.write(*resources)
    host = Host(second.config, second.load(), second.load, rig.kubelet_dir, timing=rig.timing)
    async with rig.runs(host):
        yield host


async def test_a_resource_of_another_plugin_is_registered_only_after_that_plugin_has_exited(
    rig, kubelet, caplog
):
    rig.write(TOY_LINE, OTHER_LINE)
    with caplog.at_level(logging.INFO):
        async with plugin_of(kubelet, *"xyz") as plugin, rig.running() as host:
            await rig.until(lambda: reported(host))
            await allocatable(kubelet, toy=3, other=1)
            (reason,) = reported(host)
            assert reason.startswith("another device plugin serves it on this node: other-plugin.sock (")
            assert f"pid {os.getpid()})" in reason
            assert reason.endswith("; remove that plugin, or set takeOver: true")
            assert (shown(host)["state"], shown(host)["lastError"]) == ("waiting", reason)
            await rig.until(lambda: host.ready() == (True, ""))
            assert registrations(kubelet) == ["other-plugin.sock"]
            logged = [one for one in caplog.records if getattr(one, "fields", {}).get("reason") == reason]
            assert [(one.levelno, one.getMessage()) for one in logged] == [
                (logging.WARNING, "not registered")
            ]
            await plugin.stop()
            await allocatable(kubelet, toy=2, other=1)
            await rig.until(lambda: not reported(host))
            assert ids(kubelet) == {"d0", "d1"}
            assert shown(host)["state"] == "registered"


async def test_an_unrelated_plugin_beside_devhost_delays_nothing(rig, kubelet):
    rig.write(TOY_LINE)
    async with plugin_of(kubelet, "x", resource="vendor.example/card"), rig.running() as host:
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, "vendor.example/card": 1})
        await rig.until(lambda: shown(host)["state"] == "registered")
        assert reported(host) == []


async def test_take_over_registers_at_once_and_is_logged(rig, kubelet, caplog):
    rig.write(f"{TOY_LINE}, takeOver: true")
    async with plugin_of(kubelet, *"xyz"):
        with caplog.at_level(logging.INFO):
            async with rig.running(allocatable={TOY: 2}) as host:
                await rig.until(lambda: shown(host)["state"] == "registered")
                assert reported(host) == []
        (logged,) = [one for one in caplog.records if one.getMessage() == "taking the resource over"]
        assert logged.levelno == logging.INFO
        assert "other-plugin.sock" in logged.fields["reason"]
        assert not [one for one in caplog.records if one.getMessage() == "not registered"]


async def test_take_over_added_to_a_waiting_resource_registers_it_and_removing_it_changes_nothing(
    rig, kubelet
):
    rig.write(TOY_LINE)
    async with plugin_of(kubelet, *"xyz"), rig.running() as host:
        await rig.until(lambda: reported(host))
        rig.write(f"{TOY_LINE}, takeOver: true")
        host.reload()
        await allocatable(kubelet, toy=2)
        await rig.until(lambda: shown(host)["state"] == "registered" and not reported(host))
        before = host.configuration.generation
        rig.write(TOY_LINE)
        host.reload()
        await rig.until(lambda: host.configuration.generation > before)
        rig.change("toy", rig.scripts["toy"].devices[:1])
        await allocatable(kubelet, toy=1)
        assert len(registrations(kubelet)) == 2
        assert shown(host)["state"] == "registered"


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_a_plugin_that_registers_later_is_reported_at_once_and_keeps_the_resource_until_it_ends(
    rig, kubelet, caplog, crash
):
    rig.write(TOY_LINE, OTHER_LINE)
    with caplog.at_level(logging.INFO):
        async with rig.running(allocatable={TOY: 2, OTHER: 1}) as host:
            async with plugin_of(kubelet, *"xyz") as plugin:
                await rig.until(lambda: reported(host))
                (reason,) = reported(host)
                assert reason.startswith(
                    "another device plugin registered it after devhost: other-plugin.sock ("
                )
                assert reason.endswith("; remove that plugin, or this resource")
                assert shown(host)["state"] == "displaced"
                assert host.ready() == (True, "")
                rig.change("toy", rig.scripts["toy"].devices[:1])
                await rig.until(lambda: shown(host)["capacity"] == 1)
                await allocatable(kubelet, toy=3, other=1)
                got = await kubelet.admit("pod", "main", TOY, 1)
                assert got.response.envs["OTHER_PLUGIN"] in "xyz"
                assert len(registrations(kubelet)) == 2, "nobody fights for it"
                kubelet.release("pod")
                await plugin.stop(crash)
            await allocatable(kubelet, toy=1, other=1)
            await rig.until(lambda: not reported(host))
            assert shown(host)["state"] == "registered"
            assert ids(kubelet) == {"d0"}
    (logged,) = [one for one in caplog.records if one.getMessage() == "resource taken over by another plugin"]
    assert (logged.levelno, logged.fields["reason"]) == (logging.WARNING, reason)
    assert len(registrations(kubelet, OTHER)) == 1


async def test_a_plugin_with_an_older_socket_that_registers_later_has_the_resource(rig, kubelet):
    rig.write(TOY_LINE)
    plugin = OtherPlugin(kubelet.directory, TOY, ["x", "y", "z"])
    await plugin.serve()
    try:
        async with rig.running(allocatable={TOY: 2}) as host:
            await plugin.register()
            await rig.until(lambda: shown(host)["state"] == "displaced")
            await allocatable(kubelet, toy=3)
    finally:
        await plugin.stop()


async def test_the_end_of_another_plugin_with_the_same_devices_costs_no_registration(rig, kubelet):
    """Up to 1.36 a kubelet then also drops devhost, and leaves its list stream open."""
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        # devhost must have seen its list at the kubelet before it can miss it
        asked = []
        kubelet.faults.inject(Point.ALLOCATABLE, lambda: _note(asked), times=None)
        await rig.until(lambda: asked)
        async with plugin_of(kubelet, "d0", "d1"):
            assert len(registrations(kubelet)) == 2
        await allocatable(kubelet, toy=2)
        await rig.until(
            lambda: (
                kubelet.allocatable() == {TOY: 2}
                and not reported(host)
                and shown(host)["state"] == "registered"
            )
        )


async def _note(asked: list[int]) -> None:
    asked.append(1)


async def test_the_older_of_two_devhosts_reports_the_conflict_and_each_serves_its_own_resources(
    rig, kubelet, caplog
):
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 1}) as first:
        with caplog.at_level(logging.WARNING):
            async with another(rig, TOY_LINE, "name: example.com/own, backend: other") as second:
                await allocatable(kubelet, toy=2, other=1, own=1)
                await rig.until(lambda: reported(first))
                (reason,) = reported(first)
                socket = second.services[TOY].registration.server.path.name
                assert reason.startswith(f"another devhost registered it after this one: {socket} (")
                assert reason.endswith("; run only one devhost for this resource on the node")
                assert shown(first)["state"] == "displaced"
                # the first list may come before the answer to Register
                await rig.until(lambda: second.ready() == (True, ""))
                await rig.until(lambda: shown(second)["state"] == "registered")
                assert reported(second) == []
                assert (reported(first, OTHER), reported(second, "example.com/own")) == ([], [])
                assert first.ready() == (True, "")
                # the list of the older one does not replace the other's
                first_only = rig.scripts["toy"].devices[:1]
                await kubelet.wait_for(lambda: len(kubelet.events.of(ev.ListReceived, TOY)) >= 2)
                lists = len(kubelet.events.of(ev.ListReceived, TOY))
                rig.change("toy", first_only)
                await rig.until(lambda: shown(first)["capacity"] == 1)
                assert len(kubelet.events.of(ev.ListReceived, TOY)) == lists
                assert kubelet.allocatable()[TOY] == 2
                assert len(registrations(kubelet)) == 2
            await allocatable(kubelet, toy=1, other=1, own=0)
            await rig.until(lambda: not reported(first))
            assert shown(first)["state"] == "registered"
    logged = [one for one in caplog.records if one.getMessage() == "resource taken over by another plugin"]
    assert [one.fields["reason"] for one in logged] == [reason]


async def test_another_devhost_has_not_ended_while_it_starts(rig, kubelet):
    """It creates its socket, and listens on it a moment later; only the first shows in the directory."""
    rig.write(TOY_LINE)
    rig.hurry(start=3600.0)
    async with rig.running(allocatable={TOY: 2}) as host:
        await rig.until(lambda: shown(host)["state"] == "registered")
        with socket.socket(socket.AF_UNIX) as starting:
            starting.bind(str(rig.kubelet_dir / socket_name(TOY)))
            asyncio.get_running_loop().call_later(0.3, starting.listen)
            await rig.until(lambda: reported(host))
            assert "another devhost registered it after this one" in reported(host)[0]
            assert len(registrations(kubelet)) == 1


async def test_a_displaced_devhost_does_not_take_the_resource_back_when_its_registration_ends(rig, kubelet):
    """Kubelets before 1.25 close the stream of the older plugin, so two plugins could alternate forever."""
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as first:
        async with another(rig, TOY_LINE) as second:
            await rig.until(lambda: reported(first) and len(registrations(kubelet)) == 2)
            before = len(registrations(kubelet))
            old = first.services[TOY].registration.server.path
            old.unlink()

            def settled():
                own = first.services[TOY].registration.server
                if own is not None and own.path == old:
                    return False
                loser, winner = (second, first) if reported(second) else (first, second)
                newest = winner.services[TOY].registration.server
                return (
                    newest
                    and newest.path.name in kubelet.endpoints(TOY)
                    and reported(winner) == []
                    and "another devhost registered it after this one" in str(reported(loser))
                    and shown(loser)["state"] in ("waiting", "displaced")
                )

            await rig.until(settled)
            await allocatable(kubelet, toy=2)
            # Up to 1.36 the kubelet drops the newer one too, so both may register once more, in any order;
            # they agree by the age of their sockets, which may not be the order of their calls.
            assert len(registrations(kubelet)) - before <= (0 if kubelet.profile == "1.37" else 2)
            assert first.ready() == second.ready() == (True, "")
        await rig.until(lambda: shown(first)["state"] == "registered" and not reported(first))
        await allocatable(kubelet, toy=2)


async def test_after_a_kubelet_restart_the_plugin_that_had_the_resource_may_register_first(rig, kubelet):
    rig.hurry(kubelet_start=6.0)  # the other plugin is back in this time, also on a busy machine
    rig.write(TOY_LINE, OTHER_LINE)
    async with plugin_of(kubelet, *"xyz") as plugin, rig.running() as host:
        await rig.until(lambda: reported(host))
        await kubelet.restart()
        await kubelet.wait_for(lambda: kubelet.allocatable().get(OTHER) == 1)
        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await allocatable(kubelet, toy=3, other=1)
        await rig.until(lambda: shown(host)["state"] == "waiting" and reported(host))
        assert registrations(kubelet)[-1] == "other-plugin.sock"
        await plugin.stop()
        await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2)


async def test_after_a_kubelet_restart_devhost_registers_its_resources_again(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        hold = asyncio.Event()
        await kubelet.stop()
        await kubelet.start()
        hold.set()
        await allocatable(kubelet, toy=2)
        await rig.until(lambda: shown(host)["state"] == "registered")
        assert reported(host) == []


@pytest.mark.parametrize(
    "fault",
    [
        refuse(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetAllocatableResources"),
        refuse(grpc.StatusCode.UNKNOWN, "API GetAllocatableResources disabled"),
    ],
    ids=["unknown", "disabled"],
)
async def test_a_kubelet_without_allocatable_resources_delays_nothing(rig, kubelet, fault):
    kubelet.faults.inject(Point.ALLOCATABLE, fault, times=None)
    rig.write(TOY_LINE)
    async with plugin_of(kubelet, *"xyz"), rig.running() as host:
        await allocatable(kubelet, toy=2)
        await rig.until(lambda: shown(host)["state"] == "registered")


async def test_a_waiting_resource_keeps_waiting_while_the_kubelet_does_not_answer(rig, kubelet):
    rig.write(TOY_LINE)
    async with plugin_of(kubelet, *"xyz") as plugin, rig.running() as host:
        await rig.until(lambda: reported(host))
        asked: list[int] = []

        async def busy() -> None:
            asked.append(1)
            await refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")()

        kubelet.faults.inject(Point.ALLOCATABLE, busy, times=3)
        await rig.until(lambda: len(asked) == 3)
        await allocatable(kubelet, toy=3)
        assert shown(host)["state"] == "waiting"
        await plugin.stop()
        await allocatable(kubelet, toy=2)


async def test_many_resources_share_one_call(rig, kubelet, devices):
    asked: list[int] = []
    kubelet.faults.inject(Point.ALLOCATABLE, lambda: _note(asked), times=None)
    rig.hurry(question_gap=0.5)  # a busy machine takes seconds, and so needs more calls than one
    rig.scripts["toy"].devices = devices(40)
    async with rig.running("name: 'example.com/toy-{index}', backend: toy"):
        await kubelet.wait_for(lambda: len(kubelet.allocatable()) == 40)
    assert len(asked) < 40


@pytest.fixture
def devices():
    from devhost.backend.model import Device

    return lambda count: [Device(id=f"d{n}", attributes={"model": "x100", "index": n}) for n in range(count)]
