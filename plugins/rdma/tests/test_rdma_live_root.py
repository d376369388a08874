"""A machine seen below another root, from a container, is that machine; a recorded tree is not."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
import rdma_connectx as connectx
from devhost_rdma import Rdma
from devhost_rdma.backend import RdmaOptions
from devhost_rdma.netlink import running_core
from rdma_backend import Exclusive
from rdma_tree import RdmaTree

from devhost.backend.netlink import shares_network_namespace
from devhost.backend.sysfs import Sysfs
from devhost.discovery.runner import ServiceContext


def backend(root: Path) -> Rdma:
    return Rdma(RdmaOptions(), ServiceContext("rdma", root, ("*",)))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root other than ``/`` below which the running kernel's sysfs is."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/sys").symlink_to("/sys")
    return tmp_path / "host"


def test_the_namespace_mode_is_queried_wherever_sysfs_is_mounted(host, tmp_path):
    assert running_core(Path("/")) is not None
    assert running_core(host) is not None
    assert running_core(RdmaTree(tmp_path / "tree").root) is None


def test_a_recorded_tree_does_not_get_the_mode_of_the_running_kernel(tmp_path):
    connectx.connectx5_roce(tmp_path)
    found = backend(tmp_path).discover()
    assert found
    assert all("netnsMode" not in device.attributes for device in found)


def test_the_namespace_mode_is_queried_once_per_full_scan(tmp_path):
    connectx.connectx5_roce(tmp_path)
    asked = Exclusive(RdmaOptions(), ServiceContext("rdma", tmp_path, ("*",)))
    found = asked.discover()
    assert asked.core.asked == 1
    assert {device.attributes["netnsMode"] for device in found} == {"exclusive"}


@pytest.mark.parametrize("recorded", [False, True])
async def test_links_are_watched_wherever_sysfs_is_mounted(recorded, host, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    root = RdmaTree(tmp_path / "tree").root if recorded else host

    async def follow() -> None:
        async for _ in backend(root).watch():
            pass

    task = asyncio.create_task(follow())
    await asyncio.wait([task], timeout=0.1)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert any("is a recorded tree" in message for message in caplog.messages) is recorded


def test_rtnetlink_reports_the_interfaces_of_this_network_namespace(tmp_path, monkeypatch):
    tree = RdmaTree(tmp_path)
    for name in ("lo", "eth0"):
        tree.netdev("virtual", name)
    (tmp_path / "sys/class/net/bonding_masters").touch()
    sysfs = Sysfs(tmp_path)
    for own, hears in ((["lo", "eth0"], True), (["lo"], False), (["lo", "eth0", "eth1"], False)):
        monkeypatch.setattr(socket, "if_nameindex", lambda own=own: list(enumerate(own, 1)))
        assert shares_network_namespace(sysfs) is hears

    def refused() -> list[tuple[int, str]]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "if_nameindex", refused)
    assert not shares_network_namespace(sysfs)
