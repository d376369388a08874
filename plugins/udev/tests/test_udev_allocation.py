"""What a container gets of nodes and groups: placeholders, work queues, USB devices for KubeVirt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from devhost_testing.fixtures import request
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.node import Node
from devhost_udev.options import Group, GroupMount, Member, Use

from devhost.backend import AllocationError, Device, DeviceNode
from devhost.cli.check import command as check


def groups(backend: Any) -> list[Device]:
    return [device for device in backend.discover() if "group" in device.attributes]


def work_queue(machine: Any, kind: str, name: str, minor: int, mode: str, state: str = "enabled") -> str:
    """A work queue of the driver idxd: DSA's node is /dev/dsa/wq0.1, IAA's /dev/iax/wq1.0."""
    function = "0000:6a:01.0" if kind == "dsa" else "0000:6a:02.0"
    machine.pci(f"pci0000:6a/{function}", driver="idxd")
    device = f"pci0000:6a/{function}/{kind}{name[2]}"
    machine.device(device, "dsa")
    files = {"mode": mode, "state": state, "type": "user"}
    machine.device(f"{device}/{name}", "dsa", files=files, DRIVER="user")
    node = f"{kind}/{name}"
    return str(machine.device(f"{device}/{name}/{kind}!{name}", "dsa", node, f"237:{minor}"))


@pytest.mark.parametrize("kind", ["dsa", "iax"])
def test_a_work_queue_is_also_available_by_its_number(machine: Any, kind: str) -> None:
    """Intel's DSA and IAA plugins give the node and /dev/char/<major>:<minor>: libaccel-config opens that."""
    work_queue(machine, kind, "wq0.1", 3, "dedicated")
    backend = machine.backend(Group("q", members=(Member(f"/dev/{kind}/wq*", permissions="r"),)))
    plain = next(d for d in backend.discover() if "group" not in d.attributes)
    node = f"/dev/{kind}/wq0.1"
    assert backend.allocate(request(backend, [plain])).nodes == (
        DeviceNode(node),
        DeviceNode(node, "/dev/char/237:3"),
    )
    assert backend.allocate(request(backend, groups(backend))).nodes == (
        DeviceNode(node, node, "r"),
        DeviceNode(node, "/dev/char/237:3", "r"),
    )


def test_a_work_queue_on_the_bus_iax_is_also_available_by_its_number(machine: Any) -> None:
    """Linux 5.11 has the devices of IAA on the bus ``iax``, later kernels on ``dsa``."""
    machine.pci("pci0000:6a/0000:6a:02.0", driver="idxd")
    machine.device("pci0000:6a/0000:6a:02.0/iax1/wq1.0/iax!wq1.0", "iax", "iax/wq1.0", "237:3")
    backend = machine.backend()
    (device,) = backend.discover()
    assert backend.allocate(request(backend, [device])).nodes == (
        DeviceNode("/dev/iax/wq1.0"),
        DeviceNode("/dev/iax/wq1.0", "/dev/char/237:3"),
    )


def test_other_nodes_come_by_their_path_alone(machine: Any) -> None:
    machine.misc("fuse", 229)
    backend = machine.backend()
    assert backend.allocate(request(backend, backend.discover())).nodes == (DeviceNode("/dev/fuse"),)


def test_placeholders_are_those_of_the_node_in_paths_and_of_the_first_node_elsewhere(machine: Any) -> None:
    machine.usb_serial("ttyUSB3", "1", "A10B")
    machine.misc("ppp", 108)
    machine.node("/etc/peers")
    group = Group(
        "modem",
        members=(
            Member("/dev/ttyUSB*", container_path="/dev/char/{major}:{minor}"),
            Member("/dev/ppp", container_path="/dev/{group}/{sysName}-{minor}"),
        ),
        mounts=(GroupMount("/etc/peers", container_path="/etc/{serial}/"),),
        env={"PORT_{minor}_{serial}": "{idVendor}:{driver}", "MISSING": "{wwid}"},
    )
    backend = machine.backend(group, wanted=())
    edits = backend.allocate(request(backend, groups(backend)))
    assert [node.container_path for node in edits.nodes] == ["/dev/char/188:3", "/dev/modem/ppp-108"]
    assert [mount.container_path for mount in edits.mounts] == ["/etc/A10B/peers"]
    assert edits.env == {"PORT_3_A10B": "1a86:ch341-uart"}


def test_index_counts_the_devices_that_the_container_gets(machine: Any) -> None:
    for n in (9, 10, 2):
        machine.usb_serial(f"ttyUSB{n}", str(n), f"S{n}")
    member = Member("/dev/ttyUSB*", container_path="/dev/modem{index}")
    backend = machine.backend(Group("modem", members=(member,), env={"MODEM{index}": "{devNode}"}))
    found = {str(device.attributes["devNode"]): device for device in groups(backend)}
    for asked in (["/dev/ttyUSB10", "/dev/ttyUSB9"], ["/dev/ttyUSB9", "/dev/ttyUSB10"]):
        edits = backend.allocate(request(backend, [found[node] for node in asked]))
        paths = {node.path: node.container_path for node in edits.nodes}
        assert paths == {"/dev/ttyUSB9": "/dev/modem0", "/dev/ttyUSB10": "/dev/modem1"}
        assert edits.env == {"MODEM0": "/dev/ttyUSB9", "MODEM1": "/dev/ttyUSB10"}


def test_a_path_in_the_container_that_cannot_be_filled_in_makes_the_device_unhealthy(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1")
    machine.usb_serial("ttyUSB1", "2", "..")
    machine.usb_serial("ttyUSB2", "3", ".")
    member = Member("/dev/ttyUSB*", container_path="/dev/{serial}/tty")
    backend = machine.backend(Group("g", members=(member,)))
    without, odd, none = groups(backend)
    assert without.health.reason == "/dev/ttyUSB0 has no serial, which containerPath /dev/{serial}/tty needs"
    assert odd.health.reason == "/dev/ttyUSB1 would be at /dev/../tty in the container, which goes up with .."
    assert (
        none.health.reason
        == "/dev/ttyUSB2 would be at /dev/./tty in the container, which has no name at {serial}"
    )
    for device in (without, odd, none):
        with pytest.raises(AllocationError):
            backend.allocate(request(backend, [device]))
    optional = Group("g", members=(Member("/dev/ttyUSB0"), Member("/dev/ttyUSB0", "/{wwid}", optional=True)))
    (device,) = groups(machine.backend(optional))
    assert device.health
    assert len(machine.backend(optional).discover()) > 0


def test_two_nodes_at_one_path_in_the_container_make_the_device_unhealthy(machine: Any) -> None:
    machine.pci("pci0000:00/0000:19:00.0")
    for n, name in enumerate(("accel0", "control0", "control1")):
        machine.device(f"pci0000:00/0000:19:00.0/accel/{name}", "accel", name, f"261:{n}")
    members = (Member("/dev/accel*"), Member("/dev/control*", container_path="/dev/control"))
    (device,) = groups(machine.backend(Group("g", members=members)))
    reason = "/dev/control0 and /dev/control1 would both be /dev/control in the container"
    assert device.health.reason == reason
    members = (
        Member("/dev/control0", container_path="/dev//{subsystem}"),
        Member("/dev/control1", container_path="/dev/{subsystem}"),
    )
    (device,) = groups(machine.backend(Group("g", members=members)))
    assert device.health.reason == "/dev/control0 and /dev/control1 would both be /dev/accel in the container"


def test_a_device_of_which_two_variables_have_one_name_is_unhealthy(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "B")
    machine.usb_serial("ttyUSB1", "2", "C")
    env = {"A_{serial}": "{devNode}", "A_B": "x"}
    backend = machine.backend(Group("g", members=(Member("/dev/ttyUSB*"),), env=env))
    one, other = groups(backend)
    assert one.health.reason == "the variables A_{serial} and A_B are both A_B (rename one)"
    assert other.health.healthy
    assert backend.allocate(request(backend, [other])).env == {"A_C": "/dev/ttyUSB1", "A_B": "x"}


def test_a_group_that_has_gone_never_gives_its_first_node_alone(machine: Any) -> None:
    tty = machine.usb_serial("ttyUSB0", "1", "A10B")
    backend = machine.backend(Group("g", members=(Member("/dev/ttyUSB*"),)))
    (device,) = groups(backend)
    machine.remove(tty.partition("/1-1/")[0] + "/1-1")
    backend.discover()
    with pytest.raises(AllocationError, match="no longer exists"):
        backend.allocate(request(backend, [device]))


@pytest.mark.parametrize(
    ("group", "complaint"),
    [
        (
            'members: [{path: /dev/x, containerPath: "/dev/{mnor}"}]',
            "5:57: backends.udev.groups[0].members[0].containerPath: "
            "there is no attribute 'mnor' to put here (did you mean minor?)",
        ),
        (
            'mounts: [{path: /opt/x, containerPath: "/{xyzzy}"}]',
            "5:56: backends.udev.groups[0].mounts[0].containerPath: "
            "there is no attribute 'xyzzy' to put here (known words: ",
        ),
        ('members: [{path: /dev/x}], env: {"A{nix}": x}', "there is no attribute 'nix' to put here"),
        ('members: [{path: /dev/x}], env: {A: "{devnode}"}', "(did you mean devNode?)"),
        ('members: [{path: /dev/x}], env: {"A{index}": a, A0: b}', "A{index} becomes A0, too (rename one)"),
        ("members: [{path: /dev/x}], id: alternative", "id: there is no attribute 'alternative' to put here"),
        (
            "members: [{path: /dev/x}, {path: /dev/y, containerPath: /dev//x}]",
            "members[1].containerPath: the container already has /dev/x from another member",
        ),
        ("members: [{path: /dev/x}], id: devLinks", "id: devLinks is a list, and an id is one value"),
    ],
)
def test_a_mistake_in_a_group_is_refused_at_its_place(tmp_path: Path, group: str, complaint: str) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text(
        f"version: 1\nbackends:\n  udev:\n    groups:\n    - {{name: g, {group}}}\nresources: []\n"
    )
    done = CliRunner().invoke(check, [str(file)])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert complaint in line


GROUP = 'backends: {udev: {groups: [{name: modem, members: [{path: "/dev/ttyUSB*"}]}]}}\n'


async def test_a_group_is_selected_and_named_by_attributes_of_its_first_node(
    machine: Any, tmp_path: Path
) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.usb_serial("ttyUSB1", "2", "B20C")
    async with Node(tmp_path / "n", root=machine.root) as node:
        node.configure(
            GROUP + 'resources: [{name: "e.x/{idVendor}-{sysattr.device/port_number}", backend: udev, '
            "where: {group: modem, serial: A10B}}]"
        )
        async with node.served():
            await node.offers({"e.x/1a86-0": 1}, only=True)


async def test_an_entry_for_single_nodes_selects_no_group(machine: Any, tmp_path: Path) -> None:
    """As before groups had attributes of their nodes: otherwise the entry would take the group's claim."""
    machine.usb_serial("ttyUSB0", "1", "A10B")
    async with Node(tmp_path / "n", root=machine.root) as node:
        node.configure(GROUP + "resources: [{name: e.x/tty, backend: udev, where: {subsystem: tty}}]")
        async with node.served({"e.x/tty": 1}, only=True):
            (listed,) = node.kubelet.devices("e.x/tty")
            assert listed.id == "tty-1a86:7523-A10B-00"


def test_the_answer_for_nodes_lasts_and_that_for_a_group_does_not(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.usb_serial("ttyUSB1", "2", "B20C")
    backend = machine.backend(Group("pair", (Member("/dev/ttyUSB1"),)))
    found = {str(one.attributes.get("group") or one.attributes["devNode"]): one for one in backend.discover()}
    node, group = found["/dev/ttyUSB0"], found["pair"]

    def lasts(*devices: Device) -> bool:
        return backend.allocate(request(backend, devices)).lasting

    assert [lasts(node), lasts(group), lasts(group, node), lasts(node, group)] == [True, False, False, False]


def test_the_answer_for_kubevirt_does_not_last_because_it_makes_qemu_the_owner(machine: Any) -> None:
    require_chown()
    machine.usb_serial("ttyUSB0", "1", "A10B")
    backend = machine.backend()
    usb = [one for one in backend.discover() if one.attributes.get("devType") == "usb_device"]
    assert not backend.allocate(request(backend, usb, Use(kubevirt=True))).lasting


async def test_kubevirt_gets_a_usb_device_by_owner_and_variable(machine: Any, tmp_path: Path) -> None:
    """KubeVirt's plugin chowns the node to qemu's 107:107 at Allocate and sets USB_RESOURCE_<NAME>."""
    require_chown()
    machine.usb_serial("ttyUSB0", "1", "A10B")
    entry = "backend: udev, where: {devType: usb_device, serial: A10B}, kubevirt: true"
    async with Node(tmp_path / "n", root=machine.root) as node:
        node.configure(f"resources: [{{name: kubevirt.io/usb-tty, {entry}}}]")
        async with node.served({"kubevirt.io/usb-tty": 1}):
            for _ in range(2):
                started = await node.container({"kubevirt.io/usb-tty": 1})
                assert dict(started.envs) == {
                    "USB_RESOURCE_KUBEVIRT_IO_USB-TTY": "1:2",
                    "USB_RESOURCE_KUBEVIRT_IO_USB_TTY": "1:2",
                }
                status = (machine.root / "dev/bus/usb/001/002").stat()
                assert (status.st_uid, status.st_gid) == (107, 107)


async def test_a_device_that_is_no_usb_device_is_unhealthy_in_a_resource_for_kubevirt(
    machine: Any, tmp_path: Path
) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    async with Node(tmp_path / "n", root=machine.root) as node:
        node.configure("resources: [{name: e.x/usb, backend: udev, where: {subsystem: tty}, kubevirt: true}]")
        async with node.served():
            await node.kubelet.wait_for(lambda: node.kubelet.capacity().get("e.x/usb") == 1)
            assert node.kubelet.allocatable()["e.x/usb"] == 0
            reasons = [one.unusable_for.get("kubevirt") for one in node.devices("udev").values()]
            assert "it is not a whole USB device (kubevirt: true is for devType: usb_device)" in reasons


def require_chown() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: only root may change owners")


def test_kubevirt_gets_several_usb_devices_in_one_variable_and_those_of_groups(machine: Any) -> None:
    require_chown()
    machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.usb_serial("ttyUSB1", "2", "B20C")
    backend = machine.backend()
    usb = [d for d in backend.discover() if d.attributes.get("devType") == "usb_device"]
    env = backend.allocate(request(backend, usb, Use(kubevirt=True))).env
    assert env == {"USB_RESOURCE_EXAMPLE_COM_RESOURCE": "1:2,1:3"}
    tty = machine.root / "dev/ttyUSB0"
    assert tty.stat().st_uid != 107


def test_kubevirt_does_not_get_part_of_a_usb_device(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    backend = machine.backend()
    tty = next(d for d in backend.discover() if d.attributes.get("subsystem") == "tty")
    with pytest.raises(AllocationError, match="is not a whole USB device"):
        backend.allocate(request(backend, [tty], Use(kubevirt=True)))
    assert backend.allocate(request(backend, [tty])).env == {}


async def test_a_node_whose_owner_cannot_be_changed_refuses_the_pod_with_the_reason(
    machine: Any, tmp_path: Path
) -> None:
    """As in a pod without CAP_CHOWN, or with /dev mounted read-only."""
    (machine.root / "dev/bus/usb").mkdir(parents=True)
    if os.geteuid() == 0:  # not even root may change the owner of these files
        (machine.root / "dev/bus/usb/001").symlink_to("/proc/sys/kernel")
    machine.device("pci0000:00/usb1/1-1", "usb", "bus/usb/001/ostype", "189:1", DEVTYPE="usb_device")
    async with Node(tmp_path / "n", root=machine.root) as node:
        node.configure(
            "resources: [{name: e.x/usb, backend: udev, where: {devType: usb_device}, kubevirt: true}]"
        )
        async with node.served({"e.x/usb": 1}):
            with pytest.raises(
                UnexpectedAdmissionError, match="cannot give /dev/bus/usb/001/ostype to KubeVirt"
            ):
                await node.container({"e.x/usb": 1})


async def test_index_and_owner_are_the_same_by_cdi(machine: Any, tmp_path: Path) -> None:
    require_chown()
    for n in (1, 2):
        machine.usb_serial(f"ttyUSB{n}", str(n), f"S{n}")
    groups = '{name: modem, usb: [{idVendor: "1a86", idProduct: "7523"}], env: {"MODEM{index}": "{serial}"}}'
    entry = "{name: e.x/modem, backend: udev, where: {group: modem}, kubevirt: true, inject: cdi}"
    async with Node(tmp_path / "n", root=machine.root) as node:
        node.configure(f"backends: {{udev: {{groups: [{groups}]}}}}\nresources: [{entry}]")
        async with node.served({"e.x/modem": 2}):
            started = await node.container({"e.x/modem": 2})
            env = [
                variable
                for edits in node.specified([one.name for one in started.cdi_devices])
                for variable in edits["env"]
            ]
    assert {"MODEM0=S1", "MODEM1=S2", "USB_RESOURCE_E_X_MODEM=1:2,1:3"} <= set(env)


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("{group: modm}", '.where.group: backends.udev does not define "modm" (did you mean modem?)'),
        (
            "{group: [modem, x]}",
            '.where.group: backends.udev does not define "x" (known values: modem)',
        ),
        ("[{subsystem: tty}, {group: 'y*'}]", '.where[1].group: backends.udev does not define "y*"'),
    ],
)
def test_an_entry_for_a_group_that_is_not_defined_is_refused(
    tmp_path: Path, where: str, complaint: str
) -> None:
    """With `optional: true` nothing else would show the mistake."""
    file = tmp_path / "devhost.yaml"
    groups = "backends: {udev: {groups: [{name: modem, members: [{path: /dev/x}]}]}}\n"
    entry = "resources: [{name: example.com/x, backend: udev, where: %s, optional: true}]\n"
    file.write_text("version: 1\n" + groups + entry % where)
    done = CliRunner().invoke(check, [str(file)])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert f"resources[0]{complaint}" in line
    file.write_text("version: 1\n" + groups + entry % "{group: 'm*', not: {group: other}}")
    assert CliRunner().invoke(check, [str(file)]).exit_code == 0
    file.write_text("version: 1\n" + entry % "{group: modem}")
    assert "(define it there)" in CliRunner().invoke(check, [str(file)]).stderr
