"""Links are asked for beside everything else: bounded, once per pair; a failing backend only loses them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from kit.backend import Plain
from kit.clock import FakeClock
from kit.waiting import background

from devhost.backend import Device, NoOptions
from devhost.backend.errors import BackendError, BackendTimeout
from devhost.discovery.runner import MOST_LINKED, BackendRunner, LinkCache, Pair


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


async def test_the_links_of_a_pair_are_read_once_while_its_devices_are_the_same() -> None:
    asked = Asked()
    links = LinkCache("toy", asked)
    known = devices(3)
    links.update(known)
    await links.refresh()
    assert links.links == {
        frozenset(("d0", "d1")): 1,
        frozenset(("d0", "d2")): 2,
        frozenset(("d1", "d2")): 3,
    }
    links.update(dict(known, d1=Device("d1", numa_nodes=(1,))))
    await links.refresh()
    assert asked.pairs[3:] == [("d0", "d1"), ("d1", "d2")]
    links.update({"d2": known["d2"]})
    await links.refresh()
    assert links.links == {}


async def test_a_failure_is_logged_once_and_known_links_stay(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "devhost")
    asked, clock = Asked(), FakeClock()
    links = LinkCache("toy", asked, clock)
    async with background(links.run()):
        known = devices(2)
        links.update(known)
        await clock.settle()
        asked.failing = True
        links.update(known | {"d2": Device("d2")})
        await clock.advance(60)
        assert links.links == {frozenset(("d0", "d1")): 1}
        asked.failing = False
        await clock.advance(600)
        assert len(links.links) == 3
        assert caplog.messages == [
            "links between devices are not known",
            "links between devices are known again",
        ]


async def test_links_are_not_read_for_very_many_devices() -> None:
    asked = Asked()
    links = LinkCache("toy", asked)
    links.update(devices(MOST_LINKED + 1))
    await links.refresh()
    assert (asked.pairs, links.links) == ([], {})


def source(links: object, tmp_path: Path) -> BackendRunner:
    class Toy(Plain):
        name = "toy"
        discover_deadline = 60.0

    if links is not None:
        Toy.links = links  # type: ignore[attr-defined]
    return BackendRunner(Toy, NoOptions(), tmp_path)


async def test_a_hanging_backend_only_loses_its_links(tmp_path: Path, hang: threading.Event) -> None:
    made = source(lambda self, a, b: hang.wait(), tmp_path)
    assert made.discover([]) == []
    assert made.link_cache is not None
    made.link_cache.update(devices(2))
    made.backend_class.discover_deadline = 0.2
    with pytest.raises(BackendTimeout):
        await made.link_cache.refresh()
    made.backend_class.discover_deadline = 60.0
    assert made.discover([]) == []
    assert made.links == {}
    made.close()


@pytest.mark.parametrize("answer", ["near", None])
async def test_a_result_that_is_not_a_number_is_refused(tmp_path: Path, answer: object) -> None:
    made = source(lambda self, a, b: answer, tmp_path)
    made.discover([])
    assert made.link_cache is not None
    made.link_cache.update(devices(2))
    with pytest.raises(BackendError, match="did not return an int"):
        await made.link_cache.refresh()
    made.close()


async def test_a_backend_without_links_has_none(tmp_path: Path) -> None:
    made = source(None, tmp_path)
    assert (made.link_cache, made.links) == (None, {})
    made.close()


async def test_the_links_of_new_devices_are_read_alone() -> None:
    asked = Asked()
    links = LinkCache("toy", asked)
    async with background(links.run()):
        links.update(devices(2))
        await FakeClock().settle()
        assert links.links
