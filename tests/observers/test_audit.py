"""The audit trail consists of whole lines in a bounded number of bounded files, also after failures."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kit.files import limited
from trail import (
    CLAIM,
    EACH,
    EXAMPLES,
    FRIDAY,
    Trail,
    allocated,
    appeared,
    degraded,
    fell,
    held,
    judged,
    prepared,
    read,
    released,
    send,
)

from devhost.discovery import catalog

SMALLEST = 32 * 1024

FULL = r"No space left|File too large"

WRITER = """
import sys
from pathlib import Path
from devhost.backend.model import Device, Holder
from devhost.backend.observe import Held
from devhost.discovery import catalog

(observer,) = catalog.load([Path(sys.argv[1])], points=()).observers
for number in range(int(sys.argv[2])):
    news = Held(at=float(number), generation=1, resource="a.b/c", backend="toy", device=Device("d"),
                tokens=("d",), holder=Holder("default", sys.argv[3], f"c{number}"))
    observer.call("devhost_held", news=(news,), missed=0)
"""


def writer(trail: Trail, count: int, name: str) -> subprocess.Popen[bytes]:
    """Another process that loads the drop-in and writes ``count`` lines."""
    return subprocess.Popen([sys.executable, "-c", WRITER, str(EXAMPLES), str(count), name])


def test_each_event_is_one_line_after_the_start(trail: Trail) -> None:
    observer = trail.load()
    for news in EACH:
        send(observer, news)
    about = {"resource": "nvidia.com/gpu", "backend": "gpu", "device": "GPU-8dfe9b2c"}
    holder = {"namespace": "ml", "pod": "train-0", "container": "main"}
    common = {"time": "2026-11-27T10:00:00.000Z", "node": "node7"}
    file = "/etc/devhost/devhost.yaml"
    claim = {"namespace": "ml", "claim": "train-0-gpu", "uid": CLAIM.uid, "pods": ["train-0"]}
    verdict = {
        "file": "cordon-node.json",
        "kind": "cordon",
        "ended": False,
        "devices": ["gpu/GPU-8dfe9b2c"],
        "by": "alice",
        "reason": "fan replaced on Friday",
        "since": "2026-11-27T09:59:59.000Z",
        "until": "2026-11-27T10:01:00.000Z",
    }
    assert trail.lines() == [
        {**common, "event": "started"},
        {**common, "event": "allocated", **about, "shares": 1},
        {**common, "event": "held", **about, "shares": 1, **holder},
        {**common, "event": "released", **about, "shares": 1, **holder},
        {**common, "event": "prepared", **about, "shares": 1, **claim},
        {**common, "event": "unprepared", **about, "shares": 1, **claim},
        {**common, "event": "health", **about, "healthy": False, "reason": "Xid 79"},
        {**common, "event": "verdict", **verdict},
        {**common, "event": "backend", "backend": "gpu", "degraded": True, "reason": "NVML does not answer"},
        {
            **common,
            "event": "configuration",
            "file": file,
            "accepted": False,
            "generation": 2,
            "complaints": ["line 3: no"],
        },
    ]


def test_times_have_milliseconds_and_a_zone(trail: Trail) -> None:
    send(trail.load(), allocated(FRIDAY + 0.1234))
    time = trail.lines()[-1]["time"]
    assert time == "2026-11-27T10:00:00.123Z"
    assert datetime.fromisoformat(time) == datetime.fromtimestamp(FRIDAY + 0.123, UTC)


def test_a_holder_that_the_kubelet_never_named_is_null(trail: Trail) -> None:
    send(trail.load(), released(holder=None))
    assert [trail.lines()[-1][name] for name in ("namespace", "pod", "container")] == [None, None, None]


def test_a_device_that_appears_unhealthy_is_a_line_and_a_healthy_one_is_not(trail: Trail) -> None:
    send(trail.load(), *appeared(None, "fan"))
    assert [(line["event"], line.get("device")) for line in trail.lines()] == [
        ("started", None),
        ("health", "GPU-1"),
    ]


def test_dropped_news_are_a_line_with_their_number_before_those_that_follow(trail: Trail) -> None:
    observer = trail.load()
    send(observer, held())
    send(observer, released(), missed=3)
    assert trail.events() == ["started", "held", "missed", "released"]
    assert trail.lines()[2]["count"] == 3


def test_an_import_writes_nothing(trail: Trail) -> None:
    trail.load()
    assert not trail.file.parent.exists()


def test_files_are_of_the_stated_size_and_number_and_together_have_the_newest_lines(trail: Trail) -> None:
    observer = trail.load(bytes=SMALLEST, files=3)
    for number in range(1500):
        send(observer, held(FRIDAY + number))
    assert [path.name for path in trail.files()] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    line = len(trail.file.read_bytes().splitlines(keepends=True)[0])
    assert all(SMALLEST - line < path.stat().st_size <= SMALLEST for path in trail.files()[1:])
    times = [one["time"] for one in trail.lines()]
    last = datetime.fromtimestamp(FRIDAY + 1499, UTC)
    assert times == sorted(times)
    assert times[-1] == last.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert len(times) == len(set(times))


def test_a_line_that_fits_exactly_begins_no_new_file_and_one_byte_more_does(trail: Trail) -> None:
    send(trail.load(bytes=SMALLEST), held())
    line = trail.file.read_bytes().splitlines(keepends=True)[-1]
    trail.file.write_bytes(b"x" * (SMALLEST - len(line) - 1) + b"\n")
    send(observer := trail.load(), read())  # its two lines begin a file
    assert len(trail.files()) == 2
    trail.file.write_bytes(b"x" * (SMALLEST - len(line) - 1) + b"\n")
    send(observer, held())
    assert (trail.file.stat().st_size, len(trail.files())) == (SMALLEST, 2)
    trail.file.write_bytes(b"x" * (SMALLEST - len(line)) + b"\n")
    send(observer, held())
    assert (trail.file.read_bytes(), len(trail.files())) == (line, 3)


def test_fewer_files_than_before_remove_the_oldest(trail: Trail) -> None:
    trail.file.parent.mkdir()
    for number in range(1, 6):
        (trail.file.parent / f"audit.jsonl.{number}").write_text("{}\n")
    trail.file.write_bytes(b"x" * (SMALLEST - 1) + b"\n")
    send(trail.load(bytes=SMALLEST, files=3), held())
    assert [path.name for path in trail.files()] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]


def test_no_line_is_longer_than_a_collector_reads(trail: Trail) -> None:
    observer = trail.load()
    worst = "\x01" * 5000
    pods = [f"{number:0253}" for number in range(256)]
    for news in (fell(reason=worst), degraded(reason=worst), read(*[worst] * 100), held(device="d" * 63)):
        send(observer, news)
    send(observer, prepared(*pods))
    send(observer, judged("\x7f\udcff" * 8000, reason=worst))
    sizes = [len(line) for line in trail.file.read_bytes().splitlines(keepends=True)]
    assert max(sizes) <= SMALLEST
    configuration = trail.lines()[3]
    assert {len(text) for text in configuration["complaints"]} == {400}
    assert configuration["complaints"][0].endswith("…")
    assert trail.lines()[5]["pods"] == pods[:50]


def test_the_end_of_a_verdict_is_a_line(trail: Trail) -> None:
    send(trail.load(), judged("*"), judged("*", in_force=False))
    assert [(line["ended"], line["until"]) for line in trail.lines()[1:]] == [(False, None), (True, None)]


def test_text_that_is_not_unicode_is_written(trail: Trail) -> None:
    send(trail.load(), fell(reason="port \udcff, größer 端口"))
    assert trail.lines()[-1]["reason"] == "port ?, größer 端口"


def test_a_line_is_one_write(trail: Trail) -> None:
    counts = Path("/proc/thread-self/io")
    if not counts.exists():
        pytest.skip("this kernel does not count the writes of a thread")

    def writes() -> int:
        return int(counts.read_text().partition("syscw: ")[2].split()[0])

    observer = trail.load(bytes=SMALLEST, files=50)
    news = [held(FRIDAY + number) for number in range(900)]
    before = writes()
    send(observer, *news)
    assert writes() - before == len(trail.lines()) == 901
    assert len(trail.files()) > 1


def test_after_a_full_disk_every_line_is_there_and_whole(trail: Trail) -> None:
    observer = trail.load()
    send(observer, held())
    size = trail.file.stat().st_size
    with limited(resource.RLIMIT_FSIZE, size + 40):
        for news in (released(), allocated()):
            with pytest.raises(OSError, match=FULL):
                send(observer, news)
            assert trail.file.stat().st_size == size
    send(observer, fell())
    assert trail.events() == ["started", "held", "released", "allocated", "health"]


@pytest.mark.root
def test_a_file_system_without_space_is_an_error_and_its_lines_follow_when_there_is_some(
    trail: Trail,
) -> None:
    trail.file.parent.mkdir()
    options = ("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(trail.file.parent))
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        observer = trail.load()
        send(observer, held())
        filling = trail.file.parent / "other"
        with pytest.raises(OSError, match="No space left"), filling.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        with pytest.raises(OSError, match="No space left"):
            send(observer, *[released()] * 100)
        assert set(trail.events()[2:]) <= {"released"}
        filling.unlink()
        send(observer, fell())
        assert trail.events() == ["started", "held", *["released"] * 100, "health"]
    finally:
        subprocess.run(["umount", str(trail.file.parent)], check=True)


def test_lines_that_wait_are_bounded_and_the_lost_ones_are_counted(trail: Trail) -> None:
    observer = trail.load(bytes=1024 * SMALLEST)
    send(observer, held())
    with limited(resource.RLIMIT_FSIZE, trail.file.stat().st_size + 1):
        for _ in range(12):
            with pytest.raises(OSError, match=FULL):
                send(observer, *[held()] * 1000)
    send(observer, released())
    events = trail.events()
    assert (events[2], trail.lines()[2]["count"]) == ("missed", 2001)
    assert (events.count("held"), events[-1]) == (1 + 9999, "released")


def test_a_directory_that_is_missing_is_created_and_again_after_it_was_removed(trail: Trail) -> None:
    observer = trail.load()
    send(observer, held())
    assert trail.file.parent.stat().st_mode & 0o027 == 0
    shutil.rmtree(trail.file.parent)
    send(observer, released())
    assert trail.events() == ["released"]


def test_a_place_that_cannot_be_written_is_an_error_and_its_lines_follow_later(trail: Trail) -> None:
    observer = trail.load()
    trail.file.parent.write_text("not a directory")
    with pytest.raises(OSError, match="File exists"):
        send(observer, held())
    trail.file.parent.unlink()
    trail.file.mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        send(observer, released())
    trail.file.rmdir()
    send(observer, fell())
    assert trail.events() == ["started", "held", "released", "health"]


@pytest.mark.parametrize("tail", [b'{"time":"2026-11-27T0', b"\0" * 5000], ids=["cut", "zeros"])
@pytest.mark.parametrize("lines", [0, 2])
def test_a_start_after_a_line_that_was_cut_continues_with_whole_lines(
    trail: Trail, tail: bytes, lines: int
) -> None:
    trail.file.parent.mkdir()
    trail.file.write_bytes(b'{"event":"earlier"}\n' * lines + tail)
    send(trail.load(), held())
    assert trail.events() == ["earlier"] * lines + ["started", "held"]


def test_a_cut_line_is_not_kept_in_a_rotated_file(trail: Trail) -> None:
    trail.file.parent.mkdir()
    trail.file.write_bytes(b'{"event":"earlier"}\n' + b"x" * (SMALLEST - 30))
    send(trail.load(bytes=SMALLEST), held())
    assert trail.events() == ["earlier", "started", "held"]


def test_a_process_that_is_killed_while_it_writes_leaves_lines_that_the_next_continues(trail: Trail) -> None:
    trail.load(bytes=SMALLEST, files=4)
    for _ in range(3):
        with writer(trail, 1_000_000, "killed") as process:
            while not (trail.file.parent / "audit.jsonl.1").exists():
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        send(trail.load(), held())
        assert trail.events()[-2:] == ["started", "held"]
        for path in trail.files()[1:]:
            path.unlink()


def test_two_processes_at_once_lose_no_line(trail: Trail) -> None:
    trail.load(bytes=SMALLEST, files=100)
    both = [writer(trail, 1500, name) for name in ("old", "new")]
    assert [process.wait(240) for process in both] == [0, 0]
    found = [(line["pod"], line["container"]) for line in trail.lines() if line["event"] == "held"]
    for name in ("old", "new"):
        assert [container for pod, container in found if pod == name] == [f"c{n}" for n in range(1500)]
    assert all(path.stat().st_size <= SMALLEST for path in trail.files())


def test_a_process_waits_while_another_writes(trail: Trail) -> None:
    trail.file.parent.mkdir()
    directory = os.open(trail.file.parent, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    process = writer(trail, 1, "new")
    until = time.monotonic() + 240
    while not waits_for_a_lock(process.pid):
        assert process.poll() is None and time.monotonic() < until, "it did not wait"
        time.sleep(0.02)
    assert not trail.file.exists()
    os.close(directory)
    assert process.wait(240) == 0 and trail.file.exists()


def waits_for_a_lock(process: int) -> bool:
    """See ``/proc/locks`` in proc(5)."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("-> FLOCK" in line and f" {process} " in line for line in lines)


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o640), (0o022, 0o640), (0o077, 0o600)])
def test_others_cannot_read_the_file(trail: Trail, umask: int, mode: int) -> None:
    observer = trail.load()
    before = os.umask(umask)
    try:
        send(observer, held())
    finally:
        os.umask(before)
    assert trail.file.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(("before", "after"), [(0o666, 0o640), (0o400, 0o400)])
def test_a_file_that_others_can_read_is_closed_and_a_stricter_one_stays(
    trail: Trail, before: int, after: int
) -> None:
    trail.file.parent.mkdir()
    trail.file.touch()
    trail.file.chmod(before)
    if os.geteuid() and before == 0o400:
        pytest.skip("only root can write to it")
    send(trail.load(), held())
    assert trail.file.stat().st_mode & 0o777 == after


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("BYTES", "1000", "DEVHOST_AUDIT_BYTES must be at least 32768"),
        ("BYTES", "10M", "DEVHOST_AUDIT_BYTES must be a whole number, not '10M'"),
        ("FILES", "1", "DEVHOST_AUDIT_FILES must be at least 2"),
    ],
)
def test_an_option_that_cannot_be_meant_refuses_the_observer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(f"DEVHOST_AUDIT_{name}", value)
    shutil.copy(EXAMPLES / "audit.py", tmp_path)
    (refused,) = catalog.load([tmp_path], points=()).refused
    assert reason in refused.reason


def test_lines_have_no_spaces_between_fields(trail: Trail) -> None:
    send(trail.load(), held())
    for line in trail.file.read_text().splitlines():
        assert json.dumps(json.loads(line), separators=(",", ":")) == line
