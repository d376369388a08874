"""Asking a kubelet who holds what: each kind of failure has a clear reason."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from devhost.backend.errors import MAX_REASON
from devhost.backend.model import Holder
from devhost.kubelet.api import POD_RESOURCES_RECEIVE_LIMIT, RECEIVE_LIMIT, podresources_pb2
from devhost.kubelet.podresources_poller import PodResources, Unanswered, beside
from devhost.planning.timing import KubeletTiming

SHORT = KubeletTiming(list_pods=0.2, list_allocatable=0.2)

Answer = Callable[[Any], Awaitable[bytes]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[[Answer], Awaitable[PodResources]]]:
    """Serves List with the result of a function, and makes a client for it."""
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])

    async def start(answer: Answer, method: str = "List") -> PodResources:
        async def handle(_request: bytes, context: Any) -> bytes:
            return await answer(context)

        handler = grpc.unary_unary_rpc_method_handler(handle)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {method: handler}),)
        )
        server.add_insecure_port(f"unix:{tmp_path}/kubelet.sock")
        await server.start()
        return PodResources(tmp_path / "kubelet.sock", lambda: 42.0)

    yield start
    await server.stop(None)


def saying(message: podresources_pb2.ListPodResourcesResponse) -> Answer:
    async def answer(_context: Any) -> bytes:
        return message.SerializeToString()

    return answer


def refusing(code: grpc.StatusCode, text: str) -> Answer:
    async def answer(context: Any) -> bytes:
        await context.abort(code, text)
        raise AssertionError("abort raises")

    return answer


def pods(count: int, devices: int = 1, letters: int = 4) -> podresources_pb2.ListPodResourcesResponse:
    message = podresources_pb2.ListPodResourcesResponse()
    for number in range(count):
        container = message.pod_resources.add(name=f"p{number}", namespace="ns").containers.add(name="c")
        ids = [f"{number}-{device}".ljust(letters, "x") for device in range(devices)]
        container.devices.add(resource_name="example.com/toy", device_ids=ids)
    return message


async def why(client: PodResources) -> str:
    with pytest.raises(Unanswered) as error:
        await client.list()
    assert "\n" not in error.value.message
    return error.value.message


async def test_a_list_has_the_pod_and_container_of_each_device(serve, tmp_path) -> None:
    message = podresources_pb2.ListPodResourcesResponse()
    one = message.pod_resources.add(name="one", namespace="a")
    main = one.containers.add(name="main")
    main.devices.add(resource_name="example.com/toy", device_ids=["t0"])
    main.devices.add(resource_name="example.com/toy", device_ids=["t1"])  # of another NUMA node
    main.devices.add(resource_name="example.com/other", device_ids=["t0"])
    one.containers.add(name="side").devices.add(resource_name="example.com/toy", device_ids=["t2"])
    message.pod_resources.add(name="idle", namespace="b").containers.add(name="main")
    listing = await (await serve(saying(message))).list()
    held = Holder("a", "one", "main")
    assert listing.holders == {
        "example.com/toy": {"t0": held, "t1": held, "t2": Holder("a", "one", "side")},
        "example.com/other": {"t0": held},
    }
    stat = (tmp_path / "kubelet.sock").stat()
    assert (listing.pods, listing.began) == (2, 42.0)
    assert listing.kubelet == (stat.st_dev, stat.st_ino, stat.st_ctime_ns)


async def test_an_empty_list_is_an_answer(serve) -> None:
    listing = await (await serve(saying(podresources_pb2.ListPodResourcesResponse()))).list()
    assert (listing.pods, listing.holders) == (0, {})


async def test_an_answer_of_up_to_16_mib_is_accepted(serve) -> None:
    small, large = pods(110, 640, 63), pods(110, 2400, 63)
    assert RECEIVE_LIMIT < small.ByteSize() < POD_RESOURCES_RECEIVE_LIMIT < large.ByteSize()
    answers = [saying(large), saying(small)]
    client = await serve(lambda context: answers.pop()(context))
    assert len((await client.list()).holders["example.com/toy"]) == 110 * 640
    assert await why(client) == "the kubelet's answer is longer than 16 MiB"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
            "the kubelet limits the rate of calls: rejected by rate limit",
        ),
        (refusing(grpc.StatusCode.UNIMPLEMENTED, "unknown"), "the kubelet does not serve podresources v1"),
        (refusing(grpc.StatusCode.UNAVAILABLE, "going away"), "the kubelet did not answer: going away"),
        (
            refusing(grpc.StatusCode.PERMISSION_DENIED, "not you"),
            "the kubelet did not answer: not you",
        ),
        (
            refusing(grpc.StatusCode.UNKNOWN, "two\nlines " + "x" * MAX_REASON),
            "the kubelet did not answer: two lines " + "x" * (MAX_REASON - len("two lines …")) + "…",
        ),
    ],
    ids=["throttled", "unimplemented", "unavailable", "denied", "lengthy"],
)
async def test_a_refusal_is_reported_with_the_kubelets_message(serve, answer, reason) -> None:
    assert await why(await serve(answer)) == reason


async def test_a_kubelet_without_the_service_is_reported(serve) -> None:
    client = await serve(saying(pods(1)), "Other")
    assert await why(client) == "the kubelet does not serve podresources v1"


async def test_an_undecodable_answer_is_reported_without_a_traceback(serve, caplog) -> None:
    async def garbage(_context: Any) -> bytes:
        return b"\xff\xff\xff"

    assert await why(await serve(garbage)) == "the kubelet's answer is not a podresources v1 message"
    assert not caplog.records


async def test_a_call_to_a_silent_kubelet_ends_at_the_deadline(serve) -> None:

    async def never(_context: Any) -> bytes:
        return await asyncio.get_running_loop().create_future()

    assert (
        await why(PodResources((await serve(never)).socket, timing=SHORT))
        == "the kubelet did not answer within 0.2 s"
    )


async def test_a_call_to_a_listener_that_is_no_server_ends_at_the_deadline(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "kubelet.sock"))
        listener.listen()
        assert (await why(PodResources(tmp_path / "kubelet.sock", timing=SHORT))).startswith(
            "the kubelet did not answer"
        )


async def test_a_missing_or_unusable_socket_is_reported(tmp_path) -> None:
    path = tmp_path / "kubelet.sock"
    assert await why(PodResources(path)) == f"{path} does not exist"
    assert (
        await why(PodResources(tmp_path / "x" / "kubelet.sock"))
        == f"{tmp_path}/x/kubelet.sock does not exist"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert await why(PodResources(path)) == f"cannot connect to {path}: Connection refused"
    path.unlink()
    path.touch()
    assert await why(PodResources(path)) == f"cannot connect to {path}: Connection refused"
    assert ": Not a directory" in await why(PodResources(path / "kubelet.sock"))


async def test_the_answer_of_a_kubelet_that_was_replaced_is_not_used(serve, tmp_path) -> None:
    async def replaced(_context: Any) -> bytes:
        (tmp_path / "new").touch()
        os.replace(tmp_path / "new", tmp_path / "kubelet.sock")  # noqa: PTH105 - as short as it gets
        return pods(1).SerializeToString()

    assert await why(await serve(replaced)) == "the kubelet restarted during the call"


def test_podresources_is_beside_the_plugin_directory() -> None:
    assert beside(Path("/var/lib/kubelet/device-plugins")) == Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
