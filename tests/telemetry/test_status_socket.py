from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import h11
import pytest
import status_values
from kit.waiting import until
from status_values import Json

from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError
from devhost.runtime import rundir
from devhost.telemetry import ask, document
from devhost.telemetry.status import LIMITS, AlreadyServed, StatusServer

DOC = Path(__file__).parents[2] / "docs" / "status.md"


class Source:
    """Replaces the host; ``generation`` distinguishes its documents, ``padding`` makes them large."""

    def __init__(self, kubelet_dir: str = "/kubelet", padding: int = 0) -> None:
        self.generation = 0
        self.asked = 0
        self._dir = kubelet_dir
        self._padding = padding

    def __call__(self) -> Json:
        self.asked += 1
        found = status_values.document()
        found["devhost"] |= {"config": "x" * self._padding, "generation": self.generation}
        found["kubelet"]["dir"] = self._dir
        return found


Serve = Callable[..., Awaitable[tuple[StatusServer, Path]]]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "run"
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(directory))
    return directory


@pytest.fixture
async def serve(runtime: Path, tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts status servers that are stopped at the end of the test."""
    started: list[StatusServer] = []

    async def start(source: Callable[[], Json], **options: Any) -> tuple[StatusServer, Path]:
        server = StatusServer(source, **{"kubelet_dir": tmp_path / "kubelet", "interval": 0.0, **options})
        path = await server.start()
        started.append(server)
        return server, path

    async with asyncio.timeout(60):
        yield start
        for server in started:
            await server.stop()


async def _raw(path: Path, sent: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to these bytes."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def _asked(
    path: Path, method: str, target: str, more: str = "", body: bytes = b""
) -> tuple[int, bytes]:
    return await _raw(path, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode() + body)


async def test_the_document_arrives_unchanged(serve: Serve) -> None:
    source = Source()
    _, path = await serve(source)
    assert (await ask.fetch(path, deadline=60)).json == source()


async def test_a_document_of_many_megabytes_arrives_completely(serve: Serve) -> None:
    source = Source(padding=20_000_000)
    _, path = await serve(source)
    assert (await ask.fetch(path, deadline=60)).json == source()


async def test_socket_and_directory_are_inaccessible_to_others(serve: Serve, runtime: Path) -> None:
    umask = os.umask(0)
    try:
        _, path = await serve(Source())
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.parent == runtime and stat.S_IMODE(runtime.stat().st_mode) == 0o700


async def test_a_kubelet_directory_has_one_socket_for_all_its_paths(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    name = rundir.socket_name(tmp_path / "real")
    assert rundir.socket_name(tmp_path / "link" / ".") == name
    assert rundir.socket_name(tmp_path) != name
    assert len(name) == 12 + len(".sock")


async def test_a_second_devhost_on_the_same_directory_is_refused(serve: Serve, tmp_path: Path) -> None:
    _, path = await serve(Source())
    with pytest.raises(AlreadyServed, match=f"another devhost already serves {tmp_path / 'kubelet'}"):
        await serve(Source())
    assert (await ask.fetch(path, deadline=60)).json["devhost"]["generation"] == 0


async def test_a_socket_left_by_a_dead_process_is_replaced(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    await serve(Source(), socket=path)
    assert (await ask.fetch(path, deadline=60)).json["devhost"]["generation"] == 0


async def test_a_file_at_the_path_of_the_socket_is_not_removed(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(EnvironmentFailure, match="is not a socket"):
        await serve(Source(), socket=path)
    assert path.read_text() == "precious"


async def test_stop_removes_only_its_own_socket(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    first, _ = await serve(Source(), socket=path)
    await first.stop()
    await first.stop()
    assert not path.exists()
    second, _ = await serve(Source(), socket=path)
    path.rename(tmp_path / "moved.sock")
    path.write_text("somebody else's")
    await second.stop()
    assert path.exists()


async def test_a_second_stop_leaves_the_socket_of_another_process(serve: Serve, tmp_path: Path) -> None:
    server, path = await serve(Source(), socket=tmp_path / "status.sock")
    aside = path.with_name("aside")
    aside.hardlink_to(path)  # a file system may give the same number to the next file
    await server.stop()
    aside.rename(path)
    await server.stop()
    assert path.exists()


async def test_stop_succeeds_without_the_runtime_directory(serve: Serve, runtime: Path) -> None:
    server, path = await serve(Source())
    path.unlink()
    runtime.rmdir()
    await server.stop()


async def test_a_path_too_long_for_a_socket_is_reported_in_one_line(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"would have a path of \d+ bytes, and Linux allows 107"):
        await serve(Source(), socket=tmp_path / ("x" * 120))


async def test_a_missing_directory_is_reported_in_one_line(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"cannot create the status socket .*: No such file"):
        await serve(Source(), socket=tmp_path / "no" / "s.sock")


async def test_a_runtime_directory_that_cannot_be_created_is_reported_in_one_line(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "no" / "such"))
    with pytest.raises(
        EnvironmentFailure, match=r"cannot use the runtime directory .*/no/such: No such file"
    ):
        await serve(Source())
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "file"))
    with pytest.raises(EnvironmentFailure, match="file is not a directory"):
        await serve(Source())


async def test_an_empty_runtime_directory_writable_by_others_is_made_private(
    serve: Serve, runtime: Path
) -> None:
    """An emptyDir volume of Kubernetes is one."""
    runtime.mkdir()
    runtime.chmod(0o777)
    await serve(Source())
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert await ask.find()


async def test_a_runtime_directory_with_possible_files_of_others_is_refused(
    serve: Serve, runtime: Path
) -> None:
    runtime.mkdir()
    (runtime / "x.sock").touch()
    runtime.chmod(0o777)
    with pytest.raises(EnvironmentFailure, match="is writable by other users"):
        await serve(Source())
    with pytest.raises(EnvironmentFailure, match="is writable by other users"):
        await ask.find()


async def test_a_runtime_directory_of_another_user_is_refused(
    serve: Serve, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(EnvironmentFailure, match=f"belongs to user {os.getuid()}"):
        await serve(Source())


async def test_a_symlink_as_runtime_directory_is_refused(serve: Serve, runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    runtime.symlink_to("elsewhere")
    with pytest.raises(EnvironmentFailure, match="is not a directory"):
        await serve(Source())


async def test_a_readable_runtime_directory_is_made_private(serve: Serve, runtime: Path) -> None:
    runtime.mkdir(mode=0o755)
    await serve(Source())
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


def test_each_user_has_a_separate_runtime_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEVHOST_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert rundir.runtime_dir() == Path("/run/user/7/devhost")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert rundir.runtime_dir() == Path("/tmp/devhost-7")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert rundir.runtime_dir() == Path("/run/devhost")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b'{"want": "status"}\n\n', 400),
        (b"\xff\r\n\r\n", 400),
        (b"x" * 100_000, 431),
        (b"GET /status HTTP/1.1\r\n\r\n", 400),  # without Host
        (b"GET /more HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /status HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /do HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"POST /do HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na=b", 400),
        (b"POST /do HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ],
)
async def test_an_unknown_request_is_answered_with_an_error(serve: Serve, sent: bytes, status: int) -> None:
    async def never(parameters: Mapping[str, str]) -> Mapping[str, object]:
        raise AssertionError(parameters)

    _, path = await serve(Source(), commands={"do": never})
    assert (await _raw(path, sent))[0] == status


async def test_curl_reads_the_status(serve: Serve) -> None:
    source = Source()
    _, path = await serve(source)
    curl = await asyncio.create_subprocess_exec(
        "curl", "-sf", "--unix-socket", path, "http://devhost/status", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await curl.communicate()
    assert (curl.returncode, json.loads(out)) == (0, source())


async def test_a_command_gets_the_parameters_in_the_url(serve: Serve) -> None:
    async def do(parameters: Mapping[str, str]) -> Mapping[str, object]:
        return {"got": dict(parameters)}

    _, path = await serve(Source(), commands={"do": do})
    status, body = await _asked(path, "POST", "/do?a=b%26c&empty=&a=d", "Content-Length: 0\r\n")
    assert (status, json.loads(body)) == (200, {"got": {"a": "d", "empty": ""}})
    assert await ask.request(path, "do", {"a": "ä &?"}, deadline=60) == {"got": {"a": "ä &?"}}
    not_text = os.fsdecode(b"\xff")
    assert await ask.request(path, "do", {"a": not_text}, deadline=60) == {
        "got": {"a": "\N{REPLACEMENT CHARACTER}"}
    }


async def test_a_page_in_a_browser_can_command_nothing(serve: Serve) -> None:
    """A user may forward the socket to TCP; browsers send Origin with every POST from a page."""

    async def never(parameters: Mapping[str, str]) -> Mapping[str, object]:
        raise AssertionError(parameters)

    _, path = await serve(Source(), commands={"do": never})
    assert (await _asked(path, "POST", "/do", "Origin: http://localhost:8080\r\n"))[0] == 403


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("no", "why"), 400), (EnvironmentFailure("no", "why"), 409)]
)
async def test_a_command_that_fails_is_the_same_error_for_the_client(
    serve: Serve, error: DevhostError, status: int
) -> None:
    async def do(_: Mapping[str, str]) -> Mapping[str, object]:
        raise error

    _, path = await serve(Source(), commands={"do": do})
    assert (await _asked(path, "POST", "/do"))[0] == status
    with pytest.raises(type(error), match=r"^no \(why\)$"):
        await ask.request(path, "do", {}, deadline=60)


async def test_a_silent_client_is_disconnected(serve: Serve) -> None:
    _, path = await serve(Source(), limits=replace(LIMITS, head_deadline=0.01))
    reader, writer = await asyncio.open_unix_connection(path)
    assert (await reader.read()).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_a_client_over_the_limit_gets_an_error(serve: Serve) -> None:
    _, path = await serve(Source())
    clients = [await asyncio.open_unix_connection(path) for _ in range(LIMITS.connections)]
    with pytest.raises(DevhostError, match="too many connections"):
        await ask.fetch(path, deadline=60)
    for _, writer in clients:
        writer.close()


async def test_a_source_that_raises_ends_only_that_connection(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    source, broken = Source(), [True]

    def describe() -> Json:
        return source() if not broken else 1 // 0

    _, path = await serve(describe)
    with pytest.raises(DevhostError, match="answered with status 500: Internal Server Error"):
        await ask.fetch(path, deadline=60)
    broken.clear()
    assert caplog.messages == ["request failed"]
    assert (await ask.fetch(path, deadline=60)).json == source()


async def test_a_watching_client_gets_the_document_now_and_after_each_change(serve: Serve) -> None:
    source = Source()
    server, path = await serve(source)
    async with aclosing(ask.watch(path, deadline=60)) as documents:
        for generation in range(5):
            assert (await anext(documents)).json["devhost"]["generation"] == generation
            source.generation = generation + 1
            server.changed()


async def test_a_burst_of_changes_causes_one_document(serve: Serve) -> None:
    source = Source()
    server, path = await serve(source)
    async with aclosing(ask.watch(path, deadline=60)) as documents:
        await anext(documents)
        for source.generation in range(1, 1001):
            server.changed()
        assert (await anext(documents)).json["devhost"]["generation"] == 1000
    assert source.asked == 2


async def test_documents_to_one_client_have_a_minimum_distance(serve: Serve) -> None:
    source = Source()
    server, path = await serve(source, interval=0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    ticking = loop.create_task(_tick(server, source))
    async with aclosing(ask.watch(path, deadline=60)) as documents:
        for _ in range(5):
            await anext(documents)
    ticking.cancel()
    assert loop.time() - began >= 4 * 0.1 - 0.01


async def _tick(server: StatusServer, source: Source) -> None:
    while True:
        source.generation += 1
        server.changed()
        await asyncio.sleep(0.001)


async def test_a_slow_reader_gets_only_the_newest_document(serve: Serve) -> None:
    source = Source(padding=3_000_000)
    server, path = await serve(source)
    reader, writer = await asyncio.open_unix_connection(path, limit=1000)
    client = h11.Connection(h11.CLIENT)
    head = h11.Request(method="GET", target="/watch", headers=[("Host", "x")])
    writer.write((client.send(head) or b"") + (client.send(h11.EndOfMessage()) or b""))
    await until(lambda: source.asked == 1)
    for source.generation in range(1, 201):
        server.changed()
        await asyncio.sleep(0)
    documents: list[Json] = []
    line = b""
    while not documents or documents[-1]["devhost"]["generation"] < 200:
        client.receive_data(await reader.read(1 << 20))
        while isinstance(event := client.next_event(), h11.Event):
            line += bytes(event.data) if isinstance(event, h11.Data) else b""
        if line.endswith(b"\n"):
            documents.append(json.loads(line))
            line = b""
    assert [found["devhost"]["generation"] for found in documents] == [0, 200]
    writer.close()


async def test_two_watching_clients_both_get_each_change_from_one_document(serve: Serve) -> None:
    source = Source()
    server, path = await serve(source)
    async with (
        aclosing(ask.watch(path, deadline=60)) as first,
        aclosing(ask.watch(path, deadline=60)) as second,
    ):
        await anext(first), await anext(second)
        source.generation = 1
        server.changed()
        assert [(await anext(it)).json["devhost"]["generation"] for it in (first, second)] == [1, 1]
    assert source.asked == 2


async def test_the_server_notices_a_leaving_watcher_without_a_change(serve: Serve) -> None:
    _, path = await serve(Source(), limits=replace(LIMITS, streams=1))
    async with aclosing(ask.watch(path, deadline=60)) as documents:
        await anext(documents)
        with pytest.raises(DevhostError, match="too many watchers"):
            await anext(ask.watch(path, deadline=60))
    while True:
        with suppress(DevhostError):  # its place is free again, though nothing changed
            async with aclosing(ask.watch(path, deadline=60)) as documents:
                await anext(documents)
                break


async def test_watching_ends_when_the_host_stops(serve: Serve) -> None:
    server, path = await serve(Source())
    async with aclosing(ask.watch(path, deadline=60)) as documents:
        await anext(documents)
        await server.stop()
        with pytest.raises(StopAsyncIteration):
            await anext(documents)


async def test_the_only_host_is_found_without_arguments(serve: Serve, runtime: Path) -> None:
    _, path = await serve(Source())
    (runtime / "note.txt").touch()
    (runtime / "plain.sock").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(runtime / "dead.sock"))
    assert await ask.find() == path


async def test_a_host_is_found_by_its_kubelet_directory(serve: Serve, tmp_path: Path) -> None:
    await serve(Source(), kubelet_dir=tmp_path / "a")
    _, path = await serve(Source(), kubelet_dir=tmp_path / "b")
    assert await ask.find(kubelet_dir=tmp_path / "b") == path
    with pytest.raises(EnvironmentFailure, match=f"no devhost on this node serves {tmp_path / 'c'}"):
        await ask.find(kubelet_dir=tmp_path / "c")


async def test_several_hosts_are_listed_by_their_kubelet_directories(serve: Serve, tmp_path: Path) -> None:
    await serve(Source("/one"), kubelet_dir=tmp_path / "a")
    await serve(Source("/two\x1b[2J"), kubelet_dir=tmp_path / "b")
    with pytest.raises(UsageError, match="several devhosts are running on this node") as caught:
        await ask.find()
    assert "/one" in caught.value.message and "/two\\x1b[2J" in caught.value.message
    assert "--kubelet-dir" in caught.value.hint


async def test_no_host_is_reported_in_one_line_with_and_without_a_runtime_directory(runtime: Path) -> None:
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match="no devhost is running on this node"):
            await ask.find()
        runtime.mkdir(mode=0o700, exist_ok=True)


async def test_a_dead_socket_is_reported_in_one_line(tmp_path: Path) -> None:
    path = await ask.find(socket=tmp_path / "s.sock")
    with pytest.raises(EnvironmentFailure, match="no devhost listens on"):
        await ask.fetch(path, deadline=60)
    with pytest.raises(EnvironmentFailure, match=r"a path of \d+ bytes, and Linux allows 107"):
        await ask.fetch(tmp_path / ("x" * 120))
    with pytest.raises(UsageError, match="cannot be combined"):
        await ask.find(kubelet_dir=tmp_path, socket=path)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\n\r\n[]\n", b"HTTP/1.1 200 OK\r\n\r\n{}\n", b'{"devhost": {}}\n', b"\xff\n"],
)
async def test_another_program_on_the_socket_is_reported_in_one_line(tmp_path: Path, answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(other, tmp_path / "s.sock"):
        with pytest.raises(DevhostError, match="did not answer with a status document"):
            await ask.fetch(tmp_path / "s.sock")


async def test_a_host_that_does_not_answer_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "s.sock"))
        stuck.listen()
        with pytest.raises(DevhostError, match="did not answer within"):
            await ask.fetch(tmp_path / "s.sock", deadline=0.01)


def test_every_key_of_the_document_is_documented() -> None:
    text = DOC.read_text()
    kinds = [one for one in vars(document).values() if isinstance(one, type) and is_dataclass(one)]
    keys = {key for kind in kinds for key in document.form(kind).keys.values()}
    assert len(kinds) == 34
    assert sorted(key for key in keys if f"`{key}" not in text) == []
