"""When device-info files come and go: with the pods, and never before it is known who holds what."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import pytest

from devhost.allocation import device_info_files
from devhost.allocation.device_info import Document
from devhost.allocation.device_info_files import DeviceInfoFiles
from devhost.backend import files
from devhost.backend.errors import AllocationError
from devhost.discovery import worker

NET = "example.com/net"
VF: Document = {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:3b:02.0"}}

Until = Callable[[Callable[[], object]], Awaitable[None]]


class Desk:
    """A directory, what is held, and the one who writes and clears; ``held`` is ``None`` while not known."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.held: set[tuple[str, str]] | None = set()
        self.asked = 0
        self.infos = self.fresh()
        self.task: asyncio.Task[None] | None = None

    def fresh(self) -> DeviceInfoFiles:
        return DeviceInfoFiles(self.directory, self._is_held)

    def _is_held(self, resource: str, token: str) -> bool | None:
        self.asked += 1
        return None if self.held is None else (resource, token) in self.held

    def start(self) -> None:
        self.task = asyncio.create_task(self.infos.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self.infos.close()

    async def restart(self) -> None:
        await self.stop()
        self.infos = self.fresh()
        self.start()

    async def announce(self, *tokens: str) -> None:
        """As Allocate does it: written first, held right after."""
        await self.infos.announce(NET, dict.fromkeys(tokens, VF))
        assert self.held is not None
        self.held |= {(NET, token) for token in tokens}

    def files(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        names = (path.name for path in self.directory.iterdir())
        return sorted(name.split("-")[2] for name in names if not name.startswith("."))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path / "dp")
    made.start()
    yield made
    await made.stop()


@pytest.fixture
def until() -> Until:
    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    return wait


async def test_a_file_is_there_before_the_answer_and_goes_with_the_pod(desk: Desk, until: Until) -> None:
    await desk.announce("a", "b")
    assert desk.files() == ["a", "b"]
    desk.held = {(NET, "b")}
    desk.infos.wake()
    await until(lambda: desk.files() == ["b"])


async def test_files_of_running_pods_survive_a_restart_and_others_go(desk: Desk, until: Until) -> None:
    await desk.announce("a", "b")
    desk.held = {(NET, "a")}
    await desk.restart()
    await until(lambda: desk.files() == ["a"])


async def test_nothing_is_removed_before_it_is_known_who_holds_what_and_then_without_a_call(
    desk: Desk, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_info_files, "UNDECIDED", 0.01)
    await desk.announce("a")
    desk.held = None
    await desk.restart()
    asked = desk.asked
    await until(lambda: desk.asked > asked + 3)
    assert desk.files() == ["a"]
    desk.held = set()
    await until(lambda: desk.files() == [])


async def test_a_file_that_is_being_written_counts_as_held(
    desk: Desk, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = desk.infos._places[desk.directory]
    write, go = place.write, threading.Event()

    def slow(resource: str, documents: Mapping[str, Document]) -> list[str]:
        replaced = write(resource, documents)
        go.wait(5)
        return replaced

    monkeypatch.setattr(place, "write", slow)
    starting = asyncio.create_task(desk.announce("a"))
    await until(lambda: desk.files() == ["a"])
    desk.infos.wake()  # this look stands behind the write, and finds the file in the index
    await until(lambda: not desk.infos._wake.is_set())
    go.set()
    await starting
    await desk.infos.announce("example.com/next", {"b": VF})  # and this behind that look
    assert "a" in desk.files()


async def test_a_pod_that_is_given_up_while_its_file_is_written_leaves_none(
    desk: Desk, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = desk.infos._places[desk.directory]
    go = threading.Event()

    def slow(path: Path, data: bytes, part: str) -> None:
        go.wait(5)
        files.replace_file(path, data, part)

    monkeypatch.setattr("devhost.allocation.device_info.replace_file", slow)
    starting = asyncio.create_task(desk.announce("a"))
    await until(lambda: place._own())
    starting.cancel()
    await asyncio.wait([starting])
    go.set()
    await until(lambda: not place.own())
    assert desk.files() == []


async def test_the_file_of_a_container_that_never_started_goes_again(desk: Desk, until: Until) -> None:
    await desk.infos.announce(NET, {"a": VF})
    await until(lambda: desk.files() == [])


async def test_a_directory_that_cannot_be_used_fails_the_pod_with_the_way_to_mend_it(desk: Desk) -> None:
    desk.directory.write_text("a file")
    with pytest.raises(AllocationError) as caught:
        await desk.announce("a")
    assert str(caught.value) == (
        f"{NET}: cannot write to {desk.directory}: Not a directory (deviceInfo.directory must be a directory "
        "that devhost may write to; deviceInfo: {write: false} where no network plugin reads it)"
    )


@pytest.mark.usefixtures("ordinary_rights")
async def test_a_directory_that_may_not_be_written_to_fails_the_pod(desk: Desk) -> None:
    desk.directory.mkdir(mode=0o500)
    with pytest.raises(AllocationError, match="Permission denied"):
        await desk.announce("a")


async def test_a_directory_that_hangs_fails_the_pod_in_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    monkeypatch.setattr(worker, "FILE_DEADLINE", 0.05)
    monkeypatch.setattr(desk.infos._places[desk.directory], "write", lambda *args: hang.wait(10))
    with pytest.raises(AllocationError, match="it did not answer within"):
        await desk.announce("a")
    hang.set()


async def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    infos = DeviceInfoFiles(None, lambda resource, token: None)
    assert not infos.wanted
    await infos.announce(NET, {"a": VF})
    assert list(tmp_path.iterdir()) == []
    infos.close()


async def test_files_in_an_earlier_directory_are_still_removed(
    desk: Desk, until: Until, tmp_path: Path
) -> None:
    await desk.announce("a")
    desk.infos.move(tmp_path / "elsewhere")
    await desk.announce("b")
    assert desk.files() == ["a"]
    desk.held = {(NET, "b")}
    desk.infos.wake()
    await until(lambda: desk.files() == [])
    assert (tmp_path / "elsewhere" / "example.com-net-b-device.json").exists()


async def test_a_file_that_cannot_be_removed_is_tried_again_and_told_once(
    desk: Desk, until: Until, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, tries = desk.infos._places[desk.directory], 0
    remove = place.remove

    def stubborn(names: Iterable[str]) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(30, "Read-only file system")
        remove(names)

    monkeypatch.setattr(place, "remove", stubborn)
    await desk.announce("a")
    desk.held = set()
    for wanted in (1, 2, 3):
        desk.infos.wake()
        await until(lambda wanted=wanted: tries >= wanted)  # type: ignore[misc]
    await until(lambda: desk.files() == [])
    assert len([record for record in caplog.records if "stays behind" in record.getMessage()]) == 1
