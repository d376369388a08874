"""A host whose task is cancelled ends and leaves nothing behind."""

from __future__ import annotations

import asyncio

from devhost.host.host import Host

TOY = "example.com/toy"


async def cancelled(host: Host, task: asyncio.Task[None]) -> None:
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=240)
    if not done:
        host.stop()  # or the test itself would never end
    assert done
    assert task.cancelled()


def started(rig) -> tuple[Host, asyncio.Task[None]]:
    rig.write("name: example.com/toy, backend: toy")
    host = rig.host = Host(rig.config, rig.load(), rig.load, rig.kubelet_dir, timing=rig.timing)
    return host, asyncio.create_task(host.run())


async def test_a_cancelled_host_ends_and_unlinks_its_sockets(rig, kubelet):
    host, task = started(rig)
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2)
    await cancelled(host, task)
    assert [path.name for path in rig.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]


async def test_a_cancellation_that_a_library_swallows_still_ends_the_host(rig, kubelet):
    """``asyncio.wait_for`` does this until Python 3.12 if the awaited task ends at the same moment."""
    reached = asyncio.Event()

    async def swallowing() -> None:
        await stop()
        reached.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    host, task = started(rig)
    await kubelet.wait_for(lambda: kubelet.allocatable().get(TOY) == 2)
    server = host.services[TOY].registration.server
    stop, server.stop = server.stop, swallowing
    kubelet.kill_stream(TOY)
    await reached.wait()
    await cancelled(host, task)
