"""Output never makes a daemon wait: not for a pipe that no process reads, nor for a full disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from devhost.runtime.log import Outlet, OutletStream

LINE = f"{'x' * 99}\n"
PATIENCE = 60.0


def gap(count: int, reason: str) -> str:
    return f"dropped {count}: {reason or 'unread'}"


@dataclass
class Pipe:
    """A pipe whose reader starts to read when a test says so."""

    reader: int
    writer: int
    text: bytearray = field(default_factory=bytearray)
    outlets: list[Outlet] = field(default_factory=list)

    def outlet(self, **options: Any) -> Outlet:
        """An outlet that writes to it."""
        self.outlets.append(Outlet(self.writer, gap, **options))
        return self.outlets[-1]

    def close(self) -> None:
        """Closes both ends, after the outlets have given up what is left: the numbers are used again."""
        with suppress(OSError):
            os.close(self.reader)
        for outlet in self.outlets:
            assert outlet.flush(PATIENCE)
        os.close(self.writer)

    def fill(self) -> None:
        """Writes until nothing more fits."""
        os.set_blocking(self.writer, False)
        for size in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(self.writer, b"#" * size)
        os.set_blocking(self.writer, True)

    def read_until(self, wanted: bytes) -> list[str]:
        """The lines up to the one that ends with this, without what filled the pipe."""
        while not self.text.endswith(wanted):
            self.text += os.read(self.reader, 65536)
        return self.text.decode().lstrip("#").splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    yield pipe
    pipe.close()


def test_lines_arrive_in_order(pipe: Pipe) -> None:
    outlet = pipe.outlet()
    for number in range(1000):
        outlet.write(f"{number}\n")
    assert outlet.flush(PATIENCE)
    assert pipe.read_until(b"999\n") == [str(number) for number in range(1000)]
    assert outlet.dropped == 0


def test_a_reader_that_does_not_read_costs_lines_and_no_time(pipe: Pipe) -> None:
    pipe.fill()
    outlet = pipe.outlet(limit=1000)
    for _ in range(50):
        outlet.write(LINE)  # would block for ever
    assert not outlet.flush(0.01)
    assert outlet.dropped == 40


def test_one_line_reports_what_was_dropped_once_the_reader_is_back(pipe: Pipe) -> None:
    pipe.fill()
    outlet = pipe.outlet(limit=1000)
    for number in range(30):
        outlet.write(f"{number:02} {LINE[3:]}")
    lines = pipe.read_until(b"unread\n")
    assert [line[:2] for line in lines[:-1]] == [f"{number:02}" for number in range(10)]
    assert lines[-1] == "dropped 20: unread"
    outlet.write("next\n")
    assert pipe.read_until(b"next\n")[-2:] == ["dropped 20: unread", "next"]
    assert outlet.dropped == 20


def test_the_end_waits_for_the_line_about_what_was_dropped(pipe: Pipe) -> None:
    pipe.fill()
    outlet = pipe.outlet(limit=1000)
    for _ in range(30):
        outlet.write(LINE)
    reading = threading.Thread(target=pipe.read_until, args=(b"unread\n",))
    reading.start()
    assert outlet.flush(PATIENCE)
    os.close(pipe.writer)  # what is not written now is lost
    reading.join(PATIENCE)
    assert not reading.is_alive()
    pipe.writer = os.open(os.devnull, os.O_WRONLY)


def test_a_slow_reader_learns_of_a_gap_where_it_is(pipe: Pipe) -> None:
    pipe.fill()
    outlet = pipe.outlet(limit=100_000)
    for number in range(1500):
        outlet.write(f"{number:04} {LINE[5:]}")
    lines = pipe.read_until(b"unread\n")
    assert [line[:4] for line in lines[:-1]] == [f"{number:04}" for number in range(len(lines) - 1)]


def test_a_reader_that_is_gone_costs_lines(pipe: Pipe) -> None:
    os.close(pipe.reader)
    outlet = pipe.outlet()
    outlet.write("one\ntwo\n")
    assert outlet.flush(PATIENCE)
    assert outlet.dropped == 2


def test_a_full_disk_costs_lines_and_its_reason_is_reported(pipe: Pipe) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    outlet = Outlet(full, gap)
    outlet.write("lost\n")
    assert outlet.flush(PATIENCE)
    os.dup2(pipe.writer, full)  # there is space again
    outlet.write("kept\n")
    assert pipe.read_until(b"kept\n") == ["dropped 1: No space left on device", "kept"]
    os.close(full)


def test_a_descriptor_that_others_made_nonblocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    outlet = pipe.outlet()
    for _ in range(3000):
        outlet.write(LINE)
    outlet.write("end\n")
    assert not outlet.flush(0.2)  # the pipe is full
    assert len(pipe.read_until(b"end\n")) == 3001
    assert outlet.dropped == 0


def test_what_is_left_at_the_end_is_waited_for_a_limited_time(pipe: Pipe) -> None:
    pipe.fill()
    outlet = pipe.outlet()
    outlet.write("last\n")
    assert not outlet.flush(0.01)
    reading = threading.Thread(target=pipe.read_until, args=(b"last\n",))
    reading.start()
    assert outlet.flush(PATIENCE)
    reading.join(PATIENCE)


def test_without_a_thread_lines_are_written_as_far_as_the_pipe_takes_them(
    pipe: Pipe, no_thread: Callable[..., threading.Thread]
) -> None:
    outlet = pipe.outlet(start=no_thread)
    outlet.write("one\n")
    assert pipe.read_until(b"one\n") == ["one"]
    pipe.fill()
    outlet.write("two\n")
    assert outlet.dropped == 1
    os.read(pipe.reader, 1 << 20)
    outlet.write("three\n")
    assert pipe.read_until(b"three\n")[-2:] == ["dropped 1: unread", "three"]


def test_text_that_is_not_unicode_is_escaped(pipe: Pipe) -> None:
    OutletStream(pipe.outlet()).write("caf\udce9\n")
    assert pipe.read_until(b"\n") == ["caf\\udce9"]
