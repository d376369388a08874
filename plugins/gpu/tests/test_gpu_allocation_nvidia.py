"""What a container gets of NVIDIA's GPUs, by each strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from devhost_gpu.discovery import NVIDIA
from devhost_gpu.nvidia.allocation import edits, missing_modules, unallocatable
from devhost_gpu.nvidia.cards import NvidiaFacts
from devhost_gpu.options import GpuOptions
from devhost_gpu.vendor import Card, ContainerRequest

from devhost.backend import AllocationError, Device, DeviceNode, Edits, Mount, OptionError
from devhost.backend.sysfs import Sysfs
from devhost.config import load
from devhost.discovery import catalog

A, B, C = "GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbb", "GPU-cccc"
M = "MIG-mmmm"


def gpu(uuid: str, minor: int | None, index: str | None = None) -> Card:
    facts = NvidiaFacts(
        uuid, uuid, f"0000:{minor or 0:02x}:00.0", str(minor or 0) if index is None else index, minor
    )
    return Card(Device(uuid or facts.address), NVIDIA, facts)


def mig(uuid: str, parent: str, minor: int, capabilities: tuple[int, ...], index: str = "1:0") -> Card:
    facts = NvidiaFacts(uuid, parent, "0000:01:00.0", index, minor, (1, 0), capabilities)
    return Card(Device(uuid), NVIDIA, facts)


def given(cards: list[Card], root: Path = Path("/nowhere"), **options: object) -> Edits:
    return edits(cards, ContainerRequest(GpuOptions(**options), Sysfs(root)))  # type: ignore[arg-type]


def nodes(given: Edits) -> dict[str, str]:
    return {node.container_path: node.path for node in given.nodes}


def test_the_runtime_gets_uuids_by_default() -> None:
    assert given([gpu(A, 0), gpu(B, 1)]) == Edits(env={"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"})


def test_gpus_are_named_in_the_same_order_for_any_order_of_the_request() -> None:
    cards = [gpu(A, 10), gpu(B, 9), gpu(C, 2)]
    wanted = Edits(env={"NVIDIA_VISIBLE_DEVICES": f"{C},{B},{A}"})
    assert given(cards) == given(cards[::-1]) == wanted


def test_a_gpu_that_is_allocated_twice_is_named_once() -> None:
    twice = [gpu(A, 0), gpu(A, 0), mig(M, B, 1, (12, 13)), mig(M, B, 1, (12, 13))]
    assert given(twice).env == {"NVIDIA_VISIBLE_DEVICES": f"{A},{M}"}
    specs = given(twice, device_list_strategy="device-specs")
    assert len(specs.nodes) == len(set(nodes(specs))) == 8


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_mig_instances_are_named_by_uuid_or_by_number(strategy: str) -> None:
    cards = [mig("MIG-2", B, 1, (21, 22), "1:1"), mig("MIG-1", B, 1, (12, 13), "1:0")]
    told = given(cards, device_list_strategy=strategy)
    numbers = given(cards, device_list_strategy=strategy, device_ID_strategy="index")
    if strategy == "envvar":
        assert told.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-1,MIG-2"
        assert numbers.env["NVIDIA_VISIBLE_DEVICES"] == "1:0,1:1"
    else:
        directory = "/var/run/nvidia-container-devices"
        assert told.env == numbers.env == {"NVIDIA_VISIBLE_DEVICES": directory}
        assert told.mounts == tuple(Mount("/dev/null", f"{directory}/{name}") for name in ("MIG-1", "MIG-2"))
        assert [mount.container_path for mount in numbers.mounts] == [f"{directory}/1:0", f"{directory}/1:1"]


def test_device_specs_give_nodes_and_what_each_container_needs_beside_them() -> None:
    got = given([gpu(A, 3)], device_list_strategy="device-specs")
    assert got == Edits(
        nodes=(
            DeviceNode("/dev/nvidia3", "/dev/nvidia3"),
            DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),
            DeviceNode("/dev/nvidia-uvm", "/dev/nvidia-uvm"),
            DeviceNode("/dev/nvidia-uvm-tools", "/dev/nvidia-uvm-tools", required=False),
            DeviceNode("/dev/nvidia-modeset", "/dev/nvidia-modeset", required=False),
        )
    )


def test_a_mig_instance_comes_with_its_gpu_s_node_and_access_to_itself_alone() -> None:
    got = nodes(given([mig(M, B, 1, (12, 13))], device_list_strategy="device-specs"))
    own = {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}
    assert own <= got.keys()
    assert not {path for path in got if "nvidia-cap" in path} - own


def test_a_driver_in_a_separate_container_has_the_nodes_below_its_root(tmp_path: Path) -> None:
    driver = "/run/nvidia/driver"
    options = {"device_list_strategy": "device-specs", "driver_root": driver}
    assert nodes(given([gpu(A, 0)], tmp_path, **options))["/dev/nvidia0"] == "/dev/nvidia0"
    (tmp_path / "run/nvidia/driver/dev").mkdir(parents=True)
    (tmp_path / "run/nvidia/driver/dev/nvidiactl").touch()
    there = nodes(given([gpu(A, 0)], tmp_path, **options))
    assert there["/dev/nvidia0"] == f"{driver}/dev/nvidia0"
    assert there["/dev/nvidiactl"] == f"{driver}/dev/nvidiactl"
    told = nodes(given([gpu(A, 0)], tmp_path, **options, dev_root="/"))
    assert told["/dev/nvidia0"] == "/dev/nvidia0"


def test_the_drivers_directory_is_mounted_where_cuda_images_expect_it() -> None:
    host = "/opt/nvidia"
    got = given([gpu(A, 0)], device_list_strategy="device-specs", driver_directory=f"{host}/")
    assert got.mounts == (
        Mount(host, "/usr/local/nvidia"),
        Mount(f"{host}/vulkan/icd.d", "/etc/vulkan/icd.d", required=False),
    )


def test_several_strategies_add_up() -> None:
    got = given([gpu(A, 0)], device_list_strategy=("envvar", "device-specs"))
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": A}
    assert "/dev/nvidia0" in nodes(got)


@pytest.mark.parametrize("other", ["envvar", "volume-mounts", "cdi"])
def test_control_nodes_may_be_missing_where_the_runtime_makes_them(other: str) -> None:
    """NVIDIA's plugin skips control nodes that do not exist; its runtime creates them for the container."""
    card = gpu(A, 0)
    named = replace(card, facts=replace(card.facts, cdi=f"nvidia.com/gpu={A}"))  # type: ignore[type-var]
    got = given([named], device_list_strategy=(other, "device-specs"))
    required = {node.container_path: node.required for node in got.nodes}
    assert required == {
        "/dev/nvidia0": True,
        "/dev/nvidiactl": False,
        "/dev/nvidia-uvm": False,
        "/dev/nvidia-uvm-tools": False,
        "/dev/nvidia-modeset": False,
    }


def test_additional_devices_are_requested_by_variables() -> None:
    got = given([gpu(A, 0)], gds_enabled=True, mofed_enabled=True, gdrcopy_enabled=True)
    assert got.env == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_GDRCOPY": "enabled",
    }


def test_containers_get_the_imex_channels_that_the_node_has(tmp_path: Path) -> None:
    channel = "/dev/nvidia-caps-imex-channels/channel0"
    ways = ("envvar", "volume-mounts", "device-specs")
    absent = [given([gpu(A, 0)], tmp_path, device_list_strategy=way, imex_channel_IDs=(0, 7)) for way in ways]
    assert absent == [given([gpu(A, 0)], tmp_path, device_list_strategy=way) for way in ways]
    (tmp_path / channel.lstrip("/")).parent.mkdir(parents=True)
    (tmp_path / channel.lstrip("/")).touch()
    told, mounted, noded = (
        given([gpu(A, 0)], tmp_path, device_list_strategy=way, imex_channel_IDs=(0, 7)) for way in ways
    )
    assert told.env["NVIDIA_IMEX_CHANNELS"] == "0"
    assert mounted.mounts[-1] == Mount("/dev/null", "/var/run/nvidia-container-devices/imex/0")
    assert nodes(noded)[channel] == channel


@pytest.mark.parametrize(
    ("card", "options", "words"),
    [
        (gpu("", 0), {}, "0000:00:00.0: NVIDIA's driver has not reported its UUID"),
        (gpu(A, 0, ""), {"device_ID_strategy": "index"}, f"{A}: its number is not known"),
        (
            gpu(A, None),
            {"device_list_strategy": "device-specs"},
            "does not report the number of its /dev/nvidia…",
        ),
        (mig(M, A, 0, ()), {"device_list_strategy": "device-specs"}, "the nodes that give access to it"),
        (gpu(A, 0), {"device_list_strategy": "cdi"}, f"{A}: no CDI specification names it"),
    ],
)
def test_a_card_that_cannot_be_allocated_is_refused_with_a_reason(
    card: Card, options: dict[str, object], words: str
) -> None:
    with pytest.raises(AllocationError) as refused:
        given([card], **options)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"device_list_strategy": ()}, "deviceListStrategy", "must have a member"),
        (
            {"device_list_strategy": ("envvar", "volume-mounts")},
            "deviceListStrategy",
            "set the same variable",
        ),
        ({"dev_root": "dev"}, "devRoot", '"dev" is not absolute'),
        ({"driver_root": ""}, "driverRoot", "must be a path"),
        ({"driver_directory": "/opt/nvidia"}, "driverDirectory", "without deviceListStrategy device-specs"),
        (
            {"gds_enabled": True, "device_list_strategy": "device-specs"},
            "gdsEnabled",
            "without deviceListStrategy cdi or envvar or volume-mounts",
        ),
        ({"device_list_strategy": "cdi", "cdi_directories": ()}, "cdiDirectories", "must have a member"),
        ({"cdi_directories": ("/etc/cdi", "cdi")}, "cdiDirectories[1]", '"cdi" is not absolute'),
        ({"imex_channel_IDs": (0, 2048)}, "imexChannelIDs", "from 0 to 2047"),
        ({"nvidia_CTK_path": ""}, "nvidiaCTKPath", "must be a path"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    options: dict[str, object], key: str, words: str
) -> None:
    with pytest.raises(OptionError) as refused:
        GpuOptions(**options)  # type: ignore[arg-type]
    assert refused.value.key == key
    assert words in refused.value.message


def test_keys_are_spelled_as_in_nvidia_s_plugin(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("""
version: 1
backends:
  gpu:
    driverRoot: /run/nvidia/driver
    devRoot: /
    deviceListStrategy: [volume-mounts, device-specs]
    deviceIDStrategy: index
    driverDirectory: /opt/nvidia
    gdsEnabled: true
    mofedEnabled: true
    gdrcopyEnabled: true
    imexChannelIDs: [0]
    nvidiaCTKPath: /usr/local/nvidia/toolkit/nvidia-ctk
    nvidiaCDIHookPath: /usr/local/nvidia/toolkit/nvidia-cdi-hook
    cdiDirectories: [/run/cdi]
    bypath: none
resources: [{name: nvidia.com/gpu, backend: gpu}]
""")
    options = load(file, catalog.load).backends["gpu"]
    assert isinstance(options, GpuOptions)
    assert options.strategies == {"volume-mounts", "device-specs"}
    assert options.device_ID_strategy == "index"
    assert options.imex_channel_IDs == (0,)
    assert options.nvidia_CDI_hook_path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"


@pytest.mark.parametrize(
    ("facts", "options", "reason"),
    [
        (NvidiaFacts("GPU-1", "GPU-1", "0000:3b:00.0"), {"device_ID_strategy": "index"}, "its number is not"),
        (NvidiaFacts("", "", "0000:3b:00.0"), {}, "has not reported its UUID"),
        (
            NvidiaFacts("GPU-1", "GPU-1", "0000:3b:00.0"),
            {"device_list_strategy": "device-specs"},
            "does not report the number of its /dev/nvidia",
        ),
        (
            NvidiaFacts("MIG-1", "GPU-1", "0000:3b:00.0", minor=0, instance=(1, 0)),
            {"device_list_strategy": "device-specs"},
            "does not report the nodes that give access to it",
        ),
    ],
)
def test_a_card_that_the_strategies_cannot_name_has_the_reason_before_a_pod_asks(
    facts: NvidiaFacts, options: dict[str, str], reason: str
) -> None:
    assert reason in unallocatable(facts, GpuOptions(**options))  # type: ignore[arg-type]
    known = replace(facts, uuid="GPU-1", index="0", minor=0, capabilities=(1, 2))
    assert unallocatable(known, GpuOptions(**options)) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "node"),
    [
        ("gds_enabled", "dev/nvidia-fs0"),
        ("gdrcopy_enabled", "dev/gdrdrv"),
        ("mofed_enabled", "dev/infiniband/uverbs0"),
    ],
)
def test_an_option_for_a_module_that_the_node_lacks_is_a_problem_until_it_is_loaded(
    tmp_path: Path, option: str, node: str
) -> None:
    options, sysfs = GpuOptions(**{option: True}), Sysfs(tmp_path)  # type: ignore[arg-type]
    (missing,) = missing_modules(options, sysfs)
    assert missing.reason.startswith(
        f"backends.gpu.{option.removesuffix('_enabled')}Enabled is set, but there"
    )
    assert missing.attributes == {"vendor": NVIDIA}
    assert list(missing_modules(GpuOptions(), sysfs)) == []
    (tmp_path / node).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / node).touch()
    assert list(missing_modules(options, sysfs)) == []
