"""When a registration is tried again, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from devhost_testing.kubelet import KubeletSimulator, events
from kit.clock import FakeClock
from kit.files import AtOnce
from kit.kubelet import ToyResource
from kit.waiting import background, until

from devhost.kubelet.api import KUBELET_SOCKET
from devhost.kubelet.kubelet_socket import Identity, KubeletSocket, identity
from devhost.kubelet.podresources_poller import PodResources
from devhost.kubelet.registration import Registration, RegistrationState
from devhost.kubelet.rivals import Rivals
from devhost.planning.timing import KubeletTiming
from devhost.telemetry.metrics import Metrics

TOY = ToyResource.name
TIMING = KubeletTiming(settle=0.0, refused=(0.05, 1.0), ask=0.4)


class Times(Metrics):
    """Keeps when a registration failed."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.failures: list[float] = []

    def add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        if metric == "registration_failures_total":
            self.failures.append(self.clock.now)


class Answers(PodResources):
    """Reports devices of other plugins, and keeps when it was asked."""

    def __init__(self, clock: FakeClock, **devices: frozenset[str]) -> None:
        super().__init__(Path("/nowhere"))
        self.clock = clock
        self.devices = devices
        self.asked: list[float] = []

    async def allocatable(self) -> dict[str, frozenset[str]]:
        self.asked.append(self.clock.now)
        return {f"example.com/{name}": ids for name, ids in self.devices.items()}


@contextmanager
def kubelet_socket(directory: Path, *, listening: bool) -> Iterator[None]:
    """A ``kubelet.sock``, with or without a process that listens on it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as kubelet:
        kubelet.bind(str(directory / KUBELET_SOCKET))
        if listening:
            kubelet.listen()
        yield


@asynccontextmanager
async def registering(
    directory: Path,
    source: PodResources,
    metrics: Metrics,
    clock: FakeClock,
    identify: Callable[[Path], Identity | None] = identity,
) -> AsyncIterator[Registration]:
    kubelet = KubeletSocket(directory, identify=identify, worker=AtOnce("kubelet directory", ""))
    await kubelet.look()
    rivals = Rivals(source, directory, timing=TIMING, clock=clock)
    registration = Registration(
        ToyResource(), kubelet, rivals, metrics, lambda: None, timing=TIMING, clock=clock
    )
    async with background(rivals.run()), background(registration.run()):
        yield registration


async def test_a_kubelet_socket_without_a_listener_is_tried_at_growing_intervals_up_to_a_second(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    metrics = Times(clock)
    with kubelet_socket(tmp_path, listening=False):
        async with registering(tmp_path, Answers(clock), metrics, clock):
            await clock.advance(20.0)
    intervals = [after - before for before, after in pairwise(metrics.failures)]
    assert 0.025 <= intervals[0] <= 0.05
    assert all(0.5 <= interval <= 1.0 + 1e-6 for interval in intervals[5:])
    assert len(set(intervals[5:])) > 1, "the intervals have jitter"


async def test_a_clock_that_was_set_back_does_not_delay_the_registration(tmp_path: Path) -> None:
    def made_in_an_hour(path: Path) -> Identity:
        return 1, 1, time.time_ns() + 3600 * 10**9

    clock = FakeClock()
    metrics = Times(clock)
    with kubelet_socket(tmp_path, listening=False):
        async with registering(tmp_path, Answers(clock), metrics, clock, made_in_an_hour):
            await clock.advance(1.0)
    assert metrics.failures, "it tried"


async def test_a_resource_of_another_plugin_is_asked_about_at_bounded_intervals(tmp_path: Path) -> None:
    clock = FakeClock()
    source = Answers(clock, toy=frozenset({"x"}))
    with kubelet_socket(tmp_path, listening=True):
        async with registering(tmp_path, source, Metrics(), clock) as registration:
            await clock.advance(20.0)
            assert registration.condition.state is RegistrationState.WAITING
            assert registration.condition.error.startswith("another device plugin serves it")
    intervals = [after - before for before, after in pairwise(source.asked)]
    assert all(0.4 <= interval <= 0.7 for interval in intervals)
    assert len(set(intervals)) > 1, "the intervals have jitter"


async def test_a_resource_is_registered_with_the_kubelet_that_is_there_although_the_watch_is_late(
    tmp_path: Path,
) -> None:
    async with KubeletSimulator(tmp_path) as simulator:
        kubelet = KubeletSocket(tmp_path)
        await kubelet.look()  # and no watch follows
        rivals = Rivals(Answers(FakeClock()), tmp_path)
        registration = Registration(ToyResource(), kubelet, rivals, Metrics(), lambda: None)
        async with background(rivals.run()), background(registration.run()):
            await simulator.wait_for(lambda: registration.streams == 1)
            before = kubelet.identity
            await simulator.restart()
            registration.follow(take_over=False)  # wakes it, if it has seen no kubelet in between
            await until(lambda: registration.condition.registrations >= 2)
            assert kubelet.identity == identity(kubelet.path) != before


async def test_a_kubelet_that_comes_between_the_look_and_register_gets_one_registration(
    tmp_path: Path,
) -> None:
    async with KubeletSimulator(tmp_path) as simulator:

        def late(path: Path) -> Identity | None:
            return identity(path) if simulator.events.of(events.Registered, TOY) else (1, 1, 1)

        kubelet = KubeletSocket(tmp_path, identify=late, clock=lambda: 0.0)  # no reading ever gets too old
        rivals = Rivals(Answers(FakeClock()), tmp_path)
        registration = Registration(ToyResource(), kubelet, rivals, Metrics(), lambda: None)
        async with background(rivals.run()), background(registration.run()):
            await until(lambda: registration.condition.registrations and registration.streams)
            for _ in range(5):
                registration.follow(take_over=False)  # its next step begins with a look
                await kubelet.look()
            registered = simulator.events.of(events.Registered, TOY)
            assert registration.condition.registrations == len(registered) == 1
            assert registration.condition.state is RegistrationState.REGISTERED


@pytest.mark.parametrize("ends", ["stopped", "cancelled"])
async def test_a_registration_that_waits_ends_at_once(tmp_path: Path, ends: str) -> None:
    clock = FakeClock()
    kubelet = KubeletSocket(tmp_path, worker=AtOnce("kubelet directory", ""))
    await kubelet.look()
    rivals = Rivals(Answers(clock), tmp_path, clock=clock)
    registration = Registration(ToyResource(), kubelet, rivals, Metrics(), lambda: None, clock=clock)
    running = asyncio.create_task(registration.run())
    await clock.settle()
    assert registration.condition.state is RegistrationState.WAITING
    registration.stop() if ends == "stopped" else running.cancel()
    await clock.settle()
    assert running.done()
