"""`devhost import generic-device-plugin`: the result means the same, or a comment names the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from devhost_import.command import command
from importing import said

from devhost.config import loads
from devhost.discovery import catalog
from devhost.planning.settings import Settings

pytest.importorskip("devhost_udev", reason="the result is for the udev backend")

FILE = """
domain: example.org
listen: ":9090"
devices:
- name: serial
  groups:
  - paths:
    - path: /dev/ttyUSB*
  - count: 3
    paths:
    - {path: /dev/ttyACM*, mountPath: /dev/modem, permissions: r}
- name: fuse
  groups:
  - count: 10
    paths: [{path: /dev/fuse}]
"""


DOMAIN = ("--domain", "example.org")


def run(text: str | bytes, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["generic-device-plugin", "-", *arguments], input=text)


def converted(text: str, *arguments: str) -> Settings:
    """The output as settings, which must be valid."""
    done = run(text, *(arguments or DOMAIN))
    assert done.exit_code == 0, done.output
    return loads(done.stdout, "converted.yaml", catalog.load)


def test_names_counts_and_alternatives_are_kept() -> None:
    serial, fuse = converted(FILE).resources
    assert (serial.name, fuse.name) == ("example.org/serial", "example.org/fuse")
    assert fuse.share.replicas == 10
    assert serial.share.replicas == 1
    (override,) = serial.share.overrides
    assert (str(override.where[0]), override.replicas) == ("alternative: 1", 3)


def test_every_detail_of_a_path_is_kept() -> None:
    text = """
- name: g
  groups:
  - paths:
    - {path: "/dev/gpio[^0]*", permissions: r, mountPath: /dev/pins/}
    - {path: /dev/gpiomem, limit: 10, optional: true}
    - {path: /etc/gpio/, type: Mount, mountPath: /etc/pins, readOnly: true}
    - {path: /opt/x, type: Mount, optional: true}
"""
    (group,) = converted(text).backends["udev"].groups  # type: ignore[attr-defined]
    glob, plain = group.members
    assert (glob.path, glob.permissions, glob.container_path) == ("/dev/gpio[!0]*", "r", "/dev/pins/")
    assert (plain.path, plain.permissions, plain.limit, plain.optional) == ("/dev/gpiomem", "mrw", 10, True)
    config, extra = group.mounts
    assert (config.path, config.container_path, config.read_only) == ("/etc/gpio", "/etc/pins", True)
    assert (extra.read_only, extra.optional) == (False, True)


def test_usb_ids_are_kept_even_if_yaml_reads_them_as_numbers() -> None:
    text = (
        'name: u\ngroups: [{usb: [{vendor: 1a86, product: 7523, serial: "7"}, {vendor: "2", product: 1e10}]}]'
    )
    (group,) = converted(text).backends["udev"].groups  # type: ignore[attr-defined]
    ids = [(usb.id_vendor, usb.id_product, usb.serial) for usb in group.usb]
    assert ids == [("1a86", "7523", "7"), ("0002", "1e10", "")]
    assert "two equal USB devices" in run(text, *DOMAIN).stdout


def test_usb_ids_that_the_plugin_reads_as_other_numbers_are_named_with_their_device() -> None:
    device = '{name: u, groups: [{usb: [{vendor: "1a86", product: 7523}, {vendor: 1a86, product: 2303}]}]}'
    remark = "devices[0]: USB ids 7523, 2303: write them in quotes: plain ones are decimal (0… octal) for the"
    assert remark in said(run(f"devices: [{device}]", *DOMAIN).stdout)
    assert "in quotes" not in run(device, *DOMAIN).stdout  # a flag: there the plugin reads the digits
    quoted = device.replace("7523", "'7523'").replace("2303", "'2303'")
    assert "in quotes" not in run(f"devices: [{quoted}]", *DOMAIN).stdout


def test_a_path_in_several_devices_may_be_used_by_each() -> None:
    text = """
devices:
- {name: a, groups: [{paths: [{path: /dev/fuse}]}]}
- {name: b, groups: [{paths: [{path: /dev/fuse}, {path: /dev/kvm}]}]}
"""
    a, b = converted(text).backends["udev"].groups  # type: ignore[attr-defined]
    assert [member.shared for member in (*a.members, *b.members)] == [True, True, False]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "x", "groups": [{"paths": [{"path": "/dev/x"}]}]}',
        '[{"name": "x", "groups": [{"paths": [{"path": "/dev/x"}]}]}]',
        """device: ['{"name": "x", "groups": [{"paths": [{"path": "/dev/x"}]}]}']""",
    ],
)
def test_the_format_of_the_device_flag_is_supported(text: str) -> None:
    (resource,) = converted(text).resources
    assert resource.name == "example.org/x"


def test_the_domain_option_takes_precedence_over_the_file() -> None:
    assert converted(FILE, "--domain", "a.example").resources[0].name == "a.example/serial"


def test_a_file_without_devices_in_its_list_is_an_empty_configuration() -> None:
    assert converted("devices: []").resources == ()


def test_settings_without_equivalent_are_explained_in_a_comment() -> None:
    text = "devices: [{name: x, groups: [{paths: [{path: /dev/x*}, {path: /lib/*.so, type: Mount}]}]}]"
    assert "the plugin gives each device of the group one match, devhost all" in run(text, *DOMAIN).stdout
    assert "# listen: see the options of `devhost run`" in run(FILE).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<stdin>: it is empty (is it the right file?)"),
        ("]", "<stdin>:1:1:"),
        (b"\xff\xfe\0", "<stdin>:1:"),
        ("text", "<stdin>:1:1: must be a mapping"),
        ("{}", "<stdin>:1:1: it has no devices"),
        ("devices: 3", "devices: must be a list of devices"),
        ("divices: []", 'unknown key "divices"'),
        ("devices: [{name: x}]", "the key groups is required"),
        ("devices: [{name: x, groups: []}]", "must be from 1 to"),
        ("devices: [{name: x, groups: [{}]}]", "a group needs paths or usb"),
        (
            "devices: [{name: x, groups: [{path: /dev/x}]}]",
            "path: this import does not know it (did you mean paths?)",
        ),
        (
            "devices: [{name: x, groups: [{paths: [{path: dev/x}]}]}]",
            'must be an absolute path without .., backslash and brace, not "dev/x"',
        ),
        ("devices: [{name: x, groups: [{paths: [{path: /dev/x, type: Dir}]}]}]", "one of Device, Mount"),
        (
            "devices: [{name: x, groups: [{paths: [{path: /a, permissions: x}]}]}]",
            "must be some of m, r and w",
        ),
        ("devices: [{name: x, groups: [{usb: [{vendor: xyz, product: '1'}]}]}]", "four hex digits"),
        (
            "[{name: x, groups: [{usb: [{vendor: a, product: b}], paths: [{path: /a}]}]}]",
            "either paths or usb",
        ),
        ("devices: [{name: x_, groups: [{paths: [{path: /a}]}]}]", "illegal part"),
        (
            "[{name: x, groups: [{paths: [{path: /a}]}]}, {name: x, groups: [{paths: [{path: /b}]}]}]",
            "occurs twice",
        ),
        ('devices: [\'{"name": "x"}\']', "devices[0]"),
    ],
)
def test_each_error_in_the_input_is_one_line_and_the_exit_code_is_2(text: str | bytes, message: str) -> None:
    done = run(text)
    assert done.exception is not None
    assert getattr(done.exception, "exit_code", None) == 2
    assert message in str(done.exception)
    assert done.stdout == ""


def test_a_file_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["generic-device-plugin", str(tmp_path / "none.yaml")])
    assert "none.yaml: there is no such file" in str(done.exception)


def test_different_pairing_is_explained_and_several_usb_devices_stay_combined() -> None:
    """generic-device-plugin joins the nth match of each path; here nodes of one hardware come together."""
    paths = "- {name: cam, groups: [{paths: [{path: /dev/video*}, {path: /dev/media*}, {path: /dev/x}]}]}"
    text = run(paths, *DOMAIN).stdout
    assert "the plugin pairs the nodes of several wildcards in a group in order" in text
    assert "the plugin pairs these in order, devhost by hardware" in text
    assert converted(paths).backends["udev"].groups[0].pair.value == "hardware"  # type: ignore[attr-defined]
    assert "paired" not in run(FILE).stdout
    members = "{vendor: '1a86', product: '7523'}, {vendor: '046d', product: '0825'}"
    usb = f"- {{name: rig, groups: [{{usb: [{members}]}}]}}"
    assert converted(usb).backends["udev"].groups[0].pair.value == "order"  # type: ignore[attr-defined]


def test_the_argument_of_a_flag_is_converted_whole() -> None:
    groups = "- usb: [{vendor: 1a6e, product: 089a}]\n- usb: [{vendor: 18d1, product: 9302}]\n"
    done = run(f"name: coral\ngroups:\n{groups}", "--domain", "squat.ai")
    assert done.exception is None
    assert 'idVendor: "18d1", idProduct: "9302"' in done.output
    assert "does not know" not in done.output
