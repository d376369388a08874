"""Ids: the same thing has the same id tomorrow, in another port, beside others, and without udevd."""

from __future__ import annotations

import re
from typing import Any

import pytest
from devhost_udev.identity import Identities, Name, fit, legal

from devhost.backend import Event

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
def test_a_serial_number_that_tells_nothing_apart_does_not_count(machine: Any, serial: str) -> None:
    machine.usb_serial("ttyUSB0", "1.4", serial=serial)
    assert machine.ids()["/dev/ttyUSB0"] == "tty-1a86:7523-0000:00:14.0-usb1.4-00"


def test_clones_with_one_serial_number_are_told_apart_by_their_ports(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", serial="A10B")
    machine.usb_serial("ttyUSB1", "2", serial="A10B")
    ids = machine.ids()
    assert ids["/dev/ttyUSB0"] == "tty-1a86:7523-A10B-0000:00:14.0-usb1-00"
    assert ids["/dev/ttyUSB1"] == "tty-1a86:7523-A10B-0000:00:14.0-usb2-00"


def test_a_known_device_keeps_its_id_when_its_clone_is_plugged_in(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", serial="A10B")
    backend = machine.backend()
    (before,) = (d for d in backend.discover() if d.attributes["subsystem"] == "tty")
    machine.usb_serial("ttyUSB1", "2", serial="A10B")
    backend.notice(Event())
    after = {d.id: d for d in backend.discover() if d.attributes["subsystem"] == "tty"}
    assert after[before.id] is before
    assert after.keys() == {before.id, "tty-1a86:7523-A10B-0000:00:14.0-usb2-00"}


def test_siblings_of_one_device_have_ids_of_their_own(machine: Any) -> None:
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
    assert ids["/dev/input/event4"] == "input-046d:c31c-K1-00-event"
    assert ids["/dev/input/event5"] == "input-046d:c31c-K1-00-event.1"
    assert ids["/dev/bus/usb/001/004"] == "usb-046d:c31c-K1"


def test_camera_nodes_are_told_apart_by_their_index(machine: Any) -> None:
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


def test_what_has_nothing_but_a_name_is_named_by_it(machine: Any) -> None:
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


def test_ids_do_not_depend_on_the_order_of_discovery() -> None:
    names = [
        ("a", Name("tty", "1a86:7523-X", "00", "usb1", "ttyUSB0")),
        ("b", Name("tty", "1a86:7523-X", "00", "usb2", "ttyUSB1")),
        ("c", Name("input", "0000:00:01.0", "event", "", "event10")),
        ("d", Name("input", "0000:00:01.0", "event", "", "event9")),
    ]
    seen = []
    for order in (names, names[::-1]):
        ids = Identities()
        ids.assign((key, name, "") for key, name in order)
        seen.append({key: ids.id_of(key) for key, _ in names})
    assert seen[0] == seen[1]
    assert (seen[0]["d"], seen[0]["c"]) == ("input-0000:00:01.0-event", "input-0000:00:01.0-event.1")


def test_an_id_is_free_again_when_its_device_is_gone() -> None:
    ids = Identities()
    name = Name("tty", "X", place="usb1")
    ids.assign([("a", name, "")])
    ids.release("a")
    ids.release("a")
    ids.assign([("b", name, "")])
    assert ids.id_of("b") == "tty-X"
    assert ids.id_of("a") == ""


@pytest.mark.parametrize("text", ["", "  ", "é/☃", "-._:", "a" * 300, "x y/z", "t10.ATA     QEMU HARDDISK"])
def test_every_id_is_legal_whatever_the_hardware_says(text: str) -> None:
    ids = Identities()
    ids.assign([("a", Name("block", text), ""), ("b", Name("block", text), "")])
    assert LEGAL.fullmatch(ids.id_of("a"))
    assert LEGAL.fullmatch(ids.id_of("b"))
    assert ids.id_of("a") != ids.id_of("b")


def test_long_ids_stay_different() -> None:
    assert len(fit("a" * 300)) == 63
    assert fit("a" * 300) != fit("a" * 301)
    assert legal("a b//c") == "a_b_c"
