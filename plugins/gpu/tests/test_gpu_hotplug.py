"""Cards, drivers and partitions that come and go, and vendors' code that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
from devhost_gpu import Gpu
from devhost_gpu.amd import cards as amd
from devhost_gpu.amd import kfd
from devhost_gpu.discovery import OTHER, Adapter
from devhost_gpu.drm import Other
from devhost_gpu.vendor import Card
from devhost_testing.fixtures import BackendFixture, by_id, request
from gpu_setup import gpu_timed, gpu_with
from gpu_tree import DISPLAY

from devhost.backend import AllocationError, Event


def test_a_card_that_is_plugged_in_appears_with_its_vendors_code(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_others.virtual_machine(tmp_path)
    backend = looking(tree)
    assert len(by_id(backend)) == 3
    path = tree.function("0000:09:00.0", gpu_intel.ARC_A770, "xe", below="0000:00:09.0")
    tree.drm(path)
    devices = by_id(backend, Event("drm", "add", f"{path}/drm/card3"))
    assert devices["0000:09:00.0"].attributes["vendor"] == "intel"
    assert devices["0000:09:00.0"].health.healthy


def test_a_card_that_is_pulled_out_is_gone_and_cannot_be_allocated(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_intel.arc(tmp_path)
    backend = looking(tree)
    card = by_id(backend)["0000:03:00.0"]
    event = tree.remove("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0")
    assert list(by_id(backend, event)) == ["0000:00:02.0"]
    with pytest.raises(AllocationError, match="gone"):
        backend.allocate(request(backend, [card]))


def test_a_vendor_whose_last_card_was_removed_has_no_cards(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_others.server_console(tmp_path)
    backend = looking(tree)
    assert len(by_id(backend)) == 1
    event = tree.remove("/sys/devices/pci0000:00/0000:00:1c.5/0000:03:00.0/0000:04:00.0")
    assert by_id(backend, event) == {}


def test_unbinding_makes_only_that_card_unhealthy_and_binding_heals_it(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi210(tmp_path)
    backend = looking(tree)
    before = by_id(backend)
    path = "/sys/devices/pci0000:60/0000:60:03.1/0000:61:00.0/0000:62:00.0/0000:63:00.0"
    tree.bind(path, "")
    devices = by_id(backend, Event("pci", "unbind", path))
    assert devices["0000:63:00.0"].health.reason == "no driver is bound to it"
    assert [device for name, device in devices.items() if name != "0000:63:00.0"] == [
        device for name, device in before.items() if name != "0000:63:00.0"
    ]
    tree.bind(path, "vfio-pci")
    assert "vfio-pci" in by_id(backend, Event("pci", "bind", path))["0000:63:00.0"].withheld
    tree.bind(path, "amdgpu")
    tree.device(f"{path.removeprefix('/sys/devices/')}/drm/card0", "drm", "dri/card0", "226:0")
    tree.device(f"{path.removeprefix('/sys/devices/')}/drm/renderD128", "drm", "dri/renderD128", "226:128")
    assert by_id(backend, Event("pci", "bind", path)) == before


def test_a_card_without_its_driver_is_still_what_it_was(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_intel.arc(tmp_path)
    backend = looking(tree)
    before = by_id(backend)["0000:03:00.0"]
    path = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0"
    tree.bind(path, "")
    for _ in range(2):
        card = by_id(backend, Event("pci", "unbind", path))["0000:03:00.0"]
        assert not card.health.healthy
        assert card.attributes["driver"] == "xe"
        assert before.attributes.items() - card.attributes.items() == {
            ("cardNode", "/dev/dri/card1"),
            ("renderNode", "/dev/dri/renderD129"),
        }
    with pytest.raises(AllocationError, match="has no device node"):
        backend.allocate(request(backend, [card]))


def test_changing_the_partition_mode_changes_the_cards(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, count=2)
    backend = looking(tree)
    assert list(by_id(backend)) == ["0000:0c:00.0", "0000:1c:00.0"]
    gpu_amd.partition(tree, "DPX", count=2)
    devices = by_id(backend, Event("kfd", "change", kfd.TOPOLOGY))
    assert list(devices) == ["0000:0c:00.0", "amdgpu_xcp_0", "0000:1c:00.0", "amdgpu_xcp_7"]
    assert {device.attributes["profile"] for device in devices.values()} == {"dpx_nps1"}
    gpu_amd.partition(tree, "SPX", count=2)
    assert list(by_id(backend)) == ["0000:0c:00.0", "0000:1c:00.0"]


def test_links_follow_a_changed_topology(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, count=2)
    backend = looking(tree)
    first, second = by_id(backend).values()
    assert backend.links(first, second) == amd.NEIGHBOUR
    tree.kfd_forget()
    for index, address in enumerate(("0000:0c:00.0", "0000:1c:00.0")):
        tree.kfd_gpu(address, f"renderD{128 + 8 * index}", version=90402, memory=1 << 37)
    first, second = by_id(backend).values()
    assert backend.links(first, second) == 0


async def test_a_changed_topology_is_noticed_without_a_uevent(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi300x(tmp_path, count=1)
    backend = looking(tree, kind=gpu_timed(topology_check=0.01))
    backend.discover()
    events = backend.watch()
    waiting = asyncio.ensure_future(anext(aiter(events)))
    async with asyncio.timeout(60):
        while not waiting.done():
            tree.kfd_changes()
            await asyncio.wait([waiting], timeout=0.05)
    assert waiting.result() == Event("kfd", "change", kfd.TOPOLOGY)


def test_a_gpu_with_virtual_functions_is_offered_again_once_they_are_gone(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_intel.flex(tmp_path)
    backend = looking(tree)
    assert by_id(backend)["0000:b4:00.0"].withheld
    place = "/sys/devices/pci0000:b1/0000:b1:02.0/0000:b2:00.0/0000:b3:01.0"
    for number in range(1, 5):
        tree.remove(f"{place}/0000:b4:00.{number}")
    devices = by_id(backend, Event("pci", "remove", f"{place}/0000:b4:00.4"))
    assert list(devices) == ["0000:4d:00.0", "0000:b4:00.0"]
    assert not devices["0000:b4:00.0"].withheld


class Failing(Other):
    """Code of a vendor that fails while it has an error."""

    error: Exception | None = None

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        if self.error:
            raise self.error
        return super().scan(adapters)


FAILING = gpu_with(makers={OTHER: Failing})


def fail(backend: Gpu, error: Exception | None) -> None:
    vendor = backend.vendors[OTHER]
    assert isinstance(vendor, Failing)
    vendor.error = error


def test_a_failure_in_one_vendors_code_keeps_its_cards_unhealthy_and_concerns_no_other(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_others.virtual_machine(tmp_path)
    tree.drm(tree.function("0000:0a:00.0", gpu_intel.FLEX_170, "i915", pci_class=DISPLAY))
    backend = looking(tree, kind=FAILING)
    before = by_id(backend)
    fail(backend, RuntimeError("no sense in it"))
    devices = by_id(backend)
    assert devices.keys() == before.keys()
    assert devices["0000:0a:00.0"] == before["0000:0a:00.0"]
    assert devices["vgem"].health.reason == (
        "reading the cards of other failed: RuntimeError: no sense in it"
    )
    fail(backend, None)
    assert by_id(backend) == before


def test_if_every_vendors_code_fails_the_backend_fails(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_others.virtual_machine(tmp_path), kind=FAILING)
    backend.discover()
    fail(backend, OSError(5, "Input/output error", "/sys/class/drm"))
    with pytest.raises(OSError, match="Input/output error"):
        backend.discover()
