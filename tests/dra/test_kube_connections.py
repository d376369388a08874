"""Connections that die silently, and certificates, tokens and addresses that are replaced."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from devhost_testing.dra import AccessFiles, ApiServer
from devhost_testing.dra.api_objects import NODES, SLICES
from kit.dra import TLS, certificate
from kit.kube import NODE

from devhost.dra.credentials import Access, Credentials, from_files
from devhost.dra.kube import ApiError, KubeApi, Unreachable


def client(server: ApiServer, **options: Any) -> KubeApi:
    return KubeApi(Access(lambda _: Credentials(server.url, None)), **{"timeout": 60.0, **options})


def sockets(port: int) -> Iterator[socket.socket]:
    """The connections of this process to a port."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            if found.family == socket.AF_INET and found.getpeername()[1] == port:
                yield found


async def test_a_connection_that_was_unused_for_long_is_not_used(server: ApiServer) -> None:
    now = 0.0
    api = client(server, clock=lambda: now)
    await api.get(NODE)
    now = 29.0
    await api.get(NODE)
    assert server.connections == 1
    now = 59.0
    await api.get(NODE)
    assert server.connections == 2
    api.close()


async def test_a_read_over_a_dead_connection_is_sent_again_on_a_new_one(server: ApiServer) -> None:
    api = client(server, first_try=0.1)
    await api.get(NODE)
    server.kill_connections()
    assert (await api.get(NODE))["kind"] == "Node"
    assert server.connections == 2
    api.close()


async def test_a_slow_write_is_sent_once(server: ApiServer) -> None:
    api = client(server, first_try=0.05, timeout=2.0)
    node = await api.get(NODE)
    server.hang()
    with pytest.raises(Unreachable, match="did not answer within 2 s"):
        await api.update(NODE, node)
    assert [one.method for one in server.requests] == ["GET", "PUT"]
    server.resume()


async def test_what_happens_behind_a_dead_watch_is_seen_by_the_next(server: ApiServer) -> None:
    api = client(server, idle=2.0)  # a busy machine may not receive a change at once
    version = (await api.get(NODE))["metadata"]["resourceVersion"]
    async with aclosing(api.watch(NODES, None, version)) as changes:
        server.node("n2")
        assert (await anext(changes))[0] == "ADDED"
        server.kill_connections()
        server.remove(NODE)
        assert await anext(changes, None) is None
    async with aclosing(api.watch(NODES, None, version)) as changes:
        assert [(await anext(changes))[0] for _ in range(2)] == ["ADDED", "DELETED"]


async def test_the_kernel_looks_for_dead_connections(server: ApiServer) -> None:
    async with aclosing(client(server).watch(NODES)) as changes:
        await anext(changes)
        kept = [one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for one in sockets(server.port)]
        patience = [
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            + one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            * one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            for one in sockets(server.port)
        ]
    assert (kept, patience) == ([1], [25])


async def test_a_replaced_authority_is_trusted(secure: ApiServer, files: AccessFiles) -> None:
    files.write(secure.url)
    api = KubeApi(from_files(files.file, {}), timeout=60.0)
    await api.get(NODE)
    await secure.restart(certificate("rotated"))
    with pytest.raises(Unreachable, match="its certificate is not accepted") as caught:
        await api.get(NODE)
    assert "(the certificate authority in devhost's credentials must be the API server's)" in str(
        caught.value
    )
    files.trust(TLS / "rotated.pem")
    assert (await api.get(NODE))["kind"] == "Node"
    api.close()


async def test_a_replaced_client_certificate_is_shown(secure: ApiServer, files: AccessFiles) -> None:
    await secure.restart(certificate(clients="authority.pem"))
    files.certify(TLS / "server.pem", TLS / "server.key")
    files.write(secure.url)
    api = KubeApi(from_files(files.file, {}), timeout=60.0)
    await api.get(NODE)
    await secure.restart(certificate(clients="rotated.pem"))
    with pytest.raises(Unreachable):  # the alert may come after the connection is closed
        await api.get(NODE)
    files.certify(TLS / "rotated.pem", TLS / "rotated.key")
    assert (await api.get(NODE))["kind"] == "Node"
    api.close()


async def test_a_certificate_is_replaced_before_it_is_refused(secure: ApiServer, files: AccessFiles) -> None:
    """A connection has the certificate with which it began, so a new one is made."""
    now = 0.0
    await secure.restart(certificate(clients="authority.pem"))
    files.certify(TLS / "server.pem", TLS / "server.key")
    files.write(secure.url)
    api = KubeApi(from_files(files.file, {}, clock=lambda: now), timeout=60.0)
    await api.get(NODE)
    connections = secure.connections
    files.trust(TLS / "authority.pem")  # written again, with the same content
    now = 60.0
    await api.get(NODE)
    assert secure.connections == connections
    files.certificate.write_bytes(b"\n" + files.certificate.read_bytes())
    now = 120.0
    await api.get(NODE)
    assert secure.connections == connections + 1
    api.close()


async def test_an_unusable_file_keeps_the_last_credentials_and_is_named_once_they_are_refused(
    secure: ApiServer, files: AccessFiles
) -> None:
    files.write(secure.url)
    secure.require_token("old")
    now = 0.0
    api = KubeApi(from_files(files.file, {}, clock=lambda: now), timeout=60.0)
    await api.get(NODE)
    files.authority.write_text("half a certi")
    now = 60.0
    await api.get(NODE)
    secure.require_token("new")
    with pytest.raises(ApiError) as caught:
        await api.get(NODE)
    assert str(caught.value) == (
        "the API server does not accept devhost's credentials (HTTP 401) "
        f"(renew the token or the client certificate in {files.file}; {files.file} a certificate or key in "
        "it is not valid (write them in PEM format))"
    )
    api.close()


async def test_a_missing_kubeconfig_is_read_once_it_appears(secure: ApiServer, files: AccessFiles) -> None:
    api = KubeApi(from_files(files.file, {}), timeout=60.0)
    with pytest.raises(Unreachable) as caught:
        await api.get(NODE)
    assert str(caught.value) == (
        f"no access to the API server: {files.file} cannot be read: No such file or directory "
        "(give a kubeconfig file)"
    )
    files.write(secure.url)
    assert (await api.get(NODE))["kind"] == "Node"
    api.close()


async def test_a_new_address_in_the_kubeconfig_is_used(server: ApiServer, files: AccessFiles) -> None:
    async with ApiServer() as former:
        former.node("n1")
        files.write(former.url)
        api = KubeApi(from_files(files.file, {}), timeout=60.0)
        await api.get(NODE)
        files.write(server.url)
    await api.get(NODE)
    assert len(server.requests) == 1
    api.close()


CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one"
NO_API = (
    "the API server has no resource.k8s.io/v1 (DRA needs Kubernetes 1.34 or newer, with this API enabled)"
)


async def test_a_missing_api_is_not_a_missing_object(server: ApiServer) -> None:
    """A claim that is gone releases its device, so nothing else may be taken for that."""
    api = client(server)
    with pytest.raises(ApiError) as caught:
        await api.get(CLAIM)
    assert caught.value.absent
    server.lack("resource.k8s.io")
    for call in (api.get(CLAIM), anext(api.list(SLICES)), anext(api.watch(SLICES)), api.create(SLICES, {})):
        with pytest.raises(ApiError) as caught:
            await call
        assert (caught.value.absent, str(caught.value)) == (False, NO_API)
    with pytest.raises(ApiError):
        await api.delete(CLAIM)
    api.close()


REFUSED = {
    401: "the API server does not accept devhost's credentials (HTTP 401) (renew the token or the client",
    403: "permission denied to list resourceslices: the test wants this request to fail (devhost's Cluster",
    500: "the API server refused to list resourceslices (HTTP 500): the test wants this request to fail",
}


@pytest.mark.parametrize("status", REFUSED)
async def test_each_refusal_names_its_fix(server: ApiServer, status: int) -> None:
    api = client(server)
    server.fail_next(status, 2)
    with pytest.raises(ApiError) as caught:
        await anext(api.list(SLICES))
    assert str(caught.value).startswith(REFUSED[status])
    api.close()
