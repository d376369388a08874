"""Node labels from NVML's reports, through the real binding: whole GPUs, instances, one that is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from gpu_nvidia import DGX, NvidiaMachine, dgx
from gpu_nvidia_desk import NvidiaDesk

from devhost.host.node_labels import sorted_out


@pytest.fixture
def desk(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvidiaDesk]:
    machine: NvidiaMachine = dgx(tmp_path / "dgx", nvml_library)
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    found = NvidiaDesk(machine)
    yield found
    found.close()


def said(desk: NvidiaDesk) -> dict[str, str]:
    devices = desk.look()
    offered: dict[str, Mapping[str, int]] = {}
    for name, device in devices.items():
        if not device.withheld:
            profile = device.attributes.get("profile")
            offered[name] = {f"nvidia.com/mig-{profile}" if profile else "nvidia.com/gpu": 1}
    good, wrong = sorted_out(desk.backend.labels(list(devices.values()), offered).items())
    assert wrong == []
    return good


def test_labels_of_a_dgx_with_two_partitioned_gpus(desk: NvidiaDesk) -> None:
    found = said(desk)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert found["nvidia.com/gpu.count"] == "8"
    assert found["nvidia.com/gpu.replicas"] == "1"
    assert found["nvidia.com/gpu.mode"] == "compute"
    assert found["nvidia.com/mig.capable"] == "true"
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert found["nvidia.com/mig-1g.10gb.count"] == "7"
    assert found["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert int(found["nvidia.com/mig-1g.10gb.multiprocessors"]) > 0
    assert found["nvidia.com/cuda.driver-version.major"] == "570"


def test_a_gpu_for_the_display_is_not_counted(desk: NvidiaDesk) -> None:
    desk.machine.nvml.gpus[desk.machine.uuids[DGX[0]]]["name"] = "NVIDIA DGX Display"
    desk.machine.nvml.write()
    found = said(desk)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert found["nvidia.com/gpu.count"] == "7"
    assert not any("display" in name.lower() for name in found)


def test_a_gpu_that_is_lost_changes_no_label(desk: NvidiaDesk) -> None:
    before = said(desk)
    desk.machine.lose(DGX[2])
    assert said(desk) == before


CLUSTER = "7f3c1a2b-0001-4c5d-8e9f-00112233aabb"


def in_fabric(machine: NvidiaMachine, address: str, cluster: str = CLUSTER, clique: int = 1) -> None:
    gpu = machine.nvml.gpus[machine.uuids[address]]
    gpu |= {"cluster": cluster.replace("-", ""), "clique": clique, "fabric_state": 3}


def clique_of(desk: NvidiaDesk) -> str | None:
    desk.machine.nvml.write()
    return said(desk).get("nvidia.com/gpu.clique")


def test_the_clique_of_gpus_in_a_fabric_of_several_nodes_is_a_label(desk: NvidiaDesk) -> None:
    assert clique_of(desk) is None
    for address in DGX[:4]:
        in_fabric(desk.machine, address)
    assert clique_of(desk) == f"{CLUSTER}.1"


@pytest.mark.parametrize(
    "differs", [{"cluster": "8" + CLUSTER[1:]}, {"clique": 2}], ids=["cluster", "clique"]
)
def test_gpus_of_several_cliques_have_no_label(desk: NvidiaDesk, differs: dict[str, object]) -> None:
    in_fabric(desk.machine, DGX[0])
    in_fabric(desk.machine, DGX[1], **differs)  # type: ignore[arg-type]
    assert clique_of(desk) is None


@pytest.mark.parametrize("differs", [{"cluster": "0" * 32}, {"fabric_state": 2}, {"fabric_status": 999}])
def test_a_fabric_within_the_node_or_one_that_is_not_ready_is_no_clique(
    desk: NvidiaDesk, differs: dict[str, object]
) -> None:
    in_fabric(desk.machine, DGX[0])
    desk.machine.nvml.gpus[desk.machine.uuids[DGX[0]]] |= differs
    assert clique_of(desk) is None


# the bytes are those of a T4 vGPU in the tests of NVIDIA's device plugin (internal/vgpu/pciutil.go)
RECORDS = b"VF\x00\x16460.16\x00\x00\x00\x00r460_00\x00\x00\x00\x00"


def configuration(capability: bytes, *, at: int = 0xD0, bits: int = 0x10) -> bytes:
    config = bytearray(256)
    config[0:2], config[6], config[0x34] = b"\xde\x10", bits, at
    config[at : at + 3] = bytes((9, 0x68, len(capability) + 3))
    config[0x68:0x6A] = bytes((5, 0))
    config[at + 3 : at + 3 + len(capability)] = capability
    return bytes(config)


def vgpu(desk: NvidiaDesk, config: bytes, *, others: bytes | None = None) -> dict[str, str]:
    for address in DGX:
        content = config if address == DGX[0] else others
        if content is not None:
            (desk.machine.root / f"sys/bus/pci/devices/{address}/config").write_bytes(content)
    found = said(desk)
    return {name.removeprefix("nvidia.com/vgpu."): it for name, it in found.items() if "/vgpu." in name}


PLAIN = configuration(b"\x00\x00\x00")


def test_a_vgpu_names_the_driver_of_its_hypervisor(desk: NvidiaDesk) -> None:
    found = vgpu(desk, configuration(RECORDS), others=PLAIN)
    assert found == {"present": "true", "host-driver-version": "460.16", "host-driver-branch": "r460_00"}


def test_records_before_that_of_the_driver_are_skipped(desk: NvidiaDesk) -> None:
    found = vgpu(desk, configuration(b"VF\x07\x04ab" + RECORDS[2:]), others=PLAIN)
    assert found["host-driver-version"] == "460.16"


@pytest.mark.parametrize(
    "records",
    [b"VF", b"VF\x00\x16460.16", b"VF\x01\x00" + RECORDS, b"VF\x01\xff", b"VF\x00\x16" + b"\xff" * 20],
)
def test_damaged_records_of_a_vgpu_name_no_driver(desk: NvidiaDesk, records: bytes) -> None:
    assert vgpu(desk, configuration(records), others=PLAIN) == {"present": "true"}


@pytest.mark.parametrize(
    "config",
    [
        PLAIN,
        configuration(RECORDS, bits=0),
        configuration(b"XX" + RECORDS[2:]),
        configuration(RECORDS).replace(b"\x09\x68", b"\x05\xd0"),  # a loop
        b"\xff" * 256,
    ],
)
def test_gpus_without_the_record_are_no_vgpus(desk: NvidiaDesk, config: bytes) -> None:
    assert vgpu(desk, config, others=PLAIN) == {"present": "false"}


def test_without_the_right_to_read_the_record_there_is_no_label(desk: NvidiaDesk) -> None:
    assert vgpu(desk, configuration(RECORDS)[:64], others=PLAIN) == {}


def test_a_sleeping_gpu_is_not_woken_up_to_read_the_record(desk: NvidiaDesk) -> None:
    desk.machine.tree.file(f"/sys/bus/pci/devices/{DGX[0]}/power/runtime_status", "suspended")
    assert vgpu(desk, configuration(RECORDS), others=PLAIN) == {"present": "false"}
