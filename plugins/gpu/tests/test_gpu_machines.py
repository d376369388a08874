"""What the backend finds on modelled machines of each vendor."""

from __future__ import annotations

from pathlib import Path

import gpu_amd
import gpu_intel
import gpu_others
import pytest
from devhost_testing.fixtures import BackendFixture, by_id, request

from devhost.backend import Device


def healthy(devices: dict[str, Device]) -> list[str]:
    return [name for name, device in devices.items() if device.health.healthy and not device.withheld]


def test_an_mi210_has_every_attribute_that_sysfs_offers(tmp_path: Path, looking: BackendFixture) -> None:
    device = by_id(looking(gpu_amd.mi210(tmp_path)))["0000:63:00.0"]
    assert device.attributes == {
        "vendor": "amd",
        "kind": "gpu",
        "product": "Instinct MI210",
        "uuid": "1901f3d2b2a40000",
        "index": 1,
        "memory": 65520,
        "architecture": "gfx90a",
        "pciBusID": "0000:63:00.0",
        "pcieRoot": "pci0000:60",
        "numaNode": 0,
        "driver": "amdgpu",
        "renderNode": "/dev/dri/renderD128",
        "cardNode": "/dev/dri/card0",
        "vendorID": "1002",
        "deviceID": "740f",
        "subsystemVendorID": "1002",
        "subsystemDeviceID": "0c34",
        "firmware": "113-D67301-063",
        "serial": "692229000000",
        "computeUnits": 104,
        "simdUnits": 416,
    }
    assert device.claims == {"pci:0000:63:00.0", "node:/dev/dri/card0", "node:/dev/dri/renderD128"}
    assert device.part_of == frozenset()
    assert device.numa_nodes == (0,)
    assert device.pcie_path == ("0000:60:03.1", "0000:61:00.0", "0000:62:00.0", "0000:63:00.0")
    assert device.health.healthy


def test_cards_of_amd_are_numbered_by_their_address(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_amd.mi210(tmp_path)))
    order = sorted(devices, key=lambda name: int(str(devices[name].attributes["index"])))
    assert order == sorted(devices) == ["0000:43:00.0", "0000:63:00.0", "0000:c3:00.0", "0000:e3:00.0"]


def test_an_amd_card_brings_the_node_for_compute_and_its_own(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_amd.mi210(tmp_path))
    device = by_id(backend)["0000:63:00.0"]
    paths = {node.path for node in backend.allocate(request(backend, [device])).nodes}
    assert paths == {"/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"}


def test_xgmi_joins_the_cards_on_one_bridge_and_no_others(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_amd.mi210(tmp_path))
    cards = by_id(backend)
    joined = {(a, b) for a in cards for b in cards if a < b and backend.links(cards[a], cards[b]) > 0}
    assert joined == {("0000:43:00.0", "0000:63:00.0"), ("0000:c3:00.0", "0000:e3:00.0")}


def test_an_unpartitioned_mi300x_is_one_gpu(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_amd.mi300x(tmp_path)))
    assert len(devices) == 8
    device = devices["0000:0c:00.0"]
    assert device.attributes["kind"] == "gpu"
    assert device.attributes["profile"] == "spx_nps1"
    assert device.attributes["memory"] == 196592
    assert device.attributes["architecture"] == "gfx942"
    assert device.claims > {"pci:0000:0c:00.0"}


def test_a_partitioned_mi300x_is_its_partitions(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_amd.mi300x(tmp_path, "CPX", "NPS4")))
    assert len(healthy(devices)) == 64
    assert {device.attributes["kind"] for device in devices.values()} == {"partition"}
    assert {device.attributes["profile"] for device in devices.values()} == {"cpx_nps4"}
    first, second = devices["0000:0c:00.0"], devices["amdgpu_xcp_0"]
    assert first.part_of == second.part_of == {"pci:0000:0c:00.0"}
    assert "partition:0000:0c:00.0" in first.claims
    assert second.claims == {
        "partition:amdgpu_xcp_0",
        "node:/dev/dri/card1",
        "node:/dev/dri/renderD129",
    }
    assert second.attributes["parent"] == second.attributes["pciBusID"] == "0000:0c:00.0"
    assert second.attributes["memory"] == 24574
    assert second.attributes["product"] == "AMD Instinct MI300X OAM"
    assert devices["amdgpu_xcp_7"].attributes["parent"] == "0000:1c:00.0"
    assert devices["amdgpu_xcp_55"].numa_nodes == (1,)
    assert second.pcie_path == first.pcie_path


def test_partitions_are_found_with_either_form_of_location(tmp_path: Path, looking: BackendFixture) -> None:
    (tmp_path / "early").mkdir()
    now = by_id(looking(gpu_amd.mi300x(tmp_path, "QPX", "NPS1", count=2)))
    early = by_id(looking(gpu_amd.mi300x(tmp_path / "early", "QPX", "NPS1", count=2, is_early=True)))
    assert len(now) == 8
    assert early == now


def test_partitions_of_one_gpu_are_closer_than_those_of_two(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_amd.mi300x(tmp_path, "DPX", "NPS1", count=2))
    cards = by_id(backend)
    same = backend.links(cards["0000:0c:00.0"], cards["amdgpu_xcp_0"])
    other = backend.links(cards["0000:0c:00.0"], cards["0000:1c:00.0"])
    assert same > other > 0


def test_partitions_of_the_first_drivers_are_found_by_the_names_they_had(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=2, separator=".")))
    assert len(healthy(devices)) == 16
    assert {device.attributes["vendor"] for device in devices.values()} == {"amd"}
    assert devices["amdgpu_xcp.7"].attributes["parent"] == "0000:1c:00.0"


def test_a_missing_node_concerns_only_its_partition(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, "DPX", "NPS1", count=2)
    (tmp_path / "dev/dri/renderD128").unlink()  # that of the first GPU, and of its first partition
    devices = by_id(looking(tree))
    assert devices["0000:0c:00.0"].health.reason == "/dev/dri/renderD128 does not exist"
    assert set(healthy(devices)) == devices.keys() - {"0000:0c:00.0"}


def test_gpus_that_more_links_join_are_closer(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_amd.mi250x(tmp_path))
    first, second, third, fourth = by_id(backend).values()
    assert backend.links(first, second) == backend.links(fourth, third) == 4 * backend.links(first, third)
    assert backend.links(second, fourth) > backend.links(first, fourth) == 0


def test_amd_consumer_cards_have_all_attributes_except_a_name(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_amd.radeon(tmp_path)))
    card, integrated = devices["0000:03:00.0"], devices["0000:0e:00.0"]
    assert "product" not in card.attributes
    assert card.attributes["memory"] == 24560
    assert card.attributes["architecture"] == "gfx1100"
    assert integrated.attributes["architecture"] == "gfx1103"
    assert integrated.numa_nodes == ()
    assert "numaNode" not in integrated.attributes
    assert healthy(devices) == ["0000:03:00.0", "0000:0e:00.0"]


def test_an_arc_and_the_processors_gpu_are_two_cards_of_intel(
    tmp_path: Path, looking: BackendFixture
) -> None:
    backend = looking(gpu_intel.arc(tmp_path))
    devices = by_id(backend)
    card = devices["0000:03:00.0"]
    assert card.attributes == {
        "vendor": "intel",
        "kind": "gpu",
        "index": 1,
        "pciBusID": "0000:03:00.0",
        "pcieRoot": "pci0000:00",
        "driver": "xe",
        "renderNode": "/dev/dri/renderD129",
        "cardNode": "/dev/dri/card1",
        "vendorID": "8086",
        "deviceID": "56a0",
        "subsystemVendorID": "8086",
        "subsystemDeviceID": "1020",
    }
    assert devices["0000:00:02.0"].attributes["driver"] == "i915"
    assert healthy(devices) == ["0000:00:02.0", "0000:03:00.0"]


def test_a_flex_with_virtual_functions_is_withheld_and_they_are_offered(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_intel.flex(tmp_path)))
    physical = devices["0000:b4:00.0"]
    assert physical.withheld == "it has 4 virtual functions, which are offered instead"
    assert healthy(devices) == ["0000:4d:00.0", "0000:b4:00.1", "0000:b4:00.2"]
    one = devices["0000:b4:00.1"]
    assert one.attributes["kind"] == "vf"
    assert one.attributes["parent"] == "0000:b4:00.0"
    assert "pci:0000:b4:00.1" in one.claims
    assert one.part_of == {"pci:0000:b4:00.0"}
    assert devices["0000:4d:00.0"].attributes["memory"] == 13536


def test_a_virtual_function_for_a_virtual_machine_is_withheld_and_an_unbound_one_unhealthy(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_intel.flex(tmp_path)))
    assert "vfio-pci" in devices["0000:b4:00.3"].withheld
    assert not devices["0000:b4:00.4"].withheld
    assert devices["0000:b4:00.4"].health.reason == "no driver is bound to it"


def test_memory_of_tiles_is_added_up(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_intel.max1550(tmp_path)))
    assert [device.attributes["memory"] for device in devices.values()] == [131072] * 4
    assert [device.numa_nodes for device in devices.values()] == [(0,), (0,), (1,), (1,)]


def test_intels_driver_for_data_centers_reports_the_memory_of_one_tile(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_intel.flex(tmp_path)
    card = "/sys/class/drm/card0"
    tree.file(f"{card}/lmem_total_bytes", "68719476736")
    for tile in range(2):
        tree.file(f"{card}/gt/gt{tile}/rps_max_freq_mhz", "1600")
    assert by_id(looking(tree))["0000:4d:00.0"].attributes["memory"] == 131072


def test_every_drm_device_of_a_virtual_machine_is_found(tmp_path: Path, looking: BackendFixture) -> None:
    backend = looking(gpu_others.virtual_machine(tmp_path))
    devices = by_id(backend)
    assert healthy(devices) == ["0000:00:02.0", "0000:00:05.0", "vgem"]
    bochs, virtio, vgem = devices.values()
    assert {device.attributes["vendor"] for device in devices.values()} == {"other"}
    assert bochs.attributes["driver"] == "bochs-drm"
    assert "renderNode" not in bochs.attributes
    assert virtio.attributes["driver"] == "virtio_gpu"
    assert virtio.attributes["vendorID"] == "1af4"
    assert virtio.attributes["renderNode"] == "/dev/dri/renderD128"
    assert vgem.claims == {"node:/dev/dri/card2", "node:/dev/dri/renderD129"}
    assert {node.path for node in backend.allocate(request(backend, [vgem])).nodes} == {
        "/dev/dri/card2",
        "/dev/dri/renderD129",
    }


def test_virtio_is_one_card_on_older_kernels(tmp_path: Path, looking: BackendFixture) -> None:
    devices = by_id(looking(gpu_others.older_virtual_machine(tmp_path)))
    assert list(devices) == ["0000:00:05.0"]
    assert devices["0000:00:05.0"].attributes["driver"] == "virtio_gpu"
    assert devices["0000:00:05.0"].attributes["cardNode"] == "/dev/dri/card0"


def test_gpus_of_a_board_have_the_names_of_their_devices_and_claim_no_usb_adapter(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_others.board(tmp_path)))
    assert healthy(devices) == ["1-2:1.0", "display-subsystem", "fde60000.gpu"]
    assert devices["fde60000.gpu"].attributes["driver"] == "panfrost"
    assert devices["1-2:1.0"].claims == {"node:/dev/dri/card2"}
    assert devices["1-2:1.0"].pcie_path == ()


def test_the_console_of_the_firmware_and_of_a_bmc_are_not_gpus(
    tmp_path: Path, looking: BackendFixture
) -> None:
    tree = gpu_amd.radeon(tmp_path)
    card = "pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    frame = tree.device(f"{card}/simple-framebuffer.0", "platform", DRIVER="simple-framebuffer")
    tree.drm(frame, render=False)
    bmc = tree.function("0000:04:00.0", "102b:0538", "mgag200", below="0000:00:1c.5")
    tree.drm(bmc, render=False)
    devices = by_id(looking(tree))
    vendors = {name: device.attributes["vendor"] for name, device in devices.items()}
    assert vendors == {
        "0000:03:00.0": "amd",
        "0000:04:00.0": "other",
        "0000:0e:00.0": "amd",
        "simple-framebuffer.0": "other",
    }
    assert devices["0000:03:00.0"].attributes["cardNode"] == "/dev/dri/card0"


def test_the_graphics_of_a_bmc_have_only_a_card_node(tmp_path: Path, looking: BackendFixture) -> None:
    device = by_id(looking(gpu_others.server_console(tmp_path)))["0000:04:00.0"]
    assert device.attributes["driver"] == "ast"
    assert device.attributes["cardNode"] == "/dev/dri/card0"
    assert "renderNode" not in device.attributes


def test_what_shows_only_a_console_is_reserved(tmp_path: Path, looking: BackendFixture) -> None:
    device = by_id(looking(gpu_others.server_console(tmp_path / "bmc")))["0000:04:00.0"]
    assert device.attributes["purpose"] == "display"
    assert device.reserved == "it shows the console of this machine and renders nothing"
    cards = by_id(looking(gpu_amd.radeon(tmp_path / "radeon"))).values()
    assert cards and not any(card.reserved or "purpose" in card.attributes for card in cards)


def test_cards_that_cannot_be_used_have_a_reason_and_hide_no_other(
    tmp_path: Path, looking: BackendFixture
) -> None:
    devices = by_id(looking(gpu_others.troubled(tmp_path)))
    assert healthy(devices) == ["0000:23:00.0"]
    assert devices["0000:43:00.0"].health.reason == "no driver is bound to it"
    assert "amdgpu has created no DRM device" in devices["0000:63:00.0"].health.reason
    assert "vfio-pci" in devices["0000:83:00.0"].withheld
    assert devices["0000:a3:00.0"].health.reason == "no driver is bound to it"


def test_a_recording_of_what_amds_own_plugin_reads_is_enough(tmp_path: Path, looking: BackendFixture) -> None:
    tree = gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=1)
    # a tree of plain directories, copied along links: neither buses nor classes but one
    place = tmp_path / "copy"
    for source, target in (
        ("sys/bus/pci/devices/0000:0c:00.0", "sys/module/amdgpu/drivers/pci:amdgpu/0000:0c:00.0"),
        ("sys/class/kfd/kfd/topology", "sys/class/kfd/kfd/topology"),
        ("dev", "dev"),
    ):
        _copy(tree.root / source, place / target)
    for number in range(7):
        name = f"sys/devices/platform/amdgpu_xcp_{number}"
        _copy(tree.root / name, place / name)
    devices = by_id(looking(place))
    assert len(healthy(devices)) == 8
    assert {device.attributes["profile"] for device in devices.values()} == {"cpx_nps4"}


def _copy(source: Path, target: Path) -> None:
    """Files and directories, without any link."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_symlink():
            continue
        if path.is_dir():
            _copy(path, target / path.name)
        else:
            (target / path.name).write_bytes(path.read_bytes())


@pytest.mark.parametrize("driver", ["nouveau", ""])
def test_cards_of_nvidia_are_left_to_the_code_for_them(
    tmp_path: Path, looking: BackendFixture, driver: str
) -> None:
    tree = gpu_others.server_console(tmp_path)
    path = tree.function("0000:41:00.0", gpu_others.NVIDIA_H100, driver, below="0000:40:01.0")
    if driver:
        tree.drm(path)
    others = {name for name, device in by_id(looking(tree)).items() if device.attributes["vendor"] == "other"}
    assert others == {"0000:04:00.0"}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=" then ".join)
def test_adapters_of_one_name_on_two_buses_are_known_by_their_buses_and_not_by_their_numbers(
    tmp_path: Path, looking: BackendFixture, order: tuple[str, str]
) -> None:
    tree = gpu_others.GpuTree(tmp_path)
    for number, bus in enumerate(order):
        tree.device(f"platform/{bus}/gpu", "platform" if bus == "a" else "host1x")
        tree.device(f"platform/{bus}/gpu/drm/card{number}", "drm", f"dri/card{number}", f"226:{number}")
    devices = by_id(looking(tree))
    assert {name: device.attributes["cardNode"] for name, device in devices.items()} == {
        f"{bus}-gpu": f"/dev/dri/card{number}" for number, bus in enumerate(order)
    }
