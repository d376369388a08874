"""Clients of an API server, and what they meet: certificates, the files of a kubeconfig, answers as bytes."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import AccessFiles, ApiServer
from devhost_testing.dra.api_objects import NODES

from devhost.dra.credentials import Access, Credentials
from devhost.dra.kube import KubeApi, Unreachable
from kit.dra import TLS, certificate

NODE = f"{NODES}/n1"


@pytest.fixture
async def secure() -> AsyncIterator[ApiServer]:
    """An API server with TLS that has the node ``n1``."""
    async with ApiServer(tls=certificate()) as server:
        server.node("n1")
        yield server


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    """The files that a kubeconfig names: a token, and the authority of the certificates."""
    found = AccessFiles(tmp_path)
    found.token.write_text("old")
    found.trust(TLS / "authority.pem")
    return found


Connect = Callable[..., KubeApi]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients: of a server, with credentials that differ from its own or with options."""
    clients = []

    def new(server: ApiServer, credentials: Access | Credentials | None = None, **options: Any) -> KubeApi:
        known = credentials or Credentials(server.url, None)
        access = Access(lambda _: known) if isinstance(known, Credentials) else known
        made = KubeApi(access, **{"timeout": 20.0, **options})
        clients.append(made)
        return made

    yield new
    for one in clients:
        one.close()


def trusting(server: ApiServer, authority: str = "authority.pem", host: str = "localhost") -> Credentials:
    trust = ssl.create_default_context(cafile=str(TLS / authority))
    return Credentials(f"https://127.0.0.1:{server.port}", trust, server_name=host)


async def reason(call: Any) -> str:
    """The one line that a failing call gives a person."""
    with pytest.raises(Unreachable) as caught:
        await call
    assert "\n" not in caught.value.message
    return caught.value.message


def http(body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", body])


def chunked(*parts: bytes) -> bytes:
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data + b"0\r\n\r\n"
