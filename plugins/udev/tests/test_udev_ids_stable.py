"""No id ever moves from one device to another, whatever goes, comes, is numbered otherwise or restarts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from devhost_testing.fixtures import BackendFixture
from devhost_udev import Udev
from devhost_udev.options import UdevOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend import Event

from .conftest import Machine

Nodes = Iterator[tuple[str, str]]
"""The nodes of one piece of hardware, each with what it is."""

Build = Callable[[Machine, int, int], Nodes]
"""Puts one piece of hardware into a machine, given a number that is the kernel's to assign and a port of the
USB controller."""

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where trees are made: thousands of small files are several times faster without a disk."""

CARD = "pci0000:05/0000:05:00.0"
SHARED = "TWICE"


def queue(machine: Machine, dealt: int, port: int, number: int) -> Nodes:
    path = "pci0000:6a/0000:6a:01.0"
    machine.pci(path, driver="idxd")
    name = f"wq0.{number}"
    machine.device(f"{path}/dsa0/{name}", "dsa")
    machine.device(f"{path}/dsa0/{name}/dsa!{name}", "dsa", f"dsa/{name}", f"234:{number}")
    yield f"/dev/dsa/{name}", f"queue {number}"


def uart(machine: Machine, dealt: int, port: int, number: int, since_6_5: bool) -> Nodes:
    bus = "06" if since_6_5 else "05"
    path = f"pci0000:{bus}/0000:{bus}:00.0"
    machine.pci(path, driver="serial", files={"resource": "0x2000 0x203f 0x40101"})
    parent, files = path, {"port": f"0x{0x2000 + 8 * number:x}", "line": str(4 + dealt)}
    if since_6_5:
        parent, files = f"{path}/0000:06:00.0:0/0000:06:00.0:0.{number}", {}
        machine.device(parent, "serial-base")
    name = f"ttyS{4 + dealt}"
    machine.device(f"{parent}/tty/{name}", "tty", name, f"4:{68 + dealt}", files)
    yield f"/dev/{name}", f"port {number} of card {bus}"


def camera(machine: Machine, dealt: int, port: int, serial: str) -> Nodes:
    device = machine.usb(str(port), "046d", "0825", serial)
    interface = machine.interface(device)
    for index in (0, 1):
        name = f"video{2 * dealt + index}"
        files = {"index": str(index)}
        machine.device(
            f"{interface}/video4linux/{name}", "video4linux", name, f"81:{2 * dealt + index}", files
        )
        yield f"/dev/{name}", f"node {index} of camera {serial}"


def capture(machine: Machine, dealt: int, port: int, index: int) -> Nodes:
    machine.pci(f"{CARD[:-1]}1")
    name = f"video{100 + dealt}"
    path = f"{CARD[:-1]}1/video4linux/{name}"
    machine.device(path, "video4linux", name, f"81:{100 + dealt}", {"index": str(index)})
    yield f"/dev/{name}", f"input {index} of the capture card"


def adapter(machine: Machine, dealt: int, port: int, serial: str, what: str = "", at: int = 0) -> Nodes:
    machine.usb_serial(f"ttyUSB{dealt}", str(at or port), serial)
    yield f"/dev/ttyUSB{dealt}", what or f"adapter {serial}"


def disk(machine: Machine, dealt: int, port: int, wwid: str) -> Nodes:
    path = machine.nvme(f"nvme{dealt}", wwid, f"eui.{wwid}", dealt, f"0000:{0x40 + dealt:02x}:00.0")
    yield f"/dev/nvme{dealt}n1", f"disk {wwid}"
    for count in (1, 2):
        machine.partition(path, count, f"259:{400 + 2 * dealt + count}")
        yield f"/dev/nvme{dealt}n1p{count}", f"partition {count} of disk {wwid}"


def lun(machine: Machine, dealt: int, port: int, number: int) -> Nodes:
    machine.pci(f"{CARD[:-1]}2")
    unit = f"{CARD[:-1]}2/host{dealt}/target{dealt}:0:0/{dealt}:0:0:{number}"
    machine.device(unit, "scsi", DEVTYPE="scsi_device")
    name = f"sd{chr(ord('a') + dealt)}"
    machine.disk(f"{unit}/block/{name}", f"8:{16 * dealt}")
    yield f"/dev/{name}", f"unit {number}"


def paired(machine: Machine, dealt: int, port: int, slot: int) -> Nodes:
    interface = machine.interface(machine.usb("90", "046d", "c52b"), 2)
    hid = f"{interface}/0003:046D:4082.{dealt:04X}"
    machine.device(hid, "hid", HID_PHYS=f"usb-0000:00:14.0-90/input2:{slot}")
    machine.device(f"{hid}/hidraw/hidraw{dealt}", "hidraw", f"hidraw{dealt}", f"243:{dealt}")
    title = f"Acme Mouse {slot}"
    machine.device(f"{hid}/input/input{dealt}", "input", files={"name": title})
    event = f"event{dealt}"
    machine.device(f"{hid}/input/input{dealt}/{event}", "input", f"input/{event}", f"13:{64 + dealt}")
    yield f"/dev/hidraw{dealt}", f"mouse in slot {slot}"
    yield f"/dev/input/{event}", f"events of the mouse in slot {slot}"


UNIVERSE: Sequence[Build] = (
    *(partial(queue, number=n) for n in range(3)),
    *(partial(uart, number=n, since_6_5=modern) for n in range(3) for modern in (False, True)),
    *(partial(camera, serial=serial) for serial in ("C1", "C2")),
    *(partial(capture, index=n) for n in range(3)),
    *(partial(adapter, serial=serial) for serial in ("A10B", "B20C")),
    *(partial(adapter, serial=SHARED, at=port, what=f"twin at port {port}") for port in (70, 80)),
    partial(adapter, serial="", at=60, what="the nameless at port 60"),
    *(partial(disk, wwid=wwid) for wwid in ("a1", "b2")),
    *(partial(lun, number=n) for n in range(3)),
    *(partial(paired, slot=n) for n in range(1, 4)),
)


@st.composite
def moments(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[int], bool]]:
    """What is there in turn: members of the universe, the numbers and USB ports of all, and whether devhost
    has just started."""
    several = []
    for _ in range(draw(st.integers(2, 4))):
        members = draw(st.lists(st.integers(0, len(UNIVERSE) - 1), unique=True, max_size=14))
        numbers = draw(st.permutations(range(len(UNIVERSE))))
        ports = draw(st.permutations(range(10, 10 + len(UNIVERSE))))
        several.append((members, list(numbers), list(ports), draw(st.booleans())))
    return several


def build(root: Path, members: Sequence[int], numbers: Sequence[int], ports: Sequence[int]) -> dict[str, str]:
    """A machine with these members and nothing else; node → what it is."""
    for part in ("sys", "dev", "run"):
        shutil.rmtree(root / part, ignore_errors=True)
    machine = Machine(root)
    what: dict[str, str] = {}
    for member in members:
        what.update(UNIVERSE[member](machine, numbers[member], ports[member]))
    return what


def offered(backend: Udev) -> dict[str, str]:
    """Node → id of what may be handed out."""
    found = [device for device in backend.discover() if not device.withheld]
    ids = [device.id for device in found]
    assert len(ids) == len(set(ids))
    return {str(device.attributes["devNode"]): device.id for device in found}


@settings(max_examples=25, deadline=None)
@given(moments())
def test_an_id_never_moves_from_one_device_to_another(
    several: list[tuple[list[int], list[int], list[int], bool]],
) -> None:
    meant: dict[str, str] = {}
    called: dict[str, str] = {}
    options = UdevOptions(shared_serials=(SHARED,))
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory, BackendFixture(Udev) as looking:
        root = Path(directory)
        backend = None
        for members, numbers, ports, restarts in several:
            what = build(root, members, numbers, ports)
            if backend is None or restarts:
                backend = looking(root, options)
            backend.notice(Event())
            ids = offered(backend)
            assert what.keys() <= ids.keys()  # a name for each, so that nothing is withheld
            for node, device in what.items():
                assert meant.setdefault(ids[node], device) == device
                assert called.setdefault(device, ids[node]) == ids[node]


@settings(max_examples=12, deadline=None)
@given(moments())
def test_an_id_does_not_depend_on_what_else_is_there(
    several: list[tuple[list[int], list[int], list[int], bool]],
) -> None:
    members, numbers, ports, _ = several[0]
    options = UdevOptions(shared_serials=(SHARED,))
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory, BackendFixture(Udev) as looking:
        root = Path(directory)
        build(root, members, numbers, ports)
        together = offered(looking(root, options))
        for member in members:
            alone = build(root, [member], numbers, ports)
            ids = offered(looking(root, options))
            assert {node: ids[node] for node in alone} == {node: together[node] for node in alone}


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([(), (1,), (2,), (1, 2)]), min_size=2, max_size=5), st.booleans())
def test_twins_side_by_side_are_named_by_their_ports_and_one_alone_by_its_serial_number(
    plugged: list[tuple[int, ...]], restarts: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory, BackendFixture(Udev) as looking:
        root = Path(directory)
        backend = looking(root)
        for ports in plugged:
            for part in ("sys", "dev", "run"):
                shutil.rmtree(root / part, ignore_errors=True)
            machine = Machine(root)
            for number, port in enumerate(ports):
                machine.usb_serial(f"ttyUSB{number}", str(port), "A10B")
            backend = looking(root) if restarts else backend
            backend.notice(Event())
            ttys = {node: name for node, name in offered(backend).items() if "tty" in node}
            if len(ports) == 1:  # to all that the kernel says, it is the device with that serial number
                assert ttys == {"/dev/ttyUSB0": "tty-1a86:7523-A10B-00"}
            else:
                placed = (f"tty-1a86:7523-A10B-0000:00:14.0-usb{port}-00" for port in ports)
                assert ttys == dict(zip(("/dev/ttyUSB0", "/dev/ttyUSB1"), placed, strict=False))
