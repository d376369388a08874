"""The ready configurations: each gives the machine it was written for exactly what its header says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.fixtures import request

from devhost.backend import Edits
from devhost.config import load
from devhost.discovery import catalog
from devhost.planning.planner import make_plan

CONFIG = Path(__file__).parents[3] / "config"


class Offered:
    """What a configuration makes of a machine: ids by resource, and what a container would get."""

    def __init__(self, file: str, machine: Any) -> None:
        settings = load(CONFIG / file, catalog.load)
        self.backend = machine.backend(
            *settings.backends["udev"].groups,  # type: ignore[attr-defined]
            wanted=tuple(settings.wanted("udev")),
        )
        self.plan = make_plan({"udev": self.backend.discover()}, settings)
        self.resources = {
            name: {offer.device.id: offer.replicas for offer in resource.offers}
            for name, resource in self.plan.resources.items()
        }

    def edits(self, resource: str) -> Edits:
        return self.backend.allocate(
            request(self.backend, [offer.device for offer in self.plan.resources[resource].offers])
        )


def virtual_machines(machine: Any) -> None:
    for name, minor, node in (
        ("kvm", 232, "kvm"),
        ("tun", 200, "net/tun"),
        ("vhost-net", 238, "vhost-net"),
        ("vhost-vsock", 241, "vhost-vsock"),
    ):
        machine.misc(name, minor, node)


def camera(machine: Any) -> None:
    interface = f"{machine.usb('1', '046d', '0825', 'C1')}/1-1:1.0"
    machine.device(interface, "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface")
    for n in (0, 1):
        path = f"{interface}/video4linux/video{n}"
        machine.device(path, "video4linux", f"video{n}", f"81:{n}", {"index": str(n)})


def security_chip(machine: Any) -> None:
    machine.device("platform/MSFT0101:00/tpm/tpm0", "tpm", "tpm0", "10:224")
    machine.device("platform/MSFT0101:00/tpmrm/tpmrm0", "tpmrm", "tpmrm0", "253:65536")


def test_nvme_offers_whole_data_disks_and_never_the_boot_disk(machine: Any) -> None:
    boot = machine.nvme("nvme0", "BOOT", "eui.b007", 0)
    machine.partition(boot, 1, "259:1")
    machine.nvme("nvme1", "DATA", "eui.da7a", 1, function="0000:3c:00.0")
    machine.disk("virtual/block/zram0", "253:0")
    machine.mounts("259:1 / /dev/nvme0n1p1")
    offered = Offered("examples/nvme.yaml", machine)
    assert offered.resources == {"example.com/nvme": {"block-eui.da7a": 1}}
    assert [node.path for node in offered.edits("example.com/nvme").nodes] == ["/dev/nvme1n1"]


def test_nvme_offers_nothing_if_the_boot_disk_is_unknown(machine: Any) -> None:
    machine.nvme("nvme0", "DATA", "eui.da7a", 0)
    assert Offered("examples/nvme.yaml", machine).resources == {}


def test_onload_is_what_the_plugin_of_its_operator_gives(machine: Any) -> None:
    """kubernetes-onload with setPreload: amd.com/onload, 100 of it, libraries in /opt/onload, nodes mrw."""
    for minor, name in enumerate(("onload", "onload_epoll", "sfc_char")):
        machine.misc(name, 100 + minor)
    libraries = ["libonload.so", "libonload.so.1.2.3", "libonload_ext.so", "libonload_ext.so.1"]
    for library in libraries:
        machine.node(f"/opt/onload/usr/lib64/{library}")
    offered = Offered("examples/onload.yaml", machine)
    assert offered.resources == {"amd.com/onload": {"onload": 100}}
    edits = offered.edits("amd.com/onload")
    assert {node.path: (node.permissions, node.required) for node in edits.nodes} == {
        "/dev/onload": ("mrw", True),
        "/dev/onload_epoll": ("mrw", True),
        "/dev/sfc_char": ("mrw", False),
    }
    paths = {f"/opt/onload/usr/lib64/{library}" for library in libraries}
    assert {mount.host_path for mount in edits.mounts} == paths
    assert {mount.container_path for mount in edits.mounts} == paths
    assert all(mount.read_only for mount in edits.mounts)
    assert edits.env == {"LD_PRELOAD": "/opt/onload/usr/lib64/libonload.so"}


def test_work_queues_of_dsa_and_iaa_have_the_names_of_intels_plugins(machine: Any) -> None:
    """intel-dsa-plugin and intel-iaa-plugin: wq-user-<mode>, enabled queues, /dev/char beside the node."""
    queues = (
        ("dsa", "wq0.0", "dedicated", "enabled", "user"),
        ("dsa", "wq0.1", "shared", "enabled", "user"),
        ("dsa", "wq0.2", "dedicated", "disabled", "user"),
        ("dsa", "wq0.3", "dedicated", "enabled", "kernel"),
        ("iax", "wq1.0", "shared", "enabled", "user"),
        ("iax", "wq1.1", "dedicated", "enabled", "user"),
    )
    for minor, (kind, name, mode, state, user) in enumerate(queues):
        function = f"pci0000:6a/0000:6a:0{'1' if kind == 'dsa' else '2'}.0"
        machine.pci(function, driver="idxd")
        queue = f"{function}/{kind}{name[2]}/{name}"
        machine.device(queue, "dsa", files={"mode": mode, "state": state, "type": user})
        machine.device(f"{queue}/{kind}!{name}", "dsa", f"{kind}/{name}", f"237:{minor}")
    offered = Offered("examples/intel-dsa-iaa.yaml", machine)
    given = {name: [node.path for node in offered.edits(name).nodes] for name in offered.resources}
    assert given == {
        "dsa.intel.com/wq-user-dedicated": ["/dev/dsa/wq0.0"] * 2,
        "dsa.intel.com/wq-user-shared": ["/dev/dsa/wq0.1"] * 2,
        "iaa.intel.com/wq-user-dedicated": ["/dev/iax/wq1.1"] * 2,
        "iaa.intel.com/wq-user-shared": ["/dev/iax/wq1.0"] * 2,
    }
    for name, number in (
        ("dsa.intel.com/wq-user-dedicated", "237:0"),
        ("iaa.intel.com/wq-user-shared", "237:4"),
    ):
        node, by_number = offered.edits(name).nodes
        assert (by_number.path, by_number.container_path) == (node.path, f"/dev/char/{number}")
    assert [*offered.resources["dsa.intel.com/wq-user-shared"].values()] == [10]


def test_kvm_offers_each_node_many_times(machine: Any) -> None:
    virtual_machines(machine)
    assert Offered("examples/kvm.yaml", machine).resources == {
        "example.com/kvm": {"misc-kvm": 250},
        "example.com/tun": {"misc-tun": 250},
        "example.com/vhost-net": {"misc-vhost-net": 250},
        "example.com/vhost-vsock": {"misc-vhost-vsock": 250},
    }


def test_usb_serial_separates_the_single_adapter_from_the_pool(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A50285BI", "0403", "6001")
    machine.usb_serial("ttyUSB1", "2", "B1", "0403", "6001")
    machine.usb_serial("ttyUSB2", "3")
    assert Offered("examples/usb-serial.yaml", machine).resources == {
        "example.com/meter": {"tty-0403:6001-A50285BI-00": 1},
        "example.com/ftdi": {"tty-0403:6001-B1-00": 1},
        "example.com/ch340": {"tty-1a86:7523-0000:00:14.0-usb3-00": 1},
    }


def test_video4linux_offers_only_the_capture_node_of_a_camera(machine: Any) -> None:
    camera(machine)
    offered = Offered("examples/video4linux.yaml", machine)
    assert offered.resources == {"example.com/camera": {"video4linux-046d:0825-C1-00": 1}}
    assert [node.path for node in offered.edits("example.com/camera").nodes] == ["/dev/video0"]


def test_tpm_offers_the_resource_manager_and_not_the_bare_chip(machine: Any) -> None:
    security_chip(machine)
    offered = Offered("examples/tpm.yaml", machine)
    assert offered.resources == {"example.com/tpm": {"tpmrm-tpmrm0": 10}}


def test_the_default_configuration_offers_what_a_usual_machine_has(machine: Any) -> None:
    machine.misc("fuse", 229)
    virtual_machines(machine)
    camera(machine)
    security_chip(machine)
    machine.usb_serial("ttyUSB0", "2", "A10B")
    machine.disk("virtual/block/loop0", "7:0")
    machine.disk("virtual/block/zram0", "253:0")
    root = machine.nvme("nvme0", "BOOT", "eui.b007", 0)
    machine.pci("pci0000:00/0000:00:02.0", driver="i915")
    for name, minor in (("card0", 0), ("renderD128", 128)):
        machine.device(f"pci0000:00/0000:00:02.0/drm/{name}", "drm", f"dri/{name}", f"226:{minor}")
    machine.mounts("259:0 / /dev/nvme0n1")
    assert root
    offered = Offered("devhost.yaml", machine)
    assert offered.resources == {
        "devhost.dev/fuse": {"misc-fuse": 100},
        "devhost.dev/kvm": {"misc-kvm": 100},
        "devhost.dev/tun": {"misc-tun": 100},
        "devhost.dev/vhost-net": {"misc-vhost-net": 100},
        "devhost.dev/vhost-vsock": {"misc-vhost-vsock": 100},
        "devhost.dev/zram": {"block-zram0": 1},
        "devhost.dev/render": {"drm-0000:00:02.0-renderD": 4},
        "devhost.dev/serial": {"tty-1a86:7523-A10B-00": 1},
        "devhost.dev/video": {"video4linux-046d:0825-C1-00": 1},
    }
    assert offered.plan.refusals == ()


def test_what_can_change_the_node_is_offered_only_after_its_entry_is_uncommented(
    machine: Any, tmp_path: Path
) -> None:
    security_chip(machine)
    machine.disk("virtual/block/loop0", "7:0")
    machine.device("platform/soc/gpiochip0", "gpio", "gpiochip0", "254:0")
    machine.device("platform/soc/i2c-1/i2c-dev/i2c-1", "i2c-dev", "i2c-1", "89:1")
    machine.device("platform/soc/spi0.0/spidev/spidev0.0", "spidev", "spidev0.0", "153:0")
    assert Offered("devhost.yaml", machine).resources == {}
    lines = (CONFIG / "devhost.yaml").read_text().splitlines()
    entries = [re.sub("^  # (- name|  [a-z]+:)", r"  \1", line) for line in lines]
    (tmp_path / "devhost.yaml").write_text("\n".join(entries))
    offered = Offered(str(tmp_path / "devhost.yaml"), machine).resources
    assert {name: list(devices.values()) for name, devices in offered.items()} == {
        "devhost.dev/loop": [1],
        "devhost.dev/tpm": [10],
        "devhost.dev/gpio": [1],
        "devhost.dev/i2c": [1],
        "devhost.dev/spi": [1],
    }


def test_a_disk_and_its_partition_are_never_offered_both(machine: Any) -> None:
    disk = machine.nvme("nvme0", "A", "eui.a", 0)
    machine.partition(disk, 1, "259:1")
    devices = {d.id: d for d in machine.backend().discover()}
    whole, part = devices["block-eui.a"], devices["block-eui.a-part1"]
    assert whole.claims & part.part_of == {"block:259:0"}
    assert devices["nvme-A"].part_of == whole.part_of == {"pci:0000:3b:00.0"}


OF_THIS_BACKEND = [
    path.name for path in (CONFIG / "examples").glob("*.yaml") if "backend: udev" in path.read_text()
]


@pytest.mark.parametrize("file", sorted(OF_THIS_BACKEND))
def test_every_example_states_its_purpose(file: str) -> None:
    first = (CONFIG / "examples" / file).read_text().splitlines()[0]
    assert first.startswith("# ")
    assert f'Offered("examples/{file}"' in Path(__file__).read_text()
