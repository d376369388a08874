"""Real kernel events: a zram device plugged and unplugged under a running host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from devhost_testing.kubelet import KubeletSimulator
from devhost_testing.kubelet import events as ev
from devhost_testing.zram import Busy, Zram, why_not

from devhost.config.loader import load
from devhost.host.host import Host

ZRAM = "example.com/zram"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture
def zram() -> Iterator[Zram]:
    try:
        with Zram() as zram:
            yield zram
    except Busy as error:
        pytest.skip(str(error))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "devhost.yaml"
    path.write_text(
        "version: 1\nresources:\n"
        f"  - {{name: {ZRAM}, backend: udev, whenEmpty: register,"
        ' where: {subsystem: block, sysName: "zram*"}}\n'
    )
    return path


@asynccontextmanager
async def host_running(host: Host) -> AsyncIterator[None]:
    task = asyncio.create_task(host.run())
    try:
        yield
    finally:
        host.stop()
        await asyncio.wait_for(task, 60)


def healthy(kubelet: KubeletSimulator, number: int) -> bool:
    return f"block-zram{number}" in kubelet.healthy(ZRAM)


async def test_a_plugged_device_appears_and_an_unplugged_one_leaves(config, tmp_path, zram):
    async with KubeletSimulator(tmp_path / "kubelet", "1.37") as kubelet:
        host = Host(config, load(config), lambda: load(config), kubelet.directory)
        async with host_running(host):
            await kubelet.wait_for(lambda: ZRAM in kubelet.capacity())
            number = zram.plug()
            await kubelet.wait_for(lambda: healthy(kubelet, number))
            zram.unplug(number)
            await kubelet.wait_for(lambda: not healthy(kubelet, number))
            ids = {f"block-zram{number}"}
            await kubelet.wait_for(lambda: not ids & {d.id for d in kubelet.devices(ZRAM)})
            assert len(kubelet.events.of(ev.Registered, ZRAM)) == 1


async def test_a_device_unplugged_while_a_pod_has_it_comes_back_healthy(config, tmp_path, zram):
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        host = Host(config, load(config), lambda: load(config), kubelet.directory)
        async with host_running(host):
            number = zram.plug()
            await kubelet.wait_for(lambda: healthy(kubelet, number))
            count = kubelet.allocatable()[ZRAM]
            allocation = await kubelet.admit("pod", "main", ZRAM, count)
            assert f"/dev/zram{number}" in [node.host_path for node in allocation.response.devices]
            zram.unplug(number)
            await kubelet.wait_for(lambda: kubelet.allocatable()[ZRAM] == count - 1)
            assert kubelet.capacity()[ZRAM] == count
            assert zram.plug() == number  # the kernel assigns the lowest free number
            await kubelet.wait_for(lambda: healthy(kubelet, number))


async def test_a_removed_device_node_is_unhealthy_until_it_is_back(config, tmp_path, zram):
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        host = Host(config, load(config), lambda: load(config), kubelet.directory)
        async with host_running(host):
            number = zram.plug()
            await kubelet.wait_for(lambda: healthy(kubelet, number))
            node, aside = Path(f"/dev/zram{number}"), Path(f"/dev/zram{number}.aside")
            node.rename(aside)
            try:
                await kubelet.wait_for(lambda: not healthy(kubelet, number))
                entry = host.services[ZRAM].inventory.snapshot.entries[f"block-zram{number}"]
                assert entry.health.reason == f"{node} is missing"
            finally:
                aside.rename(node)
            await kubelet.wait_for(lambda: healthy(kubelet, number))
