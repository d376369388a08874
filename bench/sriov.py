"""The sriov backend: its first scan of many functions, a burst of new ones, and the memory of the process."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from devhost_sriov import Sriov
from devhost_sriov.options import SriovOptions
from devhost_testing.trees import Tree

from devhost.discovery.runner import ServiceContext

from . import measures
from .footprint import SETTLE
from .measure import Result
from .process import devhost, workplace

ADAPTERS, EACH = 8, 63
"""The number of physical functions, and of virtual functions of each: 512 in total."""

RUNS = 20
BURST = 256
PACE = 0.002
"""Seconds between two new functions. Kernels are slower, which allows more lists."""

AFTER = 3.0
"""Seconds without a list after which the burst is over."""

CARD = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
EVENTFUL = f"""\
version: 1
backendPaths: [{Path(__file__).parent / "eventful"}]
resources:
  - name: bench.example.com/vf
    backend: eventful
    where: {{pfName: ens1f0, vfIndex: "0-", driver: iavf}}
    whenEmpty: register
"""

BOTH = """\
version: 1
resources:
  - {name: bench.example.com/vf, backend: sriov, where: {kind: vf}, whenEmpty: register}
  - {name: bench.example.com/pf, backend: sriov, where: {kind: pf}, whenEmpty: register}
  - {name: bench.example.com/hca, backend: rdma, share: {replicas: 100}, whenEmpty: register}
"""


async def measure() -> AsyncIterator[Result]:
    """The first scan of a new backend, the lists of a burst, and resident memory."""
    with tempfile.TemporaryDirectory(prefix="devhost-bench-") as directory:
        tree = Tree(Path(directory))
        for adapter in range(ADAPTERS):
            card = f"pci{adapter:04x}:00/{adapter:04x}:00:02.0/{adapter:04x}:3b:00.0"
            physical(tree, card, f"ens{adapter}f0", EACH)
            for number in range(EACH):
                virtual(tree, card, number, f"ens{adapter}f0v{number}")
        samples = [_first_look(tree.root) for _ in range(1 + RUNS)]
    yield Result(measures.FUNCTIONS, tuple(samples[1:]))
    yield await _burst()
    yield await _memory()


def physical(tree: Tree, path: str, interface: str, total: int) -> None:
    """An E810 with this maximum of virtual functions, below a root port."""
    files = {"class": "0x020000", "sriov_totalvfs": str(total)}
    tree.pci(path.rpartition("/")[0], driver="pcieport", files={"class": "0x060400"})
    tree.pci(path, driver="ice", device="0x1592", numa_node=0, iommu_group=1, files=files)
    _netdev(tree, path, interface)


def virtual(tree: Tree, card: str, number: int, interface: str) -> str:
    """Adds a virtual function with its interface; returns its path below ``/sys/devices``."""
    address = card.rpartition("/")[2]
    path = f"{card.rpartition('/')[0]}/{address[:8]}{1 + number // 8:02x}.{number % 8}"
    files = {"class": "0x020000", "sriov_vf_msix_count": "", "subsystem_vendor": "0x8086"}
    tree.pci(path, device="0x1889", numa_node=0, iommu_group=100 + number, files=files)
    tree.link(f"/sys/devices/{card}/virtfn{number}", f"/sys/devices/{path}")
    tree.link(f"/sys/devices/{path}/physfn", f"/sys/devices/{card}")
    _netdev(tree, path, interface)
    tree.link(f"/sys/devices/{path}/driver", "/sys/bus/pci/drivers/iavf")
    return path


def _netdev(tree: Tree, path: str, name: str) -> None:
    files = {"address": "02:00:5e:10:00:01", "type": "1", "mtu": "1500", "operstate": "up", "flags": "0x1003"}
    tree.device(f"{path}/net/{name}", "net", files=files | {"ifindex": "7"}, INTERFACE=name)


def _first_look(root: Path) -> float:
    """Milliseconds from the creation of the backend to its list."""
    gc.collect()  # garbage of the previous backend must not count
    began = time.perf_counter()
    found = Sriov(SriovOptions(), ServiceContext("sriov", root, ("*",))).discover()
    elapsed = time.perf_counter() - began
    if len(found) != ADAPTERS * (EACH + 1):
        raise RuntimeError(f"{len(found)} functions")
    return elapsed * 1000


async def _burst() -> Result:
    """Virtual functions appear one by one, each with the kernel's events for it."""
    async with workplace() as (directory, kubelet):
        root = directory / "root"
        root.mkdir()
        tree = Tree(root)
        physical(tree, CARD, "ens1f0", BURST)
        async with devhost(directory, kubelet, EVENTFUL, "--root", os.fspath(root)):
            await kubelet.all_listed(1)
            await asyncio.sleep(1)
            lists = kubelet.resources["bench.example.com/vf"]
            before = lists.count
            await asyncio.to_thread(_make, tree)
            await asyncio.sleep(AFTER)
            await kubelet.quiet(AFTER)
            shown = len(lists.latest[-1].healthy())
            wrong = "" if shown == BURST else f"the last list has {shown} of {BURST}"
            return Result(measures.VF_BURST, (lists.count - before,), wrong=wrong)


def _make(tree: Tree) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.connect(os.fspath(tree.root / "run/events"))
        for number in range(BURST):
            path = f"/sys/devices/{virtual(tree, CARD, number, f'ens1f0v{number}')}"
            for event in (f"pci add {path}", f"net add {path}/net/ens1f0v{number}", f"pci bind {path}"):
                mouth.send(event.encode())
            time.sleep(PACE)


async def _memory() -> Result:
    """Memory with ``/sys`` of this machine, because on a tree the kernel is not queried.

    Helper processes are excluded.
    """
    async with workplace() as (directory, kubelet), devhost(directory, kubelet, BOTH) as running:
        await kubelet.all_listed(3)
        await asyncio.sleep(SETTLE)
        count = sum(len(lists.latest[-1].message.devices) for lists in kubelet.resources.values())
        return Result(measures.MEMORY_NETWORK, (running.resident(),), note=f"{count} devices on this machine")
