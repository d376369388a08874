"""generic-device-plugin gives a node through every device that names it, and so does what is imported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from devhost_import.command import command
from devhost_import.globs import may_be_one, shared
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from importing import loaded, offered, said

from devhost.cli.scan_once import scan_once

pytest.importorskip("devhost_udev", reason="the result is for the udev backend")

SHIPPED = """
devices:
- {name: audio, groups: [{count: 10, paths: [{path: /dev/snd}]}]}
- name: capture
  groups:
  - paths:
    - path: /dev/snd/controlC0
    - path: /dev/snd/pcmC0D0c
  - paths:
    - path: /dev/snd/controlC1
      mountPath: /dev/snd/controlC0
    - path: /dev/snd/pcmC1D0c
      mountPath: /dev/snd/pcmC0D0c
"""
"""What the plugin's own manifest has for sound cards: a directory, and nodes in it."""

USB = "pci0000:00/0000:00:14.0/usb1/1-2"


def converted(text: str) -> str:
    done = CliRunner().invoke(command, ["generic-device-plugin", "--domain", "example.org", "-"], input=text)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def machine(root: Path) -> None:
    """Two sound cards, a USB serial adapter with links to its port, a disk with a partition."""
    tree = Tree(root)
    for card in "01":
        for node in (f"controlC{card}", f"pcmC{card}D0c", f"pcmC{card}D0p"):
            tree.node(f"/dev/snd/{node}")
    for node in ("fuse", "video0", "ttyACM0"):
        tree.node(f"/dev/{node}")
    tree.pci("pci0000:00/0000:00:14.0", driver="xhci_hcd")
    tree.device("pci0000:00/0000:00:14.0/usb1", "usb", DEVTYPE="usb_device", DRIVER="usb")
    ids = {"idVendor": "1a86", "idProduct": "7523", "devpath": "2", "serial": "A10B"}
    tree.device(USB, "usb", "bus/usb/001/003", "189:2", ids, DEVTYPE="usb_device", DRIVER="usb")
    tree.device(f"{USB}/1-2:1.0", "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface")
    tree.device(f"{USB}/1-2:1.0/ttyUSB0", "usb-serial", files={"port_number": "0"})
    tree.device(f"{USB}/1-2:1.0/ttyUSB0/tty/ttyUSB0", "tty", "ttyUSB0", "188:0")
    tree.link("/dev/serial/by-id/usb-1a86_A10B-if00-port0", "/dev/ttyUSB0")
    tree.link("/dev/serial/by-path/pci-0000:00:14.0-usb-0:2:1.0-port0", "/dev/ttyUSB0")
    tree.link("/dev/zigbee", "/dev/ttyUSB0")
    disk = "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sdb"
    tree.device(disk, "block", "sdb", "8:16", DEVTYPE="disk")
    tree.device(f"{disk}/sdb1", "block", "sdb1", "8:17", {"partition": "1"}, DEVTYPE="partition")


def planned(text: str, root: Path) -> tuple[dict[str, int], list[str]]:
    """How many devices each resource has on the machine, and what was refused."""
    machine(root)
    plan = asyncio.run(scan_once(loaded(converted(text)), root)).plan
    offers = {name.partition("/")[2]: len(one.offers) for name, one in plan.resources.items()}
    return offers, [refusal.reason for refusal in plan.refusals]


def device(name: str, *paths: str) -> str:
    listed = ", ".join(f"{{path: '{path}'}}" for path in paths)
    return f"- {{name: {name}, groups: [{{paths: [{listed}]}}]}}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/dev/fuse", "/dev/fuse"),
        ("/dev/ttyUSB*", "/dev/ttyUSB0"),
        ("/dev/tty[UA]*", "/dev/ttyUSB?"),
        ("/dev/snd", "/dev/snd/pcmC0D0c"),
        ("/dev/snd/", "/dev/snd/*"),
        ("/dev/snd/*", "/dev/snd/controlC*"),
        ("/dev/serial/by-id/usb-1a86_A10B-if00-port0", "/dev/ttyUSB*"),
        ("/dev/serial/by-id/*", "/dev/serial/by-path/*"),
        ("/dev/zigbee", "/dev/ttyUSB*"),
        ("/dev/zigbee", "/dev/ttyUSB0"),
        ("/dev/bus/usb/001/003", "/dev/ttyUSB0"),
        ("/dev/sdb", "/dev/sdb1"),
        ("/dev/sd*", "/dev/sdb1"),
    ],
)
def test_two_paths_to_one_node_both_serve_it(tmp_path: Path, one: str, other: str) -> None:
    """With the plugin each resource has the node, even if another one has it too."""
    for first, second in ((one, other), (other, one)):
        text = "\n".join(["devices:", device("first", first), device("second", second)])
        offers, refusals = planned(text, tmp_path / first.replace("/", "-"))
        assert not refusals
        assert offers["first"] and offers["second"]


@pytest.mark.parametrize("order", ["usb first", "path first"])
def test_a_usb_device_and_its_serial_port_are_both_served(tmp_path: Path, order: str) -> None:
    devices = [
        "- {name: usb, groups: [{usb: [{vendor: '1a86', product: '7523'}]}]}",
        "- {name: port, groups: [{paths: [{path: '/dev/ttyUSB*'}]}]}",
    ]
    text = "\n".join(["devices:", *(devices if order == "usb first" else reversed(devices))])
    assert planned(text, tmp_path) == ({"usb": 1, "port": 1}, [])


@pytest.mark.parametrize(
    ("serial", "offers"), [("", {"a": 1, "b": 1}), ("A10B", {"a": 1, "b": 1}), ("other", {"a": 1})]
)
def test_a_usb_device_that_two_devices_name_serves_both(
    tmp_path: Path, serial: str, offers: dict[str, int]
) -> None:
    text = f"""devices:
- {{name: a, groups: [{{usb: [{{vendor: 1a86, product: 7523}}]}}]}}
- {{name: b, groups: [{{usb: [{{vendor: 1a86, product: 7523, serial: "{serial}"}}]}}]}}
"""
    found, refusals = planned(text, tmp_path)
    assert ({name: count for name, count in found.items() if count}, refusals) == (offers, [])


CORAL = """
devices:
- name: coral
  groups: [{usb: [{vendor: "18d1", product: "9302"}, {vendor: "1a6e", product: "089a"}]}]
"""
"""An accelerator that has the second id until its first use, and the first id then."""


def plug(root: Path, plugged: list[str]) -> None:
    """USB devices with these ids, at the ports from 1."""
    tree = Tree(root)
    tree.pci("pci0000:00/0000:00:14.0", driver="xhci_hcd")
    tree.device("pci0000:00/0000:00:14.0/usb1", "usb", DEVTYPE="usb_device", DRIVER="usb")
    for port, ids in enumerate(plugged, 1):
        vendor, _, product = ids.partition(":")
        files = {"idVendor": vendor, "idProduct": product, "devpath": str(port)}
        path = f"pci0000:00/0000:00:14.0/usb1/1-{port}"
        tree.device(path, "usb", f"bus/usb/001/00{port}", f"189:{port}", files, DEVTYPE="usb_device")


@pytest.mark.parametrize(
    ("plugged", "devices"),
    [
        ([], []),
        (["18d1:9302"], [1]),
        (["1a6e:089a"], [1]),
        (["18d1:9302", "1a6e:089a"], [2]),
        (["1a6e:089a", "1a6e:089a", "18d1:9302"], [1, 2]),
    ],
)
def test_those_usb_devices_of_a_group_that_are_plugged_in_make_a_device(
    tmp_path: Path, plugged: list[str], devices: list[int]
) -> None:
    """The plugin gives all that any of the group's selectors finds; it has one device if there is any."""
    plug(tmp_path, plugged)
    found = offered(converted(CORAL), tmp_path).get("example.org/coral", {})
    assert sorted(len(nodes.split()) for nodes in found) == devices


async def test_a_container_gets_the_usb_device_that_is_plugged_in(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        plug(node.root, ["1a6e:089a"])
        node.configure(converted(CORAL).partition("version: 1\n")[2])
        async with node.served({"example.org/coral": 1}):
            given = await node.container({"example.org/coral": 1})
    assert [(one.host_path, one.container_path, one.permissions) for one in given.devices] == [
        ("/dev/bus/usb/001/001", "/dev/bus/usb/001/001", "rw")
    ]


def test_a_selector_that_selects_what_another_of_its_group_selects_is_not_another_device() -> None:
    ids = ("18d1, serial: A", "18d1", "18D1")
    usb = ", ".join(f"{{product: 9302, vendor: {one}}}" for one in ids)
    text = converted(f"devices: [{{name: x, groups: [{{usb: [{usb}]}}]}}]")
    assert 'usb:\n          - {idVendor: "18d1", idProduct: "9302"}\n\n' in text


def test_two_groups_of_one_device_may_name_one_node(tmp_path: Path) -> None:
    text = "devices: [{name: x, groups: [{paths: [{path: /dev/fuse}]}, {paths: [{path: '/dev/f*'}]}]}]"
    assert planned(text, tmp_path) == ({"x": 2}, [])


def test_all_sound_cards_of_the_shipped_manifest_are_served(tmp_path: Path) -> None:
    offers, refusals = planned(SHIPPED, tmp_path)
    assert (offers, refusals) == ({"audio": 1, "capture": 2}, [])


async def test_a_pod_gets_the_nodes_of_each_while_another_pod_has_the_others(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        machine(node.root)
        node.configure(converted(SHIPPED).partition("version: 1\n")[2])
        async with node.served({"example.org/audio": 10, "example.org/capture": 2}):
            audio = await node.container({"example.org/audio": 1}, keep=True)
            both = [await node.container({"example.org/capture": 1}, keep=True) for _ in range(2)]
            await node.offers({"example.org/audio": 10, "example.org/capture": 2})
        assert len(audio.devices) == 6
        given = {(one.host_path, one.container_path) for answer in both for one in answer.devices}
        assert given == {
            ("/dev/snd/controlC0", "/dev/snd/controlC0"),
            ("/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0c"),
            ("/dev/snd/controlC1", "/dev/snd/controlC0"),
            ("/dev/snd/pcmC1D0c", "/dev/snd/pcmC0D0c"),
        }


def test_paths_that_cannot_overlap_stay_exclusive() -> None:
    """Only for paths that may overlap, a node may go to several pods."""
    text = converted(
        "\n".join(
            ["devices:", device("a", "/dev/ttyUSB*"), device("b", "/dev/ttyACM*"), device("c", "/dev/fuse")]
        )
    )
    assert "shared: true\n" not in text.partition("version:")[2]
    assert "or for both if both have `shared: true`" in said(text)  # links by other names cannot be seen
    both = converted("\n".join(["devices:", device("a", "/dev/fuse"), device("b", "/dev/fuse")]))
    assert "Remove it if only one pod at a time may have the node" in said(both)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("/dev/cu.*", "/dev/cuaU*", False),
        ("/dev/a*b*c", "/dev/axbyc", True),
        ("/dev/a*b*c", "/dev/*cb", True),
        ("/dev/a1?", "/dev/a1", False),
        ("/dev", "/dev/fuse", True),
        ("/dev/sda", "/dev/sdb", False),
        ("/dev/serial/by-id/a", "/dev/serial/by-id/b", False),
        ("/dev/serial/by-id/a", "/dev/fuse", False),
        ("/dev/fuse", "/dev/ttyUSB*", False),
        ("/dev/snd", "/dev/ttyUSB*", False),
        ("/dev/dri", "/dev/ttyUSB*", False),
        ("/dev/video1", "/dev/video10", False),
        ("/dev/v4l/by-id/a", "/dev/video0", True),
        ("/dev/disk/by-id/a", "/dev/nvme*", True),
    ],
)
def test_two_globs_overlap_unless_it_is_certain_that_no_name_matches_both(
    one: str, other: str, expected: bool
) -> None:
    assert may_be_one(one, other) is may_be_one(other, one) is expected


def test_a_glob_of_disks_overlaps_their_partitions() -> None:
    paths = ["/dev/sd*", "/dev/nvme0n*", "/dev/sdb9", "/dev/ttyUSB*"]
    assert shared(paths, lambda one, other: True) == {0, 1}
