"""The client of the API server: every call ends in an answer, a refusal, or one line of why there is none.

A small HTTP server on a real socket takes the API server's place: it returns what a test scripts. Its
certificate in ``tls/`` is for localhost, made for these tests and valid for a hundred years.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import AccessFiles
from kit.waiting import until

from devhost.dra.credentials import Access, Credentials, from_files
from devhost.dra.kube import ApiError, KubeApi, Unreachable

TLS = Path(__file__).parent / "tls"

Answer = bytes | None
"""What the server writes; ``None``: it closes the connection instead."""


@dataclass
class Server:
    """A scripted HTTP server; ``answers`` are used one after another, the last one for ever."""

    answers: list[Answer]
    port: int = 0
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0
    then_close: bool = False
    clients: list[KubeApi] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    def client(self, access: Access | Credentials, timeout: float = 20.0) -> KubeApi:
        known = Access(lambda _: access) if isinstance(access, Credentials) else access
        self.clients.append(KubeApi(known, timeout=timeout))
        return self.clients[-1]

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.running.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().rstrip().split("\r\n")
                pairs = (line.partition(":") for line in lines)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ")
                self.requests.append((method, path, headers, body))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if self.then_close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(body: object, status: str = "200 OK", *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def chunked(*parts: bytes, end: bool = True) -> bytes:
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data + (b"0\r\n\r\n" if end else b"")


def change(kind: str, name: str) -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name}}}).encode() + b"\n"


@asynccontextmanager
async def serving(*answers: Answer, tls: bool = False) -> AsyncIterator[Server]:
    server = Server(list(answers))
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for client in server.clients:
            client.close()
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.gather(*server.running)


def api(server: Server, **options: Any) -> KubeApi:
    timeout = options.pop("timeout", 20.0)
    return server.client(Credentials(f"http://127.0.0.1:{server.port}", None, **options), timeout)


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    """A kubeconfig with a token."""
    found = AccessFiles(tmp_path)
    found.token.write_text("old")
    return found


def secure(server: Server, host: str = "localhost", authority: Path = TLS / "authority.pem") -> KubeApi:
    trust = ssl.create_default_context(cafile=str(authority))
    return server.client(Credentials(f"https://{host}:{server.port}", trust))


async def test_an_object_is_read_over_tls_that_trusts_one_authority() -> None:
    async with serving(answer({"kind": "Node"}), tls=True) as server:
        assert await secure(server).get("/api/v1/nodes/n1") == {"kind": "Node"}
    (method, path, headers, _) = server.requests[0]
    assert (method, path, headers["host"]) == ("GET", "/api/v1/nodes/n1", f"localhost:{server.port}")


async def test_a_server_with_a_certificate_for_another_host_is_refused() -> None:
    async with serving(answer({}), tls=True) as server:
        trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
        url = f"https://127.0.0.1:{server.port}"
        client = server.client(Credentials(url, trust, server_name="other.example.com"))
        with pytest.raises(Unreachable, match="its certificate is not accepted") as caught:
            await client.get("/x")
    assert "\n" not in caught.value.message
    assert not server.requests, "nothing was sent to it"


async def test_one_connection_serves_many_calls() -> None:
    async with serving(answer({"n": 1})) as server:
        client = api(server)
        for _ in range(3):
            assert await client.get("/x") == {"n": 1}
        client.close()
    assert server.connections == 1


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async with serving(answer({"n": 1})) as server:
        server.then_close = True
        client = api(server)
        for _ in range(3):
            assert await client.get("/x") == {"n": 1}
    assert server.connections == 3


async def test_a_chunked_answer_is_read_whole() -> None:
    async with serving(chunked(b'{"a"', b": 1}")) as server:
        assert await api(server).get("/x") == {"a": 1}


async def test_a_refusal_has_the_reason_and_the_message_of_the_server() -> None:
    status = {"reason": "Conflict", "message": "the object\nhas been modified"}
    async with serving(answer(status, "409 Conflict")) as server:
        with pytest.raises(ApiError) as caught:
            await api(server).update("/x", {"a": 1})
    error = caught.value
    assert (error.status, error.reason) == (409, "Conflict")
    assert error.message == "the API server refused to update /x (HTTP 409): the object has been modified"
    assert server.requests[0][3] == b'{"a":1}'


async def test_the_time_after_which_to_retry_is_reported() -> None:
    async with serving(answer({}, "429 Too Many Requests", "Retry-After: 7")) as server:
        with pytest.raises(ApiError) as caught:
            await api(server).create("/x", {})
    assert (caught.value.status, caught.value.retry_after) == (429, 7.0)


async def test_a_rotated_token_is_read_again_after_401_and_only_once(files: AccessFiles) -> None:
    refused = answer({}, "401 Unauthorized")
    async with serving(answer({}), refused, answer({"n": 1}), refused) as server:
        files.write(f"http://127.0.0.1:{server.port}")
        client = server.client(from_files(files.file, {}))
        await client.get("/x")
        files.token.write_text("new")
        assert await client.get("/x") == {"n": 1}
        assert [one[2]["authorization"] for one in server.requests] == [
            "Bearer old",
            "Bearer old",
            "Bearer new",
        ]
        with pytest.raises(ApiError) as caught:
            await client.get("/x")
    assert caught.value.status == 401
    assert len(server.requests) == 4, "the same token would be refused again"


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


async def test_a_list_is_read_page_by_page() -> None:
    items = [{"metadata": {"name": name}} for name in "ab"]
    metadata = {"resourceVersion": "7"}
    first = answer({"metadata": {**metadata, "continue": "next&page"}, "items": items[:1]})
    async with serving(first, answer({"metadata": metadata, "items": items[1:]})) as server:
        found = api(server).list("/x", {"a": "b"}, metadata_only=True, limit=1)
        pages = [page["items"] async for page in found]
    assert pages == [items[:1], items[1:]]
    assert [one[1] for one in server.requests] == ["/x?a=b&limit=1", "/x?a=b&limit=1&continue=next%26page"]
    assert "PartialObjectMetadataList" in server.requests[0][2]["accept"]


async def test_a_watch_gives_changes_as_they_come_until_the_server_ends_it() -> None:
    one, two = change("ADDED", "a"), change("DELETED", "b")
    async with serving(chunked(one[:9], one[9:] + two)) as server:
        found = [(kind, what["metadata"]["name"]) async for kind, what in api(server).watch("/x", None, "5")]
    assert found == [("ADDED", "a"), ("DELETED", "b")]
    assert server.requests[0][1] == "/x?watch=1&resourceVersion=5&allowWatchBookmarks=true&timeoutSeconds=45"


async def test_an_outdated_watch_is_an_error_410() -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    async with serving(chunked(json.dumps(gone).encode() + b"\n")) as server:
        with pytest.raises(ApiError) as caught:
            async for _ in api(server).watch("/x", None, "1"):
                pass
    assert (caught.value.status, caught.value.reason) == (410, "Expired")


async def test_a_delete_names_the_object_that_it_means_and_a_missing_one_is_no_error() -> None:
    async with serving(answer({}, "404 Not Found")) as server:
        await api(server).delete("/x", uid="u1", resource_version="7")
    options = json.loads(server.requests[0][3])
    assert options["preconditions"] == {"uid": "u1", "resourceVersion": "7"}


BROKEN: dict[str, tuple[Answer, str]] = {
    "no HTTP": (b"SSH-2.0-server\r\n\r\n", "its answer is not valid HTTP"),
    "no JSON": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{!", "answer is not JSON"),
    "no object": (answer([1]), "answer is not an object"),
    "closed": (None, "cannot use the API server"),
    "cut off": (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", "its answer is not valid HTTP"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_answer_is_one_line(case: str) -> None:
    sent, text = BROKEN[case]
    async with serving(sent) as server:
        server.then_close = True
        with pytest.raises(Unreachable, match=text) as caught:
            await api(server).get("/x")
    assert "\n" not in caught.value.message


async def test_an_absent_server_is_named() -> None:
    async with serving(answer({})) as server:
        pass
    with pytest.raises(Unreachable, match=rf"cannot use the API server http://127\.0\.0\.1:{server.port}"):
        await api(server).get("/x")


async def test_a_server_that_hangs_is_given_up_after_the_deadline() -> None:
    for begun in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"):
        async with serving(begun) as server:
            with pytest.raises(Unreachable, match=r"did not answer within 0\.2 s"):
                await api(server, timeout=0.2).get("/x")


async def test_a_cancelled_call_leaves_no_connection_behind() -> None:
    async with serving(b"", answer({"n": 1})) as server:
        client = api(server)
        call = asyncio.create_task(client.get("/x"))
        await until(lambda: server.requests)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await client.get("/x") == {"n": 1}
    assert server.connections == 2


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
print(asyncio.run(KubeApi(Access(lambda _: Credentials(sys.argv[1], trust))).get("/x")))
"""


async def test_tls_works_in_a_process_whose_asyncio_has_none() -> None:
    """As in ``devhost run``, which imports asyncio without OpenSSL to save memory."""
    async with serving(answer({"n": 1}), tls=True) as server:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ALONE, f"https://localhost:{server.port}", str(TLS / "authority.pem")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        shown, wrong = await child.communicate()
    assert (shown.decode().strip(), wrong.decode()) == ("{'n': 1}", "")
