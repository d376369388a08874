"""Ids: the same thing has the same id tomorrow, in another port, beside others, and without udevd."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from devhost_udev.ids import fit, joined, legal

LEGAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,62}")


def test_a_usb_device_with_a_serial_number_keeps_its_id_in_another_port(machine: Any) -> None:
    tty = machine.usb_serial("ttyUSB0", "1.4", serial="A10B")
    before = machine.ids()["/dev/ttyUSB0"]
    machine.remove(tty.partition("/1-1.4")[0] + "/1-1.4")
    machine.usb_serial("ttyUSB7", "2", serial="A10B")
    assert machine.ids()["/dev/ttyUSB7"] == before == "tty-1a86:7523-A10B-00"


def test_a_usb_device_without_a_serial_number_is_known_by_its_port(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1.4")
    assert machine.ids()["/dev/ttyUSB0"] == "tty-1a86:7523-0000:00:14.0-usb1.4-00"


@pytest.mark.parametrize("serial", ["0", "00000000", "0123456789ABCDEF", "0123456789abcdef"])
def test_a_serial_number_that_does_not_identify_a_device_is_ignored(machine: Any, serial: str) -> None:
    machine.usb_serial("ttyUSB0", "1.4", serial=serial)
    assert machine.ids()["/dev/ttyUSB0"] == "tty-1a86:7523-0000:00:14.0-usb1.4-00"


def offered(backend: Any) -> dict[str, str]:
    """Node → id of what may be handed out."""
    return {str(d.attributes["devNode"]): d.id for d in backend.discover() if not d.withheld}


def test_devices_with_a_shared_serial_number_are_named_by_port(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", serial="A10B")
    machine.usb_serial("ttyUSB1", "2", serial="A10B")
    ids = offered(machine.backend(shared=("A10B",)))
    assert ids["/dev/ttyUSB0"] == "tty-1a86:7523-0000:00:14.0-usb1-00"
    assert ids["/dev/ttyUSB1"] == "tty-1a86:7523-0000:00:14.0-usb2-00"


def test_usb_devices_with_one_serial_number_are_named_by_their_ports_while_both_are_there(
    machine: Any,
) -> None:
    machine.usb_serial("ttyUSB0", "1", serial="A10B")
    machine.usb_serial("ttyUSB1", "2", serial="A10B")
    backend = machine.backend()
    ids = offered(backend)
    assert ids["/dev/ttyUSB0"] == "tty-1a86:7523-A10B-0000:00:14.0-usb1-00"
    assert ids["/dev/ttyUSB1"] == "tty-1a86:7523-A10B-0000:00:14.0-usb2-00"
    before = {"tty-1a86:7523-A10B-00"}  # what a container holds under this id may be either
    assert all(before <= set(d.former_ids) for d in backend.discover() if d.attributes["subsystem"] == "tty")


def test_a_device_has_its_id_again_when_the_one_with_the_same_serial_number_has_gone(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", serial="A10B")
    backend = machine.backend()
    before = offered(backend)
    clone = machine.usb_serial("ttyUSB1", "2", serial="A10B")
    assert offered(backend)["/dev/ttyUSB0"] != before["/dev/ttyUSB0"]
    backend.notice(machine.remove(clone.partition("/1-2/")[0] + "/1-2"))
    assert offered(backend) == before
    assert before["/dev/ttyUSB0"] == "tty-1a86:7523-A10B-00"


@pytest.mark.parametrize("serial", ["0001", "00000002", "SN0001", "200901010001"])
def test_a_serial_number_that_only_counts_does_not_name_a_device(machine: Any, serial: str) -> None:
    machine.usb_serial("ttyUSB0", "1", serial=serial)
    machine.usb_serial("ttyUSB1", "2", serial=serial)
    ids = offered(machine.backend())
    assert ids["/dev/ttyUSB0"] == "tty-1a86:7523-0000:00:14.0-usb1-00"
    assert ids["/dev/ttyUSB1"] == "tty-1a86:7523-0000:00:14.0-usb2-00"


def test_two_paths_to_one_disk_are_not_two_disks(machine: Any) -> None:
    for name, host, minor in (("sda", 2, 0), ("sdb", 3, 16)):
        lun = scsi(machine, "pci0000:00/0000:00:05.0", host, 0, wwid="naa.500a")
        machine.disk(f"{lun}/block/{name}", f"8:{minor}")
    first, second = sorted(machine.backend().discover(), key=lambda device: device.id)
    assert (first.id, second.id) == ("block-naa.500a@sda", "block-naa.500a@sdb")
    assert first.withheld.startswith("/dev/sdb has the same world-wide id naa.500a: use the multipath device")


def scsi(machine: Any, function: str, host: int, lun: int, wwid: str = "", above: str = "") -> str:
    """A SCSI device: its path below /sys/devices."""
    machine.pci(function)
    path = f"{function}{above}/host{host}/target{host}:0:0/{host}:0:0:{lun}"
    machine.device(path, "scsi", files={"wwid": wwid} if wwid else {}, DEVTYPE="scsi_device")
    return path


def test_nodes_of_one_device_have_different_ids(machine: Any) -> None:
    machine.pci("pci0000:00/0000:00:02.0", driver="i915")
    for name, minor in (("card0", 0), ("renderD128", 128)):
        machine.device(f"pci0000:00/0000:00:02.0/drm/{name}", "drm", f"dri/{name}", f"226:{minor}")
    keyboard = machine.usb("3", "046d", "c31c", "K1")
    interface = f"{keyboard}/1-3:1.0"
    machine.device(interface, "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface")
    for n in (4, 5):
        machine.device(f"{interface}/input/input{n}/event{n}", "input", f"input/event{n}", f"13:{64 + n}")
    ids = machine.ids()
    assert ids["/dev/dri/card0"] == "drm-0000:00:02.0-card"
    assert ids["/dev/dri/renderD128"] == "drm-0000:00:02.0-renderD"
    assert ids["/dev/input/event4"] == "input-046d:c31c-K1-00-event4"
    assert ids["/dev/input/event5"] == "input-046d:c31c-K1-00-event5"
    assert ids["/dev/bus/usb/001/004"] == "usb-046d:c31c-K1"


def test_camera_nodes_are_distinguished_by_their_index(machine: Any) -> None:
    interface = f"{machine.usb('1', '046d', '0825', 'C1')}/1-1:1.0"
    machine.device(interface, "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface")
    for n in (0, 1):
        path = f"{interface}/video4linux/video{n}"
        machine.device(path, "video4linux", f"video{n}", f"81:{n}", {"index": str(n)})
    assert machine.ids()["/dev/video0"] == "video4linux-046d:0825-C1-00"
    assert machine.ids()["/dev/video1"] == "video4linux-046d:0825-C1-00-1"


def test_disks_and_their_partitions_are_named_by_world_wide_id(machine: Any) -> None:
    disk = machine.nvme("nvme0", "S4EW1", "eui.0025385b91b1a2c3", 0)
    machine.partition(disk, 1, "259:1")
    assert machine.ids() == {
        "/dev/nvme0": "nvme-S4EW1",
        "/dev/nvme0n1": "block-eui.0025385b91b1a2c3",
        "/dev/nvme0n1p1": "block-eui.0025385b91b1a2c3-part1",
    }


def test_a_namespace_with_a_made_up_wwid_is_named_by_its_controller(machine: Any) -> None:
    machine.nvme("nvme0", "deadbeef", "nvme.1b36-6465616462656566-51454d55204e564d65204374726c-00000001", 0)
    assert machine.ids()["/dev/nvme0n1"] == "block-deadbeef-n1"


def test_a_device_with_only_a_name_is_named_by_it(machine: Any) -> None:
    machine.misc("fuse", 229)
    machine.misc("tun", 200, "net/tun")
    machine.disk("virtual/block/zram0", "253:0")
    machine.disk("virtual/block/dm-3", "252:3", {"dm/name": "vg-data"})
    assert machine.ids() == {
        "/dev/fuse": "misc-fuse",
        "/dev/net/tun": "misc-tun",
        "/dev/zram0": "block-zram0",
        "/dev/dm-3": "block-dm-vg-data",
    }


@pytest.mark.parametrize("text", ["", "  ", "é/☃", "-._:", "a" * 300, "x y/z", "t10.ATA     QEMU HARDDISK"])
def test_every_id_is_valid_for_any_text_from_the_hardware(text: str) -> None:
    assert LEGAL.fullmatch(fit(joined("block", text)))


def test_long_ids_stay_different() -> None:
    assert len(fit("a" * 300)) == 63
    assert fit("a" * 300) != fit("a" * 301)
    assert legal("a b//c") == "a_b_c"


FUNCTION = "pci0000:05/0000:05:00.0"


def test_a_queue_is_named_by_its_number(machine: Any) -> None:
    path = machine.pci("pci0000:6a/0000:6a:01.0", driver="idxd").removeprefix("/sys/devices/")
    for queue in (0, 1):
        machine.device(f"{path}/dsa0/wq0.{queue}", "dsa")
        machine.device(f"{path}/dsa0/wq0.{queue}/dsa!wq0.{queue}", "dsa", f"dsa/wq0.{queue}", f"234:{queue}")
    machine.pci("pci0000:6a/0000:6a:02.0", driver="idxd")
    machine.device("pci0000:6a/0000:6a:02.0/iax1/wq1.0/iax!wq1.0", "dsa", "iax/wq1.0", "235:0")
    assert machine.ids() == {
        "/dev/iax/wq1.0": "dsa-0000:6a:02.0-wq1.0",
        "/dev/dsa/wq0.0": "dsa-0000:6a:01.0-wq0.0",
        "/dev/dsa/wq0.1": "dsa-0000:6a:01.0-wq0.1",
    }


def test_a_serial_port_is_named_by_its_place_on_the_card(machine: Any) -> None:
    machine.pci(
        FUNCTION, driver="serial", files={"resource": "0x2000 0x203f 0x40101\n0xf1000 0xf1fff 0x40200"}
    )
    ports = (
        ("ttyS4", {"port": "0x2008"}, "tty-0000:05:00.0-bar0.8"),
        ("ttyS5", {"iomem_base": "0xF1200", "port": "0x0"}, "tty-0000:05:00.0-bar1.200"),
        ("ttyS6", {"port": "0x3000"}, "tty-0000:05:00.0-io3000"),
        ("ttyS7", {}, "tty-0000:05:00.0-ttyS7"),
    )
    for minor, (name, files, _) in enumerate(ports):
        machine.device(f"{FUNCTION}/tty/{name}", "tty", name, f"4:{minor}", files)
    controller = f"{FUNCTION}/0000:05:00.0:0"
    machine.device(controller, "serial-base")
    machine.device(f"{controller}/0000:05:00.0:0.3", "serial-base")
    machine.device(f"{controller}/0000:05:00.0:0.3/tty/ttyS8", "tty", "ttyS8", "4:9", {"port": "0x2000"})
    expected = {f"/dev/{name}": identity for name, _, identity in ports}
    assert machine.ids() == {**expected, "/dev/ttyS8": "tty-0000:05:00.0-0.3"}


def test_inputs_of_a_capture_card_are_named_by_their_index(machine: Any) -> None:
    machine.pci(FUNCTION)
    for n, files in ((4, {"index": "0"}), (5, {"index": "1"}), (6, {})):
        machine.device(f"{FUNCTION}/video4linux/video{n}", "video4linux", f"video{n}", f"81:{n}", files)
    assert machine.ids() == {
        "/dev/video4": "video4linux-0000:05:00.0",
        "/dev/video5": "video4linux-0000:05:00.0-1",
        "/dev/video6": "video4linux-0000:05:00.0-video6",
    }


def test_what_is_paired_with_a_wireless_receiver_is_named_by_its_slot(machine: Any) -> None:
    interface = machine.interface(machine.usb("3", "046d", "c52b"), 2)
    receiver = f"{interface}/0003:046D:C52B.0003"
    where = "usb-0000:00:14.0-3/input2"
    machine.device(receiver, "hid", HID_PHYS=where)
    machine.device(f"{receiver}/hidraw/hidraw2", "hidraw", "hidraw2", "243:2")
    for n in (1, 2):
        child = f"{receiver}/0003:046D:4082.000{3 + n}"
        machine.device(child, "hid", HID_PHYS=f"{where}:{n}")
        machine.device(f"{child}/hidraw/hidraw{2 + n}", "hidraw", f"hidraw{2 + n}", f"243:{2 + n}")
    ids = machine.ids()
    base = "hidraw-046d:c52b-0000:00:14.0-usb3-02"
    assert [ids[f"/dev/hidraw{n}"] for n in (2, 3, 4)] == [base, f"{base}-1", f"{base}-2"]


def test_a_keyboard_over_bluetooth_is_named_by_its_address(machine: Any) -> None:
    hid = "virtual/misc/uhid/0005:046D:B342.0007"
    machine.device(hid, "hid", HID_UNIQ="aa:bb:cc:dd:ee:ff")
    machine.device(f"{hid}/hidraw/hidraw3", "hidraw", "hidraw3", "243:3")
    assert machine.ids() == {"/dev/hidraw3": "hidraw-046d:b342-aa:bb:cc:dd:ee:ff"}


def test_inputs_of_one_interface_are_named_by_what_they_are(machine: Any) -> None:
    interface = machine.interface(machine.usb("3", "046d", "c31c", "K1"))
    for n, title in ((4, "Acme Keyboard"), (5, "Acme Keyboard Consumer Control")):
        machine.device(f"{interface}/input/input{n}", "input", files={"name": title})
        machine.device(f"{interface}/input/input{n}/event{n}", "input", f"input/event{n}", f"13:{64 + n}")
    ids = machine.ids()
    assert ids["/dev/input/event4"] == "input-046d:c31c-K1-00-event-Acme_Keyboard"
    assert ids["/dev/input/event5"] == "input-046d:c31c-K1-00-event-Acme_Keyboard_Consumer_Control"


def test_firmware_interfaces_of_a_graphics_card_are_named_by_the_auxiliary_bus(machine: Any) -> None:
    machine.pci("pci0000:00/0000:00:16.0", driver="mei_me")
    machine.device("pci0000:00/0000:00:16.0/mei/mei0", "mei", "mei0", "510:0")
    machine.pci(FUNCTION, driver="xe")
    for n, name in enumerate(("xe.mei-gsc.768", "xe.mei-gscfi.768"), 1):
        machine.device(f"{FUNCTION}/{name}", "auxiliary")
        machine.device(f"{FUNCTION}/{name}/mei/mei{n}", "mei", f"mei{n}", f"510:{n}")
    assert machine.ids() == {
        "/dev/mei0": "mei-0000:00:16.0",
        "/dev/mei1": "mei-0000:05:00.0-xe.mei-gsc.768",
        "/dev/mei2": "mei-0000:05:00.0-xe.mei-gscfi.768",
    }


def test_disks_without_any_name_are_known_by_their_place_on_the_controller(machine: Any) -> None:
    for lun, name in enumerate(("sda", "sdb")):
        disk = scsi(machine, FUNCTION, 2, lun)
        machine.partition(machine.disk(f"{disk}/block/{name}", f"8:{16 * lun}"), 1, f"8:{16 * lun + 1}")
    machine.device(f"{disk}/scsi_generic/sg1", "scsi_generic", "sg1", "21:1")
    port = f"{FUNCTION}/ata7/ata_port/ata7"
    drive = scsi(machine, FUNCTION, 6, 0, above="/ata7")
    machine.file(f"/sys/devices/{port}/port_no", "3")
    machine.disk(f"{drive}/block/sr0", "11:0")
    assert machine.ids() == {
        "/dev/sda": "block-0000:05:00.0-0:0:0",
        "/dev/sda1": "block-0000:05:00.0-0:0:0-part1",
        "/dev/sdb": "block-0000:05:00.0-0:0:1",
        "/dev/sdb1": "block-0000:05:00.0-0:0:1-part1",
        "/dev/sg1": "scsi_generic-0000:05:00.0-sg-0:0:1",
        "/dev/sr0": "block-0000:05:00.0-port3-0:0:0",
    }


def test_a_generic_scsi_node_bears_the_name_of_its_disk(machine: Any) -> None:
    disk = scsi(machine, FUNCTION, 2, 0, wwid="naa.500a")
    machine.disk(f"{disk}/block/sda", "8:0")
    machine.device(f"{disk}/scsi_generic/sg0", "scsi_generic", "sg0", "21:0")
    assert machine.ids() == {"/dev/sda": "block-naa.500a", "/dev/sg0": "scsi_generic-naa.500a-sg"}


def test_areas_of_one_memory_card_have_different_ids(machine: Any) -> None:
    card = "platform/mmc/mmc_host/mmc0/mmc0:0001"
    machine.device(card, "mmc", files={"serial": "0xdeadbee1", "name": "BJTD4R"})
    for minor, name in ((0, "mmcblk0"), (8, "mmcblk0boot0")):
        machine.disk(f"{card}/block/{name}", f"179:{minor}")
    assert machine.ids() == {
        "/dev/mmcblk0": "block-0xdeadbee1",
        "/dev/mmcblk0boot0": "block-0xdeadbee1-boot0",
    }


def test_parts_of_a_chip_are_named_by_the_firmware(machine: Any) -> None:
    for n, chip in ((1, "fdea0000.codec"), (0, "fdee0000.codec")):
        machine.device(f"platform/{chip}", "platform")
        machine.device(
            f"platform/{chip}/video4linux/video{n}", "video4linux", f"video{n}", f"81:{n}", {"index": "0"}
        )
        machine.device(f"platform/{chip}/media{n}", "media", f"media{n}", f"240:{n}")
    machine.device("platform/fe650000.serial", "platform")
    machine.device("platform/fe650000.serial/tty/ttyS0", "tty", "ttyS0", "4:64")
    assert machine.ids() == {
        "/dev/video1": "video4linux-fdea0000.codec",
        "/dev/media1": "media-fdea0000.codec",
        "/dev/video0": "video4linux-fdee0000.codec",
        "/dev/media0": "media-fdee0000.codec",
        "/dev/ttyS0": "tty-ttyS0",
    }


def test_what_the_kernel_only_numbers_bears_the_kernels_name(machine: Any) -> None:
    machine.pci(FUNCTION, driver="foo")
    for n in (4, 5):
        machine.device(f"{FUNCTION}/foo/foo{n}", "foo", f"foo{n}", f"240:{n}")
    assert machine.ids() == {"/dev/foo4": "foo-0000:05:00.0-foo4", "/dev/foo5": "foo-0000:05:00.0-foo5"}


def test_nodes_that_sysfs_does_not_distinguish_are_withheld(machine: Any) -> None:
    interface = machine.interface(machine.usb("3", "046d", "c31c"))
    for n in (0, 1):
        machine.device(f"{interface}/foo/foo{n}", "foo", f"foo{n}", f"240:{n}")
    reasons = [d.withheld for d in machine.backend().discover() if d.attributes["subsystem"] == "foo"]
    assert sorted(reasons) == [
        "nothing in sysfs distinguishes it from /dev/foo0 permanently: make a group of its path",
        "nothing in sysfs distinguishes it from /dev/foo1 permanently: make a group of its path",
    ]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_node_made_by_hand_takes_no_id_from_the_device_it_copies(machine: Any) -> None:
    (machine.root / "dev/jail").mkdir()
    for path in ("fuse", "jail/fuse"):
        os.mknod(machine.root / "dev" / path, 0o020600, os.makedev(10, 229))
    unloaded = machine.ids()
    assert unloaded == {"/dev/fuse": "misc-fuse", "/dev/jail/fuse": "dev-jail-fuse"}
    (machine.root / "dev/fuse").unlink()
    machine.misc("fuse", 229)
    assert machine.ids() == unloaded


def test_a_device_lists_the_id_that_it_had_before_its_module_was_loaded(machine: Any) -> None:
    machine.device("virtual/ppp/ppp", "ppp", "ppp", "108:0")
    machine.device("virtual/foo/foo", "foo", "foo", "240:0")
    former = {d.id: d.former_ids for d in machine.backend().discover()}
    assert former == {"dev-ppp": ("ppp-ppp",), "foo-foo": ("dev-foo",)}
