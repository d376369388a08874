from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from status_document import NOW
from status_document import device as _device
from status_document import document as _document
from status_values import Json, document_of, entry, problem

from devhost.backend.errors import EnvironmentFailure
from devhost.cli.status import status
from devhost.cli.status_report import show
from devhost.telemetry.status import StatusServer
from devhost.telemetry.tables import age

DEADLINE = 60


def test_the_sections_go_from_the_process_to_the_backends() -> None:
    assert [line.rstrip() for line in show(document_of(_document()), NOW).splitlines()] == [
        "devhost 1.2.3  pid 4711  up 3h",
        "kubelet /var/lib/kubelet/device-plugins",
        "config  /etc/devhost.yaml  generation 2  loaded 12m ago",
        "",
        "RESOURCE            BACKEND  HEALTHY  STATE       STREAMS  REGISTRATIONS  REGISTERED",
        "example.com/serial  udev     1/2      registered        1              1  3h",
        "",
        "RESOURCE            DEVICE  HEALTH     SINCE  NUMA  HELD BY               REASON",
        "example.com/serial  FT1     Healthy    45s    0,1   default/meter-0/main  -",
        "example.com/serial  FT2     Unhealthy  45s    0,1   -                     node is gone",
        "",
        "BACKEND  STATE  SINCE  DEVICES  DISCOVERED  TOOK",
        "udev     ok     3h           2  45s         1.2ms",
    ]


def test_ids_are_sorted_by_the_numbers_in_them() -> None:
    document = _document([_device("p10::1"), _device("p9::10"), _device("p9::2")])
    text = show(document_of(document), NOW)
    assert [line.split()[1] for line in text.splitlines() if "  Healthy  " in line] == [
        "p9::2",
        "p9::10",
        "p10::1",
    ]


def test_devices_handed_out_together_are_shown_with_the_content_of_each_token() -> None:
    held, free = _device("all::0", allocated=True), _device("all::1")
    for device in (held, free):
        device["device"], device["numaNodes"] = "all", []
    held["given"] = ["a", "b", "c", "d"]
    document = _document([held, free])
    document["resources"][0]["together"] = [
        {"device": "a", "health": "Healthy", "reason": "", "numaNodes": [0]},
        {"device": "b", "health": "Unhealthy", "reason": "port 1 is down", "numaNodes": [1]},
    ]
    text = show(document_of(document), NOW)
    assert "default/meter-0/main with a, b, c and 1 more" in text
    lines = [line.split() for line in text.splitlines()]
    at = lines.index(["RESOURCE", "TOGETHER", "HEALTH", "NUMA", "REASON"])
    assert [line[1:4] for line in lines[at + 1 : at + 3]] == [["a", "Healthy", "0"], ["b", "Unhealthy", "1"]]


def test_devices_held_through_a_removed_resource_are_shown_with_their_holder() -> None:
    document = _document()
    holder = {"namespace": "default", "pod": "train", "container": "main"}
    reason = "devhost does not serve this resource now"
    document["held"] = [
        {"resource": "old/name", "id": "a::1", "devices": ["a"], "holder": holder, "reason": reason},
        {"resource": "old/name", "id": "all::0", "devices": [], "holder": None, "reason": reason},
    ]
    lines = [line.split() for line in show(document_of(document), NOW).splitlines()]
    at = lines.index(["RESOURCE", "NOT", "LISTED", "HELD", "BY", "DEVICES", "REASON"])
    assert lines[at + 1] == ["old/name", "a::1", "default/train/main", "a", *reason.split()]
    assert lines[at + 2] == ["old/name", "all::0", "an", "unknown", "pod", "-", *reason.split()]
    document["held"] = [{**document["held"][0], "resource": f"old/name-{n}"} for n in range(60)]
    assert "10 more held devices not shown (--all shows them)" in show(document_of(document), NOW)
    assert "not shown" not in show(document_of(document), NOW, everything=True)


def test_a_vanished_device_is_shown_with_its_holder() -> None:
    text = show(document_of(_document([_device("FT1", "the device is gone", allocated=True)])), NOW)
    (line,) = [line for line in text.splitlines() if "FT1" in line]
    assert line.split() == [
        *("example.com/serial", "FT1", "Unhealthy", "45s", "0,1"),
        *("default/meter-0/main", "the", "device", "is", "gone"),
    ]


def test_a_host_without_resources_yet_is_shown_as_such() -> None:
    document = _document()
    document["resources"], document["backends"] = [], []
    document["kubelet"]["socket"] = "absent"
    text = show(document_of(document), NOW)
    assert "No resources yet." in text and "kubelet /var/lib/kubelet/device-plugins  ABSENT\n" in text


def test_holders_are_unknown_with_a_reason_while_the_kubelet_does_not_answer() -> None:
    known, got, free = _device("known", allocated=True), _device("got", allocated=True), _device("free")
    got["holder"] = None
    document = _document([known, got, free])
    document["kubelet"]["podResources"] |= {"known": False, "reason": "kubelet.sock does not \x1b exist"}
    lines = show(document_of(document), NOW).splitlines()
    assert lines[2] == r"pods    unknown: kubelet.sock does not \x1b exist"
    held = {line.split()[1]: line.split("0,1")[1].strip() for line in lines if "0,1" in line}
    assert held == {"known": "default/meter-0/main", "got": "an unknown pod", "free": "unknown"}


def test_an_allocated_device_not_yet_listed_by_the_kubelet_is_held_by_an_unknown_pod() -> None:
    device = _device("FT1", allocated=True)
    device["holder"] = None
    text = show(document_of(_document([device])), NOW)
    assert "an unknown pod" in text and "pods " not in text


def test_problems_are_below_the_header_with_their_full_reasons() -> None:
    document = _document()
    assert "PROBLEM" not in show(document_of(document), NOW)
    complaints = ["devhost.yaml:3:5: resources[0].nam: unknown key", f"devhost.yaml:9:1: \x1b[2J{'x' * 200}"]
    document["devhost"]["lastReload"] = {
        "at": "2026-11-20T11:59:30Z",
        "result": "rejected",
        "complaints": complaints,
    }
    document["problems"] = [
        *(problem("config", "devhost.yaml", reason, "2026-11-20T11:59:30Z") for reason in complaints),
        problem("labels", "udev", "the directory is read-only"),
    ]
    lines = [line.rstrip() for line in show(document_of(document), NOW).splitlines()]
    assert lines[2].endswith("generation 2  REJECTED 30s ago, generation 2 stays")
    assert lines[3:8] == [
        "",
        "PROBLEM  WITH          SINCE  REASON",
        "config   devhost.yaml  30s    devhost.yaml:3:5: resources[0].nam: unknown key",
        rf"config   devhost.yaml  30s    devhost.yaml:9:1: \x1b[2J{'x' * 200}",
        "labels   udev          -      the directory is read-only",
    ]


def test_recently_removed_devices_are_shown_with_reasons_newest_first() -> None:
    document = _document()
    assert "LEFT RECENTLY" not in show(document_of(document), NOW)
    document["resources"][0]["departed"] = [
        {"device": "FT9", "reason": "the device is gone", "at": "2026-11-20T11:59:50Z"},
        {"device": "FT8", "reason": "entry 1 (a/b) already took it", "at": "2026-11-20T11:48:00Z"},
    ]
    document["resources"].append({**document["resources"][0], "name": "a/other", "devices": []})
    document["resources"][1]["departed"] = [
        {"device": "X", "reason": "the device is gone", "at": "2026-11-20T11:59:00Z"}
    ]
    lines = [line.rstrip() for line in show(document_of(document), NOW).splitlines()]
    at = lines.index("RESOURCE            LEFT RECENTLY  AGO  REASON")
    assert lines[at + 1 : at + 4] == [
        "example.com/serial  FT9            10s  the device is gone",
        "a/other             X              60s  the device is gone",
        "example.com/serial  FT8            12m  entry 1 (a/b) already took it",
    ]


def test_verdicts_are_shown_with_who_gave_them_and_why() -> None:
    found = _document()
    found["verdicts"] = [
        {
            "file": "a.json",
            "kind": "cordon",
            "by": "alice",
            "reason": "fan",
            "since": "2026-11-20T09:00:00Z",
            "until": "2026-11-21T09:00:00Z",
            "devices": [{"backend": "udev", "device": "FT1"}],
        },
        {
            "file": "b.json",
            "kind": "unhealthy",
            "by": "dcgm",
            "reason": "XID 79",
            "since": "2026-11-20T11:00:00Z",
            "devices": [{"backend": "*", "device": "*"}],
        },
    ]
    text = show(document_of(found), NOW)
    assert (
        "VERDICT    BY     SINCE  ENDS                  DEVICES   REASON\n"
        "cordon     alice  3h     2026-11-21T09:00:00Z  udev/FT1  fan\n"
        "unhealthy  dcgm   60m    -                     all       XID 79"
    ) in "\n".join(line.rstrip() for line in text.splitlines())
    assert "VERDICT" not in show(document_of(_document()), NOW)


def test_observers_are_shown_with_the_reason_of_a_pause() -> None:
    document = _document()
    assert "OBSERVER" not in show(document_of(document), NOW)
    document["observers"] = [
        {
            "name": "ledger",
            "state": "paused",
            "reason": "devhost_held: ValueError: no",
            "since": "2026-11-20T11:59:15Z",
            "calls": 7,
            "failures": 5,
            "waiting": 2,
            "dropped": 1,
        }
    ]
    lines = show(document_of(document), NOW).splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("OBSERVER"))
    assert lines[header].split() == [
        *["OBSERVER", "STATE", "SINCE", "CALLS"],
        *["FAILED", "WAITING", "DROPPED", "REASON"],
    ]
    assert lines[header + 1].split() == [
        *["ledger", "paused", "45s", "7", "5", "2", "1"],
        "devhost_held:",
        "ValueError:",
        "no",
    ]


def test_provisioning_is_shown_while_it_is_incomplete() -> None:
    document = _document()
    found = document["backends"][0]
    found["provisioning"] = {
        "state": "waiting",
        "reason": "a pod has 0000:3b:02.0",
        "since": "2026-11-20T11:59:15Z",
    }
    assert [line.split() for line in show(document_of(document), NOW).splitlines()[-2:]] == [
        ["BACKEND", "PROVISIONING", "SINCE", "REASON"],
        ["udev", "waiting", "45s", "a", "pod", "has", "0000:3b:02.0"],
    ]
    found["provisioning"] = {"state": "ok", "reason": "", "since": "2026-11-20T11:59:15Z"}
    assert "PROVISIONING" not in show(document_of(document), NOW)


def test_degraded_backends_and_refusals_show_their_reason() -> None:
    document = _document()
    document["resources"][0]["lastError"] = "no kubelet"
    backend = document["backends"][0]
    backend["state"], backend["reason"], backend["lastDiscoverySeconds"] = "degraded", "discover hung", None
    backend["refusedDevices"] = [{"device": "bad", "reason": "its id has 300 characters"}]
    document["refusals"] = [
        {"backend": "udev", "device": "FT3", "kind": "claimed", "reason": "claimed by FT2"}
    ]
    text = show(document_of(document), NOW)
    for phrase in ("discover hung", "its id has 300 characters", "claimed by FT2", "no kubelet"):
        assert phrase in text


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        (None, ""),
        ("2026-11-20T12:00:05Z", "0s"),
        ("2026-11-20T11:58:01Z", "119s"),
        ("2026-11-20T11:58:00Z", "2m"),
        ("2026-11-20T12:00:00+02:00", "2h"),
        ("2026-11-18T11:00:00", "2d"),
        ("yesterday", "?"),
    ],
)
def test_ages_are_shown_in_their_largest_unit(since: str | None, shown: str) -> None:
    assert age(since, NOW) == shown


@pytest.fixture
def document() -> Json:
    return _document()


@pytest.fixture
async def server(
    document: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StatusServer]:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    made = StatusServer(lambda: document, kubelet_dir=tmp_path, interval=0)
    await made.start()
    yield made
    await made.stop()


async def _start(*arguments: str, stdout: int = asyncio.subprocess.PIPE) -> asyncio.subprocess.Process:
    # a shell that starts the tests in the background has its children ignore the signal
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heed + "from devhost.cli import main; main()"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "status", *arguments),
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )


async def _run(*arguments: str) -> tuple[int, str, str]:
    async with asyncio.timeout(DEADLINE):
        process = await _start(*arguments)
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def _first_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE):
        return await process.stdout.readline()


async def _end(process: asyncio.subprocess.Process) -> tuple[int, bytes, bytes]:
    async with asyncio.timeout(DEADLINE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out or b"", err


async def test_status_shows_the_running_host(server: StatusServer) -> None:
    code, out, err = await _run()
    assert (code, err) == (0, "")
    assert out.startswith("devhost 1.2.3  pid 4711") and "node is gone" in out


async def test_json_output_is_the_whole_document(server: StatusServer, document: Json) -> None:
    document["newer"] = document["kubelet"]["newer"] = [1]
    code, out, _ = await _run("--output", "json")
    assert (code, json.loads(out)) == (0, document)


async def test_no_running_host_is_exit_code_3_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    code, out, err = await _run()
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("devhost: no devhost ")


@pytest.mark.parametrize(
    "arguments", [["--watch"], ["--kubelet-dir", "/k"], ["--socket", "/s"], ["--status-socket", "/s"]]
)
def test_no_running_host_is_the_same_error_with_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    error = CliRunner().invoke(status, arguments).exception
    assert isinstance(error, EnvironmentFailure) and str(error).startswith("no devhost ")


async def test_contradicting_options_are_exit_code_2(server: StatusServer) -> None:
    code, _, err = await _run("--socket", "/a", "--kubelet-dir", "/b")
    assert code == 2 and "cannot be combined" in err


async def test_watch_prints_a_json_line_per_change_and_ends_with_the_host(
    server: StatusServer, document: Json
) -> None:
    process = await _start("--watch", "--output", "json")
    assert json.loads(await _first_line(process))["devhost"]["generation"] == 2
    document["devhost"]["generation"] = 3
    server.changed()
    assert json.loads(await _first_line(process))["devhost"]["generation"] == 3
    await server.stop()
    code, out, err = await _end(process)
    assert (code, out) == (0, b"")
    assert err.startswith(b"devhost: the host on ") and err.endswith(b" has stopped\n")


async def test_an_interrupt_ends_watching_silently(server: StatusServer) -> None:
    process = await _start("--watch")
    await _first_line(process)
    process.send_signal(signal.SIGINT)
    code, _, err = await _end(process)
    assert (code, err) == (0, b"")


def socket_pair() -> tuple[int, int]:
    """A standard output as programs in Node.js provide it."""
    ends = socket.socketpair()
    return ends[0].detach(), ends[1].detach()


@pytest.mark.parametrize("connect", [os.pipe, socket_pair])
async def test_watching_ends_as_soon_as_the_reader_is_gone(
    server: StatusServer, connect: Callable[[], tuple[int, int]]
) -> None:
    reading, writing = connect()
    process = await _start("--watch", stdout=writing)
    os.close(writing)
    async with asyncio.timeout(DEADLINE):
        assert b"devhost" in await asyncio.to_thread(os.read, reading, 10)
        os.close(reading)
        code, _, err = await _end(process)
    assert (code, err) == (0, b"")


async def test_on_a_terminal_watching_redraws_in_place(server: StatusServer, document: Json) -> None:
    terminal, theirs = pty.openpty()
    process = await _start("--watch", stdout=theirs)
    os.close(theirs)
    seen = b""
    async with asyncio.timeout(DEADLINE):
        while b"press Ctrl-C to quit" not in seen:
            seen += await asyncio.to_thread(os.read, terminal, 65536)
        assert seen.startswith(b"\x1b[2J")
        document["devhost"]["generation"] = 77
        server.changed()
        while b"generation 77" not in seen:
            seen += await asyncio.to_thread(os.read, terminal, 65536)
        process.send_signal(signal.SIGINT)
        code, _, err = await _end(process)
    os.close(terminal)
    assert (code, err) == (0, b"")
    assert seen.count(b"\x1b[2J") == 2


def empty(name: str, state: str, reason: str, *, optional: bool = False) -> Json:
    return entry(1, name, "udev", resources=[], state=state, reason=reason, optional=optional)


def test_entries_without_devices_are_listed_and_optional_ones_in_one_line(document: Json) -> None:
    """Every entry of the file can be found, with the reason to its end however long it is."""
    reason = '0 devices; 2 match all but subsystem ("tty", not "TTY")' + " and more" * 20
    assert "NO DEVICES" not in show(document_of(document), NOW)
    document["entries"] += [
        empty("example.com/serial2", "none", reason),
        empty("example.com/slow", "waiting", "0 devices; the backend has not answered yet"),
        empty("example.com/a", "absent", "0 devices; the backend sees no devices", optional=True),
        empty("example.com/b", "absent", "0 devices; the backend sees no devices", optional=True),
    ]
    text = show(document_of(document), NOW)
    (line,) = [line for line in text.splitlines() if line.startswith("example.com/serial2 ")]
    assert line.endswith(reason) and "no devices" in line and "resources[1]" in line
    assert any(line.startswith("example.com/slow ") and "waiting" in line for line in text.splitlines())
    assert "Not on this node (optional): example.com/a, example.com/b" in text.splitlines()
    every = show(document_of(document), NOW, everything=True).splitlines()
    assert any(line.startswith("example.com/a ") and "not on this node" in line for line in every)


def test_entries_that_lack_some_devices_are_listed_with_what_they_miss(document: Json) -> None:
    few, close = document["entries"][0].copy(), document["entries"][0].copy()
    few |= {"name": "example.com/few", "devices": 7, "reason": "7 of 8 devices"}
    close |= {"name": "example.com/close", "devices": 7, "remark": "1 more matches all but isRdma"}
    document["entries"] += [few, close]
    assert "example.com/few (resources[0]): 7 of 8 devices" in show(document_of(document), NOW)
    assert "isRdma" not in show(document_of(document), NOW)
    assert "example.com/close (resources[0]): 1 more matches all but isRdma" in show(
        document_of(document), NOW, everything=True
    )
