"""Recordings of machines that other programs made: incomplete, and with files instead of links."""

from __future__ import annotations

import shutil
from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_recorded
import pytest
from devhost_testing.fixtures import BackendFixture, by_id, request


def test_a_recording_without_dev_shows_every_card_and_which_node_it_lacks(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_recorded.amd(tmp_path, *["CPX"] * 8, nps="NPS4")))
    assert len(devices) == 64
    assert {device.attributes["profile"] for device in devices.values()} == {"cpx_nps4"}
    assert devices["0000:05:00.0"].health.reason == "/dev/dri/card1 does not exist"
    assert devices["amdgpu_xcp_0"].health.reason == "/dev/dri/card2 does not exist"
    assert devices["amdgpu_xcp_55"].attributes["parent"] == "0000:e5:00.0"


def test_cards_of_such_a_recording_keep_their_numa_nodes(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_recorded.amd(tmp_path, "CPX", "CPX")))
    assert devices["0000:05:00.0"].numa_nodes == devices["amdgpu_xcp_6"].numa_nodes == (0,)
    assert devices["0000:26:00.0"].numa_nodes == devices["amdgpu_xcp_7"].numa_nodes == (1,)
    assert devices["amdgpu_xcp_7"].attributes["numaNode"] == 1


def test_gpus_in_different_modes_are_distinguished(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_recorded.amd(tmp_path, "SPX", "CPX", "QPX", "DPX")))
    kinds: dict[str, list[str]] = {}
    for name, device in devices.items():
        kinds.setdefault(f"{device.attributes['kind']} {device.attributes['profile']}", []).append(name)
    assert {kind: len(names) for kind, names in kinds.items()} == {
        "gpu spx_nps1": 1,
        "partition cpx_nps1": 8,
        "partition qpx_nps1": 4,
        "partition dpx_nps1": 2,
    }
    assert kinds["partition dpx_nps1"] == ["0000:65:00.0", "amdgpu_xcp_21"]
    assert "amdgpu_xcp_0" not in devices  # of the first GPU, which is whole


def test_a_partition_has_its_share_of_memory_if_nothing_else_is_reported(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_recorded.amd(tmp_path, "SPX", "CPX", "DPX")))
    whole = gpu_amd.MI300X_MEMORY >> 20
    assert devices["0000:05:00.0"].attributes["memory"] == whole
    assert devices["0000:26:00.0"].attributes["memory"] == whole // 8
    assert devices["amdgpu_xcp_14"].attributes["memory"] == whole // 2


def test_partitions_of_connected_gpus_are_one_hop_apart(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_recorded.amd(tmp_path, "CPX", "CPX"))
    devices = by_id(backend)
    other = backend.links(devices["amdgpu_xcp_0"], devices["amdgpu_xcp_7"])
    assert other == 100
    assert backend.links(devices["amdgpu_xcp_0"], devices["amdgpu_xcp_1"]) > other


def test_partitions_are_found_if_the_class_of_drm_devices_was_not_recorded(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=2)
    before = by_id(looking(tree))
    shutil.rmtree(tmp_path / "sys/class/drm")
    assert by_id(looking(tree)) == before
    assert len(before) == 16


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_recording_of_what_intels_own_plugin_reads_is_enough(
    tmp_path: Path, looking: BackendFixture, *, is_linked: bool
) -> None:
    backend = looking(gpu_recorded.intel(tmp_path, is_linked=is_linked))
    devices = by_id(backend)
    assert list(devices) == ["0000:03:00.0", "0000:4d:00.0", "0000:4d:00.1"]
    arc, flex, virtual = devices.values()
    assert {device.attributes["vendor"] for device in devices.values()} == {"intel"}
    assert arc.attributes["driver"] == "xe"
    assert arc.attributes["deviceID"] == "e212"
    assert arc.numa_nodes == (1,)
    assert flex.withheld == "it has 1 virtual function, which is offered instead"
    assert virtual.health.healthy
    assert {node.path for node in backend.allocate(request(backend, [virtual])).nodes} == {
        "/dev/dri/card2",
        "/dev/dri/renderD130",
    }


def test_an_entry_of_the_drm_class_without_a_device_is_no_card(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_recorded.intel(tmp_path, is_linked=False)
    before = by_id(looking(tree))
    (tmp_path / "sys/class/drm/card9").mkdir()
    (tmp_path / "sys/class/drm/renderD199").symlink_to("../../devices/gone/drm/renderD199")
    assert by_id(looking(tree)) == before


def test_a_recording_with_plain_directories_on_the_bus_is_read(
    tmp_path: Path, looking: BackendFixture
) -> None:
    place = tmp_path / "sys/bus/pci/devices/0000:63:00.0"
    facts = {"vendor": "0x1002", "device": "0x740f", "class": "0x038000", "numa_node": "1"}
    gpu_recorded.write(place, **facts, uevent="DRIVER=amdgpu\nPCI_SLOT_NAME=0000:63:00.0")
    for name in ("card0", "renderD128"):
        gpu_recorded.write(place / "drm" / name, dev="226:0")
    device = by_id(looking(tmp_path))["0000:63:00.0"]
    assert device.attributes["vendor"] == "amd"
    assert device.attributes["driver"] == "amdgpu"
    assert device.attributes["renderNode"] == "/dev/dri/renderD128"
    assert device.numa_nodes == (1,)


def test_a_card_with_nodes_has_a_driver_also_if_a_recording_lacks_the_link(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_intel.arc(tmp_path)
    for address in ("0000:00:02.0", "0000:03:00.0"):
        (tmp_path / f"sys/bus/pci/devices/{address}/driver").unlink()
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0/uevent").unlink()
    devices = by_id(looking(tree))
    assert devices["0000:00:02.0"].attributes["driver"] == "i915"
    assert "driver" not in devices["0000:03:00.0"].attributes
    assert all(device.health.healthy for device in devices.values())
