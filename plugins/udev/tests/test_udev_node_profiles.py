"""The ready configurations of devices that are nodes: each gives what its plugin gives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from program import devhost

from devhost.config import loads
from devhost.discovery import catalog

EXAMPLES = Path(__file__).parents[3] / "config/examples/accelerators"

BOOT_LOG = "/sys/kernel/security/tpm0/binary_bios_measurements"


@dataclass(frozen=True)
class Answer:
    """What a container gets that requests ``count`` of a resource; nodes have the host's paths."""

    nodes: tuple[str, ...]
    permissions: str = "rw"
    count: int = 1
    mounts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of device: its machine, what is offered there, and which file's absence is a fault of what."""

    machine: Callable[[Tree], None]
    offers: Mapping[str, int]
    answers: Mapping[str, Answer]
    fault: str
    left: Mapping[str, int]


def slingshot(machine: Tree) -> None:
    """Two Cassini adapters, each with the node of cxi_user below its PCI function (``cxi_user_core.c``)."""
    for number, address in enumerate(("0000:c1:00.0", "0000:d5:00.0")):
        function = f"pci{address[:7]}/{address}"
        machine.pci(function, driver="cxi_core", vendor="0x17db", device="0x0501")
        machine.device(f"{function}/cxi/cxi{number}", "cxi")
        machine.device(f"{function}/cxi_user/cxi{number}", "cxi_user", f"cxi{number}", f"235:{number}")
    for library in ("/opt/cray/lib64/libfabric.so.1", "/usr/lib64/libcxi.so.1", "/usr/lib64/libcxiutils.so"):
        machine.node(library)
    machine.node("/usr/lib64/libc.so.6")


def load_balancers(machine: Tree) -> None:
    """A physical function in use as such, one with a virtual function, and that (``dlb_plugin.go``)."""
    for number, (address, virtual) in enumerate(
        (("0000:6d:00.0", "0"), ("0000:72:00.0", "1"), ("0000:72:00.1", ""))
    ):
        function = f"pci{address[:7]}/{address}"
        files = {"sriov_numvfs": virtual} if virtual else {}
        machine.pci(function, driver="dlb2", device="0x2710" if virtual else "0x2711", files=files)
        machine.device(f"{function}/dlb2/dlb{number}", "dlb2", f"dlb{number}", f"240:{number}")


def misc(*nodes: str) -> Callable[[Tree], None]:
    """Makes a machine with these nodes of misc devices."""

    def build(machine: Tree) -> None:
        for minor, node in enumerate(nodes):
            machine.device(f"virtual/misc/{node.rpartition('/')[2]}", "misc", node, f"10:{100 + minor}")

    return build


def security_chip(machine: Tree) -> None:
    """A TPM 2.0 (drivers/char/tpm/tpm-chip.c)."""
    machine.device("platform/MSFT0101:00/tpm/tpm0", "tpm", "tpm0", "10:224")
    machine.device("platform/MSFT0101:00/tpmrm/tpmrm0", "tpmrm", "tpmrm0", "253:65536")
    machine.file(BOOT_LOG, "log")


def guest(machine: Tree) -> None:
    """A confidential machine; no machine has both kinds, but one tree does for both."""
    security_chip(machine)
    misc("tdx_guest", "sev-guest")(machine)


def memory(machine: Tree) -> None:
    """A region for programs, one that the kernel uses as memory, and persistent memory (drivers/dax)."""
    regions = "platform/ACPI0017:00/root0/decoder0.0"
    places = (
        (f"{regions}/region0/dax_region0/dax0.0", "device_dax", "0x1050000000"),
        (f"{regions}/region1/dax_region1/dax1.0", "kmem", "0x2050000000"),
        ("LNXSYSTM:00/ndbus0/region2/dax2.0", "device_dax", "0x3050000000"),
    )
    for minor, (path, driver, start) in enumerate(places):
        name = path.rpartition("/")[2]
        machine.device(path, "dax", name, f"252:{minor}", {"resource": start}, DRIVER=driver)


def codecs(machine: Tree) -> None:
    """An encoder and a decoder on one chip, a stateful codec, and a camera (``hantro_drv.c``)."""
    chip = "platform/fdea0400.video-codec"
    machine.device(chip, "platform", DRIVER="hantro-vpu")
    for number, kind in enumerate(("enc", "dec")):
        files = {"name": f"rockchip,rk3568-vpu-{kind}", "index": str(number)}
        path = f"{chip}/video4linux/video{number}"
        machine.device(path, "video4linux", f"video{number}", f"81:{number}", files)
    machine.device(f"{chip}/media0", "media", "media0", "511:0", {"model": "hantro-vpu"})
    stateful = "platform/aa00000.video-codec"
    machine.device(stateful, "platform", DRIVER="qcom-venus")
    machine.device(f"{stateful}/video4linux/video2", "video4linux", "video2", "81:2", {"index": "0"})
    camera = "platform/fdee0000.isp"
    machine.device(camera, "platform", DRIVER="rkisp1")
    machine.device(f"{camera}/video4linux/video3", "video4linux", "video3", "81:3", {"index": "0"})
    machine.device(f"{camera}/media1", "media", "media1", "511:1", {"model": "rkisp1"})
    machine.device("virtual/dma_heap/system", "dma_heap", "dma_heap/system", "250:0")


def sticks(*ids: str) -> Callable[[Tree], None]:
    """Makes a machine with these USB devices in the order of its ports: the first is 001/002."""

    def build(machine: Tree) -> None:
        machine.pci("pci0000:00/0000:00:14.0", driver="xhci_hcd")
        machine.device("pci0000:00/0000:00:14.0/usb1", "usb", DEVTYPE="usb_device", DRIVER="usb")
        for port, (vendor, _, product) in enumerate((one.partition(":") for one in ids), 1):
            files = {
                "idVendor": vendor,
                "idProduct": product,
                "devpath": str(port),
                "serial": f"00075{port:02}",
            }
            path, node = f"pci0000:00/0000:00:14.0/usb1/1-{port}", f"bus/usb/001/{port + 1:03}"
            machine.device(path, "usb", node, f"189:{port}", files, DEVTYPE="usb_device", DRIVER="usb")

    return build


KEYBOARD, MOUSE, READER, KEY = "045e:07a5", "062a:4102", "072f:b100", "1050:0407"


def usb(*numbers: int, name: str, count: int = 1) -> Answer:
    """What KubeVirt gives with these devices, in the order of its selectors: ``usb_device.go``."""
    nodes = tuple(f"/dev/bus/usb/001/{number:03}" for number in numbers)
    env = {f"USB_RESOURCE_KUBEVIRT_IO_{name}": ",".join(f"1:{number}" for number in numbers)}
    return Answer(nodes, "mrw", count, env=env)


def board(machine: Tree) -> None:
    """Pins and buses of a board (``gpiolib-cdev.c``, ``i2c-dev.c``, ``spidev.c``)."""
    machine.device("platform/soc/fe200000.gpio/gpiochip0", "gpio", "gpiochip0", "254:0")
    machine.device("platform/soc/fe804000.i2c/i2c-1/i2c-dev/i2c-1", "i2c-dev", "i2c-1", "89:1")
    spi = "platform/soc/fe204000.spi/spi_master/spi0/spi0.0"
    machine.device(f"{spi}/spidev/spidev0.0", "spidev", "spidev0.0", "153:0")


VIRTUAL_MACHINES = ("kvm", "net/tun", "vhost-net", "vhost-vsock", "sev")

KINDS = {
    "hpe-slingshot": Kind(
        slingshot,
        {"beta.hpe.com/cxi": 2},
        {
            "beta.hpe.com/cxi": Answer(
                ("/dev/cxi0", "/dev/cxi1"),
                count=2,
                mounts={
                    path: path
                    for path in (
                        "/opt/cray/lib64/libfabric.so.1",
                        "/usr/lib64/libcxi.so.1",
                        "/usr/lib64/libcxiutils.so",
                    )
                },
                env={"LD_LIBRARY_PATH": "/opt/cray/lib64:/usr/lib64"},
            )
        },
        "dev/cxi1",
        {"beta.hpe.com/cxi": 1},
    ),
    "intel-dlb": Kind(
        load_balancers,
        {"dlb.intel.com/pf": 1, "dlb.intel.com/vf": 1},
        {"dlb.intel.com/pf": Answer(("/dev/dlb0",)), "dlb.intel.com/vf": Answer(("/dev/dlb2",))},
        "dev/dlb2",
        {"dlb.intel.com/pf": 1, "dlb.intel.com/vf": 0},
    ),
    "intel-sgx": Kind(
        misc("sgx_enclave", "sgx_provision", "sgx_vepc"),
        {"sgx.intel.com/enclave": 110, "sgx.intel.com/provision": 110},
        {
            "sgx.intel.com/enclave": Answer(("/dev/sgx_enclave",)),
            "sgx.intel.com/provision": Answer(("/dev/sgx_provision",)),
        },
        "dev/sgx_provision",
        {"sgx.intel.com/enclave": 110, "sgx.intel.com/provision": 0},
    ),
    "confidential-guests": Kind(
        guest,
        {"google.com/cc": 256, "intel.com/tdx": 256, "amd.com/sev-snp": 256},
        {
            "google.com/cc": Answer(
                ("/dev/tpmrm0",),
                "mrw",
                mounts={BOOT_LOG: "/run/cc-device-plugin/binary_bios_measurements"},
            ),
            "intel.com/tdx": Answer(("/dev/tdx_guest",), "mrw"),
            "amd.com/sev-snp": Answer(("/dev/sev-guest",), "mrw"),
        },
        "dev/sev-guest",
        {"google.com/cc": 256, "intel.com/tdx": 256, "amd.com/sev-snp": 0},
    ),
    "cxl-memory": Kind(
        memory,
        {"example.com/cxl-memory": 1},
        {"example.com/cxl-memory": Answer(("/dev/dax0.0",))},
        "dev/dax0.0",
        {"example.com/cxl-memory": 0},
    ),
    "v4l2-codecs": Kind(
        codecs,
        {"example.com/v4l2-encoder": 4, "example.com/v4l2-decoder": 4, "example.com/v4l2-stateful": 4},
        {
            "example.com/v4l2-encoder": Answer(("/dev/video0", "/dev/media0", "/dev/dma_heap/system")),
            "example.com/v4l2-decoder": Answer(("/dev/video1", "/dev/media0", "/dev/dma_heap/system")),
            "example.com/v4l2-stateful": Answer(("/dev/video2", "/dev/dma_heap/system")),
        },
        "dev/media0",
        {"example.com/v4l2-encoder": 0, "example.com/v4l2-decoder": 0, "example.com/v4l2-stateful": 4},
    ),
    "tpm": Kind(
        security_chip,
        {"githedgehog.com/tpmrm": 64, "githedgehog.com/tpm": 1},
        {
            "githedgehog.com/tpmrm": Answer(("/dev/tpmrm0",), "rwm"),
            "githedgehog.com/tpm": Answer(("/dev/tpm0",), "rwm"),
        },
        "dev/tpm0",
        {"githedgehog.com/tpmrm": 64, "githedgehog.com/tpm": 0},
    ),
    "hsm": Kind(
        sticks("1050:0030", "20a0:4230", KEY),  # the last is a keyboard by Yubico
        {"example.com/yubihsm": 1, "example.com/nitrokey-hsm": 1},
        {
            "example.com/yubihsm": Answer(("/dev/bus/usb/001/002",)),
            "example.com/nitrokey-hsm": Answer(("/dev/bus/usb/001/003",)),
        },
        "dev/bus/usb/001/002",
        {"example.com/yubihsm": 0, "example.com/nitrokey-hsm": 1},
    ),
    "i2c-spi-gpio": Kind(
        board,
        {"smarter-devices/i2c-1": 1, "smarter-devices/spidev0.0": 1, "smarter-devices/gpiochip0": 20},
        {
            f"smarter-devices/{name}": Answer((f"/dev/{name}",))
            for name in ("i2c-1", "spidev0.0", "gpiochip0")
        },
        "dev/spidev0.0",
        {"smarter-devices/i2c-1": 1, "smarter-devices/spidev0.0": 0, "smarter-devices/gpiochip0": 20},
    ),
    "kubevirt-usb": Kind(
        # two of each for a desk, one more keyboard and one more key
        sticks("46f4:0001", READER, MOUSE, KEYBOARD, KEYBOARD, MOUSE, READER, KEYBOARD, *[KEY] * 5),
        {"kubevirt.io/storage": 1, "kubevirt.io/peripherals": 2, "kubevirt.io/keys": 2},
        {
            "kubevirt.io/storage": usb(2, name="STORAGE"),
            "kubevirt.io/peripherals": usb(5, 4, 3, 6, 7, 8, name="PERIPHERALS", count=2),
            "kubevirt.io/keys": usb(10, 11, 12, 13, name="KEYS", count=2),
        },
        "dev/bus/usb/001/004",
        {"kubevirt.io/storage": 1, "kubevirt.io/peripherals": 1, "kubevirt.io/keys": 2},
    ),
    "kubevirt": Kind(
        misc(*VIRTUAL_MACHINES),
        {f"devices.kubevirt.io/{node.rpartition('/')[2]}": 1000 for node in VIRTUAL_MACHINES},
        {
            f"devices.kubevirt.io/{node.rpartition('/')[2]}": Answer((f"/dev/{node}",), "rwm")
            for node in VIRTUAL_MACHINES
        },
        "dev/sev",
        {"devices.kubevirt.io/kvm": 1000, "devices.kubevirt.io/sev": 0},
    ),
}


@pytest.fixture(params=KINDS)
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Kind, Node]]:
    """A kind, and a node with its machine and its file."""
    if request.param == "kubevirt-usb" and os.geteuid() != 0:
        pytest.skip("needs root: only root may change owners")
    async with Node(tmp_path) as node:
        found = KINDS[request.param]
        found.machine(Tree(node.root))
        text = (EXAMPLES / f"{request.param}.yaml").read_text(encoding="utf-8")
        node.configure(text.replace("version: 1\n", ""))
        yield found, node


async def test_a_container_gets_what_the_plugin_named_in_the_file_gives(kind: tuple[Kind, Node]) -> None:
    expected, node = kind
    async with node.served(expected.offers, only=True):
        assert expected.answers.keys() == expected.offers.keys()
        for resource, answer in expected.answers.items():
            started = await node.container({resource: answer.count})
            assert sorted(
                (one.host_path, one.container_path, one.permissions) for one in started.devices
            ) == sorted((path, path, answer.permissions) for path in answer.nodes)
            assert {one.host_path: one.container_path for one in started.mounts} == answer.mounts
            assert all(one.read_only for one in started.mounts)
            assert dict(started.envs) == answer.env
            assert not (started.annotations or started.cdi_devices)
            if any(name.startswith("USB_RESOURCE_") for name in answer.env):
                found = [(node.root / path.lstrip("/")).stat() for path in answer.nodes]
                assert {(one.st_uid, one.st_gid) for one in found} == {(107, 107)}, "util.NonRootUID: qemu"


async def test_a_device_is_unhealthy_while_its_node_is_missing(kind: tuple[Kind, Node]) -> None:
    expected, node = kind
    path, aside = node.root / expected.fault, node.root / "aside"
    async with node.served(expected.offers):
        path.rename(aside)
        node.look()
        await node.offers(expected.left)
        aside.rename(path)
        node.look()
        await node.offers(expected.offers)


@pytest.mark.parametrize("name", KINDS)
def test_without_the_hardware_explain_gives_the_reason(tmp_path: Path, name: str) -> None:
    Tree(tmp_path)
    file = EXAMPLES / f"{name}.yaml"
    resource = yaml.safe_load(file.read_text(encoding="utf-8"))["resources"][0]["name"]
    done = devhost("explain", resource, "--config", file, "--root", tmp_path)
    assert done.stdout.startswith(f"{resource} (resources[0]): 0 devices; ")


def test_all_of_them_can_be_in_one_file(tmp_path: Path) -> None:
    files = [yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")) for name in KINDS]
    groups = [group for one in files for group in one.get("backends", {}).get("udev", {}).get("groups", ())]
    resources = [resource for one in files for resource in one["resources"]]
    merged = {"version": 1, "backends": {"udev": {"groups": groups}}, "resources": resources}
    settings = loads(yaml.safe_dump(merged), str(tmp_path / "devhost.yaml"), catalog.load)
    assert len(settings.resources) == len(resources)
