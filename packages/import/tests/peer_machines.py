"""Models of machines with the hardware in the shipped examples of other plugins."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from devhost_testing.trees import Tree

PLUGINS = Path(__file__).parents[3] / "plugins"

XHCI = "pci0000:00/0000:00:14.0"


def of_plugin(backend: str, module: str) -> ModuleType:
    """A module of the machines that the tests of a backend have."""
    place = str(PLUGINS / backend / "tests/machines")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module(module)


def _usb(tree: Tree, port: int, ids: str, node: int, files: Mapping[str, str] = {}) -> str:
    tree.pci(XHCI, driver="xhci_hcd")
    tree.device(f"{XHCI}/usb1", "usb", DEVTYPE="usb_device", DRIVER="usb")
    vendor, _, product = ids.partition(":")
    path = f"{XHCI}/usb1/1-{port}"
    facts = {"idVendor": vendor, "idProduct": product, "devpath": str(port)}
    tree.device(
        path,
        "usb",
        f"bus/usb/001/{node:03}",
        f"189:{node - 1}",
        {**facts, **files},
        DEVTYPE="usb_device",
        DRIVER="usb",
    )
    return path


def board(root: Path) -> Tree:
    """A Raspberry Pi with a camera, a sound card and a USB serial adapter, and what every machine has."""
    tree = Tree(root)
    for name, minor in (("gpiomem", 240), ("vchiq", 241), ("vcsm-cma", 242), ("fuse", 229), ("vsock", 243)):
        tree.device(f"virtual/misc/{name}", "misc", name, f"10:{minor}")
    tree.device("virtual/misc/nitro_enclaves", "misc", "nitro_enclaves", "10:244")
    tree.device("virtual/mem/null", "mem", "null", "1:3")
    for n in range(2):
        tree.device(f"platform/soc/fe200000.gpio/gpiochip{n}", "gpio", f"gpiochip{n}", f"254:{n}")
    tree.device("platform/soc/fe804000.i2c/i2c-1/i2c-dev/i2c-1", "i2c-dev", "i2c-1", "89:1")
    tree.device("platform/rtc-cmos/rtc/rtc0", "rtc", "rtc0", "252:0")
    for name, minor in (("controlC0", 0), ("pcmC0D0c", 24), ("pcmC0D0p", 16)):
        tree.device(f"platform/soc/sound/card0/{name}", "sound", f"snd/{name}", f"116:{minor}")
    camera = _usb(tree, 1, "046d:0825", 2)
    tree.device(f"{camera}/1-1:1.0", "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface")
    for n in range(2):
        path = f"{camera}/1-1:1.0/video4linux/video{n}"
        tree.device(path, "video4linux", f"video{n}", f"81:{n}", {"index": str(n)})
        serial, path_id = "E:ID_SERIAL=046d_0825_C1", "E:ID_PATH=pci-0000:00:14.0-usb-0:1:1.0"
        capabilities = f"E:ID_V4L_CAPABILITIES=:{'capture' if n == 0 else ''}:"
        tree.udev_record(f"c81:{n}", serial, path_id, capabilities)
    serial = _usb(tree, 2, "1a86:7523", 3)
    files = {"bInterfaceNumber": "00"}
    tree.device(f"{serial}/1-2:1.0", "usb", files=files, DEVTYPE="usb_interface", DRIVER="ch341")
    tree.device(f"{serial}/1-2:1.0/ttyUSB0", "usb-serial", DRIVER="ch341-uart")
    tree.device(f"{serial}/1-2:1.0/ttyUSB0/tty/ttyUSB0", "tty", "ttyUSB0", "188:0")
    tree.device("platform/serial8250/tty/ttyS0", "tty", "ttyS0", "4:64")
    tree.device("virtual/tty/ttySAC0", "tty", "ttySAC0", "204:64")
    return tree


def _sriov(root: Path) -> Tree:
    return of_plugin("sriov", "sriov_tree").SriovTree(root)


def adapters(root: Path) -> Tree:
    """An XL710, a ConnectX-4 Lx and a ConnectX-5, each with virtual functions, and an accelerator.

    Ids: pci.ids. Interfaces and drivers are those that the examples select.
    """
    tree = _sriov(root)
    whole = tree.function("0000:3b:00.0", "8086:1572", "i40e", below="0000:3a:00.0", group=30, total=8)
    tree.netdev(whole, "enp0s0f0")
    for number in range(3):
        driver = ("i40evf", "i40evf", "vfio-pci")[number]
        part = tree.virtual(whole, f"0000:3b:02.{number}", "8086:154c", driver, group=40 + number)
        if driver == "vfio-pci":
            tree.vfio(part)
        else:
            tree.netdev(part, f"enp0s0f0v{number}")
    for bus, ids, part_ids, driver in (
        ("5e", "15b3:1015", "15b3:1016", "mlx5_core"),
        ("86", "15b3:1017", "15b3:1018", "mlx5_core"),
        ("af", "15b3:1017", "15b3:1018", "mlx5_ib"),
        ("d8", "15b3:101d", "15b3:101e", "mlx5_core"),
    ):
        below = f"0000:{int(bus, 16) - 1:02x}:00.0"
        whole = tree.function(f"0000:{bus}:00.0", ids, "mlx5_core", below=below, total=8)
        tree.netdev(whole, f"enp{bus}s0f0np0")
        for number in range(2):
            part = tree.virtual(whole, f"0000:{bus}:00.{number + 2}", part_ids, driver)
            tree.netdev(part, f"enp{bus}s0f0v{number}")
            tree.rdma(part, f"mlx5_{bus}_{number}")
            if bus == "d8":
                tree.vdpa(part, f"vdpa{number}", "vhost_vdpa" if number else "virtio_vdpa")
    tree.function("0000:17:00.0", "1eff:1220", "rebellions", below="0000:16:00.0", pci_class="0x120000")
    for number in range(7, 11):
        path = tree.function(f"0000:00:{number:02x}.0", "1af4:1041", "vfio-pci", group=100 + number)
        tree.vfio(path)
    return tree


def bluefield(root: Path) -> Tree:
    """A BlueField-2 whose port p0 has seven scalable functions, 0 to 6."""
    tree = _sriov(root)
    port = tree.function("0000:03:00.0", "15b3:a2d6", "mlx5_core", below="0000:02:00.0")
    tree.netdev(port, "p0")
    for number in range(7):
        part = tree.scalable(port, f"mlx5_core.sf.{number + 2}", number)
        tree.netdev(part, f"enp3s0f0s{number}")
    return tree


def two_ports(root: Path) -> Tree:
    """Two X710 ports, ens785f0 and ens785f1, each with twelve virtual functions."""
    tree = _sriov(root)
    for port in range(2):
        whole = tree.function(f"0000:3b:00.{port}", "8086:1572", "i40e", below="0000:3a:00.0", total=12)
        tree.netdev(whole, f"ens785f{port}")
        for number in range(12):
            address = f"0000:3b:{2 + 2 * port + number // 8:02x}.{number % 8}"
            tree.netdev(tree.virtual(whole, address, "8086:154c", "iavf"), f"ens785f{port}v{number}")
    return tree


def fabric(root: Path) -> Tree:
    """A ConnectX-6 whose interface is ib0, and two ConnectX-5 with ib3 and ib4."""
    parts = of_plugin("rdma", "rdma_tree")
    tree = of_plugin("rdma", "rdma_connectx").connectx6_infiniband(root)
    for number, (address, name) in enumerate((("0000:5e:00.0", "ib3"), ("0000:86:00.0", "ib4")), 1):
        below = f"0000:{int(address[5:7], 16) - 1:02x}:00.0"
        card = tree.function(
            address, "mlx5_core", "15b3:1017", below=below, pci_class="0x020700", numa_node=1
        )
        tree.auxiliary(card, f"mlx5_core.rdma.{number}", "mlx5_ib.rdma")
        tree.ibdev(card, f"mlx5_{number}", parts.infiniband(parts.EDR), guid=f"506b:4b03:00c1:7a0{number}")
        tree.netdev(card, name, kind=32)
    return tree


def nvidia(root: Path) -> Tree:
    """Two A100 as their driver shows them, without NVML."""
    tree = of_plugin("gpu", "gpu_tree").GpuTree(root)
    tree.file("/sys/module/nvidia/initstate", "live")
    for minor, address in enumerate(("0000:07:00.0", "0000:0f:00.0")):
        tree.function(address, "10de:20b2", "nvidia", below=f"0000:{minor * 8 + 6:02x}:01.0")
        tree.file(f"/dev/nvidia{minor}", f"c195:{minor}")
        uuid = f"GPU-8dfe9b2c-0000-0000-0000-00000000000{minor}"
        information = f"GPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}"
        tree.file(f"/proc/driver/nvidia/gpus/{address}/information", information)
    return tree


MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


def virtual_machines(root: Path) -> Tree:
    """A node for KubeVirt: GPUs, a QAT function and an NVMe drive, bound to vfio-pci or not; a vGPU;
    USB devices."""
    tree = _sriov(root)
    for number, (address, ids, driver) in enumerate(
        (
            ("0000:65:00.0", "10de:1eb8", "vfio-pci"),
            ("0000:66:00.0", "10de:1eb8", "nvidia"),
            ("0000:67:00.0", "10de:1db6", "vfio-pci"),
            ("0000:68:00.0", "8086:6f54", "vfio-pci"),
            ("0000:69:00.0", "8086:5845", "vfio-pci"),
        )
    ):
        path = tree.function(address, ids, driver, pci_class="0x030200", group=20 + number)
        if driver == "vfio-pci":
            tree.vfio(path)
        if driver == "nvidia":
            tree.mediated(path, MDEV, "nvidia-222", "GRID T4-1Q", driver="nvidia-vgpu-vfio", group=30)
    for port, ids in enumerate(("46f4:0001", "045e:07a5", "062a:4102", "072f:b100"), 1):
        _usb(tree, port, ids, port + 1)
    return tree


def usb_sticks(root: Path, count: int) -> Tree:
    """Equal USB sticks."""
    tree = _sriov(root)
    for port in range(1, count + 1):
        _usb(tree, port, "46f4:0001", port + 1)
    return tree


def graphics(root: Path) -> Tree:
    """A desktop with Intel's graphics: i915 and a discrete card with xe."""
    return of_plugin("gpu", "gpu_intel").arc(root)


def fpga(root: Path) -> Tree:
    """A card with two ports of one region."""
    return of_plugin("fpga", "fpga_cards").two_ports(root)


def quick_assist(root: Path) -> Tree:
    """A 4xxx with four virtual functions, two of them bound to vfio-pci."""
    return of_plugin("sriov", "sriov_others").qat(root)


def queues(root: Path) -> Tree:
    """Work queues of DSA and IAA: enabled and not, for users and the kernel."""
    tree = Tree(root)
    for minor, (kind, name, mode, state, user) in enumerate(
        (
            ("dsa", "wq0.0", "dedicated", "enabled", "user"),
            ("dsa", "wq0.1", "shared", "enabled", "user"),
            ("dsa", "wq0.2", "dedicated", "disabled", "user"),
            ("dsa", "wq0.3", "dedicated", "enabled", "kernel"),
            ("iax", "wq1.0", "shared", "enabled", "user"),
            ("iax", "wq1.1", "dedicated", "enabled", "user"),
        )
    ):
        function = f"pci0000:6a/0000:6a:0{'1' if kind == 'dsa' else '2'}.0"
        tree.pci(function, driver="idxd")
        queue = f"{function}/{kind}{name[2]}/{name}"
        tree.device(queue, "dsa", files={"mode": mode, "state": state, "type": user})
        tree.device(f"{queue}/{kind}!{name}", "dsa", f"{kind}/{name}", f"237:{minor}")
    return tree


def accelerators(root: Path) -> Tree:
    """DLB as a physical and as a virtual function, SGX, and an NPU beside another accelerator."""
    tree = Tree(root)
    tree.pci("pci0000:6d/0000:6d:00.0", driver="dlb2", files={"sriov_numvfs": "0"})
    tree.device("pci0000:6d/0000:6d:00.0/dlb2/dlb0", "dlb2", "dlb0", "235:0")
    tree.pci("pci0000:72/0000:72:00.1", driver="dlb2")
    tree.device("pci0000:72/0000:72:00.1/dlb2/dlb1", "dlb2", "dlb1", "235:1")
    tree.device("virtual/misc/sgx_enclave", "misc", "sgx_enclave", "10:125")
    tree.device("virtual/misc/sgx_provision", "misc", "sgx_provision", "10:126")
    for number, (address, driver) in enumerate(
        (("0000:00:0b.0", "intel_vpu"), ("0000:1a:00.0", "habanalabs"))
    ):
        function = f"pci{address[:7]}/{address}"
        tree.pci(function, driver=driver)
        tree.device(f"{function}/accel/accel{number}", "accel", f"accel/accel{number}", f"261:{number}")
    return tree


def instinct(root: Path) -> Tree:
    """Four MI210, which cannot be partitioned."""
    return of_plugin("gpu", "gpu_amd").mi210(root)


def partitioned(root: Path) -> Tree:
    """Eight MI300X in mode CPX: 64 partitions."""
    return of_plugin("gpu", "gpu_amd").mi300x(root, "CPX", "NPS4")
