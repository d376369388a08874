"""What a container gets of cards with DRM nodes: AMD's, Intel's and others'."""

from __future__ import annotations

from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
from devhost_gpu.options import GpuOptions, GpuResourceOptions
from devhost_testing.fixtures import BackendFixture, by_id, request

from devhost.backend import AllocationError, Device, Edits, Mount

ARC = "0000:03:00.0"


def nodes(edits: Edits) -> dict[str, bool]:
    """The nodes, and whether each is required."""
    return {node.path: node.required for node in edits.nodes}


@pytest.mark.parametrize(
    ("bypath", "mounts"),
    [
        ("single", [f"/dev/dri/by-path/pci-{ARC}-card", f"/dev/dri/by-path/pci-{ARC}-render"]),
        ("none", []),
        ("all", ["/dev/dri/by-path"]),
    ],
)
def test_names_by_path_are_those_that_were_asked_for(
    tmp_path: Path, looking: BackendFixture, bypath: str, mounts: list[str]
) -> None:
    backend = looking(gpu_intel.arc(tmp_path), GpuOptions(bypath=bypath))  # type: ignore[arg-type]
    got = backend.allocate(request(backend, [by_id(backend)[ARC]]))
    assert got.mounts == tuple(Mount(path, path, required=False) for path in mounts)


def test_an_intel_card_comes_without_its_firmware_interface(tmp_path: Path, looking: BackendFixture) -> None:
    """Intel's plugin gives ``/dev/mei*`` with its monitoring resource alone."""
    backend = looking(gpu_intel.arc(tmp_path))
    got = nodes(backend.allocate(request(backend, [by_id(backend)[ARC]])))
    assert got == {"/dev/dri/card1": True, "/dev/dri/renderD129": True}


def test_an_entry_that_asks_for_firmware_gets_its_nodes_where_they_exist(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(gpu_intel.arc(tmp_path))
    got = nodes(backend.allocate(request(backend, [by_id(backend)[ARC]], GpuResourceOptions(firmware=True))))
    assert got == {"/dev/dri/card1": True, "/dev/dri/renderD129": True, "/dev/mei1": False}


def test_a_card_without_a_firmware_interface_is_unusable_for_firmware(
    tmp_path: Path, looking: BackendFixture
) -> None:
    found = by_id(looking(gpu_amd.mi300x(tmp_path / "amd", "CPX", "NPS4", count=1)))
    why = "firmware: true needs a firmware interface of Intel (/dev/mei<n>), and it has none"
    assert {device.unusable_for.get("firmware") for device in found.values()} == {why}
    assert "firmware" not in by_id(looking(gpu_intel.arc(tmp_path / "intel")))[ARC].unusable_for
    assert "firmware" in GpuResourceOptions(firmware=True).uses


def test_two_partitions_bring_the_node_for_computing_once(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=1))
    found = by_id(backend)
    got = backend.allocate(
        request(backend, [found["0000:0c:00.0"], found["amdgpu_xcp_3"], found["amdgpu_xcp_3"]])
    )
    paths = [node.path for node in got.nodes]
    assert len(paths) == len(set(paths)) == 5
    assert paths[0] == "/dev/kfd"


def test_a_card_without_a_render_node_is_what_it_has(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_others.virtual_machine(tmp_path))
    found = by_id(backend)
    assert nodes(backend.allocate(request(backend, [found["0000:00:02.0"]]))) == {"/dev/dri/card0": True}
    assert len(nodes(backend.allocate(request(backend, [found["0000:00:02.0"], found["vgem"]])))) == 3


def test_the_same_question_has_the_same_answer(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_others.everything(tmp_path))
    usable = [device for device in by_id(backend).values() if device.health and not device.withheld]
    assert backend.allocate(request(backend, usable)) == backend.allocate(request(backend, usable))


def test_a_card_that_is_gone_is_refused_with_a_reason(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_intel.arc(tmp_path))
    backend.discover()
    with pytest.raises(AllocationError, match=r"0000:99:00\.0 is gone"):
        backend.allocate(request(backend, [Device("0000:99:00.0")]))


def test_a_card_that_lost_its_nodes_is_refused_with_a_reason(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_others.troubled(tmp_path))
    bare = [device for device in by_id(backend).values() if "cardNode" not in device.attributes]
    assert bare
    for device in bare:
        with pytest.raises(AllocationError, match=device.id):
            backend.allocate(request(backend, [device]))
