"""The process that programs: what it hands to the driver, and how long anybody waits for it.

``/dev/null`` represents a management engine. Answers of a driver come from a fake ``ioctl``; the
real one is called once, and ``/dev/null`` refuses the request.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devhost_fpga.programming.child import DFL_REQUEST, OPAE_REQUEST, carry_out
from devhost_fpga.programming.loader import ProgrammingResult, judge, run
from fpga_programming import gbs

from devhost.backend.process import TimedOut, kill_group

NODE, NUMBER = "/dev/null", [1, 3]
IMAGE = b"image" * 1000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "x.gbs"
    path.write_bytes(gbs(image=IMAGE))
    yield path


@pytest.fixture
def request_of(file: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    opened: list[int] = []

    def make(**changes: Any) -> dict[str, Any]:
        descriptor = os.open(file, os.O_RDONLY)
        opened.append(descriptor)
        status = os.fstat(descriptor)
        head = file.read_bytes()[: status.st_size - len(IMAGE)].hex()
        asked = {"do": "dfl", "node": NODE, "number": NUMBER, "port": 1, "head": head, "file": descriptor}
        return {**asked, "size": status.st_size, "modified": status.st_mtime_ns, **changes}

    yield make
    for descriptor in opened:
        os.close(descriptor)


class Driver:
    """A fake ``ioctl`` that records its calls, with the memory behind the pointer."""

    def __init__(self, refuse: int = 0, status: int = 0) -> None:
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.image = b""
        self._refuse, self._status = refuse, status

    def __call__(self, node: int, code: int, argument: bytearray, mutate: bool) -> int:
        assert mutate and os.fstat(node).st_rdev == os.makedev(*NUMBER)
        assert fcntl.fcntl(node, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        layout = OPAE_REQUEST if code == 0xB580 else DFL_REQUEST
        fields = layout.unpack(argument)
        self.asked.append((code, fields))
        self.image = ctypes.string_at(fields[4], fields[3])
        if self._status:
            argument[:] = layout.pack(*fields[:5], self._status)
        if self._refuse:
            raise OSError(self._refuse, os.strerror(self._refuse))
        return 0


# what the driver gets


def test_a_dfl_driver_gets_the_image_without_its_header(request_of: Callable[..., dict[str, Any]]) -> None:
    driver = Driver()
    assert carry_out(request_of(), driver) == {}
    [(code, (argsz, flags, port, size, _))] = driver.asked
    assert (code, argsz, flags, port, size) == (0xB680, 24, 0, 1, len(IMAGE))
    assert driver.image == IMAGE


def test_an_opae_driver_gets_its_longer_request_and_reports_hardware_errors(
    request_of: Callable[..., dict[str, Any]],
) -> None:
    driver = Driver(errno.EIO, 0b10)
    assert carry_out(request_of(do="opae"), driver) == {"step": "program", "errno": errno.EIO, "status": 2}
    [(code, (argsz, flags, port, size, _, status))] = driver.asked
    assert (code, argsz, flags, port, size, status) == (0xB580, 32, 0, 1, len(IMAGE), 0)


def test_the_requests_are_those_of_the_kernels_header() -> None:
    header = Path("/usr/include/linux/fpga-dfl.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    text = header.read_text()
    assert "#define DFL_FPGA_MAGIC 0xB6" in text and "#define DFL_FME_BASE 0x80" in text
    assert "_IO(DFL_FPGA_MAGIC, DFL_FME_BASE + 0)" in text.partition("define DFL_FPGA_FME_PORT_PR")[2][:60]


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EINVAL, errno.ETIMEDOUT, errno.EIO, errno.EPERM])
def test_a_refusal_of_the_driver_is_reported_with_its_errno(
    request_of: Callable[..., dict[str, Any]], number: int
) -> None:
    assert carry_out(request_of(), Driver(number)) == {"step": "program", "errno": number, "status": 0}


# what never reaches the driver


def test_a_node_with_another_number_is_not_opened(
    request_of: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, driver = request_of(number=[1, 5]), Driver()
    flags: list[int] = []
    real = os.open

    def note(path: str, how: int) -> int:
        flags.append(how)
        return real(path, how)

    monkeypatch.setattr(os, "open", note)
    verdict = carry_out(asked, driver)
    monkeypatch.undo()
    assert verdict == {"step": "node", "errno": 0}
    assert [bool(how & os.O_PATH) for how in flags] == [True], "looking at it opens nothing"
    assert driver.asked == []


@pytest.mark.parametrize("kind", ["file", "link", "nothing"])
def test_only_device_nodes_are_opened(
    request_of: Callable[..., dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "dfl-fme.0"
    if kind == "file":
        place.write_text("c1:3\n")
    elif kind == "link":
        place.symlink_to(NODE)
    driver = Driver()
    verdict = carry_out(request_of(node=str(place)), driver)
    assert verdict == {"step": "node", "errno": errno.ENOENT if kind == "nothing" else 0}
    assert driver.asked == []


@pytest.mark.parametrize("change", [{"size": 1}, {"modified": 1}, {"head": "00"}])
def test_a_file_that_changed_after_the_check_is_not_programmed(
    request_of: Callable[..., dict[str, Any]], change: dict[str, Any]
) -> None:
    driver = Driver()
    assert carry_out(request_of(**change), driver)["step"] == "file"
    assert driver.asked == []


def test_a_file_that_changes_while_it_is_programmed_is_an_error(
    request_of: Callable[..., dict[str, Any]], file: Path
) -> None:
    driver = Driver()

    def ioctl(*arguments: Any) -> int:
        with file.open("ab") as end:
            end.write(b"more")
        return driver(*arguments)

    assert carry_out(request_of(), ioctl) == {"step": "file", "errno": 0}


# the kernel's firmware loader


@pytest.fixture
def manager(tmp_path: Path) -> Path:
    for name in ("flags", "firmware"):
        (tmp_path / name).touch()
    return tmp_path


def test_flags_are_written_before_the_name(manager: Path) -> None:
    asked = {"do": "firmware", "manager": str(manager), "name": "a/b.bin", "flags": "1"}
    assert carry_out(asked) == {}
    assert (manager / "flags").read_text() == "1\n"
    assert (manager / "firmware").read_text() == "a/b.bin\n"


def test_a_file_of_the_manager_that_is_missing_is_not_made(manager: Path) -> None:
    (manager / "firmware").unlink()
    asked = {"do": "firmware", "manager": str(manager), "name": "b.bin", "flags": ""}
    assert carry_out(asked) == {"step": "firmware", "errno": errno.ENOENT}
    assert (manager / "flags").read_text() == "" and not (manager / "firmware").exists()


def test_nothing_is_loaded_where_the_flags_are_refused(manager: Path) -> None:
    (manager / "flags").unlink()
    asked = {"do": "firmware", "manager": str(manager), "name": "b.bin", "flags": "1"}
    assert carry_out(asked) == {"step": "flags", "errno": errno.ENOENT}
    assert (manager / "firmware").read_text() == ""


# the process


def test_the_real_process_asks_the_real_kernel(request_of: Callable[..., dict[str, Any]]) -> None:
    asked = request_of()
    assert run(asked, [asked["file"]], 60) == ProgrammingResult("program", errno.ENOTTY)


def test_the_real_process_writes_a_name(manager: Path) -> None:
    asked = {"do": "firmware", "manager": str(manager), "name": "b.bin", "flags": ""}
    assert run(asked, [], 60) == ProgrammingResult()
    assert (manager / "firmware").read_text() == "b.bin\n"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_a_process_that_does_not_answer_is_ended() -> None:
    began = time.monotonic()
    assert run({}, [], 0.2, python("import time; time.sleep(600)")) == ProgrammingResult("time")
    assert time.monotonic() - began < 300


def test_a_process_that_cannot_be_ended_is_left_and_watched() -> None:
    # a call into the kernel cannot be had here: the signal is kept from it instead
    started: list[subprocess.Popen[bytes]] = []
    command = python("import time; time.sleep(600)")
    with pytest.raises(TimedOut) as caught:
        run({}, [], 0.05, command=command, grace=0.05, kill=started.append)
    child = started[0]
    left = caught.value.leftover
    assert left is not None and not left.is_gone
    kill_group(child)
    child.wait(60)
    assert left.is_gone


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise ValueError('odd')", "exited with status 1: ValueError: odd"),
        ("import sys; sys.exit(3)", "exited with status 3"),
        ("import os; os.kill(os.getpid(), 7)", "was killed by SIGBUS"),
        ("print('nonsense')", "gave an answer that cannot be parsed"),
        ("print('[]')", "gave an answer that cannot be parsed"),
        ("pass", "gave an answer that cannot be parsed"),
    ],
)
def test_a_crash_differs_from_a_refusal(code: str, text: str) -> None:
    assert run({}, [], 60, python(code)) == ProgrammingResult("crash", text=text)


def test_a_process_that_cannot_start_is_reported() -> None:
    assert run({}, [], 60, ["/nonexistent"]) == ProgrammingResult("start", errno.ENOENT)


def test_a_verdict_is_one_line() -> None:
    assert judge(b"{}\n") == ProgrammingResult()
    assert judge(b'{"step": "program", "errno": 5, "status": 2}\n') == ProgrammingResult("program", 5, 2)
    assert judge(b'{"step": "program", "errno": null}\n').step == "crash"


def test_the_process_gets_nothing_but_the_file(
    request_of: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    asked = request_of()
    code = f"import os; open({str(seen)!r}, 'w').write(' '.join(os.listdir('/proc/self/fd'))); print('{{}}')"
    secret = os.open("/dev/null", os.O_RDONLY)
    try:
        assert run(asked, [asked["file"]], 60, python(code)) == ProgrammingResult()
    finally:
        os.close(secret)
    numbers = set(map(int, seen.read_text().split()))
    assert asked["file"] in numbers and {0, 1, 2} <= numbers
    assert secret not in numbers - {3, 4, asked["file"]}
