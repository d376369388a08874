"""Against the real kernel and against umockdev; each is skipped, with the reason, where it cannot be had."""

from __future__ import annotations

import ctypes.util
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devhost_testing.fixtures import request
from devhost_testing.zram import Busy, Zram, why_not
from devhost_udev import Udev
from devhost_udev.options import UdevOptions
from kit.command import completed

from devhost.discovery.runner import ServiceContext

DEADLINE = 60.0

needs_umockdev = pytest.mark.skipif(
    not (shutil.which("umockdev-wrapper") and ctypes.util.find_library("umockdev")),
    reason="umockdev is not installed (apt install umockdev)",
)

UMOCKDEV = """
import ctypes as C, json, logging
from pathlib import Path
import pyudev
from devhost.backend import Event
from devhost_udev import Udev
from devhost_udev.options import UdevOptions
from devhost_testing.fixtures import request

lib = C.CDLL("libumockdev.so.0")
lib.umockdev_testbed_new.restype = C.c_void_p
lib.umockdev_testbed_add_devicev.restype = C.c_char_p
lib.umockdev_testbed_add_devicev.argtypes = [C.c_void_p, *[C.c_char_p] * 3, *[C.c_void_p] * 2]
lib.umockdev_testbed_uevent.argtypes = [C.c_void_p, C.c_char_p, C.c_char_p]
lib.umockdev_testbed_remove_device.argtypes = [C.c_void_p, C.c_char_p]
bed = C.c_void_p(lib.umockdev_testbed_new())

def strings(*items):
    return (C.c_char_p * (len(items) + 1))(*[item.encode() for item in items], None)

def add(subsystem, name, parent, attributes, properties):
    return lib.umockdev_testbed_add_devicev(
        bed, subsystem.encode(), name.encode(), parent, strings(*attributes), strings(*properties)
    )

class Context:
    log, root, wanted = logging.getLogger("udev"), Path("/"), frozenset("*")

backend = Udev(UdevOptions(), Context())
monitor = pyudev.Monitor.from_netlink(pyudev.Context())
monitor.start()

def look(number):
    for _ in range(number):
        device = monitor.poll(timeout=120)
        backend.notice(Event(device.subsystem, device.action, device.sys_path, device.device_node or ""))
    # the machine's own /dev shines through
    return {d.id: dict(d.attributes) for d in backend.discover() if "sysPath" in d.attributes}

empty = look(0)
usb = add("usb", "1-1", None, ["idVendor", "1a86", "idProduct", "7523", "serial", "A10B", "devpath", "1"],
          ["DEVTYPE", "usb_device"])
tty = add("tty", "ttyUSB3", usb, ["dev", "188:3"],
          ["DEVNAME", "/dev/ttyUSB3", "MAJOR", "188", "MINOR", "3", "ID_BUS", "usb",
           "DEVLINKS", "/dev/serial/by-id/x"])
plugged = look(2)
lib.umockdev_testbed_uevent(bed, tty, b"remove")
lib.umockdev_testbed_remove_device(bed, tty)
unplugged = look(1)
print(json.dumps([empty, plugged, unplugged]))
"""


@needs_umockdev
def test_umockdev_hot_plug_and_udev_properties_are_seen() -> None:
    done = completed("umockdev-wrapper", sys.executable, "-W", "ignore", "-c", UMOCKDEV)
    assert done.returncode == 0, done.stderr
    empty, plugged, unplugged = json.loads(done.stdout)
    assert empty == unplugged == {}
    ((name, attributes),) = plugged.items()
    assert name == "tty-1a86:7523-A10B"
    assert attributes["ID_BUS"] == "usb"
    assert attributes["devLinks"] == ["/dev/serial/by-id/x"]
    assert (attributes["devNode"], attributes["idVendor"], attributes["major"]) == (
        "/dev/ttyUSB3",
        "1a86",
        188,
    )


CONTEXT = ServiceContext("udev", Path("/"), frozenset({"*"}))


@pytest.fixture
def zram() -> Iterator[Zram]:
    """Plugs zram devices."""
    try:
        with Zram() as zram:
            yield zram
    except Busy as error:
        pytest.skip(str(error))


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_real_device_is_there_when_plugged_in_and_gone_when_not(zram: Zram) -> None:
    number = zram.plug()
    backend = Udev(UdevOptions(), CONTEXT)
    (device,) = (d for d in backend.discover() if d.id == f"block-zram{number}")
    assert device.attributes["devNode"] == f"/dev/zram{number}"
    assert device.health
    assert backend.allocate(request(backend, [device])).nodes[0].path == f"/dev/zram{number}"
    zram.unplug(number)
    deadline = time.monotonic() + DEADLINE
    while any(d.id == device.id for d in backend.discover()):
        assert time.monotonic() < deadline, "the device is still listed"


def test_this_machine_gives_sound_devices() -> None:
    devices = Udev(UdevOptions(), CONTEXT).discover()
    assert len({device.id for device in devices}) == len(devices)
    for device in devices:
        assert 0 < len(device.id) <= 63
        assert device.claims
        assert all(value not in ("", ()) for value in device.attributes.values())
