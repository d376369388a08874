"""The client of the API server."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from devhost_testing.dra import AccessFiles, ApiServer
from devhost_testing.dra.api_objects import NODES, SLICES
from kit.command import completed
from kit.dra import TLS
from kit.kube import NODE, Connect, chunked, http, reason, trusting

from devhost.dra.credentials import Credentials, from_files
from devhost.dra.kube import ApiError


async def test_an_object_is_read_over_tls_that_trusts_one_authority(
    secure: ApiServer, connect: Connect
) -> None:
    assert (await connect(secure, trusting(secure)).get(NODE))["kind"] == "Node"
    (request,) = secure.requests
    assert (request.method, request.path) == ("GET", NODE)
    assert request.headers["host"] == f"127.0.0.1:{secure.port}"


async def test_one_connection_serves_many_calls(server: ApiServer, connect: Connect) -> None:
    api = connect(server)
    for _ in range(3):
        await api.get(NODE)
    assert server.connections == 1


async def test_a_chunked_answer_is_read_whole(server: ApiServer, connect: Connect) -> None:
    server.answer_next(chunked(b'{"a"', b": 1}"))
    assert await connect(server).get(NODE) == {"a": 1}


async def test_a_refusal_has_the_reason_and_the_message_of_the_server(
    server: ApiServer, connect: Connect
) -> None:
    server.answer_write(409, b'{"reason": "Conflict", "message": "the object\\nhas been modified"}')
    with pytest.raises(ApiError) as caught:
        await connect(server).update("/x", {"a": 1})
    error = caught.value
    assert (error.status, error.reason) == (409, "Conflict")
    assert error.message == "the API server refused to update /x (HTTP 409): the object has been modified"
    assert server.requests[0].body == {"a": 1}


async def test_the_time_after_which_to_retry_is_reported(server: ApiServer, connect: Connect) -> None:
    server.fail_next(429, n=9, retry_after=7)
    with pytest.raises(ApiError) as caught:
        await connect(server).create(SLICES, {})
    assert (caught.value.status, caught.value.retry_after) == (429, 7.0)


async def test_credentials_are_used_for_a_minute_and_then_read_again(files: AccessFiles) -> None:
    now = 0.0
    files.write("http://127.0.0.1:8001")
    access = from_files(files.file, {}, clock=lambda: now)
    first = await access.current()
    files.token.write_text("new")
    now = 59.0
    assert await access.current() is first
    now = 60.0
    assert (await access.current()).token == "new"
    files.token.unlink()  # it is being replaced
    now = 120.0
    assert (await access.current()).token == "new"
    files.token.write_text("newest")
    now = 180.0
    second = await access.current()
    assert second.token == "newest"
    files.file.touch()
    now = 240.0
    assert await access.current() is second, "nothing has changed"


async def test_a_list_is_read_page_by_page(server: ApiServer, connect: Connect) -> None:
    items = [{"metadata": {"name": name}} for name in "ab"]
    for item, more in zip(items, ({"continue": "next&page"}, {}), strict=True):
        page = {"metadata": {"resourceVersion": "7", **more}, "items": [item]}
        server.answer_next(http(json.dumps(page).encode()))
    found = connect(server).list(NODES, {"a": "b"}, metadata_only=True, limit=1)
    assert [page["items"] async for page in found] == [[item] for item in items]
    first, second = server.requests
    assert first.query == {"a": "b", "limit": "1"}
    assert second.query == {**first.query, "continue": "next&page"}
    assert "PartialObjectMetadataList" in first.headers["accept"]


def change(kind: str, **about: object) -> bytes:
    return json.dumps({"type": kind, "object": about}).encode() + b"\n"


async def test_a_watch_gives_changes_as_they_come_until_the_server_ends_it(
    server: ApiServer, connect: Connect
) -> None:
    one, two = (change(kind, metadata={"name": name}) for kind, name in (("ADDED", "a"), ("DELETED", "b")))
    server.answer_next(chunked(one[:9], one[9:] + two))
    changes = connect(server).watch(NODES, None, "5")
    assert [(kind, what["metadata"]["name"]) async for kind, what in changes] == [
        ("ADDED", "a"),
        ("DELETED", "b"),
    ]
    asked = {"watch": "1", "resourceVersion": "5", "allowWatchBookmarks": "true", "timeoutSeconds": "45"}
    assert server.requests[0].query == asked


async def test_an_outdated_watch_is_an_error_410(server: ApiServer, connect: Connect) -> None:
    server.answer_next(chunked(change("ERROR", code=410, reason="Expired", message="too old")))
    with pytest.raises(ApiError) as caught:
        await anext(connect(server).watch(NODES, None, "1"))
    assert (caught.value.status, caught.value.reason) == (410, "Expired")


async def test_a_delete_names_the_object_that_it_means_and_a_missing_one_is_no_error(
    server: ApiServer, connect: Connect
) -> None:
    await connect(server).delete(f"{NODES}/gone", uid="u1", resource_version="7")
    assert server.requests[0].body["preconditions"] == {"uid": "u1", "resourceVersion": "7"}


async def test_an_answer_that_begins_and_never_ends_is_given_up_after_the_deadline(connect: Connect) -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        api = connect(None, Credentials(url, None), timeout=0.2)
        assert "did not answer within 0.2 s" in await reason(api.get(NODE))
        api.close()


ALONE = """
import sys
from devhost.cli.memory import import_without_libraries
import_without_libraries()
import asyncio
assert asyncio.sslproto.ssl is None
import ssl
import sys
from devhost.dra.credentials import Access, Credentials
from devhost.dra.kube import KubeApi
trust = ssl.create_default_context(cafile=sys.argv[2])
print(asyncio.run(KubeApi(Access(lambda _: Credentials(sys.argv[1], trust))).get(sys.argv[3]))["kind"])
"""


async def test_tls_works_in_a_process_whose_asyncio_has_none(secure: ApiServer) -> None:
    """As in ``devhost run``, which imports asyncio without OpenSSL to save memory."""
    words = (f"https://localhost:{secure.port}", TLS / "authority.pem", NODE)
    done = await asyncio.to_thread(completed, sys.executable, "-c", ALONE, *words)
    assert (done.stdout, done.stderr) == ("Node\n", "")
