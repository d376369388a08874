"""`devhost import akri`: Configurations of the udev handler as entries of the same names."""

from __future__ import annotations

from pathlib import Path

import peer_machines as machines
import pytest
from devhost_testing.node import Node
from importing import akri as configuration
from importing import converted, offered, refusal, run, said

PEER = "akri"

pytest.importorskip("devhost_udev", reason="the result is for the udev backend")


CAMERAS = ["/dev/video0", "/dev/video1"]
SERIAL = ["/dev/ttyUSB0"]

RULES = [
    ('SUBSYSTEM=="tty", ATTRS{idVendor}=="1a86"', SERIAL),
    ('SUBSYSTEM=="tty", ATTRS{idVendor}!="1a86", SUBSYSTEMS=="usb"', []),
    ('SUBSYSTEM=="tty", DRIVERS=="ch341.*"', SERIAL),
    ('SUBSYSTEM=="tty",KERNEL!="ttyS[0-9]*"', ["/dev/ttySAC0", *SERIAL]),
    ('KERNEL=="video[0-9]*", ATTR{index}=="0"', ["/dev/video0"]),
    ('KERNEL=="video[0-9]*", ATTR{index}!="0"', ["/dev/video1"]),
    ('SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}==":capture:"', ["/dev/video0"]),
    ('SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}!=":cap.*"', ["/dev/video1"]),
    ('ENV{DEVTYPE}=="usb_device", ATTR{idProduct}=="0825"', ["/dev/bus/usb/001/002"]),
    ('ENV{MAJOR}=="81"', CAMERAS),
    ('SUBSYSTEMS=="usb", SUBSYSTEM=="video4linux"', CAMERAS),
    ('DEVPATH=="/devices/virtual/misc/fuse"', ["/dev/fuse"]),
    ('DEVPATH=="/devices/virtual/misc/fus*"', []),
    ('SUBSYSTEM=="video4linux", DEVPATH!="/devices/.*video1"', ["/dev/video0"]),
    ('KERNELS=="0000:00:14.0", SUBSYSTEM=="tty"', SERIAL),
]


@pytest.mark.parametrize(("rule", "nodes"), RULES)
def test_a_rule_finds_the_same_nodes_as_in_akri(tmp_path: Path, rule: str, nodes: list[str]) -> None:
    machines.board(tmp_path)
    found = offered(run(PEER, configuration(rule)).stdout, tmp_path).get("akri.sh/found", {})
    assert sorted(found) == sorted(nodes)


def test_a_device_needs_to_match_only_one_rule_and_the_capacity_becomes_replicas(tmp_path: Path) -> None:
    machines.board(tmp_path)
    text = configuration('KERNEL=="video0"', 'KERNEL=="fuse"', more="  capacity: 3\n")
    assert offered(run(PEER, text).stdout, tmp_path) == {
        "akri.sh/found": {"/dev/video0": 3, "/dev/fuse": 3},
    }


async def test_a_broker_gets_the_node_and_its_variables(tmp_path: Path) -> None:
    """Akri sets UDEV_DEVNODE and the brokerProperties, and gives the node with rwm by default."""
    async with Node(tmp_path) as node:
        machines.board(node.root)
        text = run(
            PEER, configuration('KERNEL=="video0"', more="  brokerProperties: {FORMAT: YUYV}\n")
        ).stdout
        node.configure(text.split("version: 1\n", 1)[1])
        async with node.served({"akri.sh/found": 1}):
            started = await node.container({"akri.sh/found": 1})
    assert dict(started.envs) == {"UDEV_DEVNODE": "/dev/video0", "FORMAT": "YUYV"}
    ((given,),) = (started.devices,)
    assert (given.host_path, sorted(given.permissions)) == ("/dev/video0", ["m", "r", "w"])


def test_the_permissions_of_the_details_are_kept() -> None:
    text = configuration('KERNEL=="video0"', details="      permissions: r\n")
    assert "permissions: r}" in run(PEER, text).stdout


def test_the_format_of_previous_releases_is_supported() -> None:
    text = (
        "kind: Configuration\nmetadata: {name: found}\nspec:\n  protocol:\n    udev:\n"
        "      udevRules: ['KERNEL==\"video0\"']\n  capacity: 2\n"
    )
    assert converted(PEER, text)["akri.sh/found"].share.replicas == 2


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ('TAG=="uaccess"', "udev tags, such as uaccess, are not attributes of devhost"),
        ('ENV{SEAT}=="seat0"', "the property SEAT is not an attribute of devhost"),
        ('ENV{DEVNAME}=="video0"', "no device has the DEVNAME video0: all begin with /dev/"),
        ('KERNELS=="1-1"', "of KERNELS only a PCI address can be expressed"),
        ('SUBSYSTEMS=="scsi"', "of SUBSYSTEMS only usb and pci can be expressed"),
        ('KERNEL=="video0", ENV{ID_PATH}!="a[0-9]*b"', "!= cannot be expressed for it"),
        ('ENV{MAJOR}!=""', "it selects every device"),
        ('DRIVERS=="[ab]c+d+e+", ATTRS{serial}=="a+b+c"', "it needs more than 64 globs"),
    ],
)
def test_a_rule_without_equivalent_is_omitted_with_the_reason(rule: str, reason: str) -> None:
    """The other rules of the Configuration stay."""
    done = run(PEER, configuration(rule, 'KERNEL=="fuse"'))
    assert f"Rule {rule} is omitted: {reason}." in said(done.stdout)
    assert list(converted(PEER, configuration(rule, 'KERNEL=="fuse"'))) == ["akri.sh/found"]
    alone = run(PEER, configuration(rule))
    assert "akri.sh/found has no rule that can be converted: omitted." in said(alone.stdout)
    assert "resources: []" in alone.stdout


def test_a_remark_explains_rules_with_an_unexpected_meaning() -> None:
    """libudev takes a device with any of the properties."""
    remarks = said(run(PEER, configuration('ENV{ID_A}=="1", ENV{ID_B}=="2", ATTRS{name}=="x"')).stdout)
    assert "for libudev one matching ENV term is enough; devhost requires all." in remarks
    assert "ATTRS{name}: devhost compares it only for the device itself." in remarks


def test_a_repetition_that_devhost_limits_is_named() -> None:
    remarks = said(run(PEER, configuration('ATTRS{serial}=="A[0-9]+B"')).stdout)
    assert "ATTRS A[0-9]+B: devhost matches a repetition that is not at the end up to 4 times." in remarks


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('KERNEL=="video[0-9]*"', 'SUBSYSTEM=="video4linux"'),
        ('KERNEL=="video[0-9]*"', 'KERNEL=="video0"'),
        ('ATTRS{idVendor}=="1a86"', 'SUBSYSTEM=="tty", KERNEL=="ttyUSB0"'),
        ('ENV{DEVTYPE}=="usb_device", ATTR{idVendor}=="1a86"', 'KERNEL=="ttyUSB*"'),
    ],
)
def test_a_node_of_two_configurations_serves_both_as_in_akri(tmp_path: Path, one: str, other: str) -> None:
    machines.board(tmp_path)
    text = configuration(one) + "---\n" + configuration(other).replace("found", "second")
    found = offered(run(PEER, text).stdout, tmp_path)
    alone = [
        offered(run(PEER, configuration(rule)).stdout, tmp_path)["akri.sh/found"] for rule in (one, other)
    ]
    assert [found["akri.sh/found"], found["akri.sh/second"]] == alone
    assert "a node in several of these resources serves each of them" in said(run(PEER, text).stdout)


def test_a_usb_device_and_the_nodes_of_its_interfaces_are_offered_as_in_akri(tmp_path: Path) -> None:
    machines.board(tmp_path)
    found = offered(run(PEER, configuration('ATTRS{idVendor}=="1a86"')).stdout, tmp_path)
    assert set(found["akri.sh/found"]) == {"/dev/ttyUSB0", "/dev/bus/usb/001/003"}


def test_configurations_that_select_different_devices_stay_exclusive() -> None:
    text = configuration('KERNEL=="video[0-9]*"') + "---\n"
    text += configuration('KERNEL=="ttyUSB*", SUBSYSTEM=="tty"').replace("found", "second")
    assert "shared" not in run(PEER, text).stdout


VALUES = (
    "udev: {configuration: {enabled: %s, discoveryDetails: {udevRules: ['KERNEL==\"fuse\"']}, capacity: 3}}"
)


def test_values_of_the_chart_make_a_configuration() -> None:
    values = VALUES % "true"
    entry = converted(PEER, values)["akri.sh/akri-udev"]  # the chart's default name
    assert entry.share.replicas == 3
    named = values.replace("enabled:", "name: mine, enabled:")
    both = configuration('KERNEL=="kvm"') + "---\n" + named
    assert set(converted(PEER, both)) == {"akri.sh/mine", "akri.sh/found"}
    assert "rbac, onvif: settings of the chart" in run(PEER, values + "\nrbac: {a: 1}\nonvif: {b: 1}").stdout


def test_values_without_a_configuration_for_udev_are_refused_with_the_reason() -> None:
    message = "udev.configuration.enabled is not true: the chart makes no Configuration (give a"
    assert message in refusal(PEER, VALUES % "false")
    assert "the key udevRules is required" in refusal(
        PEER, "udev: {configuration: {enabled: true, discoveryDetails: {}}}"
    )


def test_configurations_for_other_handlers_are_omitted() -> None:
    text = configuration('KERNEL=="fuse"') + "---\n" + configuration(handler="onvif").replace("found", "net")
    assert "# net: the handler onvif does not find devices of a node: omitted." in run(PEER, text).stdout
    assert list(converted(PEER, text)) == ["akri.sh/found"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Instance", 'a "Instance" contains no configuration (give a Configuration of akri.sh'),
        (configuration(handler="onvif"), "its discovery handler is not udev"),
        (
            configuration('KERNEL="x"'),
            "= assigns a value; only == and != select devices (Akri refuses it as well)",
        ),
        (configuration('ACTION=="add"'), "ACTION does not select devices (Akri refuses it as well)"),
        (configuration("KERNEL==x"), "is not a term (Akri refuses it as well)"),
        (configuration('ATTR=="x"'), "ATTR needs key in braces (Akri refuses it as well)"),
        (configuration('DRIVERS=="("'), '"(" is not a regular expression'),
        (configuration('KERNEL=="x"', more="  capacity: 0\n"), "spec.capacity: must be from 1 to "),
        (configuration('KERNEL=="x"', more="  capacity: []\n"), "spec.capacity: must be a whole number"),
        (configuration('KERNEL=="x"', details="      permissions: x\n"), "must be some of r, w and m"),
        (configuration().replace("udevRules:", "x: []"), "the key udevRules is required"),
        (configuration('KERNEL=="x"').replace("{name: found}", "{name: ''}"), '"akri.sh/" '),
    ],
)
def test_a_configuration_that_akri_refuses_is_refused_in_one_line(text: str, message: str) -> None:
    assert message in refusal(PEER, text)
