"""What the backend says of a machine: attributes, health, and that nothing is read twice in vain."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devhost_udev.options import Group, Member
from devhost_udev.scan import Scan
from devhost_udev.sysfs import SysTree

from devhost.backend import HEALTHY, Device, Event

from .conftest import XHCI

ByNode = Callable[[list[Device]], dict[str, Device]]


def test_a_usb_serial_adapter_has_the_attributes_of_its_ancestors(machine: Any, by_node: ByNode) -> None:
    machine.usb_serial("ttyUSB0", "1.4", serial="A10B")
    tty = by_node(machine.backend().discover())["/dev/ttyUSB0"]
    assert tty.attributes == {
        "subsystem": "tty",
        "sysName": "ttyUSB0",
        "devNode": "/dev/ttyUSB0",
        "driver": "ch341-uart",
        "sysPath": "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-1.4/1-1.4:1.0/ttyUSB0/tty/ttyUSB0",
        "major": 188,
        "minor": 0,
        "idVendor": "1a86",
        "idProduct": "7523",
        "usbInterface": "00",
        "usbPort": "0000:00:14.0-usb1.4",
        "serial": "A10B",
        "vendor": "Acme",
        "model": "Gadget",
        "pciBusID": "0000:00:14.0",
        "pciVendor": "8086",
        "pciDevice": "0001",
    }
    assert tty.claims == {"node:/dev/ttyUSB0"}
    assert tty.part_of == {"pci:0000:00:14.0", "usb:0000:00:14.0-usb1.4"}


IDENTITY = ("serial", "vendor", "model")


@pytest.mark.parametrize("under", ["1", "1.4"], ids=["root hub", "hub"])
def test_a_usb_device_without_strings_has_none_of_the_hub_above_it(
    machine: Any, by_node: ByNode, under: str
) -> None:
    strings = {"serial": "0000:00:14.0", "manufacturer": "Linux 6.12.0 xhci-hcd", "product": "xHCI"}
    above = machine.usb("1", "05e3", "0610", "HUB0001") if under == "1.4" else XHCI
    machine.device(XHCI, "usb", "bus/usb/001/001", "189:0", strings, DEVTYPE="usb_device", DRIVER="usb")
    path = f"{above}/1-{under}"
    files = {"idVendor": "1a86", "idProduct": "7523", "devpath": under}
    machine.device(path, "usb", "bus/usb/001/009", "189:8", files, DEVTYPE="usb_device")
    interface = machine.interface(path)
    machine.device(f"{interface}/tty/ttyUSB0", "tty", "ttyUSB0", "188:0")
    found = by_node(machine.backend().discover())
    for node in ("/dev/ttyUSB0", "/dev/bus/usb/001/009"):
        assert not {*IDENTITY, "driver"} & found[node].attributes.keys()
        assert found[node].attributes["idVendor"] == "1a86"
    assert found["/dev/bus/usb/001/001"].attributes["serial"] == "0000:00:14.0"


def test_a_card_in_a_usb_reader_has_no_attribute_of_the_reader(machine: Any, by_node: ByNode) -> None:
    interface = machine.interface(machine.usb("2", "0bda", "0129", "READER1"), driver="rtsx_usb")
    card = f"{interface}/rtsx_usb_sdmmc.3.auto/mmc_host/mmc0/mmc0:0001"
    machine.device(card, "mmc", files={"name": "SD64G"}, DRIVER="mmcblk")
    machine.disk(f"{card}/block/mmcblk0", "179:0")
    attributes = by_node(machine.backend().discover())["/dev/mmcblk0"].attributes
    assert {name: attributes.get(name) for name in IDENTITY} == {
        "serial": None,
        "vendor": None,
        "model": "SD64G",
    }


def test_a_disk_in_a_usb_enclosure_has_the_serial_number_of_the_enclosure(
    machine: Any, by_node: ByNode
) -> None:
    interface = machine.interface(machine.usb("2", "152d", "0578", "BOX1"), driver="usb-storage")
    unit = f"{interface}/host6/target6:0:0/6:0:0:0"
    machine.device(unit, "scsi", files={"vendor": "WDC     ", "model": "WD40EFRX"}, DEVTYPE="scsi_device")
    machine.disk(f"{unit}/block/sdb", "8:16")
    attributes = by_node(machine.backend().discover())["/dev/sdb"].attributes
    assert [attributes[name] for name in IDENTITY] == ["BOX1", "WDC", "WD40EFRX"]


def test_a_disk_knows_its_numa_node_its_pcie_path_and_its_wwid(machine: Any, by_node: ByNode) -> None:
    machine.nvme("nvme0", "S4EW1", "eui.0025385b91b1a2c3", 0)
    disk = by_node(machine.backend().discover())["/dev/nvme0n1"]
    assert (disk.numa_nodes, disk.attributes["numaNode"]) == ((1,), 1)
    assert disk.pcie_path == ("0000:3a:00.0", "0000:3b:00.0")
    assert disk.attributes["wwid"] == "eui.0025385b91b1a2c3"
    assert (disk.attributes["serial"], disk.attributes["model"]) == ("S4EW1", "SAMSUNG MZQL2")
    assert disk.attributes["driver"] == "nvme"
    assert (disk.attributes["pciVendor"], disk.attributes["devType"]) == ("144d", "disk")


def test_a_disk_behind_native_multipath_leads_to_its_only_controller(machine: Any, by_node: ByNode) -> None:
    machine.nvme("nvme0", "S4EW1", "eui.00", 0)
    machine.device("virtual/nvme-subsystem/nvme-subsys1", "nvme-subsystem", files={"serial": "S9"})
    head = machine.root / "sys/devices/virtual/nvme-subsystem/nvme-subsys1"
    (head / "nvme0").symlink_to("../../../pci0000:3a/0000:3a:00.0/0000:3b:00.0/nvme/nvme0")
    machine.disk("virtual/nvme-subsystem/nvme-subsys1/nvme1n1", "259:9", {"wwid": "eui.77"})
    disk = by_node(machine.backend().discover())["/dev/nvme1n1"]
    assert disk.attributes["pciBusID"] == "0000:3b:00.0"
    assert disk.attributes["driver"] == "nvme"
    assert disk.id == "block-eui.77"


def test_numa_node_minus_one_means_no_numa_node(machine: Any, by_node: ByNode) -> None:
    machine.usb_serial("ttyUSB0", "1")
    tty = by_node(machine.backend().discover())["/dev/ttyUSB0"]
    assert tty.numa_nodes == ()
    assert "numaNode" not in tty.attributes


def test_udevd_properties_and_links_come_from_its_record(machine: Any, by_node: ByNode) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.udev_record("c188:0", "S:serial/by-id/usb-Acme", "E:ID_BUS=usb", "E:ID_MODEL=a=b", "G:systemd")
    tty = by_node(machine.backend().discover())["/dev/ttyUSB0"]
    assert tty.attributes["ID_BUS"] == "usb"
    assert tty.attributes["ID_MODEL"] == "a=b"
    assert tty.attributes["devLinks"] == ("/dev/serial/by-id/usb-Acme",)


def test_without_udevd_only_its_properties_are_missing(machine: Any, by_node: ByNode) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    without = by_node(machine.backend().discover())["/dev/ttyUSB0"]
    machine.udev_record("c188:0", "E:ID_BUS=usb")
    with_udevd = by_node(machine.backend().discover())["/dev/ttyUSB0"]
    assert with_udevd.id == without.id
    assert with_udevd.attributes == {**without.attributes, "ID_BUS": "usb"}


def test_only_wanted_sysfs_files_are_read(machine: Any, by_node: ByNode) -> None:
    machine.disk("virtual/block/zram0", "253:0", {"size": "0", "queue/rotational": "0", "disksize": "12"})
    backend = machine.backend(wanted=("sysattr.queue/rotational",))
    attributes = by_node(backend.discover())["/dev/zram0"].attributes
    assert attributes["sysattr.queue/rotational"] == "0"
    assert "sysattr.size" not in attributes
    backend.context.wanted = frozenset({"sysattr.disksize"})
    attributes = by_node(backend.discover())["/dev/zram0"].attributes
    assert attributes["sysattr.disksize"] == "12"
    assert "sysattr.queue/rotational" not in attributes


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("sysattr.../../misc/fuse/dev", "10:229"),
        ("sysattr.../../../../../etc/passwd", None),
        ("sysattr.../../../../kernel/debug/trace_pipe", None),
        ("sysattr.binary", None),
        ("sysattr.huge", None),
        ("sysattr.queue", None),
        ("sysattr.empty", None),
        ("sysattr.hot_add", None),
        ("sysattr.pipe", None),
        ("sysattr.no/such/file", None),
    ],
)
def test_a_sysfs_file_is_read_only_if_it_is_a_small_text_that_describes_a_device(
    machine: Any, by_node: ByNode, attribute: str, value: str | None
) -> None:
    machine.device("virtual/misc/fuse", "misc", "fuse", "10:229", {"dev": "10:229"})
    machine.disk("virtual/block/zram0", "253:0", {"queue/rotational": "0", "empty": "", "hot_add": "1"})
    here = machine.root / "sys/devices/virtual/block/zram0"
    (here / "binary").write_bytes(b"\0\xff\x01")
    (here / "huge").write_text("x" * 5000)
    os.mkfifo(here / "pipe")
    for outside in ("etc/passwd", "sys/kernel/debug/trace_pipe"):
        file = machine.root / outside
        file.parent.mkdir(parents=True)
        file.write_text("secret")
    found = by_node(machine.backend(wanted=(attribute,)).discover())["/dev/zram0"]
    assert found.attributes.get(attribute) == value


@pytest.mark.parametrize("serial", ["A1\nLD_PRELOAD=/evil.so", "A1\x1b[2J", "A1\udcff"])
def test_a_serial_number_that_is_not_one_line_of_text_is_left_out_and_named(
    machine: Any, by_node: ByNode, serial: str
) -> None:
    path = machine.usb("1", "1a86", "7523", "A10B")
    (machine.root / f"sys/devices/{path}/serial").write_bytes(serial.encode(errors="surrogateescape"))
    machine.usb_serial("ttyUSB0", "2", "B20C")
    (odd,) = [one for one in machine.backend().discover() if one.attributes["sysName"] == "1-1"]
    assert "serial" not in odd.attributes
    assert odd.left_out == {"serial"}
    assert by_node(machine.backend().discover())["/dev/ttyUSB0"].left_out == frozenset()


def test_a_device_is_unhealthy_while_its_node_is_missing(machine: Any) -> None:
    machine.misc("fuse", 229)
    backend = machine.backend()
    (before,) = backend.discover()
    assert before.health == HEALTHY
    (machine.root / "dev/fuse").unlink()
    (gone,) = backend.discover()
    assert (gone.id, gone.health.reason) == (before.id, "/dev/fuse is missing")
    assert backend.discover()[0] is gone
    machine.node("/dev/fuse")
    assert backend.discover()[0] is before


def test_without_dev_no_node_counts_as_missing(machine: Any) -> None:
    machine.misc("fuse", 229)
    (machine.root / "dev/fuse").unlink()
    (machine.root / "dev").rmdir()
    (device,) = machine.backend().discover()
    assert device.health == HEALTHY


def test_unchanged_rdma_devices_are_the_same_objects(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1")
    machine.misc("fuse", 229)
    backend = machine.backend()
    before = backend.discover()
    backend.notice(Event())
    after = backend.discover()
    assert [id(device) for device in after] == [id(device) for device in before]


def test_an_event_makes_only_the_devices_below_it_be_read_again(machine: Any, by_node: ByNode) -> None:
    tty = machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.misc("fuse", 229)
    backend = machine.backend()
    before = by_node(backend.discover())
    interface = tty.removesuffix("/ttyUSB0/tty/ttyUSB0")
    machine.udev_record("c188:0", "E:ID_BUS=usb")
    machine.udev_record("c10:229", "E:ID_BUS=none")
    backend.notice(Event("usb", "bind", interface))
    after = by_node(backend.discover())
    assert after["/dev/ttyUSB0"].attributes["ID_BUS"] == "usb"
    assert after["/dev/fuse"] is before["/dev/fuse"]
    backend.notice(Event())
    assert by_node(backend.discover())["/dev/fuse"].attributes["ID_BUS"] == "none"


def test_one_event_among_many_devices_reads_one_device(machine: Any) -> None:
    paths = [machine.misc(f"m{minor}", minor) for minor in range(300)]
    backend = machine.backend()
    before = {device.id: device for device in backend.discover()}
    for minor in range(300):
        machine.udev_record(f"c10:{minor}", "E:ID_MODEL=new")
    for path in paths[7:9]:
        backend.notice(Event("misc", "change", path))
    backend.notice(Event("misc", "change", "/sys/devices/virtual/mis"))
    changed = [device for device in backend.discover() if device is not before[device.id]]
    assert sorted(device.id for device in changed) == ["misc-m7", "misc-m8"]
    assert {device.attributes["ID_MODEL"] for device in changed} == {"new"}


def test_a_node_event_does_not_read_the_device_again(machine: Any) -> None:
    machine.misc("fuse", 229)
    backend = machine.backend()
    (before,) = backend.discover()
    machine.udev_record("c10:229", "E:ID_BUS=none")
    backend.notice(Event(action="node", dev_node="/dev/fuse"))
    assert backend.discover()[0] is before


def test_devices_appear_and_disappear_without_an_event(machine: Any) -> None:
    machine.misc("fuse", 229)
    backend = machine.backend()
    assert [d.id for d in backend.discover()] == ["misc-fuse"]
    path = machine.misc("kvm", 232)
    assert sorted(d.id for d in backend.discover()) == ["misc-fuse", "misc-kvm"]
    machine.remove(path)
    assert [d.id for d in backend.discover()] == ["misc-fuse"]


def test_an_empty_machine_has_no_devices(tmp_path: Path, machine: Any) -> None:
    for directory in ("sys", "dev"):
        (tmp_path / directory).rename(tmp_path / f"no-{directory}")
    assert machine.backend().discover() == []


def test_a_sysfs_that_cannot_be_listed_is_an_error_not_an_empty_machine(machine: Any) -> None:
    (machine.root / "sys/dev/char").rmdir()
    (machine.root / "sys/dev/char").touch()
    with pytest.raises(NotADirectoryError):
        machine.backend().discover()


def test_device_numbers_without_a_node_are_left_out(machine: Any) -> None:
    machine.device("virtual/misc/odd", "misc")
    (machine.root / "sys/dev/char/10:1").symlink_to("../../devices/virtual/misc/odd")
    (machine.root / "sys/dev/char/10:2").symlink_to("../../devices/virtual/misc/gone")
    (machine.root / "sys/dev/char/10:3").symlink_to("/etc")
    assert machine.backend().discover() == []


@pytest.mark.parametrize("name", ["odd\x01", "odd ", "odd/"])
def test_a_node_that_cannot_be_claimed_is_withheld_with_the_reason(machine: Any, name: str) -> None:
    machine.misc("fuse", 229)
    machine.device("virtual/misc/odd", "misc")
    machine.file("/sys/devices/virtual/misc/odd/uevent", f"MAJOR=10\nMINOR=5\nDEVNAME={name}\nEND=")
    machine.link("/sys/dev/char/10:5", "/sys/devices/virtual/misc/odd")
    fuse, odd = sorted(machine.backend().discover(), key=lambda device: device.id)
    assert (fuse.id, fuse.withheld) == ("misc-fuse", None)
    assert odd.withheld.startswith("it cannot be claimed: ")


def test_a_disk_whose_number_is_damaged_is_withheld_with_the_reason(machine: Any) -> None:
    path = machine.disk("virtual/block/zram0", "253:0")
    machine.file(f"/sys/devices/{path}/uevent", "MAJOR=x\nMINOR=0\nDEVNAME=zram0\nDEVTYPE=disk")
    (disk,) = machine.backend().discover()
    assert disk.withheld == "it cannot be claimed: 'x:0' is not the number of a block device such as 8:0"


def test_an_entry_that_is_not_a_device_number_is_ignored(machine: Any) -> None:
    machine.misc("fuse", 229)
    machine.link("/sys/dev/char/damaged", "/sys/devices/virtual/misc/fuse")
    assert [device.id for device in machine.backend().discover()] == ["misc-fuse"]


def test_a_group_with_a_node_that_cannot_be_claimed_is_unhealthy(machine: Any) -> None:
    machine.node("/dev/odd/a\x01")
    (device,) = machine.backend(Group("g", members=(Member("/dev/odd"),))).discover()
    assert (
        device.health.reason
        == "/dev/odd/a\x01: it cannot be claimed: '/dev/odd/a\\x01' is not a name that can be claimed"
    )


def test_the_disk_of_the_node_itself_is_distinguished_from_the_others(machine: Any, by_node: ByNode) -> None:
    boot = machine.nvme("nvme0", "A", "eui.a", 0)
    root = machine.partition(boot, 1, "259:1")
    machine.partition(boot, 2, "259:2")
    machine.nvme("nvme1", "B", "eui.b", 1, function="0000:3c:00.0")
    mapped = machine.disk("virtual/block/dm-0", "252:0", {"dm/name": "vg-root"})
    (machine.root / "sys/devices" / mapped / "slaves").mkdir()
    (machine.root / "sys/devices" / mapped / "slaves/nvme0n1p1").symlink_to(f"../../../../{root}")
    machine.mounts("252:0 / /dev/mapper/vg-root", "259:4 /mnt/data /dev/nvme1n1", "0:5 /proc proc")
    found = by_node(machine.backend().discover())
    system = {node: device.attributes.get("system") for node, device in found.items()}
    assert system == {
        "/dev/nvme0": None,
        "/dev/nvme0n1": True,
        "/dev/nvme0n1p1": True,
        "/dev/nvme0n1p2": False,
        "/dev/nvme1": None,
        "/dev/nvme1n1": False,
        "/dev/dm-0": True,
    }


def test_a_mount_without_a_number_is_found_by_its_source(machine: Any, by_node: ByNode) -> None:
    disk = machine.nvme("nvme0", "A", "eui.a", 0)
    machine.partition(disk, 3, "259:3")
    machine.mounts("0:35 / /dev/nvme0n1p3")
    assert by_node(machine.backend().discover())["/dev/nvme0n1"].attributes["system"] is True


def test_every_disk_of_a_btrfs_the_node_runs_on_is_a_system_disk(machine: Any, by_node: ByNode) -> None:
    for number, name in enumerate(("d", "e", "f")):
        machine.nvme(f"nvme{number}", name, f"eui.{name}", number, function=f"0000:3{name}:00.0")
    members = machine.root / "sys/fs/btrfs/0e5b/devices"
    members.mkdir(parents=True)
    for name in ("nvme0n1", "nvme1n1"):
        (members / name).touch()
    machine.mounts("0:35 / /dev/nvme0n1 btrfs")
    found = by_node(machine.backend().discover())
    assert [found[f"/dev/nvme{n}n1"].attributes["system"] for n in range(3)] == [True, True, False]


def test_swap_makes_a_system_disk(machine: Any, by_node: ByNode) -> None:
    machine.disk("virtual/block/zram0", "253:0")
    machine.mounts("0:5 /proc proc")
    swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 1 0 -2\n\n"
    (machine.root / "proc/swaps").write_text(swaps)
    assert by_node(machine.backend().discover())["/dev/zram0"].attributes["system"] is True


def test_a_pool_that_does_not_name_its_disks_leaves_the_question_open(machine: Any, by_node: ByNode) -> None:
    machine.nvme("nvme0", "A", "eui.a", 0)
    machine.mounts("0:35 / rpool/root zfs", "259:0 /boot/efi /dev/nvme0n1")
    assert "system" not in by_node(machine.backend().discover())["/dev/nvme0n1"].attributes


def test_if_no_mount_leads_to_a_disk_no_disk_counts_as_free(machine: Any, by_node: ByNode) -> None:
    machine.nvme("nvme0", "A", "eui.a", 0)
    machine.mounts("0:35 / overlay")
    assert "system" not in by_node(machine.backend().discover())["/dev/nvme0n1"].attributes


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_node_keeps_its_id_when_its_module_is_loaded(machine: Any) -> None:
    for name, number in (("net/tun", (10, 200)), ("ppp", (108, 0))):
        path = machine.root / "dev" / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, 0o020600, os.makedev(*number))
    backend = machine.backend()
    before = {d.id: d for d in backend.discover()}
    assert before.keys() == {"misc-tun", "dev-ppp"}
    assert before["dev-ppp"].attributes == {"devNode": "/dev/ppp", "sysName": "ppp", "major": 108, "minor": 0}
    machine.misc("tun", 200, "net/tun")
    machine.device("virtual/ppp/ppp", "ppp", "ppp", "108:0")
    after = {d.id: d for d in backend.discover()}
    assert after.keys() == before.keys()
    assert after["dev-ppp"].attributes["subsystem"] == "ppp"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_device_that_is_just_appearing_is_not_taken_for_an_unknown_node(machine: Any) -> None:
    class Late(SysTree):
        """Lists sysfs as it was before the device appeared."""

        def numbers(self) -> dict[str, int]:
            return {} if is_late else super().numbers()

    machine.disk("virtual/block/zram1", "253:1")
    (machine.root / "dev/zram1").unlink()
    os.mknod(machine.root / "dev/zram1", 0o060600, os.makedev(253, 1))
    is_late = True
    scan = Scan(machine.root, tree=Late(machine.root))
    scan.update(())
    assert scan.records == {}
    is_late = False
    scan.update(())
    assert [record.device.id for record in scan.records.values()] == ["block-zram1"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_second_node_of_a_known_device_is_a_separate_device(machine: Any, by_node: ByNode) -> None:
    machine.misc("fuse", 229)
    (machine.root / "dev/jail").mkdir()
    os.mknod(machine.root / "dev/jail/fuse", 0o020600, os.makedev(10, 229))
    found = by_node(machine.backend().discover())
    assert found.keys() == {"/dev/fuse", "/dev/jail/fuse"}
    assert found["/dev/fuse"].id == "misc-fuse"


MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


def test_the_nodes_of_a_mediated_device_have_its_uuid(machine: Any, by_node: ByNode) -> None:
    machine.device("virtual/vfio/12", "vfio", "vfio/12", "511:0")
    machine.device("virtual/vfio/13", "vfio", "vfio/13", "511:1")
    for group, names in {"12": [MDEV], "13": ["0000:3b:00.0", "0000:3b:00.1"]}.items():
        for name in names:
            (machine.root / f"sys/kernel/iommu_groups/{group}/devices/{name}").mkdir(parents=True)
    machine.device(f"pci0000:3a/0000:3a:00.0/{MDEV}", "mdev")
    unit = f"pci0000:3a/0000:3a:00.0/{MDEV}/vfio-dev/vfio0"
    machine.device(unit, "vfio-dev", "vfio/devices/vfio0", "510:0")
    found = by_node(machine.backend().discover())
    uuids = {node: device.attributes.get("mdevUUID") for node, device in found.items()}
    assert uuids == {"/dev/vfio/12": MDEV, "/dev/vfio/13": None, "/dev/vfio/devices/vfio0": MDEV}
