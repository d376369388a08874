"""Asking any process on a status socket leads to a document or to a one-line error."""

from __future__ import annotations

import asyncio
import json
import socket
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from kit.waiting import until

from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.telemetry import ask
from devhost.telemetry.ask import Differs, read
from devhost.telemetry.document import (
    DepartedStatus,
    DraDeviceStatus,
    HolderStatus,
    StatusDocument,
    form,
    json_line,
    members,
)

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Place = tuple[str | int, ...]


def sample(kind: Any) -> Any:
    """The JSON of a complete value of type ``kind``: each list has one item, and nothing is null."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {key: sample(hints[name]) for name, key in form(kind).keys.items()}
    arguments = get_args(kind)
    if get_origin(kind) is Sequence:
        return [sample(arguments[0])]
    if get_origin(kind) is Literal:
        return arguments[0]
    if get_origin(kind) is types.UnionType:
        return sample(arguments[0])
    return "x" if kind is str else kind()


def places(value: object, before: Place = ()) -> Iterator[Place]:
    """The path of every value in it."""
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        yield (*before, key)
        yield from places(member, (*before, key))


def changed(place: Place, change: Callable[[Any, str | int], None]) -> Any:
    """A document in which ``change`` modified the value at ``place``; it gets the container and the key."""
    document = within = json.loads(COMPLETE)
    for key in place[:-1]:
        within = within[key]
    change(within, place[-1])
    return document


def drop(within: Any, key: str | int) -> None:
    del within[key]


def odd(within: Any, key: str | int) -> None:
    within[key] = {"of": "another kind"} if not isinstance(within[key], dict) else "of another kind"


def written(place: Place) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)[1:]


def difference(value: object) -> str:
    """Where it differs from a document; empty if it does not."""
    try:
        read(value, StatusDocument)
    except Differs as error:
        return str(error)
    return ""


COMPLETE = json.dumps(sample(StatusDocument))
"""Made once: the types of all fields are evaluated for it."""

PLACES = list(places(json.loads(COMPLETE)))


@asynccontextmanager
async def answering(path: Path, answer: Answer) -> AsyncIterator[None]:
    serving: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await answer(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    async with await asyncio.start_unix_server(serve, path), asyncio.timeout(60):
        yield
        for _ in range(10):  # whoever only looked whether somebody listens is still to be accepted
            await asyncio.sleep(0)
        await asyncio.gather(*serving)


def saying(*parts: bytes) -> Answer:
    """Answers a request with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def http(body: bytes, status: int = 200) -> bytes:
    """A whole answer, which ends with the connection."""
    return b"HTTP/1.1 %d X\r\nConnection: close\r\n\r\n%b" % (status, body)


async def told(path: Path, **limits: Any) -> DevhostError:
    """The result of asking, which must be the same for fetching and watching."""
    with pytest.raises(DevhostError) as once:
        await ask.fetch(path, **limits)
    with pytest.raises(DevhostError) as watching:
        async with aclosing(ask.watch(path, **limits)) as documents:
            await anext(documents)
    assert str(once.value) == str(watching.value)
    assert "\n" not in str(once.value) and once.value.hint
    return once.value


def test_a_document_with_unknown_keys_is_accepted() -> None:
    document = sample(StatusDocument)
    assert difference(document) == ""
    document["new"] = document["kubelet"]["new"] = [1]
    document["resources"][0]["state"] = "a new word"
    document["backends"][0] |= {"labels": None, "lastDiscovery": None, "lastDiscoverySeconds": 1}
    assert difference(document) == ""


def test_the_place_of_a_difference_in_a_document_is_named() -> None:
    assert len(PLACES) > 100
    for place in PLACES:
        assert difference(changed(place, odd)) == f".{written(place)} has another type"
        if not isinstance(place[-1], int):
            of_several = place[1:] == ("drivers",) or (
                place[-1] == "driver" and place[1] in ("pools", "claims")
            )
            of_device = place[:2] == ("dra", "pools") and place[-1] in (
                *("members", "capacity", "counters", "consumes"),
            )
            optional = of_several or of_device or place[-1] in ("heldBy", "claim")
            missing = "" if optional else f".{written(place)} is missing"
            assert difference(changed(place, drop)) == missing
    others: tuple[object, ...] = (None, [], "x", 1)
    for other in others:
        assert difference(other) == " has another type"


def test_what_is_read_is_written_with_the_same_keys_in_the_same_order() -> None:
    document = sample(StatusDocument)
    assert json.dumps(json.loads(json_line(read(document, StatusDocument)))) == json.dumps(document)
    assert list(members(read(document["dra"]["pools"][0]["devices"][0], DraDeviceStatus)))[:3] == [
        *("device", "members", "name"),
    ]


def test_only_a_field_with_a_default_is_left_out_while_it_is_empty() -> None:
    holder = HolderStatus("default", "", "")
    assert members(holder) == {"namespace": "default", "pod": "", "container": ""}
    left = DepartedStatus(device="d0", reason="", at="", held_by=[holder])
    assert members(left) == {"device": "d0", "reason": "", "at": "", "heldBy": [holder]}
    assert "heldBy" not in members(replace(left, held_by=()))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 200 OK\r\n", "did not answer with a status document"),
        (http(b""), "closed the connection during its answer"),
        (http(b'{"devhost": {'), "closed the connection during its answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "closed the connection during its answer"),
        (b"\xff\xfe\n", "did not answer with a status document"),
        (b"x" * 200_000, "did not answer with a status document"),
        (http(b"\n"), "did not answer with a status document"),
        (http(b"\xff\xfe\n"), "did not answer with a status document"),
        (http(b"\x00\n"), "did not answer with a status document"),
        (http(b"[" * 200_000 + b"\n"), "did not answer with a status document"),
        (http(b'{"a":' * 200_000 + b"\n"), "did not answer with a status document"),
        (http(b"9" * 5000 + b"\n"), "did not answer with a status document"),
        (http(b"null\n"), "did not answer with a status document"),
        (http(b'{"error": 7}\n'), "devhost is missing"),
        (http(b"too many\n", 503), "answered with status 503: too many"),
        (
            http(json.dumps(changed(("kubelet", "podResources"), drop)).encode() + b"\n"),
            "podResources is missing",
        ),
        (http(json.dumps(changed(("resources", 0, "devices"), odd)).encode() + b"\n"), "devices has another"),
    ],
    ids=range(18),
)
async def test_an_invalid_answer_is_reported_in_one_line(tmp_path: Path, said: bytes, message: str) -> None:
    async with answering(tmp_path / "s.sock", saying(said)):
        error = await told(tmp_path / "s.sock")
    assert message in error.message and str(tmp_path / "s.sock") in error.message
    assert error.exit_code == 1


async def test_an_error_of_the_host_is_reported_in_one_line(tmp_path: Path) -> None:
    async with answering(tmp_path / "s.sock", saying(http(b'{"error": "too\\nmany \\u001b"}\n', 503))):
        with pytest.raises(DevhostError) as caught:
            await ask.fetch(tmp_path / "s.sock")
    assert caught.value.message == r"too\nmany \x1b" and caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("status", "said", "message", "hint"),
    [
        (503, b"too many connections\n", "status 503: too many connections", "try again in a few seconds"),
        (500, b"Internal Server Error\n", "status 500: Internal Server Error", "log of devhost"),
        (404, b"<html>\n" + b"x" * 9000, "status 404: <html>", "another program"),
        (404, b"x" * 9000, f"status 404: {'x' * 199}…", "another program"),
        (404, b"", "status 404: no reason", "another program"),
        (409, b'{"error": "no", "hint": "why", "exitCode": []}\n', "no", "why"),
    ],
)
async def test_what_a_refusal_means_is_shown_in_a_short_line(
    tmp_path: Path, status: int, said: bytes, message: str, hint: str
) -> None:
    async with answering(tmp_path / "s.sock", saying(http(said, status))):
        error = await told(tmp_path / "s.sock")
    assert error.message.endswith(message) and hint in error.hint


async def test_a_connection_reset_before_the_request_is_read_is_reported_in_one_line(
    tmp_path: Path,
) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader.feed_data(await reader.read(1))  # the question has come, and the rest of it stays unread
        writer.transport.abort()

    async with answering(tmp_path / "s.sock", reset):
        assert "closed without an answer" in (await told(tmp_path / "s.sock")).message
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "unread.sock"))
        other.listen()
        asking = asyncio.create_task(told(tmp_path / "unread.sock"))
        other.setblocking(False)
        for _ in range(2):
            peer, _ = await asyncio.get_running_loop().sock_accept(other)
            await until(lambda peer=peer: readable(peer))
            peer.close()
        assert "closed without an answer" in (await asking).message


async def readable(peer: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return bool(peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


async def test_an_endless_answer_is_abandoned(tmp_path: Path) -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(http(b""))
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with answering(tmp_path / "s.sock", endless):
        assert "a line longer than 1 MiB" in (await told(tmp_path / "s.sock", largest=1 << 20)).message
    assert sent < 16 << 20, "with what is on its way"


async def test_a_trickling_answer_is_abandoned(tmp_path: Path) -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(b""))
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with answering(tmp_path / "s.sock", trickle):
        assert "did not answer within" in (await told(tmp_path / "s.sock", deadline=0.1)).message


async def test_a_host_too_busy_to_accept_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as first:
        stuck.bind(str(tmp_path / "s.sock"))
        stuck.listen(0)
        first.connect(str(tmp_path / "s.sock"))
        assert str(tmp_path / "s.sock") in (await told(tmp_path / "s.sock", deadline=0.1)).message


async def test_a_path_without_a_devhost_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    found = {
        name: await told(tmp_path / name)
        for name in ("file", "link", "loop", "none", "file/below", ".", "x" * 200, "a\nb")
    }
    assert {error.exit_code for error in found.values()} == {3}
    assert "is not a socket" in found["file"].message and "is not a socket" in found["."].message
    for name in ("link", "none", "file/below"):
        assert "no devhost listens on" in found[name].message
    assert r"a\nb" in found["a\nb"].message


async def test_a_socket_of_another_kind_is_exit_code_3(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "s.sock"))
        assert (await told(tmp_path / "s.sock")).exit_code == 3


@pytest.mark.usefixtures("ordinary_rights")
async def test_the_error_for_a_socket_of_another_user_names_who_may_ask(tmp_path: Path) -> None:
    async with answering(tmp_path / "s.sock", saying(b"")):
        (tmp_path / "s.sock").chmod(0)
        error = await told(tmp_path / "s.sock")
    assert error.exit_code == 3 and "as root" in error.hint


async def test_a_watched_host_that_stops_within_a_document_has_ended(tmp_path: Path) -> None:
    document = json.dumps(sample(StatusDocument)).encode()
    path = tmp_path / "s.sock"
    async with (
        answering(path, saying(http(document + b"\n"), document[:-9])),
        aclosing(ask.watch(path)) as seen,
    ):
        assert (await anext(seen)).json == sample(StatusDocument)
        path.unlink()
        with pytest.raises(StopAsyncIteration):
            await anext(seen)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (b"", "closed the connection"),
        (b"{}\n", "devhost is missing"),
        (b"x" * 3_000_000, "longer than 1 MiB"),
    ],
)
async def test_an_invalid_document_while_watching_is_reported_in_one_line(
    tmp_path: Path, then: bytes, message: str
) -> None:
    document = json.dumps(sample(StatusDocument)).encode() + b"\n"
    path = tmp_path / "s.sock"
    watching = ask.watch(path, largest=1 << 20)
    async with answering(path, saying(http(document), then)), aclosing(watching) as seen:
        await anext(seen)
        with pytest.raises(DevhostError, match=message) as caught:
            await anext(seen)
    assert not isinstance(caught.value, EnvironmentFailure) and caught.value.hint
