"""Groups of several members: the nodes of one device hang on the same hardware."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.fixtures import request
from devhost_udev.options import Group, GroupMount, Member, Pair, UsbMember

from devhost.backend import AllocationError, Device, OptionError
from devhost.backend.where import Block, Term, Text, Where
from devhost.config import loads
from devhost.discovery import catalog

PAGE = (Path(__file__).parents[3] / "docs/backends/udev.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


def where(**conditions: str) -> Where:
    return (Block(tuple(Term(name, (Text(pattern),)) for name, pattern in conditions.items())),)


def found(backend: Any) -> dict[str, Device]:
    """The group's devices by their first node."""
    devices = [device for device in backend.discover() if "group" in device.attributes]
    return {str(device.attributes["devNode"]): device for device in devices}


def nodes(backend: Any) -> dict[str, list[str]]:
    """What a container gets with each of the group's devices, by the first node; empty for the unhealthy."""
    return {
        first: [node.path for node in backend.allocate(request(backend, [device])).nodes]
        if device.health
        else []
        for first, device in found(backend).items()
    }


def reasons(backend: Any) -> dict[str, str]:
    return {first: device.health.reason for first, device in found(backend).items() if not device.health}


def codec(machine: Any, chip: str, *videos: int, media: tuple[int, ...] = ()) -> None:
    """A decoder of a system on a chip: ``videoN`` and ``mediaN`` of one platform device."""
    machine.device(f"platform/{chip}", "platform", DRIVER="hantro-vpu")
    for n in videos:
        machine.device(f"platform/{chip}/video4linux/video{n}", "video4linux", f"video{n}", f"81:{n}")
    for n in media:
        machine.device(f"platform/{chip}/media{n}", "media", f"media{n}", f"510:{n}")


def modem(machine: Any, port: str, tty: int, control: int) -> str:
    """A modem: its serial port is on interface 0, its control channel on interface 4."""
    device = machine.usb(port, "2c7c", "0125", f"M{port}")
    for number in ("00", "04"):
        interface = f"{device}/1-{port}:1.{int(number)}"
        machine.device(interface, "usb", files={"bInterfaceNumber": number}, DEVTYPE="usb_interface")
    port_path = f"{device}/1-{port}:1.0/ttyUSB{tty}"
    machine.device(port_path, "usb-serial", files={"port_number": "0"}, DRIVER="option1")
    machine.device(f"{port_path}/tty/ttyUSB{tty}", "tty", f"ttyUSB{tty}", f"188:{tty}")
    wdm = f"{device}/1-{port}:1.4/usbmisc/cdc-wdm{control}"
    machine.device(wdm, "usbmisc", f"cdc-wdm{control}", f"180:{control}")
    return str(device)


def gaudi(machine: Any, function: str, minor: int, *, control: bool = True) -> None:
    """A card with Linux's driver: the control node has no parent (habanalabs, ``device_init_cdev``)."""
    path = f"pci0000:{function[5:7]}/{function}"
    machine.pci(path, driver="habanalabs", vendor="0x1da3", device="0x1020")
    machine.device(f"{path}/accel/accel{minor}", "accel", f"accel/accel{minor}", f"261:{minor}")
    if control:
        name = f"accel_controlD{minor}"
        machine.device(f"virtual/accel/{name}", "accel", f"accel/{name}", f"510:{minor}")
    auxiliary = f"{path}/habanalabs_cn.ib.{minor}"
    machine.device(auxiliary, "auxiliary")
    name = f"uverbs{minor}"
    machine.device(
        f"{auxiliary}/infiniband_verbs/{name}", "infiniband_verbs", f"infiniband/{name}", f"231:{minor}"
    )


OLDER, OLDEST = ("accel", "accel"), ("habanalabs", "hl")


def older_gaudi(machine: Any, function: str, number: int, names: tuple[str, str] = OLDER) -> None:
    """A card with an earlier driver, which gives neither node a parent."""
    path = f"pci0000:{function[5:7]}/{function}"
    machine.pci(path, driver="habanalabs", vendor="0x1da3", device="0x1020", files={"numa_node": "1"})
    kind, name = names
    own, directory = ("device/pci_addr", "accel/") if name == "accel" else ("pci_addr", "")
    for node, minor in ((f"{name}{number}", 2 * number), (f"{name}_controlD{number}", 2 * number + 1)):
        machine.device(f"virtual/{kind}/{node}", kind, f"{directory}{node}", f"510:{minor}")
    machine.file(f"/sys/devices/virtual/{kind}/{name}{number}/{own}", function)


CODEC = Group("dec", members=(Member("/dev/video*"), Member("/dev/media*"), Member("/dev/dma_heap/system")))


def test_a_decoder_never_gets_the_media_node_of_another_chip(machine: Any) -> None:
    """generic-device-plugin pairs the first video node with the first media node, whatever their chips."""
    codec(machine, "fdb50000.video-codec", 1, media=(0,))
    codec(machine, "fdee0000.video-codec", 0, media=(1,))
    machine.device("virtual/dma_heap/system", "dma_heap", "dma_heap/system", "250:0")
    assert nodes(machine.backend(CODEC)) == {
        "/dev/video0": ["/dev/video0", "/dev/media1", "/dev/dma_heap/system"],
        "/dev/video1": ["/dev/video1", "/dev/media0", "/dev/dma_heap/system"],
    }


def test_a_chip_without_the_required_node_is_unhealthy_with_the_reason(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 1)
    codec(machine, "fdee0000.video-codec", 0, media=(0,))
    group = Group("dec", members=CODEC.members[:2])
    backend = machine.backend(group)
    assert nodes(backend) == {"/dev/video0": ["/dev/video0", "/dev/media0"], "/dev/video1": []}
    reason = "no node that matches /dev/media* is on fdb50000.video-codec, the hardware of /dev/video1"
    assert reasons(backend) == {"/dev/video1": reason}
    with pytest.raises(AllocationError, match="no node that matches /dev/media"):
        backend.allocate(request(backend, [found(backend)["/dev/video1"]]))


def test_a_missing_partner_heals_when_it_appears(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 0)
    backend = machine.backend(Group("dec", members=CODEC.members[:2]))
    assert reasons(backend)
    codec(machine, "fdb50000.video-codec", media=(0,))
    assert nodes(backend) == {"/dev/video0": ["/dev/video0", "/dev/media0"]}


def test_an_optional_member_without_a_node_on_the_hardware_is_omitted(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 1)
    codec(machine, "fdee0000.video-codec", 0, media=(0,))
    group = Group("dec", members=(Member("/dev/video*"), Member("/dev/media*", optional=True)))
    assert nodes(machine.backend(group)) == {
        "/dev/video0": ["/dev/video0", "/dev/media0"],
        "/dev/video1": ["/dev/video1"],
    }


def test_nodes_on_two_interfaces_of_one_usb_device_come_together(machine: Any) -> None:
    modem(machine, "1", tty=0, control=1)
    modem(machine, "2", tty=1, control=0)
    group = Group("modem", members=(Member("/dev/ttyUSB*"), Member("/dev/cdc-wdm*")))
    assert nodes(machine.backend(group)) == {
        "/dev/ttyUSB0": ["/dev/ttyUSB0", "/dev/cdc-wdm1"],
        "/dev/ttyUSB1": ["/dev/ttyUSB1", "/dev/cdc-wdm0"],
    }


def test_the_whole_usb_device_comes_with_its_own_nodes(machine: Any) -> None:
    modem(machine, "1", tty=1, control=0)
    modem(machine, "2", tty=0, control=1)
    group = Group("modem", members=(Member("/dev/ttyUSB*"),), usb=(UsbMember("2c7c", "0125"),))
    assert nodes(machine.backend(group)) == {
        "/dev/ttyUSB0": ["/dev/ttyUSB0", "/dev/bus/usb/001/003"],
        "/dev/ttyUSB1": ["/dev/ttyUSB1", "/dev/bus/usb/001/002"],
    }


def test_a_hub_is_not_the_hardware_of_what_is_plugged_into_it(machine: Any) -> None:
    modem(machine, "1", tty=0, control=0)
    machine.device("pci0000:00/0000:00:14.0/usb1", "usb", "bus/usb/001/001", "189:0", DEVTYPE="usb_device")
    group = Group("modem", members=(Member("/dev/ttyUSB*"), Member("/dev/bus/usb/001/001", optional=False)))
    assert nodes(machine.backend(group)) == {"/dev/ttyUSB0": ["/dev/ttyUSB0", "/dev/bus/usb/001/001"]}
    hubs = Group("modem", members=(Member("/dev/ttyUSB*"), Member("/dev/bus/usb/001/00[1]")))
    (reason,) = reasons(machine.backend(hubs)).values()
    assert reason == "no node that matches /dev/bus/usb/001/00[1] is on 1-1, the hardware of /dev/ttyUSB0"


def test_an_accelerator_gets_every_node_of_its_pci_function(machine: Any) -> None:
    """Between the function and its verbs device the driver puts an auxiliary device."""
    machine.pci("pci0000:00/0000:00:0b.0", driver="intel_vpu")
    machine.device("pci0000:00/0000:00:0b.0/accel/accel0", "accel", "accel/accel0", "261:0")
    gaudi(machine, "0000:19:00.0", 2)
    gaudi(machine, "0000:1a:00.0", 1)
    members = (
        Member(where=where(subsystem="accel", driver="habanalabs", sysName="accel[0-9]*")),
        Member("/dev/accel/accel_controlD*", pair=Pair.NUMBER),
        Member(where=where(subsystem="infiniband_verbs")),
    )
    assert nodes(machine.backend(Group("gaudi", members=members))) == {
        "/dev/accel/accel1": ["/dev/accel/accel1", "/dev/accel/accel_controlD1", "/dev/infiniband/uverbs1"],
        "/dev/accel/accel2": ["/dev/accel/accel2", "/dev/accel/accel_controlD2", "/dev/infiniband/uverbs2"],
    }


def test_a_member_by_condition_that_finds_nothing_is_named_in_the_reason(machine: Any) -> None:
    gaudi(machine, "0000:19:00.0", 0, control=False)
    members = (Member("/dev/accel/accel[0-9]*"), Member(where=where(sysName="accel_controlD*")))
    (reason,) = reasons(machine.backend(Group("g", members=members))).values()
    wanted = "where {sysName: accel_controlD*}"
    assert reason == f"no node that matches {wanted} is on 0000:19:00.0, the hardware of /dev/accel/accel0"


def test_two_disks_of_one_controller_are_different_hardware(machine: Any) -> None:
    machine.pci("pci0000:00/0000:00:17.0", driver="ahci")
    for n, letter in enumerate("ab"):
        disk = f"pci0000:00/0000:00:17.0/ata{n}/host{n}/target{n}:0:0/{n}:0:0:0"
        machine.device(disk, "scsi", DEVTYPE="scsi_device")
        machine.disk(f"{disk}/block/sd{letter}", f"8:{n * 16}")
        if letter == "b":
            machine.device(f"{disk}/scsi_generic/sg0", "scsi_generic", "sg0", "21:0")
    backend = machine.backend(Group("disk", members=(Member("/dev/sd*"), Member("/dev/sg*"))))
    assert nodes(backend) == {"/dev/sda": [], "/dev/sdb": ["/dev/sdb", "/dev/sg0"]}


def test_an_i2c_bus_of_a_card_belongs_to_the_card(machine: Any) -> None:
    for n, function in enumerate(("0000:03:00.0", "0000:04:00.0")):
        path = f"pci0000:00/{function}"
        machine.pci(path, driver="amdgpu")
        machine.device(f"{path}/drm/renderD{128 + n}", "drm", f"dri/renderD{128 + n}", f"226:{128 + n}")
        bus = 5 - n
        machine.device(f"{path}/i2c-{bus}", "i2c")
        machine.device(f"{path}/i2c-{bus}/i2c-dev/i2c-{bus}", "i2c-dev", f"i2c-{bus}", f"89:{bus}")
    backend = machine.backend(Group("gpu", members=(Member("/dev/dri/renderD*"), Member("/dev/i2c-*"))))
    assert nodes(backend) == {
        "/dev/dri/renderD128": ["/dev/dri/renderD128", "/dev/i2c-5"],
        "/dev/dri/renderD129": ["/dev/dri/renderD129", "/dev/i2c-4"],
    }


def test_all_nodes_of_a_member_join_the_only_device_on_the_chip(machine: Any) -> None:
    for card, function in enumerate(("0000:00:1f.3", "0000:05:00.1")):
        sound = f"pci0000:00/{function}/sound/card{card}"
        machine.pci(f"pci0000:00/{function}", driver="snd_hda_intel")
        machine.device(sound, "sound")
        for n, name in enumerate((f"controlC{card}", f"pcmC{card}D0c", f"pcmC{card}D0p")):
            machine.device(f"{sound}/{name}", "sound", f"snd/{name}", f"116:{card * 16 + n}")
    group = Group("card", members=(Member("/dev/snd/controlC*"), Member("/dev/snd/pcm*")))
    assert nodes(machine.backend(group)) == {
        "/dev/snd/controlC0": ["/dev/snd/controlC0", "/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0p"],
        "/dev/snd/controlC1": ["/dev/snd/controlC1", "/dev/snd/pcmC1D0c", "/dev/snd/pcmC1D0p"],
    }


def test_several_devices_on_one_chip_get_one_node_each(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 0, 1, media=(0, 1))
    codec(machine, "fdee0000.video-codec", 2, media=(2,))
    assert nodes(machine.backend(Group("dec", members=CODEC.members[:2]))) == {
        "/dev/video0": ["/dev/video0", "/dev/media0"],
        "/dev/video1": ["/dev/video1", "/dev/media1"],
        "/dev/video2": ["/dev/video2", "/dev/media2"],
    }


def test_a_node_is_in_one_device_of_a_chip_unless_limit_allows_more(
    machine: Any,
) -> None:
    codec(machine, "fdb50000.video-codec", 0, 1, media=(0,))
    backend = machine.backend(Group("dec", members=CODEC.members[:2]))
    assert nodes(backend) == {"/dev/video0": ["/dev/video0", "/dev/media0"], "/dev/video1": []}
    reason = "another device has all nodes that match /dev/media* on fdb50000.video-codec (limit: 1)"
    assert reasons(backend) == {"/dev/video1": reason}
    members = (Member("/dev/video*"), Member("/dev/media*", limit=2))
    twice = machine.backend(Group("dec", members=members))
    assert nodes(twice)["/dev/video1"] == ["/dev/video1", "/dev/media0"]
    assert {"node:/dev/media0"} == found(twice)["/dev/video0"].part_of


def test_a_node_belongs_to_the_nearest_of_two_devices_on_one_chip(machine: Any) -> None:
    """Two cameras in one USB device: each media node hangs on the interface of its own camera."""
    device = machine.usb("1", "046d", "0825")
    for n, interface in ((0, "2"), (1, "0")):
        path = f"{device}/1-1:1.{interface}"
        machine.device(path, "usb", files={"bInterfaceNumber": f"0{interface}"}, DEVTYPE="usb_interface")
        machine.device(f"{path}/video4linux/video{n}", "video4linux", f"video{n}", f"81:{n}")
        machine.device(f"{path}/media{1 - n}", "media", f"media{1 - n}", f"510:{1 - n}")
    assert nodes(machine.backend(Group("camera", members=CODEC.members[:2]))) == {
        "/dev/video0": ["/dev/video0", "/dev/media1"],
        "/dev/video1": ["/dev/video1", "/dev/media0"],
    }


def test_a_second_glob_that_also_matches_the_first_adds_only_the_others(machine: Any) -> None:
    gaudi(machine, "0000:19:00.0", 0)
    others = Member("/dev/accel/*", pair=Pair.NUMBER)
    backend = machine.backend(Group("g", members=(Member("/dev/accel/accel[0-9]*"), others)))
    assert nodes(backend) == {"/dev/accel/accel0": ["/dev/accel/accel0", "/dev/accel/accel_controlD0"]}
    assert "node:/dev/accel/accel0" in found(backend)["/dev/accel/accel0"].claims


def test_two_links_to_one_node_are_one_use_of_it(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 0, media=(0,))
    for name in ("a", "b"):
        (machine.root / f"dev/media-{name}").symlink_to("media0")
    backend = machine.backend(Group("dec", members=(Member("/dev/video*"), Member("/dev/media-*"))))
    (device,) = found(backend).values()
    assert device.claims == {"node:/dev/video0", "node:/dev/media0"}
    paths = [node.container_path for node in backend.allocate(request(backend, [device])).nodes]
    assert paths == ["/dev/video0", "/dev/media-a", "/dev/media-b"]


def test_the_first_required_member_makes_the_devices(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 0)
    codec(machine, "fdee0000.video-codec", media=(0,))
    members = (Member("/dev/video*", optional=True), Member("/dev/media*"))
    assert nodes(machine.backend(Group("dec", members=members))) == {"/dev/media0": ["/dev/media0"]}


def test_nodes_without_hardware_are_never_paired_by_hardware(machine: Any) -> None:
    for n in range(2):
        machine.device(f"virtual/a/a{n}", "a", f"a{n}", f"240:{n}")
        machine.device(f"virtual/b/b{n}", "b", f"b{n}", f"241:{n}")
    machine.node("/dev/unknown0", "c300:0")
    members = (Member("/dev/a*"), Member("/dev/b*"))
    backend = machine.backend(Group("g", members=members))
    reason = "is on no hardware, so /dev/b* cannot be paired with it (set pair: number)"
    assert reasons(backend) == {"/dev/a0": f"/dev/a0 {reason}", "/dev/a1": f"/dev/a1 {reason}"}
    asked = machine.backend(Group("g", members=members, pair=Pair.ORDER))
    assert nodes(asked) == {"/dev/a0": ["/dev/a0", "/dev/b0"], "/dev/a1": ["/dev/a1", "/dev/b1"]}
    unknown = machine.backend(Group("g", members=(Member("/dev/unknown*"), Member("/dev/b*"))))
    assert "is on no hardware" in reasons(unknown)["/dev/unknown0"]


def test_a_chip_gets_no_node_without_hardware(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 0)
    machine.device("virtual/media/media0", "media", "media0", "510:0")
    assert list(reasons(machine.backend(Group("dec", members=CODEC.members[:2])))) == ["/dev/video0"]


def test_nodes_by_condition_come_in_natural_order_and_go_with_their_device(machine: Any) -> None:
    for n in (10, 9):
        codec(machine, f"fd{n:02}0000.video-codec", n)
    group = Group("dec", members=(Member(where=where(subsystem="video4linux")),))
    backend = machine.backend(group, wanted=())
    assert list(found(backend)) == ["/dev/video9", "/dev/video10"]
    machine.remove("/sys/devices/platform/fd090000.video-codec")
    assert list(found(backend)) == ["/dev/video10"]


def test_nodes_are_found_by_attributes_that_only_a_group_names(machine: Any) -> None:
    codec(machine, "fdb50000.video-codec", 0)
    machine.file("/sys/devices/platform/fdb50000.video-codec/video4linux/video0/name", "decoder")
    member = Member(where=where(**{"sysattr.name": "decoder"}))
    backend = machine.backend(Group("dec", members=(member,), env={"K": "{sysattr.name}"}), wanted=())
    (device,) = found(backend).values()
    assert backend.allocate(request(backend, [device])).env == {"K": "decoder"}


def numbered(machine: Any, **counts: tuple[int, ...]) -> None:
    for major, (name, numbers) in enumerate(counts.items(), 240):
        for n in numbers:
            machine.device(f"virtual/{name}/{name}{n}", name, f"{name}{n}", f"{major}:{n}")


A, B = Member("/dev/a*"), Member("/dev/b*")
BY_NUMBER = Group("g", members=(A, B), pair=Pair.NUMBER)
BY_ORDER = Group("g", members=(A, B), pair=Pair.ORDER)


def test_pair_number_joins_nodes_whose_names_end_with_the_same_number(machine: Any) -> None:
    for n in (0, 1, 10):
        machine.device(f"virtual/x/x{n}", "x", f"cambricon_dev{n}", f"240:{n}")
        machine.device(f"virtual/y/y{n}", "y", f"cambr-msgq:{n}", f"241:{n}")
    members = (Member("/dev/cambricon_dev*"), Member("/dev/cambr-msgq:*"))
    assert nodes(machine.backend(Group("g", members=members, pair=Pair.NUMBER))) == {
        f"/dev/cambricon_dev{n}": [f"/dev/cambricon_dev{n}", f"/dev/cambr-msgq:{n}"] for n in (0, 1, 10)
    }


def test_pair_number_never_gives_the_node_of_another_card_when_one_is_missing(machine: Any) -> None:
    numbered(machine, a=(0, 1, 2), b=(0, 2))
    backend = machine.backend(BY_NUMBER)
    assert nodes(backend) == {
        "/dev/a0": ["/dev/a0", "/dev/b0"],
        "/dev/a1": [],
        "/dev/a2": ["/dev/a2", "/dev/b2"],
    }
    assert reasons(backend) == {"/dev/a1": "no node that matches /dev/b* has the number 1 of /dev/a1"}
    optional = Group("g", members=(A, Member("/dev/b*", optional=True)), pair=Pair.NUMBER)
    assert nodes(machine.backend(optional))["/dev/a1"] == ["/dev/a1"]


def test_pair_first_number_joins_all_nodes_of_a_card_with_several_numbers(machine: Any) -> None:
    names = [f"npu{n}{end}" for n in (0, 1, 10) for end in ("mgmt", "pe0", "pe0-1", "pe1")]
    for minor, name in enumerate(names):
        machine.node(f"/dev/rngd/{name}", f"c235:{minor}")
    members = (Member("/dev/rngd/npu*mgmt"), Member("/dev/rngd/npu*pe*"))
    backend = machine.backend(Group("g", members=members, pair=Pair.FIRST_NUMBER))
    assert nodes(backend) == {
        f"/dev/rngd/npu{n}mgmt": [f"/dev/rngd/npu{n}{end}" for end in ("mgmt", "pe0", "pe0-1", "pe1")]
        for n in (0, 1, 10)
    }


def test_pair_number_needs_a_number_and_gives_one_node_to_one_device(machine: Any) -> None:
    numbered(machine, a=(1,), b=(1,))
    machine.device("virtual/a/a", "a", "ax", "250:0")
    machine.device("virtual/a/a01", "a", "a01", "250:1")
    assert reasons(machine.backend(BY_NUMBER)) == {
        "/dev/ax": "/dev/ax has no number in its name, so /dev/b* cannot be paired with it",
        "/dev/a1": "another device has all nodes that match /dev/b* with the number 1 (limit: 1)",
    }


@pytest.mark.parametrize(("a", "b"), [((0, 1, 2), (0, 2)), ((1, 2), (0, 1, 2)), ((0, 1), (1,))])
def test_pair_order_refuses_members_with_different_numbers_of_nodes(
    machine: Any, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    numbered(machine, a=a, b=b)
    backend = machine.backend(BY_ORDER)
    assert nodes(backend) == {f"/dev/a{n}": [] for n in a}
    reason = (
        f"{len(a)} nodes match /dev/a* and {len(b)} /dev/b*, so their order does not show which belong "
        "together (set pair: number)"
    )
    assert set(reasons(backend).values()) == {reason}
    optional = Group("g", members=(A, Member("/dev/b*", optional=True)), pair=Pair.ORDER)
    assert nodes(machine.backend(optional)) == {f"/dev/a{n}": [f"/dev/a{n}"] for n in a}


def test_members_of_one_group_pair_differently(machine: Any) -> None:
    gaudi(machine, "0000:19:00.0", 1)
    gaudi(machine, "0000:1a:00.0", 0)
    members = (
        Member("/dev/accel/accel[0-9]*"),
        Member("/dev/accel/accel_controlD*", pair=Pair.NUMBER),
        Member("/dev/infiniband/uverbs*"),
    )
    assert nodes(machine.backend(Group("g", members=members)))["/dev/accel/accel0"] == [
        "/dev/accel/accel0",
        "/dev/accel/accel_controlD0",
        "/dev/infiniband/uverbs0",
    ]


def test_a_node_without_hardware_is_named_where_pairing_by_hardware_finds_none(machine: Any) -> None:
    gaudi(machine, "0000:19:00.0", 0)
    members = (Member("/dev/accel/accel[0-9]*"), Member("/dev/accel/accel_controlD*"))
    (reason,) = reasons(machine.backend(Group("g", members=members))).values()
    assert reason.endswith("; /dev/accel/accel_controlD0 is on no hardware (set pair: number)")


@pytest.mark.parametrize(
    ("names", "ident"),
    [(OLDER, "gaudi-accel-{}"), (OLDEST, "gaudi-habanalabs-{}-alt1"), (None, "gaudi-accel-{}")],
    ids=["older", "oldest", "Linux"],
)
def test_the_gaudi_example_serves_every_layout(
    machine: Any, names: tuple[str, str] | None, ident: str
) -> None:
    cards = {0: "0000:19:00.0", 1: "0000:1a:00.0"}
    for n, address in cards.items():
        if names is None:
            gaudi(machine, address, n)
        else:
            older_gaudi(machine, address, n, names)
    text = next(one for one in EXAMPLES if "HABANA" in one)
    settings = loads(text, "udev.md", catalog.load)
    groups = settings.backends["udev"].groups  # type: ignore[attr-defined]
    backend = machine.backend(*groups)
    devices = {device.id: device for device in found(backend).values()}
    assert set(devices) == {ident.format(address) for address in cards.values()}
    for n, address in cards.items():
        device = devices[ident.format(address)]
        assert device.health.healthy, device.health
        assert device.pcie_path == (address,)
        assert f"pci:{address}" in device.part_of
        assert device.attributes["pciBusID"] == address
        assert device.numa_nodes == (() if names is None else (1,))
        edits = backend.allocate(request(backend, [device]))
        assert edits.env == {"HABANA_VISIBLE_DEVICES": str(n)}
        assert [node.path.rpartition("/")[2] for node in edits.nodes][:2] == [
            f"{(names or ('', 'accel'))[1]}{n}",
            f"{(names or ('', 'accel'))[1]}_controlD{n}",
        ]


@pytest.mark.parametrize("address", ["0000:99:00.0", "../../etc", ""])
def test_an_address_without_a_function_places_nothing(machine: Any, address: str) -> None:
    older_gaudi(machine, "0000:19:00.0", 0)
    machine.file("/sys/devices/virtual/accel/accel0/device/pci_addr", address)
    member = Member("/dev/accel/accel[0-9]*", at="{sysattr.device/pci_addr}")
    (device,) = found(machine.backend(Group("g", members=(member,)))).values()
    assert (device.id, device.pcie_path, device.part_of) == ("g-accel-accel0", (), frozenset())


def test_at_takes_only_placeholders_that_a_node_has() -> None:
    for wrong in ("{index}", "{nothing}"):
        with pytest.raises(OptionError):
            Member("/dev/a*", at=wrong)


def test_a_group_claims_the_nodes_that_it_mounts(machine: Any) -> None:
    numbered(machine, a=(0,))
    machine.misc("fuse", 229)
    (machine.root / "dev/null").touch()
    (machine.root / "dev/shm").mkdir()
    (machine.root / "dev/shm/file").touch()
    mounts = tuple(GroupMount(path) for path in ("/dev/fuse", "/dev/null", "/dev/shm/file"))
    (device,) = found(machine.backend(Group("g", members=(A,), mounts=mounts))).values()
    assert device.claims == {"node:/dev/a0", "node:/dev/fuse"}


@pytest.mark.parametrize(
    ("serial", "reason"),
    [
        ("A1\nLD_PRELOAD=/evil.so", "has no serial, which containerPath /dev/{serial} needs"),
        ("A1\tB", "has no serial, which containerPath /dev/{serial} needs"),
        ("A1\u2028B", "has no serial, which containerPath /dev/{serial} needs"),
        ("A1\u202eB", "has no serial, which containerPath /dev/{serial} needs"),
        ("A1\x7fB", "has no serial, which containerPath /dev/{serial} needs"),
        ("../A1", "where the slash in its serial would lead to another directory"),
        ("..", "which goes up with .."),
    ],
)
def test_a_serial_number_that_is_more_than_text_reaches_no_path_and_no_variable(
    machine: Any, serial: str, reason: str
) -> None:
    machine.usb_serial("ttyUSB0", "1", serial)
    path = Group("g", members=(Member("/dev/ttyUSB*", container_path="/dev/{serial}"),))
    (device,) = found(machine.backend(path)).values()
    assert reason in device.health.reason
    assert "serial" not in reason or "slash" in reason or "A1" not in device.id
    with pytest.raises(AllocationError):
        (backend := machine.backend(path)).allocate(request(backend, list(found(backend).values())))
    members = (*(replace(one, optional=True) for one in path.members), Member("/dev/ttyUSB*"))
    left_out = Group("g", members=members, env={"S": "{serial}"})
    backend = machine.backend(left_out)
    (device,) = found(backend).values()
    edits = backend.allocate(request(backend, [device]))
    texts = [text for node in edits.nodes for text in (node.path, node.container_path)]
    assert all(text.isprintable() and ".." not in text for text in texts)
    assert all(text.isprintable() for text in edits.env.values())


def test_a_mount_is_never_put_elsewhere_by_a_serial_number(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "../../etc")
    (machine.root / "etc").mkdir()
    for optional in (False, True):
        mounts = (GroupMount("/etc", "/run/{serial}/x", optional=optional),)
        backend = machine.backend(Group("g", members=(Member("/dev/ttyUSB*"),), mounts=mounts))
        (device,) = found(backend).values()
        assert device.health.healthy is optional
        if optional:
            assert backend.allocate(request(backend, [device])).mounts == ()


def test_text_from_hardware_replaces_no_line_of_the_kernel(machine: Any) -> None:
    """The name of a keyboard is a line in its uevent file, and may have line breaks of any kind."""
    machine.device("virtual/a/a0", "a", "a0", "240:0", DRIVER="real")
    file = machine.root / "sys/devices/virtual/a/a0/uevent"
    file.write_text(file.read_text() + "HID_NAME=x\x0bDEVNAME=sda\nDEVNAME=sda\nDRIVER=forged\n")
    (device,) = [one for one in machine.backend().discover() if one.attributes["subsystem"] == "a"]
    assert (device.attributes["devNode"], device.attributes["driver"]) == ("/dev/a0", "real")
