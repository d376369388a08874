"""Links are asked for beside everything else: bounded, once per pair; a failing backend only loses them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from devhost.backend import AllocateRequest, Backend, Device, Edits, NoOptions
from devhost.backend.errors import BackendError
from devhost.discovery.links import MOST, LinkCache, Pair
from devhost.discovery.runner import BackendRunner


class Asked:
    """Stands for the backend: remembers the pairs, and fails while it is told to."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.failing = False

    async def __call__(self, pairs: Sequence[Pair]) -> list[int]:
        if self.failing:
            raise BackendError("the library is gone")
        self.pairs += [(a.id, b.id) for a, b in pairs]
        return [int(a.id[1:]) + int(b.id[1:]) for a, b in pairs]


def devices(count: int) -> dict[str, Device]:
    return {f"d{n}": Device(f"d{n}") for n in range(count)}


async def test_each_pair_is_asked_for_once_while_its_devices_are_the_same() -> None:
    asked = Asked()
    linkage = LinkCache("toy", asked)
    known = devices(3)
    linkage.see(known)
    assert await linkage.refresh()
    assert linkage.links == {
        frozenset(("d0", "d1")): 1,
        frozenset(("d0", "d2")): 2,
        frozenset(("d1", "d2")): 3,
    }
    linkage.see(dict(known, d1=Device("d1", numa_nodes=(1,))))
    assert await linkage.refresh()
    assert asked.pairs[3:] == [("d0", "d1"), ("d1", "d2")]
    linkage.see({"d2": known["d2"]})
    assert await linkage.refresh()
    assert linkage.links == {}


async def test_a_failure_is_told_once_and_what_is_known_stays(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    linkage = LinkCache("toy", asked)
    known = devices(2)
    linkage.see(known)
    assert await linkage.refresh()
    asked.failing = True
    linkage.see(known | {"d2": Device("d2")})
    assert not await linkage.refresh()
    assert not await linkage.refresh()
    assert linkage.links == {frozenset(("d0", "d1")): 1}
    asked.failing = False
    assert await linkage.refresh()
    assert len(linkage.links) == 3
    said = [r.getMessage() for r in caplog.records if "joined" in r.getMessage()]
    assert said == ["how devices are joined is not known"]


async def test_of_very_many_devices_none_is_asked_for() -> None:
    asked = Asked()
    linkage = LinkCache("toy", asked)
    linkage.see(devices(MOST + 1))
    assert await linkage.refresh()
    assert (asked.pairs, linkage.links) == ([], {})


def source(links: object, tmp_path: Path) -> BackendRunner:
    class Toy(Backend):
        name = "toy"
        discover_deadline = 60.0

        def discover(self) -> list[Device]:
            return []

        def allocate(self, request: AllocateRequest) -> Edits:
            return Edits()

    if links is not None:
        Toy.links = links  # type: ignore[attr-defined]
    return BackendRunner(Toy, NoOptions(), tmp_path)


async def test_a_hung_backend_loses_its_links_and_nothing_else(tmp_path: Path, hang: threading.Event) -> None:
    made = source(lambda self, a, b: hang.wait(), tmp_path)
    assert await made.look([]) == []
    assert made.linkage is not None
    made.linkage.see(devices(2))
    made.kind.discover_deadline = 0.2
    assert not await made.linkage.refresh()
    made.kind.discover_deadline = 60.0
    assert await made.look([]) == []
    assert made.links == {}
    made.close()


@pytest.mark.parametrize("answer", ["near", None])
async def test_an_answer_that_is_no_number_is_refused(tmp_path: Path, answer: object) -> None:
    made = source(lambda self, a, b: answer, tmp_path)
    await made.look([])
    assert made.linkage is not None
    made.linkage.see(devices(2))
    assert not await made.linkage.refresh()
    made.close()


async def test_a_backend_without_links_has_none(tmp_path: Path) -> None:
    made = source(None, tmp_path)
    assert (made.linkage, made.links) == (None, {})
    made.close()


async def test_new_devices_are_asked_for_by_themselves() -> None:
    asked = Asked()
    linkage = LinkCache("toy", asked)
    running = asyncio.create_task(linkage.run())
    linkage.see(devices(2))
    async with asyncio.timeout(60):
        while not linkage.links:
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
