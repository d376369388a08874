"""`devhost import smarter-device-manager`: the same files of /dev, and a remark for the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from importing import converted, offered, refusal, run, said, wheres

PEER = "smarter-device-manager"

pytest.importorskip("devhost_udev", reason="the result is for the udev backend")


def rule(expression: str, number: int = 1) -> str:
    return f"- devicematch: {json.dumps(expression)}\n  nummaxdevices: {number}\n"


FILES = (
    *("ttyUSB0", "ttyUSB12", "ttyS0", "ttySAC0", "tty", "video0", "video1", "vcsm-cma", "nvme0", "nvme0n1"),
    *("nvme10n2", "i2c-1", "snd/controlC0", "snd/pcmC0D0p", "input/event0", "input/event12", "input/mice"),
    "gpiomem",
)
"""Files of the modelled machine; each is one misc device."""


def machine(root: Path) -> None:
    tree = Tree(root)
    for minor, file in enumerate(FILES):
        tree.device(f"virtual/misc/{file.rpartition('/')[2]}", "misc", file, f"10:{minor}")


EXPRESSIONS = [
    *("^gpiomem$", "^ttyUSB[0-9]*$", "^ttyS[0-9]*$", "^ttyUSB[0-9]+$", "^tty(USB|S)[0-9]+$", r"^tty\w*\d$"),
    *("^video.$", "^video[01]$", "^v.*$", "^vcsm.*", "^nvme[0-9]+n[0-9]+$", "^i2c-1$|^video1$", "^[^tvns]"),
    *(
        "^input/event[0-9]+$",
        "^snd/pcm.*$",
        "^tty(USB)?$",
        "^ttyUSB[0-9]{2}$",
        "^[a-z]{9}$",
        "^(?:gpio)(?:mem)?$",
        "^$",
    ),
    *("tty", "[0-9]$", "C0$"),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_offers_the_files_that_it_matches(tmp_path: Path, expression: str) -> None:
    """The plugin makes smarter-devices/<file> of each, with _ for /."""
    machine(tmp_path)
    text = run(PEER, rule(expression, 3)).stdout
    found = {file for file in FILES if re.search(expression, file)}
    if "The plugin names files in subdirectories" in text:
        found = {file for file in found if file.count("/") == expression.count("/")}
    assert offered(text, tmp_path) == {
        f"smarter-devices/{file.replace('/', '_')}": {f"/dev/{file}": 3} for file in found
    }


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("^(ab)*$", "it repeats a group"),
        ("(?i)^TTY", "it has a flag such as (?i)"),
        (r"^\pN$", r"it has \p"),
        (r"\btty", r"it has \b"),
        ("^[[:digit:]]$", "it has a named class"),
        ("^a{257}$", "it repeats something too often"),
        ("^((((a{8}){8}){8}){8})$", "it repeats a group"),
        ("^a[(|)]b$", "it has a bracket or | as a character"),
        (r"^a\|b$", "it has a bracket or | as a character"),
        (r"^tty\{USB\}[0-9]$", 'no value of devNode contains {, "/dev/tty{USB}[0-9]" does'),
        ("^gp{x}io$", "no value of devNode contains {"),
        (r"^gp\}io$", "no value of devNode contains }"),
        (r"^snd/by-id/\{a\}b$", "no value of devNode contains {"),
        (r"^snd/by-path/x[{]y", "no value of devNode contains {"),
        (r"^a\\b", "no value of devNode contains \\"),
        (r"^tty\$$", '"/dev/tty$" is a regular expression; a pattern is a glob for the whole value'),
        ("^tty $", "no value of devNode begins or ends with white space"),
        ("^snd//a$", 'a path has no end "/" and no part "", "." or ".."'),
        (r"^\.\./a$", 'a path has no end "/" and no part "", "." or ".."'),
        ("^(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)$", "it needs more than 64 globs"),
    ],
)
def test_an_expression_without_equivalent_is_omitted_with_the_reason(expression: str, reason: str) -> None:
    if expression == r"^\pN$":  # Python has no such class, Go has
        assert "is not a regular expression" in refusal(PEER, rule(expression))
        return
    done = run(PEER, rule(expression) + rule("^fuse$"))
    assert done.exit_code == 0
    assert f"cannot be converted, because {reason}" in said(done.stdout) and ": omitted." in said(done.stdout)
    assert set(converted(PEER, rule(expression) + rule("^fuse$"))) == {"smarter-devices/fuse"}


def test_a_repetition_with_a_number_is_written_out_up_to_256_characters() -> None:
    (entry,) = converted(PEER, rule("^x[0-9]{256}$")).values()
    assert wheres(entry) == ["devNode: /dev/x" + 256 * "[0-9]"]


USB = "pci0000:00/0000:00:14.0/usb1"


def linked(root: Path) -> None:
    """The same machine with links to a serial port, a tuner and a USB device."""
    machine(root)
    tree = Tree(root)
    tree.link("/dev/serial/by-id/usb-FTDI_A-if00-port0", "/dev/ttyUSB0")
    tree.link("/dev/zigbee", "/dev/ttyUSB0")
    tree.device("virtual/dvb/dvb0.frontend0", "dvb", "dvb/adapter0/frontend0", "212:3")
    tree.pci("pci0000:00/0000:00:14.0", driver="xhci_hcd")
    tree.device(USB, "usb", DEVTYPE="usb_device", DRIVER="usb")
    files = {"idVendor": "18d1", "idProduct": "9302", "devpath": "2"}
    tree.device(f"{USB}/1-2", "usb", "bus/usb/001/004", "189:3", files, DEVTYPE="usb_device")


@pytest.mark.parametrize(
    ("expression", "name", "node"),
    [
        ("^snd.*/pcm.*$", "dev-snd-pcmC0D0p", "/dev/snd/pcmC0D0p"),
        ("^dvb/adapter[0-9]+/frontend0$", "dev-dvb-adapter0-frontend0", "/dev/dvb/adapter0/frontend0"),
        ("^bus/usb/001/.*$", "dev-bus-usb-001-004", "/dev/bus/usb/001/004"),
        ("^bus/usb/.*$", "dev-bus-usb-001-004", "/dev/bus/usb/001/004"),
    ],
)
def test_files_whose_name_is_not_the_kernels_are_named_by_their_paths(
    tmp_path: Path, expression: str, name: str, node: str
) -> None:
    linked(tmp_path)
    text = run(PEER, rule(expression, 2)).stdout
    assert offered(text, tmp_path) == {f"smarter-devices/{name}": {node: 2}}
    assert said(text).count("devhost's dev-dvb-adapter0-frontend0: change the pods.") == 1


BY_ID = "serial_by-id_usb-FTDI_A-if00-port0"


@pytest.mark.parametrize(
    ("expressions", "names"),
    [
        (("^ttyUSB0$", "^serial/by-id/usb-FTDI_A-if00-port0$"), {"ttyUSB0", BY_ID}),
        (("^ttyUSB[0]*$", "^serial/by-id/usb-FTDI_A-if00-port0$"), {"ttyUSB0", BY_ID}),
        (("^serial/by-id/.*$", "^serial/by-id/usb-FTDI_A-if00-port0$"), {"serial_by-id", BY_ID}),
        (("^serial/by-id/u.*$", "^serial/by-id/usb-.*$"), {"serial_by-id_u", "serial_by-id_usb"}),
        (("^zigbee$", "^ttyUSB0$"), {"zigbee", "ttyUSB0"}),
        (("^zigbee$", "^ttyUSB[0-9]$"), {"zigbee", "ttyUSB0"}),
        (("^snd$", "^snd/pcmC0D0p$"), {"snd", "snd_pcmC0D0p"}),
    ],
)
def test_each_name_of_a_node_is_a_resource(
    tmp_path: Path, expressions: tuple[str, str], names: set[str]
) -> None:
    """The plugin makes a resource of each file, which links to one node are as well."""
    linked(tmp_path)
    for one, other in (expressions, expressions[::-1]):
        text = run(PEER, rule(one) + rule(other)).stdout
        found = offered(text, tmp_path)
        assert {name.partition("/")[2] for name in found} == names
        assert "a node in several of these resources serves each of them" in said(text)


async def test_a_container_has_a_link_at_its_own_path(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        linked(node.root)
        node.configure(run(PEER, rule("^zigbee$")).stdout.split("version: 1\n", 1)[1])
        async with node.served({"smarter-devices/zigbee": 1}):
            given = await node.container({"smarter-devices/zigbee": 1})
    assert [one.container_path for one in given.devices] == ["/dev/zigbee"]


def test_a_name_has_the_plugins_character_for_others() -> None:
    by_path = r"^serial/by-path/pci-0000:00:14\.0-port0$"
    assert set(converted(PEER, rule(by_path))) == {"smarter-devices/serial_by-path_pci-0000_00_14_0-port0"}


WIDER = "devhost accepts any text for the repetition: check what it selects."
BOUNDED = "devhost matches a repetition that is not at the end up to 4 times."
REPEATS = "because a part inside the names of links repeats: omitted."


@pytest.mark.parametrize(
    ("expression", "remarks"),
    [
        ("^ttyUSB[0-9]*$", set()),
        ("^serial/by-id/.*$", set()),
        ("^serial/by-id/usb-[0-9]*$", {WIDER}),
        ("^serial/by-id/usb-[0-9]+-port0$", {REPEATS}),
        ("^nvme[0-9]+n[0-9]+$", {BOUNDED}),
    ],
)
def test_a_selection_that_is_not_exact_has_a_remark(expression: str, remarks: set[str]) -> None:
    result = said(run(PEER, rule(expression)).stdout)
    assert {one for one in (WIDER, BOUNDED, REPEATS) if one in result} == remarks


def test_a_number_in_the_middle_of_a_name_selects_no_partition(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for minor, file in enumerate(("nvme0n1", "nvme0n1p1", "nvme10n2", "nvme10n2p12")):
        tree.device(f"virtual/misc/{file}", "misc", file, f"10:{minor}")
    found = offered(run(PEER, rule("^nvme[0-9]+n[0-9]+$")).stdout, tmp_path)
    assert set(found) == {"smarter-devices/nvme0n1", "smarter-devices/nvme10n2"}


def test_names_without_links_stay_exclusive() -> None:
    text = run(PEER, rule("^ttyUSB[0-9]*$") + rule("^tty.*$") + rule("^gpiomem$") + rule("^snd$")).stdout
    assert "shared: true" not in text


def daemon_set(mounted: str = "", *arguments: str) -> str:
    container = {
        "name": "x",
        "image": "ghcr.io/smarter-project/smarter-device-manager:v1",
        "args": [*arguments],
    }
    volumes = [{"name": "config", "configMap": {"name": mounted}}] if mounted else []
    spec = {"template": {"spec": {"containers": [container], "volumes": volumes}}}
    return json.dumps({"kind": "DaemonSet", "metadata": {"name": "manager"}, "spec": spec})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            daemon_set(),
            "so the file conf.yaml of the image counts (give conf.yaml of the plugin's repository",
        ),
        (
            daemon_set() + "\n---\nkind: ConfigMap\nmetadata: {name: coredns}\ndata: {Corefile: x}",
            "so the file conf.yaml of the image counts",
        ),
        (
            daemon_set("own"),
            "which is not in this file (add the ConfigMap own, which has the entry conf.yaml",
        ),
        (
            "image: {repository: ghcr.io/smarter-project/smarter-device-manager}\nconfig: []",
            "so the file conf.yaml of the image counts",
        ),
        ("image: {repository: x/smarter-device-manager}", "so the file conf.yaml of the image counts"),
    ],
)
def test_without_a_configuration_the_one_that_counts_is_named(text: str, message: str) -> None:
    assert message in refusal(PEER, text)


def test_the_flag_config_names_the_entry_of_the_configmap() -> None:
    data = {"conf.yaml": rule("^kvm$"), "other.yaml": rule("^fuse$")}
    config_map = json.dumps({"kind": "ConfigMap", "metadata": {"name": "own"}, "data": data})
    given = daemon_set("own", "-config=/x/other.yaml", "-v=2") + "\n---\n" + config_map
    assert set(converted(PEER, given)) == {"smarter-devices/fuse"}
    assert "no such flag" not in run(PEER, given).stdout


def test_a_directory_is_given_with_all_its_nodes(tmp_path: Path) -> None:
    machine(tmp_path)
    text = run(PEER, rule("^snd$", 20)).stdout
    assert offered(text, tmp_path) == {"smarter-devices/snd": {"/dev/snd/controlC0 /dev/snd/pcmC0D0p": 20}}


def test_a_file_that_two_rules_match_is_offered_by_the_first() -> None:
    """There both try to serve it, and the second fails."""
    text = run(PEER, rule("^fuse$", 2) + rule("^fuse$", 5) + rule("^kvm$")).stdout
    assert "# smarter-devices/fuse is already offered above: omitted." in text
    entries = converted(PEER, rule("^fuse$", 2) + rule("^fuse$", 5) + rule("^kvm$"))
    assert {name: entry.share.replicas for name, entry in entries.items()} == {
        "smarter-devices/fuse": 2,
        "smarter-devices/kvm": 1,
    }


def test_a_rule_with_the_number_zero_is_omitted_with_the_reason() -> None:
    done = run(PEER, '- devicematch: "^fuse$"\n')
    assert "nummaxdevices 0, so no pod ever gets it: omitted." in said(done.stdout)
    assert "resources: []" in done.stdout


def test_a_configmap_is_found_among_other_objects_and_by_its_key() -> None:
    objects = (
        "kind: Namespace\nmetadata: {name: x}\n---\n# the configuration\nkind: ConfigMap\ndata:\n"
        '  conf.yaml: |\n    - {devicematch: "^fuse$", nummaxdevices: 3}\n'
        '  other: |\n    - {devicematch: "^kvm$", nummaxdevices: 4}\n---\n---\n'
    )
    assert set(converted(PEER, objects)) == {"smarter-devices/fuse"}
    assert set(converted(PEER, objects, "--key", "other")) == {"smarter-devices/kvm"}


def test_a_list_printed_by_kubectl_is_read() -> None:
    config_map = {"kind": "ConfigMap", "data": {"conf.yaml": rule("^fuse$", 3)}}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [config_map]})
    assert wheres(converted(PEER, text)["smarter-devices/fuse"]) == ["devNode: /dev/fuse"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<stdin>: it is empty (is it the right file?)"),
        ("a: b", "<stdin>:1:1: it must be a list of rules"),
        (rule("^("), '<stdin>:1:16: [0].devicematch: "^(" is not a regular expression'),
        (
            rule("^a{99999999999999999999}$"),
            "is not a regular expression: the repetition number is too large",
        ),
        (rule(""), "[0].devicematch: is empty, which matches every file"),
        ("- nummaxdevices: 3", "<stdin>:1:3: [0]: the key devicematch is required"),
        ("- {devicematch: a, nummaxdevices: -1}", "[0].nummaxdevices: must be from 0 to 100000, not -1"),
        ("kind: Pod", '<stdin>:1:7: a "Pod" contains no configuration (give conf.yaml'),
        ("kind: ConfigMap\ndata: {a: b, c: d}", "it has no data.conf.yaml (choose one with --key"),
        ("---\na: [\n", "<stdin>:3:1: "),
    ],
)
def test_a_document_that_is_not_a_configuration_is_refused_in_one_line(text: str, message: str) -> None:
    assert message in refusal(PEER, text)
