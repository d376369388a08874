"""Register behaves like that of a kubelet, including texts and order."""

from __future__ import annotations

import asyncio
import os

import grpc
import pytest
from devhost_testing.kubelet import KubeletSimulator, Point, cut, events, fail, hang

from devhost.kubelet.api import api_pb2

RESOURCE = "example.com/tiny"


async def refusal(plugin, **options) -> str:
    """The text of a refusal of Register; its code is always UNKNOWN."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(**options)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details()


async def test_a_registered_resource_shows_its_devices(kubelet, tiny):
    plugin = await tiny()
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.allocatable().get(RESOURCE) == 2)
    assert kubelet.capacity() == {RESOURCE: 2}
    assert [device.id for device in kubelet.devices(RESOURCE)] == ["a", "b"]


async def test_the_order_is_register_options_answer_stream_list(kubelet, tiny):
    plugin = await tiny()
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.events.of(events.ListReceived))
    kinds = [event.kind for event in kubelet.events]
    assert kinds == [
        "started",
        "register-received",
        "options-read",
        "registered",
        "stream-opened",
        "list-received",
    ]
    assert [name for name, _ in plugin.calls] == ["options", "list"]


async def test_the_options_come_from_the_plugins_answer_not_from_the_request(kubelet, tiny):
    plugin = await tiny()
    plugin.options = api_pb2.DevicePluginOptions(pre_start_required=True)
    request = api_pb2.RegisterRequest(version="v1beta1", endpoint="tiny.sock", resource_name=RESOURCE)
    await plugin.send_registration(request)
    (received,) = kubelet.events.of(events.RegisterReceived)
    (read,) = kubelet.events.of(events.OptionsRead)
    assert (received.pre_start_required, read.pre_start_required) == (False, True)


async def test_a_resource_is_unknown_until_its_first_list(kubelet, tiny):
    plugin = await tiny()
    plugin.silent.add("list")
    await plugin.register()
    await asyncio.wait_for(plugin.called_list.wait(), 60)
    assert kubelet.capacity() == {}


async def test_another_version_is_refused_before_anything_is_dialled(kubelet, tiny):
    plugin = await tiny()
    text = await refusal(plugin, version="v1")
    assert text == 'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'
    assert plugin.calls == []


@pytest.mark.parametrize(
    "name", ["plain", "kubernetes.io/x", "a.kubernetes.io/x", "requests.a.b/c", "A/b", "a/b/c"]
)
async def test_an_invalid_extended_resource_name_is_refused(kubelet, tiny, name):
    plugin = await tiny(resource=name)
    assert await refusal(plugin) == f'the ResourceName "{name}" is invalid'


async def test_the_version_is_checked_before_the_name(kubelet, tiny):
    plugin = await tiny(resource="plain")
    assert (await refusal(plugin, version="v2")).startswith('requested API version "v2"')


async def test_a_dead_socket_is_dialled_until_the_timeout(plugin_dir, profile, tiny):
    async with KubeletSimulator(plugin_dir, profile, dial_timeout=0.2):
        plugin = await tiny()
        plugin.endpoint = "nobody.sock"
        assert await refusal(plugin) == "failed to dial device plugin: context deadline exceeded"


async def test_a_plugin_that_starts_to_serve_during_the_dial_is_registered(kubelet, tiny, plugin_dir):
    plugin = await tiny()
    await plugin.stop()
    registering = asyncio.create_task(plugin.register())
    await kubelet.wait_for(lambda: kubelet.events.of(events.RegisterReceived))
    await plugin.serve()
    await registering
    await kubelet.wait_for(lambda: kubelet.allocatable().get(RESOURCE) == 2)


async def test_the_deadline_of_the_caller_limits_the_dial(kubelet, tiny):
    plugin = await tiny()
    plugin.endpoint = "nobody.sock"
    with pytest.raises(grpc.aio.AioRpcError):
        await plugin.register(timeout=0.7)
    await kubelet.wait_for(lambda: kubelet.events.of(events.RegisterRefused))
    assert kubelet.capacity() == {}


async def test_an_error_of_get_options_refuses_after_exactly_one_call(kubelet, tiny):
    plugin = await tiny()
    plugin.failures["options"] = "not today"
    text = await refusal(plugin)
    assert text == (
        "failed to get device plugin options: rpc error: code = FailedPrecondition desc = not today"
    )
    assert len(plugin.named("options")) == 1
    assert kubelet.events.of(events.StreamOpened) == []


async def test_an_endpoint_may_be_in_a_subdirectory(kubelet, tiny, plugin_dir):
    (plugin_dir / "sub").mkdir()
    plugin = await tiny("sub/x.sock")
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.allocatable().get(RESOURCE) == 2)


async def test_an_injected_refusal_of_a_registration_has_its_text(kubelet, tiny):
    plugin = await tiny()
    kubelet.faults.inject(Point.REGISTER, fail("the disk is full"))
    assert await refusal(plugin) == "the disk is full"
    await plugin.register()


async def test_an_unanswered_register_ends_at_the_deadline_of_the_caller(kubelet, tiny):
    plugin = await tiny()
    kubelet.faults.inject(Point.REGISTER, hang)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(timeout=0.7)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await plugin.register()


async def test_a_stream_cut_at_once_leaves_the_resource_at_zero(kubelet, tiny):
    plugin = await tiny()
    kubelet.faults.inject(Point.STREAM, cut)
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.events.of(events.Disconnected))
    assert (kubelet.capacity(), kubelet.allocatable()) == ({RESOURCE: 0}, {RESOURCE: 0})


async def test_a_fault_for_a_resource_does_not_affect_others(kubelet, tiny):
    kubelet.faults.inject(Point.REGISTER, fail("no"), resource="example.com/b", times=None)
    a, b = await tiny("a.sock", "example.com/a"), await tiny("b.sock", "example.com/b")
    assert await refusal(b) == "no"
    await a.register()
    assert await refusal(b) == "no"
    kubelet.faults.clear()
    await b.register()


async def test_every_plugin_is_called_with_authority_localhost(kubelet, plugin_dir):
    """A server that reads raw HTTP/2 finds the authority in the header block of the first request."""
    seen, over = asyncio.Event(), asyncio.Event()
    received = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame: the connection is ready
        while chunk := await reader.read(4096):
            received.extend(chunk)
            if b"GetDevicePluginOptions" in received:
                seen.set()
        writer.close()
        await writer.wait_closed()
        over.set()

    server = await asyncio.start_unix_server(talk, plugin_dir / "raw.sock")
    from_a_plugin = api_pb2.RegisterRequest(version="v1beta1", endpoint="raw.sock", resource_name=RESOURCE)
    async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register", request_serializer=api_pb2.RegisterRequest.SerializeToString
        )(from_a_plugin, timeout=240)
        await asyncio.wait_for(seen.wait(), 60)
        call.cancel()
        await asyncio.wait_for(over.wait(), 60)
    server.close()
    assert b"localhost" in received
    assert os.fsencode(plugin_dir.name) not in received
