"""The rdma backend: its first scan of many adapters, and the memory of the process with some of them."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from devhost_rdma import Rdma
from devhost_rdma.backend import RdmaOptions
from devhost_testing.trees import Tree

from devhost.discovery.runner import ServiceContext

from . import measures
from .footprint import SETTLE
from .measure import Result
from .process import devhost, workplace

MANY, FEW = 256, 8
RUNS = 20

CONFIG = """\
version: 1
resources:
  - name: bench.example.com/hca
    backend: rdma
    where: {linkLayer: infiniband}
    share: {replicas: 100}
"""

PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "rate": "400 Gb/sec (4X NDR)",
}


async def measure() -> AsyncIterator[Result]:
    """The first scan of a new backend, and resident memory."""
    with tempfile.TemporaryDirectory(prefix="devhost-bench-") as directory:
        root = Path(directory)
        adapters(root, MANY)
        samples = [_first_look(root) for _ in range(1 + RUNS)]
    yield Result(measures.ADAPTERS, tuple(samples[1:]))
    async with workplace() as (directory, kubelet):
        adapters(directory / "root", FEW)
        root_option = ("--root", os.fspath(directory / "root"))
        async with devhost(directory, kubelet, CONFIG, *root_option) as running:
            await kubelet.all_listed(1, FEW * 100)
            await asyncio.sleep(SETTLE)
            yield Result(measures.MEMORY_RDMA, (running.resident(),))


def adapters(root: Path, count: int) -> None:
    """A tree with this number of InfiniBand adapters of mlx5, each below a separate root port."""
    root.mkdir(exist_ok=True)
    tree = Tree(root)
    tree.device("virtual/misc/rdma_cm", "misc", "infiniband/rdma_cm", "10:260")
    for number in range(count):
        domain, slot = f"{number // 32:04x}", number % 32
        port = f"pci{domain}:00/{domain}:00:{slot:02x}.0"
        card = f"{port}/{domain}:{slot * 8 + 1:02x}:00.0"
        tree.pci(port, driver="pcieport", numa_node=slot % 2)
        tree.pci(card, driver="mlx5_core", vendor="0x15b3", device="0x1021", numa_node=slot % 2)
        guid = f"b859:9f03:00d4:{number:04x}"
        files = {"node_type": "1: CA", "node_guid": guid, "sys_image_guid": guid, "fw_ver": "28.39.1002"}
        files |= {"board_id": "MT_0000000838"} | {f"ports/1/{name}": text for name, text in PORT.items()}
        name = f"mlx5_{number}"
        tree.device(f"{card}/infiniband/{name}", "infiniband", files=files, NAME=name)
        tree.device(f"{card}/net/ib{number}", "net")
        owner = {"ibdev": name}
        for kind, node, minor in (("verbs", "uverbs", 192), ("mad", "umad", 0), ("mad", "issm", 64)):
            place = f"{card}/infiniband_{kind}/{node}{number}"
            numbers = f"{231 + number // 32}:{minor + number % 32}"
            tree.device(place, f"infiniband_{kind}", f"infiniband/{node}{number}", numbers, owner)


def _first_look(root: Path) -> float:
    """Milliseconds from the creation of the backend to its list."""
    gc.collect()  # garbage of the previous backend must not count
    began = time.perf_counter()
    backend = Rdma(RdmaOptions(), ServiceContext("rdma", root, ("*",)))
    found = backend.discover()
    elapsed = time.perf_counter() - began
    healthy = sum(device.health.healthy for device in found)
    if healthy != MANY:
        raise RuntimeError(f"{healthy} healthy adapters of {MANY}")
    return elapsed * 1000
