"""The profiles of accelerators for AI: what a container gets is what the vendor's plugin gives.

A machine has only what the file's sources name. Where a driver is not public, its nodes are in ``/dev`` only.
Each ``gives`` repeats what the plugin's Allocate answers for devices with these numbers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from profiles import PROFILES, everything
from program import devhost

FILES = {file.stem: file for file in PROFILES}


@dataclass(frozen=True)
class Given:
    """The answer for a container: nodes with their rights, and mounts, which are read-only if true."""

    nodes: frozenset[tuple[str, str]]
    mounts: Mapping[str, bool] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cdi: frozenset[str] = frozenset()


def given(
    nodes: Iterable[str],
    *,
    permissions: str = "rw",
    mounts: Iterable[str] = (),
    written: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    cdi: Iterable[str] = (),
) -> Given:
    everything = dict.fromkeys(mounts, True) | dict.fromkeys(written, False)
    return Given(
        frozenset((node, "".join(sorted(permissions))) for node in nodes),
        everything,
        env or {},
        frozenset(cdi),
    )


@dataclass(frozen=True)
class Kind:
    """A profile on a machine.

    Attributes:
        profile: the file.
        resource: the resource that its devices are of.
        machine: adds the devices.
        gives: the vendor's answer for devices with these numbers.
        fault: a node or a file of one of the devices.
        text: what a file has while the device is faulty; a node is missing.
        first: the number of the first device.
        count: the devices of the machine.
        replicas: how many containers share one.
        ids: the ids, where the header promises them.
    """

    profile: str
    resource: str
    machine: Callable[[Tree], None]
    gives: Callable[[Sequence[int]], Given]
    fault: str
    text: str = ""
    first: int = 0
    count: int = 2
    replicas: int = 1
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.profile}-{self.resource.partition('/')[2]}"

    @property
    def numbers(self) -> range:
        """The numbers of the devices."""
        return range(self.first, self.first + self.count)

    @property
    def lost(self) -> int:
        """How many devices the fault concerns: all, if each of them has this path."""
        paths = [{*own.mounts, *dict(own.nodes)} for own in (self.gives([n]) for n in self.numbers)]
        return self.count if all(self.fault in one for one in paths) else 1


def joined(texts: Iterable[object]) -> str:
    return ",".join(map(str, texts))


def vfio(machine: Tree, address: str, device: str, group: int) -> None:
    """A function of Google bound to vfio-pci (drivers/vfio/group.c)."""
    machine.function(address, f"1ae0:{device}", "vfio-pci", pci_class="0x120000", group=group)
    machine.device("virtual/misc/vfio", "misc", "vfio/vfio", "10:196")
    machine.device(f"virtual/vfio/{group}", "vfio", f"vfio/{group}", f"243:{group}")


def logs(machine: Tree) -> None:
    (machine.root / "tmp/tpu_logs").mkdir(parents=True)


def tpu(machine: Tree) -> None:
    logs(machine)
    for n in range(4):
        vfio(machine, f"0000:00:{4 + n:02x}.0", "0063", n)
    machine.function("0000:00:0c.0", "1ae0:0042", "gvnic")


SLICE = {
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434",
    "TPU_TOPOLOGY": "2x2",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_TOPOLOGY_ALT": "false",
    "ALT": "false",
    "TPU_TOPOLOGY_WRAP": "false,false,false",
    "WRAP": "false,false,false",
    "TPU_HOST_BOUNDS": "1,1,1",
    "HOST_BOUNDS": "1,1,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""InitEnvs of the plugin for a node with 4 chips that is a whole slice of v5e."""


def of_tpu(numbers: Sequence[int]) -> Given:
    groups = [f"/dev/vfio/{n}" for n in numbers]
    return given([*groups, "/dev/vfio/vfio"], permissions="mrw", written=["/tmp/tpu_logs"], env=SLICE)


def tpu_v7x(machine: Tree) -> None:
    logs(machine)
    for chip in range(4):
        for half in range(2):
            vfio(machine, f"0000:00:{4 + chip:02x}.{half}", "0076", 2 * chip + half)


def of_tpu_v7x(numbers: Sequence[int]) -> Given:
    groups = [f"/dev/vfio/{2 * n + half}" for n in numbers for half in range(2)]
    env = {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434,8435,8436,8437,8438",
    }
    return given([*groups, "/dev/vfio/vfio"], permissions="mrw", written=["/tmp/tpu_logs"], env=env)


def tpu_v4(machine: Tree) -> None:
    logs(machine)
    bare(machine, *(f"accel{n}" for n in range(2)))
    (machine.root / "dev/accel").mkdir()


def of_tpu_v4(numbers: Sequence[int]) -> Given:
    env = {name: SLICE[name] for name in ("TPU_SKIP_MDS_QUERY", "TPU_RUNTIME_METRICS_PORTS")}
    nodes = [f"/dev/accel{n}" for n in numbers]
    return given(nodes, permissions="mrw", written=["/tmp/tpu_logs"], env=env)


def bare(machine: Tree, *names: str) -> None:
    """Nodes of a driver that is not public."""
    for minor, name in enumerate(names):
        machine.node(f"/dev/{name}", f"c235:{minor}")


def accel(ids: str, driver: str) -> Callable[[Tree], None]:
    """Functions with a node each (drivers/accel/drm_accel.c)."""

    def add(machine: Tree) -> None:
        for n in range(2):
            function = machine.function(f"0000:{0x41 + n:x}:00.0", ids, driver, pci_class="0x120000")
            parent = function.removeprefix("/sys/devices/")
            machine.device(f"{parent}/accel/accel{n}", "accel", f"accel/accel{n}", f"261:{n}")

    return add


def of_accel(numbers: Sequence[int]) -> Given:
    return given(f"/dev/accel/accel{n}" for n in numbers)


def rocket(machine: Tree) -> None:
    """One node on a platform device without a driver, beside the cores (rocket_drv.c)."""
    for core in ("fdab0000", "fdac0000", "fdad0000"):
        machine.device(f"platform/{core}.npu", "platform", DRIVER="rocket")
    machine.device("platform/rknn", "platform")
    machine.device("platform/rknn/accel/accel0", "accel", "accel/accel0", "261:0")


def ascend(machine: Tree) -> None:
    bare(machine, "davinci0", "davinci1", "davinci_manager", "hisi_hdc", "devmm_svm")


def of_ascend(numbers: Sequence[int]) -> Given:
    names = [*(f"davinci{n}" for n in numbers), "davinci_manager", "hisi_hdc", "devmm_svm"]
    return given((f"/dev/{name}" for name in names), env={"ASCEND_VISIBLE_DEVICES": joined(numbers)})


CAMBRICON = ("cambricon_dev{}", "cambr-msgq:{}", "cambr-rpc:{}", "cmsg_ctrl{}", "commu{}", "cambricon_ipcm{}")


def cambricon(machine: Tree) -> None:
    own = [name.format(n) for name in CAMBRICON for n in range(2)]
    bare(machine, *own, "cambricon_ctl", "cambricon_gdr")
    machine.file("/usr/bin/cnmon")


def of_cambricon(numbers: Sequence[int]) -> Given:
    names = [name.format(n) for name in CAMBRICON for n in numbers]
    nodes = [f"/dev/{name}" for name in (*names, "cambricon_ctl", "cambricon_gdr")]
    return given(nodes, mounts=["/usr/bin/cnmon"])


def drm(ids: str, driver: str, *others: str) -> Callable[[Tree], None]:
    """Cards with two DRM nodes each beside the graphics of a BMC, which has one, and what all cards share."""

    def add(machine: Tree) -> None:
        bmc = machine.function("0000:04:00.0", "1a03:2000", "ast", pci_class="0x030000")
        parent = bmc.removeprefix("/sys/devices/")
        machine.device(f"{parent}/drm/card2", "drm", "dri/card2", "226:2", DEVTYPE="drm_minor")
        for n in range(2):
            card = machine.function(f"0000:{0x9F + n:x}:00.0", ids, driver, pci_class="0x038000")
            parent = card.removeprefix("/sys/devices/")
            for name, minor in ((f"card{n}", n), (f"renderD{128 + n}", 128 + n)):
                place, node = f"{parent}/drm/{name}", f"dri/{name}"
                machine.device(place, "drm", node, f"226:{minor}", DEVTYPE="drm_minor")
        bare(machine, *others)
        machine.file("/opt/hyhal/lib/libhydmi.so")

    return add


def of_drm(*others: str, mounts: Iterable[str] = ()) -> Callable[[Sequence[int]], Given]:
    def gives(numbers: Sequence[int]) -> Given:
        nodes = [f"/dev/dri/{name}" for n in numbers for name in (f"card{n}", f"renderD{128 + n}")]
        return given([*nodes, *others], mounts=mounts)

    return gives


def iluvatar(machine: Tree) -> None:
    bare(machine, "iluvatar0", "iluvatar1", "itrctl")


def biren(machine: Tree) -> None:
    bare(machine, "biren/card_0", "biren/card_1")


def of_biren(numbers: Sequence[int]) -> Given:
    names = [f"card_{n}" for n in numbers]
    return given((f"/dev/biren/{name}" for name in names), env={"BR_PHY_CARDS": joined(names)})


def kunlunxin(machine: Tree) -> None:
    bare(machine, "xpu0", "xpu1", "xpuctrl")


RNGD = (
    *("mgmt", "dmar", "bar0", "bar2", "bar4"),
    *(
        "pe0",
        "pe1",
        "pe0-1",
        "pe2",
        "pe3",
        "pe2-3",
        "pe0-3",
        "pe4",
        "pe5",
        "pe4-5",
        "pe6",
        "pe7",
        "pe6-7",
        "pe4-7",
    ),
    *(f"ch{n}{end}" for n in range(8) for end in ("", "r")),
)
"""What the plugin gives of each card: DeviceFiles of a card in the vendor's library, and rngd.go."""


def furiosa(machine: Tree) -> None:
    bare(machine, *(f"rngd/npu{n}{name}" for n in range(2) for name in (*RNGD, "p2pmem")))


def of_furiosa(numbers: Sequence[int]) -> Given:
    return given(f"/dev/rngd/npu{n}{name}" for n in numbers for name in RNGD)


def rebellions(machine: Tree) -> None:
    bare(machine, "rsd0")
    for n, product in enumerate(("RBLN-CA25", "RBLN-CA25", "RBLN-CR03")):
        name = f"rbln{n}"
        files = {"card_name": product, "status": "0"}
        machine.device(f"virtual/rebellions/{name}", "rebellions", name, f"236:{n}", files)


def of_rebellions(numbers: Sequence[int]) -> Given:
    return given([*(f"/dev/rbln{n}" for n in numbers), "/dev/rsd0"], cdi=["rebellions.ai/npu=runtime"])


def tenstorrent(machine: Tree) -> None:
    machine.file("/dev/hugepages-1G/tenstorrent")
    for n, (ids, product) in enumerate(
        (("1e52:401e", "n300"), ("1e52:401e", "n300"), ("1e52:b140", "p150a"))
    ):
        function = machine.function(f"0000:{0x31 + n:x}:00.0", ids, "tenstorrent", pci_class="0x120000")
        parent, node = function.removeprefix("/sys/devices/"), f"tenstorrent/{n}"
        files = {"tt_card_type": product, "tt_heartbeat": "12345"}
        machine.device(f"{parent}/tenstorrent/tenstorrent!{n}", "tenstorrent", node, f"238:{n}", files)


def of_tenstorrent(numbers: Sequence[int]) -> Given:
    nodes = [f"/dev/tenstorrent/{n}" for n in numbers]
    env = {"TT_VISIBLE_DEVICES": joined(numbers)}
    return given(nodes, mounts=["/sys"], written=["/dev/hugepages-1G"], env=env)


RUNTIME = ("/usr/local/lib/libdxrt.so.3", "/usr/local/lib/libonnxruntime.so.1", "/usr/local/bin/dxrt-cli")


def deepx(machine: Tree) -> None:
    """Nodes on no hardware (dxrt_drv_cdev.c, ``device_create`` without a parent)."""
    for n in range(2):
        machine.device(f"virtual/dxrt/dxrt{n}", "dxrt", f"dxrt{n}", f"507:{n}")
    for path in RUNTIME:
        machine.file(path)


def of_deepx(numbers: Sequence[int]) -> Given:
    return given((f"/dev/dxrt{n}" for n in numbers), mounts=RUNTIME)


def mobilint(machine: Tree) -> None:
    bare(machine, "aries0", "aries1")


def hailo(subsystem: str, name: str, ids: str, driver: str) -> Callable[[Tree], None]:
    """Functions with a node each (linux/pcie/src/pcie.c)."""

    def add(machine: Tree) -> None:
        for n in range(2):
            function = machine.function(f"0000:{1 + n:02x}:00.0", ids, driver, pci_class="0x0b4000")
            place = f"{function.removeprefix('/sys/devices/')}/{subsystem}/{name}{n}"
            machine.device(place, subsystem, f"{name}{n}", f"239:{n}")

    return add


def coral_pcie(machine: Tree) -> None:
    """Functions with a node and a status each (src/gasket_core.c)."""
    for n in range(2):
        function = machine.function(f"0000:{3 + n:02x}:00.0", "1ac1:089a", "apex", pci_class="0x0880ff")
        place = f"{function.removeprefix('/sys/devices/')}/apex/apex_{n}"
        files = {"status": "ALIVE", "temp": "45300", "trip_point0_temp": "85000"}
        machine.device(place, "apex", f"apex_{n}", f"120:{n}", files)


def coral_usb(machine: Tree) -> None:
    """Two sticks with firmware, and one without."""
    machine.function("0000:00:14.0", "8086:7ae0", "xhci_hcd", pci_class="0x0c0330")
    hub = "pci0000:00/0000:00:14.0/usb2"
    machine.device(hub, "usb", DEVTYPE="usb_device", DRIVER="usb")
    for n, (vendor, product) in enumerate((("18d1", "9302"), ("18d1", "9302"), ("1a6e", "089a"))):
        files = {"idVendor": vendor, "idProduct": product, "devpath": str(n + 1)}
        more = {"DEVTYPE": "usb_device", "DRIVER": "usb"}
        machine.device(f"{hub}/2-{n + 1}", "usb", f"bus/usb/002/{n:03}", f"189:{128 + n}", files, **more)


KINDS = [
    Kind("google-tpu", "google.com/tpu", tpu, of_tpu, "/dev/vfio/0", count=4),
    Kind(
        "google-tpu-v7x",
        "google.com/tpu",
        tpu_v7x,
        of_tpu_v7x,
        "/dev/vfio/1",
        count=4,
        ids=tuple(f"0000:00:{4 + n:02x}" for n in range(4)),
    ),
    Kind("google-tpu-v4", "google.com/tpu", tpu_v4, of_tpu_v4, "/dev/accel0"),
    Kind("qualcomm-cloud-ai", "qualcomm.com/qaic", accel("17cb:a100", "qaic"), of_accel, "/dev/accel/accel0"),
    Kind("intel-npu", "npu.intel.com/accel", accel("8086:643e", "intel_vpu"), of_accel, "/dev/accel/accel0"),
    Kind("amd-npu", "amd.com/npu", accel("1022:17f0", "amdxdna"), of_accel, "/dev/accel/accel0"),
    Kind("rockchip-npu", "rockchip.com/npu", rocket, of_accel, "/dev/accel/accel0", count=1, replicas=8),
    Kind("huawei-ascend", "huawei.com/Ascend910", ascend, of_ascend, "/dev/davinci_manager"),
    Kind("cambricon-mlu", "cambricon.com/mlu", cambricon, of_cambricon, "/dev/cambricon_dev0"),
    Kind(
        "hygon-hcu",
        "hygon.com/hcu",
        drm("1d94:54b7", "hycu", "kfd", "mkfd"),
        of_drm("/dev/kfd", "/dev/mkfd", mounts=["/opt/hyhal"]),
        "/dev/dri/renderD128",
        ids=("0000:9f:00.0", "0000:a0:00.0"),
    ),
    Kind(
        "metax",
        "metax-tech.com/gpu",
        drm("9999:0a01", "metax", "mxcd"),
        of_drm("/dev/mxcd"),
        "/dev/dri/renderD128",
    ),
    Kind(
        "iluvatar",
        "iluvatar.com/gpu",
        iluvatar,
        lambda numbers: given([*(f"/dev/iluvatar{n}" for n in numbers), "/dev/itrctl"]),
        "/dev/iluvatar0",
    ),
    Kind("biren", "birentech.com/gpu", biren, of_biren, "/dev/biren/card_0"),
    Kind(
        "kunlunxin-xpu",
        "kunlunxin.com/xpu",
        kunlunxin,
        lambda numbers: given([*(f"/dev/xpu{n}" for n in numbers), "/dev/xpuctrl"]),
        "/dev/xpu0",
    ),
    Kind("furiosa-rngd", "furiosa.ai/rngd", furiosa, of_furiosa, "/dev/rngd/npu0bar2"),
    Kind(
        "rebellions",
        "rebellions.ai/ATOM",
        rebellions,
        of_rebellions,
        "/sys/devices/virtual/rebellions/rbln0/status",
        "3",
    ),
    Kind("rebellions", "rebellions.ai/REBEL", rebellions, of_rebellions, "/dev/rsd0", first=2, count=1),
    Kind(
        "tenstorrent",
        "tenstorrent.com/n300",
        tenstorrent,
        of_tenstorrent,
        "/dev/tenstorrent/0",
        ids=("tenstorrent-0000:31:00.0", "tenstorrent-0000:32:00.0"),
    ),
    Kind(
        "tenstorrent",
        "tenstorrent.com/blackhole",
        tenstorrent,
        of_tenstorrent,
        "/dev/tenstorrent/2",
        first=2,
        count=1,
    ),
    Kind("deepx", "deepx.ai/dx-m1", deepx, of_deepx, "/dev/dxrt0"),
    Kind(
        "mobilint",
        "mobilint.com/npu",
        mobilint,
        lambda numbers: given(f"/dev/aries{n}" for n in numbers),
        "/dev/aries0",
    ),
    Kind(
        "hailo",
        "hailo.ai/npu",
        hailo("hailo_chardev", "hailo", "1e60:2864", "hailo"),
        lambda numbers: given(f"/dev/hailo{n}" for n in numbers),
        "/dev/hailo0",
    ),
    Kind(
        "hailo",
        "hailo.ai/npu",
        hailo("hailo1x", "h1x-", "1e60:45c4", "hailo1x"),
        lambda numbers: given(f"/dev/h1x-{n}" for n in numbers),
        "/dev/h1x-0",
    ),
    Kind(
        "coral-edge-tpu",
        "coral.ai/tpu",
        coral_pcie,
        lambda numbers: given(f"/dev/apex_{n}" for n in numbers),
        "/sys/devices/pci0000:03/0000:03:00.0/apex/apex_0/status",
        "DEAD",
    ),
    Kind(
        "coral-edge-tpu",
        "coral.ai/tpu",
        coral_usb,
        lambda numbers: given(f"/dev/bus/usb/002/{n:03}" for n in numbers),
        "/dev/bus/usb/002/000",
    ),
]


def answer(started: Any) -> Given:
    """What a container was given, without the variables of the sriov backend that no vendor sets."""
    assert all(one.host_path == one.container_path for one in (*started.devices, *started.mounts))
    assert not started.annotations
    return Given(
        frozenset((one.host_path, "".join(sorted(one.permissions))) for one in started.devices),
        {one.host_path: one.read_only for one in started.mounts},
        {name: value for name, value in started.envs.items() if not name.startswith("PCIDEVICE_")},
        frozenset(one.name for one in started.cdi_devices),
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as made:
        yield made


def use(node: Node, kind: Kind) -> None:
    kind.machine(Tree(node.root))
    text = FILES[kind.profile].read_text(encoding="utf-8")
    node.configure(text.replace("version: 1\n", ""))


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_container_gets_what_the_vendors_plugin_gives(node: Node, kind: Kind) -> None:
    use(node, kind)
    async with node.served({kind.resource: kind.count * kind.replicas}):
        one = answer(await node.container({kind.resource: 1}))
        assert one in [kind.gives([n]) for n in kind.numbers]
        assert answer(await node.container({kind.resource: kind.count})) == kind.gives(kind.numbers)
        assert not kind.ids or node.kubelet.healthy(kind.resource) == set(kind.ids)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_fault_makes_a_device_unhealthy_until_it_ends(node: Node, kind: Kind) -> None:
    use(node, kind)
    file = node.root / kind.fault.lstrip("/")
    away = file.with_name(f".{file.name}")
    async with node.served({kind.resource: kind.count * kind.replicas}):
        if kind.text:
            before = file.read_text(encoding="utf-8")
            file.write_text(f"{kind.text}\n", encoding="utf-8")
        else:
            file.rename(away)
        node.look()
        await node.offers({kind.resource: (kind.count - kind.lost) * kind.replicas})
        if kind.text:
            file.write_text(before, encoding="utf-8")
        else:
            away.rename(file)
        node.look()
        await node.offers({kind.resource: kind.count * kind.replicas})


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_no_profile_takes_the_devices_of_another(node: Node, kind: Kind) -> None:
    kind.machine(Tree(node.root))
    node.configure(everything())
    vendor = kind.resource.partition("/")[0]
    async with node.served():
        await node.until(lambda: kind.count * kind.replicas in node.kubelet.allocatable().values())
        assert {name.partition("/")[0] for name in node.kubelet.allocatable()} == {vendor}


NUMA = {
    *("biren", "cambricon-mlu", "furiosa-rngd", "google-tpu-v7x", "hygon-hcu", "iluvatar", "intel-npu"),
    *("rebellions", "tenstorrent"),
}
"""The profiles whose plugin reports NUMA nodes."""

UNKNOWN = {"amd-npu", "kunlunxin-xpu", "metax", "qualcomm-cloud-ai", "rockchip-npu"}
"""The profiles without a plugin, or whose plugin is not public."""


@pytest.mark.parametrize("kind", [one for one in KINDS if one.profile not in UNKNOWN], ids=str)
async def test_devices_have_the_numa_nodes_of_the_plugin_unless_the_profile_names_the_difference(
    node: Node, kind: Kind
) -> None:
    use(node, kind)
    async with node.served({kind.resource: kind.count * kind.replicas}):
        known = {bool(one.numa_nodes) for one in node.kubelet.devices(kind.resource)}
        named = "NUMA node" in FILES[kind.profile].read_text(encoding="utf-8")
        assert named or known == {kind.profile in NUMA}


async def test_a_rebellions_device_without_a_status_is_healthy(node: Node) -> None:
    (kind,) = (one for one in KINDS if one.resource == "rebellions.ai/ATOM")
    use(node, kind)
    (node.root / kind.fault.lstrip("/")).unlink()
    async with node.served():
        await node.offers({kind.resource: kind.count})


@pytest.mark.parametrize(("profile", "resource"), sorted({(one.profile, one.resource) for one in KINDS}))
def test_without_the_hardware_explain_gives_the_reason(tmp_path: Path, profile: str, resource: str) -> None:
    Tree(tmp_path)
    done = devhost("explain", resource, "--root", tmp_path, "--config", FILES[profile])
    reason = r"\(resources\[\d+\]\): 0 devices; the backend sees no devices"
    assert re.match(f"{re.escape(resource)} {reason}", done.stdout)
