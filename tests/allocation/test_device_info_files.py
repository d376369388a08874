"""When device-info files come and go: with the pods, and never before it is known who holds what."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from kit.clock import FakeClock
from kit.waiting import background, until

from devhost.allocation.allocations import Allocations, Released
from devhost.allocation.device_info import UNDECIDED, DeviceInfoDirectory, DeviceInfoFiles, Document
from devhost.backend.errors import AllocationError

NET = "example.com/net"
VF: Document = {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:3b:02.0"}}


class Lists(Allocations):
    """What is held is what the test says; ``held`` is ``None`` while not known."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.tokens: set[tuple[str, str]] | None = set()
        self.asked = 0
        self.subscribers: list[Released] = []

    def has_token(self, resource: str, token: str) -> bool | None:
        self.asked += 1
        return None if self.tokens is None else (resource, token) in self.tokens

    def subscribe(self, released: Released) -> Callable[[], None]:
        self.subscribers.append(released)
        return lambda: None

    def keep(self, *tokens: str) -> None:
        """Only these tokens are held from now on."""
        self.tokens = {(NET, token) for token in tokens}
        for released in self.subscribers:
            released(NET, ())


class Desk:
    """A directory, what is held, and what writes and removes files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lists = Lists()
        self.clock = FakeClock()
        self.task: asyncio.Task[None] | None = None

    def start(self, **options: Any) -> None:
        self.infos = DeviceInfoFiles(self.directory, self.lists, clock=self.clock, **options)
        self.task = asyncio.create_task(self.infos.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self.infos.close()

    async def restart(self, **options: Any) -> None:
        await self.stop()
        self.start(**options)

    async def write(self, *tokens: str) -> None:
        """As Allocate does it: written first, held right after."""
        await self.infos.write(NET, dict.fromkeys(tokens, VF))
        assert self.lists.tokens is not None
        self.lists.tokens |= {(NET, token) for token in tokens}

    def files(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        names = (path.name for path in self.directory.iterdir())
        return sorted(name.split("-")[2] for name in names if not name.startswith("."))

    def index(self) -> bool:
        return (self.directory / ".devhost_index.json").exists()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path / "dp")
    made.start()
    yield made
    await made.stop()


async def test_a_file_is_there_before_the_answer_and_goes_with_the_pod(desk: Desk) -> None:
    await desk.write("a", "b")
    assert desk.files() == ["a", "b"]
    desk.lists.keep("b")
    await until(lambda: desk.files() == ["b"])


async def test_files_of_running_pods_survive_a_restart_and_others_go(desk: Desk) -> None:
    await desk.write("a", "b")
    desk.lists.tokens = {(NET, "a")}
    await desk.restart()
    await until(lambda: desk.files() == ["a"])


async def test_nothing_is_removed_before_it_is_known_who_holds_what_and_then_without_a_call(
    desk: Desk,
) -> None:
    await desk.write("a")
    desk.lists.tokens = None
    await desk.restart()
    for asked in range(desk.lists.asked + 1, desk.lists.asked + 4):
        await until(lambda asked=asked: desk.lists.asked >= asked and desk.clock.timers)  # type: ignore[misc]
        await desk.clock.advance(UNDECIDED)
    assert desk.files() == ["a"]
    desk.lists.tokens = set()
    await until(lambda: desk.clock.timers or not desk.files())  # a pass that runs now may see it already
    await desk.clock.advance(UNDECIDED)
    await until(lambda: desk.files() == [])


async def test_a_file_that_is_being_written_counts_as_held(desk: Desk) -> None:
    go = threading.Event()

    class Slow(DeviceInfoDirectory):
        def write(self, resource: str, documents: Mapping[str, Document]) -> list[str]:
            replaced = super().write(resource, documents)
            go.wait(60)
            return replaced

    await desk.restart(directory_class=Slow)
    starting = asyncio.create_task(desk.write("a"))
    await until(lambda: desk.files() == ["a"])
    desk.lists.keep()
    await desk.clock.settle()  # this pass waits behind the write, and finds the file in the index
    go.set()
    await starting
    await desk.infos.write("example.com/next", {"b": VF})  # and this waits behind that pass
    assert "a" in desk.files()


async def test_a_pod_that_is_given_up_while_its_file_is_written_leaves_none(desk: Desk) -> None:
    go = threading.Event()

    class Slow(DeviceInfoDirectory):
        def write_file(self, name: str, data: bytes) -> bool:
            if not name.startswith("."):
                go.wait(60)
            return super().write_file(name, data)

    await desk.restart(directory_class=Slow)
    async with background(desk.write("a")):
        await until(desk.index)
    go.set()
    await until(lambda: not desk.index())
    assert desk.files() == []


async def test_the_file_of_a_container_that_never_started_goes_again(desk: Desk) -> None:
    await desk.infos.write(NET, {"a": VF})
    await until(lambda: desk.files() == [])


async def test_an_unusable_directory_fails_the_pod_with_a_hint(desk: Desk) -> None:
    desk.directory.write_text("a file")
    with pytest.raises(AllocationError) as caught:
        await desk.write("a")
    assert str(caught.value) == (
        f"{NET}: cannot write to {desk.directory}: Not a directory (deviceInfo.directory must be a directory "
        "that devhost may write to; deviceInfo: {write: false} where no network plugin reads it)"
    )


@pytest.mark.usefixtures("ordinary_rights")
async def test_a_read_only_directory_fails_the_pod(desk: Desk) -> None:
    desk.directory.mkdir(mode=0o500)
    with pytest.raises(AllocationError, match="Permission denied"):
        await desk.write("a")


async def test_a_directory_that_hangs_fails_the_pod_in_time(desk: Desk, hang: threading.Event) -> None:
    class Hung(DeviceInfoDirectory):
        def write(self, resource: str, documents: Mapping[str, Document]) -> list[str]:
            hang.wait()
            return []

    await desk.restart(directory_class=Hung, deadline=0.05)
    with pytest.raises(AllocationError, match="it did not answer within"):
        await desk.write("a")


async def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    infos = DeviceInfoFiles(None, Lists())
    assert not infos.wanted
    await infos.write(NET, {"a": VF})
    assert list(tmp_path.iterdir()) == []
    infos.close()


async def test_files_in_an_earlier_directory_are_still_removed(desk: Desk, tmp_path: Path) -> None:
    await desk.write("a")
    desk.infos.move(tmp_path / "elsewhere")
    await desk.write("b")
    assert desk.files() == ["a"]
    desk.lists.keep("b")
    await until(lambda: desk.files() == [])
    assert (tmp_path / "elsewhere" / "example.com-net-b-device.json").exists()


async def test_a_file_that_cannot_be_removed_is_tried_again_and_reported_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    class Stubborn(DeviceInfoDirectory):
        def remove(self, names: Iterable[str]) -> None:
            tries.append(names)
            if len(tries) <= 2:
                raise OSError(30, "Read-only file system")
            super().remove(names)

    await desk.restart(directory_class=Stubborn)
    await desk.write("a")
    desk.lists.keep()
    async with asyncio.timeout(60):
        while desk.files():
            await desk.clock.advance(60.0)  # longer than the longest back-off
            await asyncio.sleep(0.005)  # for the thread
    assert len(tries) == 3
    assert caplog.messages.count("cannot remove a device-info file") == 1
