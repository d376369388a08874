"""The client of the API server when the server, the network or the token fails."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from devhost_testing.dra import AccessFiles, ApiServer
from devhost_testing.dra.api_objects import NODES, SLICES
from kit.kube import NODE, Connect, http, reason, trusting
from kit.waiting import until

from devhost.dra.credentials import from_files
from devhost.dra.kube import ApiError, Malformed
from devhost.dra.mover import node_of


async def test_a_certificate_of_another_authority_is_refused(secure: ApiServer, connect: Connect) -> None:
    text = await reason(connect(secure, trusting(secure, "other-authority.pem")).get(NODE))
    assert "its certificate is not accepted: " in text
    assert not secure.requests


async def test_a_certificate_for_another_host_is_refused(secure: ApiServer, connect: Connect) -> None:
    text = await reason(connect(secure, trusting(secure, host="elsewhere.example.com")).get(NODE))
    assert "its certificate is not accepted: Hostname mismatch" in text
    assert not secure.requests


async def test_a_server_without_tls_is_refused(server: ApiServer, connect: Connect) -> None:
    assert "the TLS handshake failed" in await reason(connect(server, trusting(server)).get(NODE))


async def test_a_large_object_is_sent_and_received_over_tls(secure: ApiServer, connect: Connect) -> None:
    secure.chunked = True
    api = connect(secure, trusting(secure))
    node = await api.get(NODE)
    node["metadata"]["annotations"] = {"large": "x" * 300_000}
    assert (await api.update(NODE, node))["metadata"]["annotations"] == node["metadata"]["annotations"]
    assert secure.connections == 1
    api.close()


async def test_a_watch_over_tls_gives_changes(secure: ApiServer, connect: Connect) -> None:
    async with aclosing(connect(secure, trusting(secure)).watch(NODES, resource_version="0")) as changes:
        assert (await anext(changes))[0] == "ADDED"
        secure.remove(NODE)
        assert (await anext(changes))[0] == "DELETED"


async def test_refusals_keep_the_connection(server: ApiServer, connect: Connect) -> None:
    api = connect(server)
    for _ in range(3):
        with pytest.raises(ApiError):
            await api.get(f"{NODES}/missing")
    assert (await api.get(NODE))["kind"] == "Node"
    assert server.connections == 1


async def test_a_connection_that_was_closed_while_idle_is_replaced(
    server: ApiServer, connect: Connect
) -> None:
    api = connect(server)
    for _ in range(3):
        await api.get(NODE)
        server.close_connections(idle=True)
    assert server.connections == 3
    for _ in range(3):
        server.answer_next(http(b'{"n": 1}'))  # which closes the connection
        assert await api.get(NODE) == {"n": 1}
    assert server.connections == 6


@pytest.mark.conformance(105)
async def test_a_rotated_token_is_sent_after_401(
    server: ApiServer, connect: Connect, files: AccessFiles
) -> None:
    files.write(server.url)
    api = connect(server, from_files(files.file, {}))
    await api.get(NODE)
    server.require_token("new")
    files.token.write_text("new")
    assert (await api.get(NODE))["kind"] == "Node"
    assert (await api.get(NODE))["kind"] == "Node"
    assert [one.headers["authorization"] for one in server.requests] == [
        "Bearer old",
        "Bearer old",
        "Bearer new",
        "Bearer new",
    ]


async def test_a_refused_token_is_not_sent_again(
    server: ApiServer, connect: Connect, files: AccessFiles
) -> None:
    files.write(server.url)
    server.require_token("new")
    with pytest.raises(ApiError) as caught:
        await connect(server, from_files(files.file, {})).get(NODE)
    assert (caught.value.status, len(server.requests)) == (401, 1)


async def test_a_watch_sends_a_rotated_token_too(
    server: ApiServer, connect: Connect, files: AccessFiles
) -> None:
    files.write(server.url)
    api = connect(server, from_files(files.file, {}))
    await api.get(NODE)
    server.require_token("new")
    files.token.write_text("new")
    async with aclosing(api.watch(NODES)) as changes:
        assert (await anext(changes))[0] == "ADDED"


@pytest.mark.parametrize("broken", ["", "two\nlines", "a b", "schlüssel"])
async def test_a_broken_token_file_keeps_the_last_token(
    server: ApiServer, broken: str, connect: Connect, files: AccessFiles
) -> None:
    server.require_token("old")
    files.write(server.url)
    now = 0.0
    api = connect(server, from_files(files.file, {}, clock=lambda: now))
    await api.get(NODE)
    now = 60.0
    files.token.write_text(broken)
    assert (await api.get(NODE))["kind"] == "Node"


async def test_a_busy_server_is_asked_again_when_it_wants(server: ApiServer, connect: Connect) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    server.fail_next(429, n=2, retry_after=1)
    assert (await connect(server, sleep=sleep).get(NODE))["kind"] == "Node"
    assert len(waits) == 2
    assert all(1.0 <= wait <= 1.5 for wait in waits)


@pytest.mark.parametrize(
    ("status", "failures", "after", "requests"), [(429, 9, 1, 3), (429, 9, 60, 1), (503, 9, 1, 1)]
)
async def test_a_server_that_stays_busy_is_left_to_the_caller(
    server: ApiServer, status: int, failures: int, after: int, requests: int, connect: Connect
) -> None:
    async def sleep(seconds: float) -> None:
        pass

    server.fail_next(status, n=failures, retry_after=after)
    with pytest.raises(ApiError) as caught:
        await connect(server, sleep=sleep).get(NODE)
    assert (caught.value.status, caught.value.retry_after) == (status, after)
    assert len(server.requests) == requests


async def test_waiting_for_a_busy_server_counts_against_the_deadline(
    server: ApiServer, connect: Connect
) -> None:
    async def sleep(seconds: float) -> None:
        await asyncio.Event().wait()

    server.fail_next(429, retry_after=1)
    assert "did not answer within 0.2 s" in await reason(connect(server, timeout=0.2, sleep=sleep).get(NODE))


async def test_one_deadline_is_for_the_whole_call(server: ApiServer, connect: Connect) -> None:
    server.hang()
    assert "did not answer within 0.2 s" in await reason(connect(server, timeout=0.2).get(NODE))
    assert "did not answer within 0.2 s" in await reason(anext(connect(server, timeout=0.2).watch(NODES)))


async def test_a_cancelled_call_closes_its_connection(server: ApiServer, connect: Connect) -> None:
    server.hang()
    api = connect(server)
    call = asyncio.create_task(api.get(NODE))
    await until(lambda: server.requests)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    server.resume()
    assert (await api.get(NODE))["kind"] == "Node"
    assert server.connections == 2


async def test_an_absent_server_is_described_in_words(server: ApiServer, connect: Connect) -> None:
    api, url = connect(server), server.url
    await server.stop()
    text = await reason(api.get(NODE))
    assert text.startswith(f"cannot use the API server {url}") and text.endswith(": Connection refused")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (http(b"[" * 200_000), "is not JSON"),
        (http(b"\xff\xfe"), "is not JSON"),
        (http(b"[1]"), "answer is not an object"),
        (b"SSH-2.0-server\r\n\r\n", "its answer is not valid HTTP"),
        (b"", "cannot use the API server"),
        (http(b"{}", b"X-Long: " + b"x" * 300_000), "is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "ended early"),
    ],
)
async def test_a_broken_answer_is_one_line(
    server: ApiServer, raw: bytes, text: str, connect: Connect
) -> None:
    server.answer_next(raw)
    assert text in await reason(connect(server).get(NODE))


FLAWED = {
    b'{"items": []}': "metadata.resourceVersion of the API server's list is missing",
    b'{"metadata": null, "items": []}': "metadata.resourceVersion of the API server's list is missing",
    b'{"metadata": [], "items": []}': "metadata of the API server's list is not an object",
    b'{"metadata": {"resourceVersion": "7"}}': "the API server's list has no items",
    b'{"metadata": {"resourceVersion": "7"}, "items": {}}': "items of the API server's list is not a list",
    b'{"metadata": {"resourceVersion": "7"}, "items": [7]}': "items[0] of the API server's list is not an",
    b'{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": null}]}': "items[0].metadata.name of the",
    b'{"metadata": {"resourceVersion": 7}, "items": []}': "metadata.resourceVersion of the API server's list",
}


@pytest.mark.parametrize("page", FLAWED)
async def test_what_is_no_list_is_not_taken_for_an_empty_one(
    server: ApiServer, page: bytes, connect: Connect
) -> None:
    server.answer_next(http(page))
    with pytest.raises(Malformed) as caught:
        await anext(connect(server).list(NODES))
    assert FLAWED[page] in caught.value.message


@pytest.mark.parametrize("body", [b"{}", b'{"metadata": null}', b'{"kind": "Status", "status": "Success"}'])
async def test_what_is_no_node_is_not_taken_for_one_that_offers_nothing(
    server: ApiServer, body: bytes, connect: Connect
) -> None:
    server.answer_next(http(body))
    with pytest.raises(Malformed, match=r"metadata\.uid of the Node n1 is missing"):
        await node_of(connect(server), "n1")


async def test_a_list_of_null_is_empty(server: ApiServer, connect: Connect) -> None:
    server.answer_next(http(b'{"metadata": {"resourceVersion": "7"}, "items": null}'))
    assert [page["items"] async for page in connect(server).list(NODES)] == [None]


@pytest.mark.parametrize("status", [b"301 Moved Permanently", b"302 Found", b"304 Not Modified"])
async def test_a_redirect_is_no_answer(server: ApiServer, status: bytes, connect: Connect) -> None:
    body = b'{"metadata": {"resourceVersion": "7"}, "items": []}'
    redirect = http(body, b"Location: https://login.example.com/").replace(b"200 OK", status)
    for _ in range(2):
        server.answer_next(redirect)
    text = await reason(anext(connect(server).list(NODES)))
    assert text == f"{server.url} is no API server: its answer is a redirect (HTTP {status[:3].decode()})"
    assert "is a redirect" in await reason(anext(connect(server).watch(NODES)))


async def test_a_list_that_never_ends_is_given_up(server: ApiServer, connect: Connect) -> None:
    for _ in range(3):
        server.answer_next(http(b'{"items": [], "metadata": {"resourceVersion": "7", "continue": "same"}}'))

    async def read() -> None:
        async for _ in connect(server).list(NODES):
            pass

    assert "the same page twice" in await reason(read())
    assert len(server.requests) == 2


async def test_an_answer_that_is_too_long_is_not_kept(server: ApiServer, connect: Connect) -> None:
    server.put(NODES, {"apiVersion": "v1", "metadata": {"name": "n1", "labels": {"a": "x" * 100_000}}})
    api = connect(server, most=50_000)
    assert "longer than 50000 bytes" in await reason(api.get(NODE))
    server.put(NODES, {"apiVersion": "v1", "metadata": {"name": "n1", "labels": {"a": "x"}}})
    assert (await api.get(NODE))["kind"] == "Node"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"x" * 100_000, "more than 50000 bytes in one line"),
        (b"what?\n", "is not JSON"),
    ],
)
async def test_a_broken_watch_fails(server: ApiServer, line: bytes, text: str, connect: Connect) -> None:
    async with aclosing(connect(server, most=50_000).watch(NODES)) as changes:
        await anext(changes)
        server.send_line(line)
        assert text in await reason(anext(changes))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{}", "type of a change in the API server's watch is missing"),
        (b'{"type": "ADDED"}', "object.metadata.name of a change in the API server's watch is missing"),
        (b'{"type": "ADDED", "object": {"metadata": {}}}', "object.metadata.name of a change"),
        (
            b'{"type": "MODIFIED", "object": {"metadata": {"name": "n1", "generation": "x"}}}',
            "object.metadata.generation of a change in the API server's watch is not a whole number",
        ),
        (b'{"type": "BOOKMARK", "object": {}}', "object.metadata.resourceVersion of a change"),
        (b'{"type": "ERROR", "object": {"code": "x"}}', "object.code of a change"),
        (
            b'{"type": "ADDED", "object": {"metadata": {"name": "n", "annotations": {"a": 7}}}}',
            "the annotation a in object.metadata of a change",
        ),
    ],
)
async def test_a_change_without_what_is_needed_fails_the_watch(
    server: ApiServer, line: bytes, text: str, connect: Connect
) -> None:
    async with aclosing(connect(server).watch(NODES)) as changes:
        await anext(changes)
        server.send_line(line + b"\n")
        with pytest.raises(Malformed) as caught:
            await anext(changes)
    assert text in caught.value.message


async def test_a_watch_whose_lines_together_are_long_goes_on(server: ApiServer, connect: Connect) -> None:
    for index in range(300):
        server.node(f"node-{index}", text="x" * 1000)
    seen = set()
    async with aclosing(connect(server, most=5_000).watch(NODES)) as changes:
        async for _, value in changes:
            seen.add(value["metadata"]["name"])
            if len(seen) == 301:
                break
    assert len(seen) == 301


async def test_a_watch_that_is_silent_for_long_ends(server: ApiServer, connect: Connect) -> None:
    async with aclosing(connect(server, idle=1.0).watch(NODES)) as changes:
        await anext(changes)
        assert await anext(changes, None) is None


async def test_a_watch_whose_connection_breaks_fails(server: ApiServer, connect: Connect) -> None:
    async with aclosing(connect(server).watch(SLICES, resource_version="100")) as changes:
        following = asyncio.ensure_future(anext(changes))
        await until(lambda: server.watches)
        server.close_connections()
        assert "cannot use the API server" in await reason(following)


async def test_a_watch_that_is_refused_is_an_error(server: ApiServer, connect: Connect) -> None:
    server.fail_next(403)
    with pytest.raises(ApiError) as caught:
        await anext(connect(server).watch(SLICES))
    assert caught.value.status == 403
