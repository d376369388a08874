"""What the backend finds of cards that XRT drives, and what a container gets of them."""

from __future__ import annotations

from pathlib import Path

import fpga_xrt
import pytest
from devhost_fpga.options import FpgaOptions, FpgaUse
from devhost_fpga.xrt import name
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_xrt import U250_SHELL, XrtTree

from devhost.backend import AllocationError
from devhost.planning import naming

MANAGEMENT = FpgaUse(management=True)


def paths(edits: object) -> list[str]:
    return [node.path for node in edits.nodes]  # type: ignore[attr-defined]


def test_a_u250_has_all_attributes_that_its_drivers_show(tmp_path: Path, looking: BackendFixture) -> None:
    device = by_id(looking(fpga_xrt.alveo_u250(tmp_path)))["0000:3b:00.1"]
    assert device.attributes == {
        "vendor": "xilinx",
        "kind": "card",
        "shell": U250_SHELL,
        "shellTimestamp": "0",
        "shellId": "12c8fafb0632499db1c0c6676271b8a6",
        "interfaceId": "d02e4a1e6b524a0d9c1a6ab1f2b7ff3a",
        "xilinxName": f"{U250_SHELL}-0",
        "serial": "2130048AK02K",
        "driver": "xocl",
        "pciBusID": "0000:3b:00.1",
        "numaNode": 1,
        "isVf": False,
        "vendorID": "10ee",
        "deviceID": "5005",
        "subsystemVendorID": "10ee",
        "subsystemDeviceID": "000e",
    }
    assert device.numa_nodes == (1,)
    assert device.pcie_path == ("0000:3a:00.0", "0000:3b:00.1")
    assert device.health.healthy and not device.withheld


def test_the_two_functions_of_a_card_are_one_device_that_uses_up_both(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(fpga_xrt.alveo_u250(tmp_path)))
    assert list(devices) == ["0000:3b:00.1"]
    assert devices["0000:3b:00.1"].claims == {
        "pci:0000:3b:00.0",
        "pci:0000:3b:00.1",
        "node:/dev/dri/renderD128",
        "node:/dev/xclmgmt15104",
    }


def test_a_container_gets_the_management_node_only_on_request(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(fpga_xrt.alveo_u250(tmp_path))
    devices = backend.discover()
    assert paths(backend.allocate(request(backend, devices))) == ["/dev/dri/renderD128"]
    assert paths(backend.allocate(request(backend, devices, MANAGEMENT))) == [
        "/dev/dri/renderD128",
        "/dev/xclmgmt15104",
    ]


def test_a_shell_with_qdma_brings_the_node_of_its_queues(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(fpga_xrt.alveo_u280(tmp_path))
    devices = by_id(backend)
    assert paths(backend.allocate(request(backend, [devices["0000:af:00.1"]]))) == ["/dev/dri/renderD128"]
    assert paths(backend.allocate(request(backend, [devices["0000:d8:00.1"]]))) == [
        "/dev/dri/renderD129",
        "/dev/xfpga/dma.qdma.u.55297.0",
    ]


def test_other_functions_of_the_same_vendors_are_ignored(tmp_path: Path, looking: BackendFixture) -> None:
    assert list(by_id(looking(fpga_xrt.alveo_u280(tmp_path / "a")))) == ["0000:af:00.1", "0000:d8:00.1"]
    assert list(by_id(looking(fpga_xrt.aws_f1(tmp_path / "b")))) == ["0000:00:0f.0", "0000:00:11.0"]


def test_each_fpga_of_a_u30_is_a_device_with_the_option(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(fpga_xrt.alveo_u30(tmp_path), FpgaOptions(u30_unit="fpga")))
    assert list(devices) == ["0000:21:00.1", "0000:22:00.1"]
    for device in devices.values():
        assert device.attributes["xilinxName"] == "ama_u30"
        assert device.attributes["shell"] == "xilinx_u30_gen3x4_base_1"
        assert device.attributes["serial"] == "XFL1YV0M20E0"
        assert "interfaceId" not in device.attributes


def test_the_serial_number_of_a_versal_comes_from_its_sensors(
    tmp_path: Path, looking: BackendFixture
) -> None:
    device = by_id(looking(fpga_xrt.vck5000(tmp_path)))["0000:81:00.1"]
    assert device.attributes["serial"] == "XFL1TESTVCK5"
    assert device.attributes["xilinxName"] == "xilinx_vck5000_gen4x8_qdma_base_2-0"
    assert "numaNode" not in device.attributes and device.numa_nodes == ()


def test_user_functions_in_a_virtual_machine_are_healthy_without_management_functions(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(fpga_xrt.aws_f1(tmp_path))
    devices = by_id(backend)
    assert all(device.health.healthy for device in devices.values())
    assert "serial" not in devices["0000:00:0f.0"].attributes
    assert paths(backend.allocate(request(backend, [devices["0000:00:11.0"]]))) == ["/dev/dri/renderD129"]
    with pytest.raises(AllocationError, match=r"0000:00:11\.0: management: true"):
        backend.allocate(request(backend, [devices["0000:00:11.0"]], MANAGEMENT))


def test_a_card_of_the_ami_driver_is_listed_and_withheld(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_xrt.v80(tmp_path)
    device = by_id(looking(tree))["0000:c1:00.0"]
    assert device.attributes["shell"] == "ALVEO V80 PQ"
    assert device.attributes["serial"] == "XFL1V80TEST0"
    assert "manages" in device.withheld
    tree.file("/sys/devices/pci0000:c1/0000:c1:00.0/dev_state", "NO_AMC")
    assert by_id(looking(tree))["0000:c1:00.0"].health.reason == "the ami driver reports state NO_AMC"


@pytest.mark.parametrize(
    ("state", "healthy"),
    [
        ("READY", True),
        ("COMPAT", True),
        ("UNKNOWN", False),
        ("INIT", False),
        ("SHUTDOWN", False),
        ("", False),
    ],
)
def test_a_card_of_the_ami_driver_is_healthy_only_in_a_state_that_is_known_to_be(
    tmp_path: Path, looking: BackendFixture, state: str, *, healthy: bool
) -> None:
    tree = fpga_xrt.v80(tmp_path)
    tree.file("/sys/devices/pci0000:c1/0000:c1:00.0/dev_state", state)
    assert bool(by_id(looking(tree))["0000:c1:00.0"].health) is healthy


def test_transcoders_are_found_by_their_misc_devices(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(fpga_xrt.ma35d(tmp_path))
    devices = by_id(backend)
    assert list(devices) == ["0000:03:00.0", "0000:04:00.0"]
    device = devices["0000:04:00.0"]
    assert device.attributes["xilinxName"] == "MA35"
    assert device.attributes["serial"] == "XFL1MA35D001"
    assert device.claims == {"pci:0000:04:00.0", "node:/dev/ama_transcoder1"}
    assert paths(backend.allocate(request(backend, [device]))) == ["/dev/ama_transcoder1"]


def test_a_transcoder_without_driver_or_address_is_unhealthy(tmp_path: Path, looking: BackendFixture) -> None:
    tree = fpga_xrt.ma35d(tmp_path)
    tree.function("0000:05:00.0", fpga_xrt.MA35D)
    tree.file("/sys/devices/virtual/misc/ama_transcoder1/bus_id", "??")
    devices = by_id(looking(tree))
    assert devices["0000:03:00.0"].health.healthy
    assert "run modprobe ama_transcoder" in devices["0000:05:00.0"].health.reason
    assert "does not report" in devices["ama_transcoder1"].health.reason


@pytest.mark.parametrize(
    ("shell", "timestamp", "expected"),
    [
        (U250_SHELL, "0", f"{U250_SHELL}-0"),
        ("xilinx_u200_xdma_201830_2", "1561465320", "xilinx_u200_xdma_201830_2-1561465320"),
        (U250_SHELL, "", f"{U250_SHELL}-0"),
        ("xilinx:vcu1525:dynamic:5.1", "1521279439", "xilinx_vcu1525_dynamic_5.1-1521279439"),
        ("xilinx_u30_gen3x4_base_2", "1", "ama_u30"),
        ("a shell/with everything", "7", "a_shell_with_everything-7"),
        ("", "1561465320", ""),
    ],
)
def test_names_are_those_of_xilinx_plugin_and_legal(shell: str, timestamp: str, expected: str) -> None:
    assert name(shell, timestamp) == expected
    if expected:
        assert not naming.problem(f"amd.com/{expected}")
        assert naming.expand("amd.com/{xilinxName}", {"xilinxName": expected}) == f"amd.com/{expected}"


def test_a_very_long_shell_gives_a_legal_resource(tmp_path: Path, looking: BackendFixture) -> None:
    tree = XrtTree(tmp_path)
    user = tree.function("0000:3b:00.1", fpga_xrt.U250, "xocl")
    tree.user(user, "x" * 63)
    device = by_id(looking(tree))["0000:3b:00.1"]
    resource = naming.expand("amd.com/{xilinxName}", device.attributes)
    assert resource and not naming.problem(resource)


@pytest.mark.parametrize("file", ["VBNV", "timestamp"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"\n", b"y" * 5000])
def test_a_damaged_file_affects_only_its_attribute(
    tmp_path: Path, looking: BackendFixture, file: str, content: bytes
) -> None:
    tree = fpga_xrt.alveo_u280(tmp_path)
    (damaged,) = tmp_path.glob(f"sys/devices/pci0000:af/0000:af:00.1/rom.u.*/{file}")
    damaged.write_bytes(content)
    for other in ("logic_uuids", "interface_uuids"):
        (damaged.parent.parent / other).write_bytes(content)
    devices = by_id(looking(tree))
    assert devices["0000:af:00.1"].health.healthy
    assert not {"shellId", "interfaceId"} & devices["0000:af:00.1"].attributes.keys()
    assert devices["0000:d8:00.1"].attributes["shell"] == "xilinx_u280_gen3x16_qdma_base_1"
