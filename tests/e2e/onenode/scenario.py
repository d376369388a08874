"""One script for any kubelet, with the observations of each step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from .kubelets import Counts, Kubelet
from .recorder import Recorder
from .waiting import LIMIT

RESOURCE = "example.com/scenario"
OTHER = "example.com/other"


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations after a step: its answer, the node, and the calls to each plugin."""

    step: str
    answer: str
    counts: Counts
    calls: tuple[tuple[str, ...], ...]


class Witness:
    """Observes after each step, again until it is as ``expected`` or a time limit has passed."""

    def __init__(self, kubelet: Kubelet, plugins: Sequence[Recorder], expected: Sequence[Seen] = ()) -> None:
        self.seen: list[Seen] = []
        self._kubelet = kubelet
        self._plugins = plugins
        self._expected = expected

    async def look(self, step: str, answer: str = "") -> None:
        """Records the present observations; the calls are those since the last one."""
        end = time.monotonic() + LIMIT
        while True:
            await self._kubelet.settle(self._plugins)
            counts = await self._kubelet.counts(RESOURCE)
            seen = Seen(step, answer, counts, tuple(tuple(plugin.calls) for plugin in self._plugins))
            if not self._expected or seen == self._expected[len(self.seen)] or time.monotonic() > end:
                break
        for plugin in self._plugins:
            plugin.calls.clear()
        self.seen.append(seen)


async def play(kubelet: Kubelet, expected: Sequence[Seen] = ()) -> list[Seen]:
    """Plays the scenario; returns all observations.

    Args:
        expected: the observations with another kubelet; waited for, but not required.
    """
    first = Recorder(kubelet.directory, "first.sock", RESOURCE, kubelet.shown)
    second = Recorder(kubelet.directory, "second.sock", RESOURCE, kubelet.shown)
    witness = Witness(kubelet, (first, second), expected)
    try:
        await _registration(first, witness)
        await _devices(kubelet, first, witness)
        await _overlap(first, second, witness)
        await _restart(kubelet, first, witness)
        await _sharp_edges(kubelet, first, witness)
    finally:
        await first.stop()
        await second.stop()
    return witness.seen


async def _registration(first: Recorder, witness: Witness) -> None:
    await first.serve()
    await first.list(a=True, b=True, c=True)
    await witness.look("a wrong version is refused", await first.register(version="v1alpha9"))
    await witness.look("a wrong name is refused", await first.register(resource="nodomain"))
    await witness.look(
        "a dead endpoint is refused", await first.register(resource=OTHER, endpoint="dead.sock")
    )
    await witness.look("a plugin registers", await first.register())


async def _devices(kubelet: Kubelet, first: Recorder, witness: Witness) -> None:
    await first.list(a=True, b=False, c=True)
    await witness.look("a device becomes unhealthy")
    await first.list(a=True, b=True, c=True)
    await witness.look("it recovers")
    await witness.look("a pod gets two devices", await kubelet.admit("holder", RESOURCE, 2))
    await kubelet.restart_container("holder")
    await witness.look("its container is started again")
    first.refusal = "the card is on fire"
    await witness.look("Allocate fails", await kubelet.admit("unlucky", RESOURCE, 1))
    first.refusal = ""
    await kubelet.release("unlucky")
    await first.list(a=True, b=True)
    await witness.look("a device that is in use leaves the list")
    await first.list()
    await witness.look("all devices leave the list")
    await first.list(a=True, b=True, c=True)
    await witness.look("all devices are back")


async def _overlap(first: Recorder, second: Recorder, witness: Witness) -> None:
    await second.serve()
    await second.list(a=True, b=True, c=True, d=True)
    await witness.look("a second plugin registers beside the first", await second.register())
    await first.list(a=True)
    await witness.look("the first one lists again")
    await second.list(a=True, b=True, c=True, d=True)
    await witness.look("the second one lists again")
    await first.stop()
    await witness.look("the first one leaves")
    await second.stop()
    await witness.look("the second one leaves")


async def _restart(kubelet: Kubelet, first: Recorder, witness: Witness) -> None:
    await first.serve()
    await first.list(a=True, b=True, c=True)
    await witness.look("a plugin registers again", await first.register())
    await kubelet.restart()
    await witness.look("the kubelet restarts and no plugin has registered yet")
    await first.stop()
    await first.serve()
    await witness.look("the plugin registers with the new kubelet", await first.register())
    await witness.look("a pod gets the device that is left", await kubelet.admit("late", RESOURCE, 1))
    await kubelet.release("holder")
    await kubelet.release("late")
    await witness.look("two pods have ended")


async def _sharp_edges(kubelet: Kubelet, first: Recorder, witness: Witness) -> None:
    """Faults of a careless plugin. The two profiles of the simulator differ in each."""
    await witness.look(
        "a dead endpoint is refused beside a live one", await first.register(endpoint="dead.sock")
    )
    await first.stop()
    await witness.look("the live one leaves")
    await first.serve()
    await witness.look("it registers again", await first.register())
    await witness.look("it registers a second time on its socket", await first.register())
    await first.stop()
    await witness.look("it leaves after that")
    await first.serve()
    await witness.look("it comes back on the same socket", await first.register())
    await kubelet.restart()
    await witness.look("the kubelet restarts and forgets")
