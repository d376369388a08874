"""Loss and return of the stream, the kubelet, its directory, a socket, and the process."""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import asyncinotify
import pytest
from conformance_node import OTHER, OTHER_LINE, TOY, TOY_LINE, WAIT
from devhost_testing.kubelet import Point, cut, fail
from devhost_testing.kubelet import events as ev

from devhost.backend.backoff import Backoff
from devhost.discovery import scanner
from devhost.host import reload, replanner, service
from devhost.host.host import Host
from devhost.kubelet import kubelet_socket, registration, server
from devhost.planning.timing import KUBELET as NODE


def registered(kubelet, resource: str = TOY, since: int = 0) -> list[str]:
    return [event.endpoint for event in kubelet.events.of(ev.Registered, resource, since=since)]


async def quiet(host) -> None:
    """Waits for an unwanted registration to come, if there is one."""
    await host.kubelet.look()
    await asyncio.sleep(0.3)


@pytest.mark.conformance(28)
@pytest.mark.field_failure("F2")
async def test_a_stream_that_ends_leads_to_one_registration_on_a_new_socket(rig, kubelet, hurried):
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 1}) as host:
        kubelet.kill_stream(TOY)
        await kubelet.wait_for(lambda: len(registered(kubelet)) == 2, WAIT)
        await rig.offers({TOY: 2, OTHER: 1})
        await quiet(host)
    first, second = registered(kubelet)
    assert first != second
    assert len(registered(kubelet, OTHER)) == 1


@pytest.mark.conformance(29)
@pytest.mark.field_failure("F8")
async def test_streams_that_end_at_once_are_followed_by_growing_delays(rig, kubelet, hurried):
    kubelet.faults.inject(Point.LIST, cut, TOY, times=None)
    async with rig.running(TOY_LINE, OTHER_LINE):
        await kubelet.wait_for(lambda: len(registered(kubelet)) >= 8, WAIT)
        losses = next(backoff for backoff in hurried if len(backoff.delays) >= 7)
        kubelet.faults.clear()
        await rig.offers({TOY: 2, OTHER: 1})
    assert losses.delays[:7] == [1, 2, 4, 8, 16, 30, 30], "seconds between registrations"
    assert len(registered(kubelet, OTHER)) == 1


@pytest.mark.conformance(29)
async def test_a_steady_registration_resets_the_back_off(rig, kubelet, hurried):
    rig.hurry(steady=1.0)
    kubelet.faults.inject(Point.LIST, cut, TOY, times=None)
    async with rig.running(TOY_LINE) as host:
        await rig.until(lambda: any(len(backoff.delays) >= 4 for backoff in hurried), WAIT)
        losses = next(backoff for backoff in hurried if len(backoff.delays) >= 4)
        assert losses.delays[3] > 1
        kubelet.faults.clear()
        await rig.offers({TOY: 2})
        registration = host.services[TOY].registration
        await rig.until(
            lambda: registration.streams and time.time() > registration.condition.last + 1.2, WAIT
        )
        before = len(losses.delays)
        kubelet.faults.inject(Point.LIST, cut, TOY, times=None)
        kubelet.kill_stream(TOY)
        await rig.until(lambda: len(losses.delays) > before, WAIT)
        kubelet.faults.clear()
    assert losses.delays[before] == 1


@pytest.mark.conformance(30, 31)
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_a_kubelet_restart_makes_every_resource_register_once_on_a_new_socket(rig, kubelet, crash):
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 1}) as host:
        before = kubelet.events.position
        old = {path.name for path in rig.kubelet_dir.glob("dh-*")}
        await kubelet.restart(crash=crash)
        (started,) = kubelet.events.of(ev.Started, since=before)
        assert old <= set(started.wiped)
        await rig.offers({TOY: 2, OTHER: 1})
        await quiet(host)
        new = {path.name for path in rig.kubelet_dir.glob("dh-*")}
    assert len(new) == 2
    assert not new & old
    assert len(registered(kubelet, TOY, before)) == len(registered(kubelet, OTHER, before)) == 1


@pytest.mark.conformance(32)
@pytest.mark.field_failure("F5")
async def test_without_inotify_a_kubelet_restart_is_found_by_polling(rig, kubelet, monkeypatch):
    class Exhausted:
        def __init__(self, **_: object) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    assert NODE.poll <= 10
    monkeypatch.setattr(asyncinotify, "Inotify", Exhausted)
    rig.hurry(poll=0.1)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        before = kubelet.events.position
        await kubelet.restart()
        await rig.offers({TOY: 2})
    assert len(registered(kubelet, since=before)) == 1


@pytest.mark.conformance(33)
async def test_a_deleted_socket_is_replaced_and_registered(rig, kubelet, hurried):
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 1}) as host:
        host.services[TOY].registration.server.path.unlink()
        await kubelet.wait_for(lambda: len(registered(kubelet)) == 2, WAIT)
        await rig.offers({TOY: 2, OTHER: 1})
        assert host.services[TOY].registration.server.path.is_socket()
    assert len(registered(kubelet, OTHER)) == 1


@pytest.mark.conformance(34)
@pytest.mark.field_failure("F4", "F23")
async def test_a_recreated_directory_is_watched_again(rig, kubelet):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        for _ in range(2):  # the second time shows that the new directory is watched
            await kubelet.stop()
            await rig.until(
                lambda: not list(rig.kubelet_dir.glob("dh-*")), WAIT
            )  # it is not removed meanwhile
            shutil.rmtree(rig.kubelet_dir)
            before = kubelet.events.position
            await kubelet.start()
            await kubelet.wait_for(lambda: registered(kubelet, since=before), WAIT)  # noqa: B023
            await rig.offers({TOY: 2})
            assert len(registered(kubelet, since=before)) == 1


@pytest.mark.conformance(35)
@pytest.mark.field_failure("F6")
async def test_an_event_about_the_registered_kubelet_causes_no_registration(rig, kubelet, devices):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        await quiet(host)  # the event of kubelet.sock's creation has come by now
        for name in ("dh-other.sock", "stranger.sock", "kubelet_internal_checkpoint"):
            (rig.kubelet_dir / name).write_text("")
            (rig.kubelet_dir / name).unlink()
        await quiet(host)
        rig.change("toy", devices(3))
        await rig.offers({TOY: 3})
    assert len(kubelet.events.of(ev.RegisterReceived)) == 1


@pytest.mark.conformance(36)
async def test_two_quick_kubelet_restarts_end_with_one_registration(rig, kubelet):
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 1}) as host:
        await kubelet.restart()
        await kubelet.stop(crash=True)  # the one between may have had time for a registration, or not
        before = kubelet.events.position
        await kubelet.start()
        await kubelet.wait_for(lambda: registered(kubelet, TOY, before), WAIT)
        await rig.offers({TOY: 2, OTHER: 1})
        await quiet(host)
        for resource in (TOY, OTHER):
            assert len(kubelet.endpoints(resource)) == 1
            # a call that was on its way to the kubelet before may reach this one as well
            assert 1 <= len(registered(kubelet, resource, before)) <= 2


@pytest.mark.conformance(37, 38)
@pytest.mark.field_failure("F7")
async def test_each_registration_has_a_new_socket_and_follows_the_end_of_the_old_stream(
    rig, kubelet, hurried
):
    open_at_register: list[int] = []

    def follow(event: ev.Event) -> None:
        if isinstance(event, ev.RegisterReceived):  # the kubelet may see the end of the stream later
            open_at_register.append(rig.host.services[TOY].registration.streams)

    kubelet.events.listen(follow)
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        host.services[TOY].registration.server.path.unlink()
        await kubelet.wait_for(lambda: len(registered(kubelet)) == 2, WAIT)
        await rig.offers({TOY: 2})
        kubelet.kill_stream(TOY)
        await kubelet.wait_for(lambda: len(registered(kubelet)) == 3, WAIT)
        await rig.offers({TOY: 2})
        await kubelet.restart()
        await kubelet.wait_for(lambda: len(registered(kubelet)) == 4, WAIT)
        await rig.offers({TOY: 2})
        await quiet(host)
        assert kubelet.allocatable() == {TOY: 2}
    assert open_at_register == [0, 0, 0, 0]
    assert len(set(registered(kubelet))) == 4


@pytest.mark.conformance(38)
async def test_after_already_connected_the_next_try_uses_another_socket(rig, kubelet, hurried):
    refusal = "device plugin already connected: /var/lib/kubelet/device-plugins/dh.sock"
    kubelet.faults.inject(Point.OPTIONS, fail(refusal), TOY, times=2)
    async with rig.running(TOY_LINE):
        await rig.offers({TOY: 2})
    tried = [event.endpoint for event in kubelet.events.of(ev.RegisterReceived)]
    assert len(tried) == len(set(tried)) == 3


@pytest.mark.conformance(39)
async def test_only_the_resource_that_cannot_register_is_tried_again(rig, kubelet, hurried):
    kubelet.faults.inject(Point.REGISTER, fail("not this one"), TOY, times=None)
    async with rig.running(TOY_LINE, OTHER_LINE):
        await kubelet.wait_for(lambda: len(kubelet.events.of(ev.RegisterRefused, TOY)) >= 3, WAIT)
        await rig.offers({OTHER: 1})
        kubelet.faults.clear()
        await rig.offers({TOY: 2, OTHER: 1})
    assert len(kubelet.events.of(ev.RegisterReceived, OTHER)) == 1


@pytest.mark.field_failure("F16")
async def test_a_kubelet_that_restarts_while_devhost_is_stopped_gets_every_resource_again(rig, kubelet):
    async with rig.running(TOY_LINE):
        await rig.offers({TOY: 2})
    await kubelet.restart()
    assert (kubelet.capacity(), kubelet.allocatable()) == ({TOY: 0}, {TOY: 0})
    async with rig.running():
        await rig.offers({TOY: 2})


@asynccontextmanager
async def second(rig):
    """Another devhost on the same directory, as the new pod of a rolling update."""
    host = Host(rig.config, rig.load(), rig.load, rig.kubelet_dir, timing=rig.timing)
    async with rig.runs(host):
        yield host


@pytest.mark.conformance(42)
@pytest.mark.field_failure("F7", "F24")
async def test_a_rolling_update_ends_with_everything_allocatable_and_the_new_socket_in_place(
    rig, kubelet, hurried
):
    rig.write(TOY_LINE)
    seen: list[int] = []
    async with rig.running(allocatable={TOY: 2}) as old:
        old_socket = old.services[TOY].registration.server.path
        async with second(rig) as new:
            await rig.until(lambda: TOY in new.services and new.services[TOY].registration.streams, WAIT)
            new_socket = new.services[TOY].registration.server.path
            assert new_socket != old_socket
            await kubelet.wait_for(lambda: len(kubelet.endpoints(TOY)) == 2, WAIT)
            await kubelet.wait_for(lambda: len(kubelet.events.of(ev.ListReceived, TOY)) >= 2, WAIT)
            kubelet.events.listen(lambda event: kubelet.running and seen.append(kubelet.allocatable()[TOY]))
            before = kubelet.events.position
            old.stop()
            await rig.until(lambda: not old_socket.exists(), WAIT)
            await kubelet.wait_for(lambda: kubelet.events.of(ev.StreamEnded, since=before), WAIT)
            if kubelet.profile == "1.36":  # it disconnects the new one, by name, when the old one ends
                await kubelet.wait_for(lambda: registered(kubelet, since=before), WAIT)
            await rig.offers({TOY: 2})
            await quiet(new)
            assert kubelet.allocatable() == {TOY: 2}
            assert kubelet.endpoints(TOY) == (new.services[TOY].registration.server.path.name,)
            assert new.services[TOY].registration.server.path.is_socket()
            if kubelet.profile == "1.37":
                assert new.services[TOY].registration.server.path == new_socket
                assert set(seen) == {2}, "allocatable never fell"


@pytest.mark.conformance(42)
async def test_a_rollback_ends_with_everything_allocatable_by_the_remaining_instance(rig, kubelet, hurried):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as old:
        async with second(rig) as new:
            await rig.until(lambda: TOY in new.services and new.services[TOY].registration.streams, WAIT)
            socket = new.services[TOY].registration.server.path
            await rig.until(lambda: socket.name in str(old.kubelet.servers), WAIT)
            before = kubelet.events.position
        await kubelet.wait_for(lambda: registered(kubelet, since=before), WAIT)
        await rig.offers({TOY: 2})
        await quiet(old)
        assert kubelet.endpoints(TOY) == (old.services[TOY].registration.server.path.name,)


@pytest.fixture
def no_return(rig) -> None:
    """A registration that backs off is not made again while the test runs."""

    class Hour(Backoff):
        def delay(self) -> float:
            return 3600.0

    rig.hurry(backoff=Hour)


async def comes_and_goes(rig, kubelet, host) -> None:
    """Another instance registers the resource after ``host`` and exits; both have just registered."""
    async with second(rig) as other:
        await rig.until(lambda: TOY in other.services and other.services[TOY].registration.streams, WAIT)
        socket = other.services[TOY].registration.server.path
        await rig.until(lambda: socket.name in str(host.kubelet.servers), WAIT)
        await host.kubelet.look()  # by its end the registration has seen the other one, too


@pytest.mark.conformance(42)
async def test_an_instance_that_exits_right_after_it_registered_causes_no_back_off(rig, kubelet, no_return):
    """Up to 1.36 the kubelet then drops the other one, too, and the node shows 0 until the next Register."""
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        before = kubelet.events.position
        await comes_and_goes(rig, kubelet, host)
        await kubelet.wait_for(lambda: len(registered(kubelet, since=before)) == 2, WAIT)
        await rig.offers({TOY: 2})
        assert kubelet.endpoints(TOY) == (host.services[TOY].registration.server.path.name,)


@pytest.mark.conformance(42)
async def test_an_older_instance_that_exits_right_after_the_newer_one_registered_causes_no_back_off(
    rig, kubelet, no_return
):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as old, second(rig) as new:
        await rig.until(lambda: TOY in new.services and new.services[TOY].registration.streams, WAIT)
        before = kubelet.events.position
        old.stop()
        await kubelet.wait_for(lambda: kubelet.events.of(ev.StreamEnded, since=before), WAIT)
        if kubelet.profile == "1.36":
            await kubelet.wait_for(lambda: registered(kubelet, since=before), WAIT)
        await rig.offers({TOY: 2})


@pytest.mark.conformance(42)
async def test_instances_that_keep_restarting_slow_registration_down(rig, kubelet, no_return):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        for _ in range(registration.AT_ONCE):
            before = host.services[TOY].registration.condition.registrations
            await comes_and_goes(rig, kubelet, host)
            await rig.until(
                lambda n=before: host.services[TOY].registration.condition.registrations > n, WAIT
            )
            await rig.until(lambda: host.services[TOY].registration.streams, WAIT)
        await comes_and_goes(rig, kubelet, host)
        await rig.until(lambda: host.services[TOY].registration.condition.state == "lost", WAIT)


@pytest.mark.conformance(59)
@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0], ids=["back", "forward"])
async def test_a_clock_that_jumps_changes_nothing(rig, kubelet, devices, monkeypatch, jump):
    async with rig.running(TOY_LINE, OTHER_LINE, allocatable={TOY: 2, OTHER: 1}) as host:
        # Only devhost's clock: gRPC's deadlines use the same clock on both sides.
        jumped = SimpleNamespace(**vars(time) | {"time": lambda: time.time() + jump})
        for module in (reload, replanner, scanner, kubelet_socket, registration, server, service):
            monkeypatch.setattr(module, "time", jumped)
        await quiet(host)
        rig.change("toy", devices(3))
        await rig.offers({TOY: 3, OTHER: 1})
        assert len(kubelet.events.of(ev.RegisterReceived)) == 2
        await kubelet.restart()
        await rig.offers({TOY: 3, OTHER: 1})
        await quiet(host)
        assert len(kubelet.events.of(ev.RegisterReceived)) == 4
