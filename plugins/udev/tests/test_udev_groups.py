"""Groups: several nodes, mounts and variables as one device, as complete and as healthy as its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from devhost_testing.fixtures import request
from devhost_udev.options import Group, GroupMount, Member, Pair, UdevOptions, UsbMember

from devhost.backend import AllocationError, Device, DeviceNode, Event, Mount, OptionError
from devhost.backend.where import Block, Term, Text

ONLOAD = Group(
    "onload",
    members=(Member("/dev/onload"), Member("/dev/onload_epoll"), Member("/dev/sfc_char", optional=True)),
    mounts=(GroupMount("/usr/lib64/libonload.so"), GroupMount("/usr/lib64/libci*.so", optional=True)),
    env={"LD_PRELOAD": "/usr/lib64/libonload.so"},
)


def groups(backend: Any) -> list[Device]:
    return [device for device in backend.discover() if "group" in device.attributes]


def test_a_group_without_a_required_path_is_unhealthy_with_the_reason(machine: Any) -> None:
    machine.misc("onload", 100)
    backend = machine.backend(ONLOAD)
    (device,) = groups(backend)
    assert device.id == "onload"
    assert device.health.reason == "/dev/onload_epoll is missing; /usr/lib64/libonload.so is missing"
    with pytest.raises(AllocationError, match="/dev/onload_epoll is missing"):
        backend.allocate(request(backend, [device]))


def test_a_group_comes_alive_when_its_last_part_appears(machine: Any) -> None:
    machine.misc("onload", 100)
    backend = machine.backend(ONLOAD)
    assert not groups(backend)[0].health
    machine.misc("onload_epoll", 101)
    machine.node("/usr/lib64/libonload.so")
    (device,) = groups(backend)
    assert device.health
    assert groups(backend)[0] is device
    assert device.claims == {"node:/dev/onload", "node:/dev/onload_epoll", "node:/dev/sfc_char"}
    edits = backend.allocate(request(backend, [device]))
    assert edits.nodes == (
        DeviceNode("/dev/onload", "/dev/onload"),
        DeviceNode("/dev/onload_epoll", "/dev/onload_epoll"),
        DeviceNode("/dev/sfc_char", "/dev/sfc_char", required=False),
    )
    assert edits.mounts == (Mount("/usr/lib64/libonload.so", "/usr/lib64/libonload.so"),)
    assert edits.env == {"LD_PRELOAD": "/usr/lib64/libonload.so"}
    (machine.root / "usr/lib64/libonload.so").unlink()
    assert groups(backend)[0].health.reason == "/usr/lib64/libonload.so is missing"


def test_a_glob_without_matches_makes_no_device(machine: Any) -> None:
    machine.misc("fuse", 229)
    backend = machine.backend(Group("s", members=(Member("/dev/ttyUSB*"), Member("/dev/fuse"))))
    assert groups(backend) == []


def test_with_pair_order_globs_are_paired_in_natural_order(machine: Any) -> None:
    for n in (10, 9):
        machine.device(f"virtual/a/a{n}", "a", f"a{n}", f"240:{n}")
    for n in (1, 3):
        machine.device(f"virtual/b/b{n}", "b", f"b{n}", f"241:{n}")
    machine.device("virtual/c/c", "c", "c", "242:0")
    members = (Member("/dev/a*"), Member("/dev/b*"), Member("/dev/c"))
    group = Group("pair", members=members, pair=Pair.ORDER)
    found = groups(machine.backend(group))
    assert {d.id: d.attributes["members"] for d in found} == {
        "pair-a-a9": ("/dev/a9", "/dev/b1", "/dev/c"),
        "pair-a-a10": ("/dev/a10", "/dev/b3", "/dev/c"),
    }
    assert all("node:/dev/c" in d.part_of and "node:/dev/c" not in d.claims for d in found)
    assert found[0].claims == {"node:/dev/a9", "node:/dev/b1"}


def test_limit_is_the_number_of_devices_that_one_path_may_be_in(machine: Any) -> None:
    for n in range(5):
        machine.device(f"virtual/a/a{n}", "a", f"a{n}", f"240:{n}")
    machine.device("virtual/c/c", "c", "c", "242:0")
    for limit, expected in ((0, 5), (1, 1), (3, 3), (9, 5)):
        group = Group("g", members=(Member("/dev/a*"), Member("/dev/c", limit=limit)))
        assert len(groups(machine.backend(group))) == expected
    assert len(groups(machine.backend(Group("g", members=(Member("/dev/c", limit=4),))))) == 1
    twice = Group("g", members=(Member("/dev/a*"), Member("/dev/[c]", limit=2)), pair=Pair.ORDER)
    assert len(groups(machine.backend(twice))) == 2


def test_an_optional_glob_neither_blocks_nor_cuts(machine: Any) -> None:
    for n in range(3):
        machine.device(f"virtual/a/a{n}", "a", f"a{n}", f"240:{n}")
    machine.device("virtual/b/b0", "b", "b0", "241:0")
    members = (Member("/dev/a*"), Member("/dev/b*", optional=True))
    for pair, expected in ((Pair.ORDER, [1, 1, 1]), (Pair.NUMBER, [2, 1, 1])):
        backend = machine.backend(Group("g", members=members, pair=pair))
        devices = groups(backend)
        assert [len(backend.allocate(request(backend, [device])).nodes) for device in devices] == expected


def test_container_paths_are_kept_or_put_into_a_directory(machine: Any) -> None:
    machine.device("virtual/a/a0", "a", "a0", "240:0")
    members = (
        Member("/dev/a*", container_path="/dev/modem", permissions="r"),
        Member("/dev/a0", container_path="/devices/"),
    )
    backend = machine.backend(Group("g", members=members))
    assert backend.allocate(request(backend, groups(backend))).nodes == (
        DeviceNode("/dev/a0", "/dev/modem", "r"),
        DeviceNode("/dev/a0", "/devices/a0"),
    )


def test_a_link_is_followed_and_the_node_behind_it_is_claimed(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    links = machine.root / "dev/serial/by-id"
    links.mkdir(parents=True)
    (links / "usb-Acme").symlink_to("../../ttyUSB0")
    backend = machine.backend(Group("g", members=(Member("/dev/serial/by-id/*"),)))
    (device,) = groups(backend)
    assert device.id == "g-tty-1a86:7523-A10B-00"
    assert device.claims == {"node:/dev/ttyUSB0"}
    assert backend.allocate(request(backend, [device])).nodes == (
        DeviceNode("/dev/ttyUSB0", "/dev/serial/by-id/usb-Acme"),
    )


def test_links_are_followed_below_a_root_that_is_itself_a_link(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.misc("fuse", 229)
    (machine.root / "dev/alias").symlink_to("fuse")
    link = machine.root.with_name("link")
    link.symlink_to(machine.root)
    monkeypatch.chdir(machine.root.parent)
    for root in (link, Path("link"), Path(machine.root.name)):
        machine.root = root
        (device,) = groups(machine.backend(Group("g", members=(Member("/dev/alias"),))))
        assert device.health
        assert device.claims == {"node:/dev/fuse"}


def test_a_directory_means_the_nodes_below_it(machine: Any) -> None:
    for n, name in enumerate(("controlC0", "pcmC0D0c")):
        machine.device(f"virtual/sound/{name}", "sound", f"snd/{name}", f"116:{n}")
    backend = machine.backend(Group("audio", members=(Member("/dev/snd", container_path="/dev/snd"),)))
    (device,) = groups(backend)
    assert device.claims == {"node:/dev/snd/controlC0", "node:/dev/snd/pcmC0D0c"}
    nodes = backend.allocate(request(backend, [device])).nodes
    assert [(n.path, n.container_path) for n in nodes] == [
        ("/dev/snd/controlC0", "/dev/snd/controlC0"),
        ("/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0c"),
    ]


def test_a_whole_usb_device_conflicts_with_its_parts(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.usb_serial("ttyUSB1", "2", "B20C")
    backend = machine.backend(Group("dongle", usb=(UsbMember("1A86", "7523"),)))
    found = groups(backend)
    assert [d.id for d in found] == ["dongle-usb-1a86:7523-A10B", "dongle-usb-1a86:7523-B20C"]
    tty = next(d for d in backend.discover() if d.attributes.get("devNode") == "/dev/ttyUSB0")
    assert found[0].claims & tty.part_of == {"usb:0000:00:14.0-usb1"}
    (only,) = groups(machine.backend(Group("dongle", usb=(UsbMember("1a86", "7523", "B20C"),))))
    assert only.id == "dongle-usb-1a86:7523-B20C"


def test_alternatives_are_one_pool_with_different_ids(machine: Any) -> None:
    machine.misc("a", 1)
    machine.misc("b", 2)
    backend = machine.backend(
        Group("g", members=(Member("/dev/a"),)), Group("g", members=(Member("/dev/b"),))
    )
    assert [(d.id, d.attributes["alternative"]) for d in groups(backend)] == [("g", 0), ("g-alt1", 1)]


def test_a_shared_usb_device_can_be_in_other_groups_and_so_can_its_port(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "2", "A10B")
    usb = UsbMember("1a86", "7523", shared=True)
    one, other, port = groups(
        machine.backend(
            Group("a", usb=(usb,)), Group("b", usb=(usb,)), Group("c", members=(Member("/dev/ttyUSB0"),))
        )
    )
    assert one.claims == other.claims == frozenset()
    assert one.part_of == other.part_of and port.part_of & one.part_of
    assert not port.claims & one.part_of
    (alone,) = groups(machine.backend(Group("a", usb=(UsbMember("1a86", "7523"),))))
    assert alone.claims and alone.claims <= one.part_of


@pytest.mark.parametrize(
    ("ids", "devices"),
    [
        ([], 0),
        (["0001"], 1),
        (["0002"], 1),
        (["0001", "0002"], 1),
        (["0001", "0002", "0002"], 2),
    ],
)
def test_a_group_of_optional_usb_devices_is_offered_while_one_of_them_is_there(
    machine: Any, ids: list[str], devices: int
) -> None:
    for port, product in enumerate(ids, 1):
        machine.usb(str(port), "18d1", product)
    either = tuple(UsbMember("18d1", product, optional=True) for product in ("0001", "0002"))
    found = groups(machine.backend(Group("coral", usb=either, pair=Pair.ORDER)))
    assert [one.health.healthy for one in found] == devices * [True]
    assert sum(len(one.attributes["members"]) for one in found) == len(ids)


def test_a_shared_member_can_be_in_other_groups(machine: Any) -> None:
    machine.misc("fuse", 229)
    member = Member("/dev/fuse", shared=True)
    first, second = groups(machine.backend(Group("a", members=(member,)), Group("b", members=(member,))))
    assert first.claims == second.claims == frozenset()
    assert first.part_of == second.part_of == {"node:/dev/fuse"}


def test_variables_refer_to_the_first_node_and_join_over_several_devices(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    machine.usb_serial("ttyUSB1", "2")
    env = {"PORT": "{devNode}", "SERIAL": "sn={serial}", "FIXED": "x"}
    backend = machine.backend(Group("g", members=(Member("/dev/ttyUSB*"),), env=env))
    edits = backend.allocate(request(backend, groups(backend)))
    assert edits.env == {"PORT": "/dev/ttyUSB0,/dev/ttyUSB1", "SERIAL": "sn=A10B", "FIXED": "x"}


def test_a_group_sees_hot_plug(machine: Any) -> None:
    backend = machine.backend(Group("g", members=(Member("/dev/ttyUSB*"),)))
    assert groups(backend) == []
    tty = machine.usb_serial("ttyUSB0", "1", "A10B")
    backend.notice(Event("tty", "add", tty))
    (device,) = groups(backend)
    assert device.pcie_path == ("0000:00:14.0",)
    backend.notice(machine.remove(tty.partition("/1-1/")[0] + "/1-1"))
    assert groups(backend) == []


def test_a_group_keeps_its_id_when_other_devices_appear_and_disappear(machine: Any) -> None:
    machine.misc("a", 1)
    backend = machine.backend(Group("g", members=(Member("/dev/[a]"),)))
    (before,) = groups(backend)
    machine.misc("b", 2)
    backend.notice(Event())
    assert groups(backend) == [before]
    backend.notice(machine.remove("/sys/devices/virtual/misc/a"))
    assert groups(backend) == []
    machine.misc("a", 1)
    backend.notice(Event())
    assert groups(backend) == [before]


def test_single_nodes_are_handed_out_readable_and_writable(machine: Any) -> None:
    machine.misc("fuse", 229)
    machine.misc("kvm", 232)
    backend = machine.backend()
    devices = sorted(backend.discover(), key=lambda device: device.id)
    assert backend.allocate(request(backend, devices)).nodes == (
        DeviceNode("/dev/fuse"),
        DeviceNode("/dev/kvm"),
    )
    (machine.root / "dev/kvm").unlink()
    with pytest.raises(AllocationError, match="/dev/kvm is missing"):
        backend.allocate(request(backend, devices))


def test_a_replugged_device_is_handed_out_under_its_new_node(machine: Any) -> None:
    tty = machine.usb_serial("ttyUSB0", "1", "A10B")
    backend = machine.backend()
    (old,) = (d for d in backend.discover() if d.attributes["subsystem"] == "tty")
    machine.remove(tty.partition("/1-1/")[0] + "/1-1")
    machine.usb_serial("ttyUSB5", "1", "A10B")
    backend.discover()
    assert backend.allocate(request(backend, [old])).nodes == (DeviceNode("/dev/ttyUSB5"),)


@pytest.mark.parametrize(
    ("make", "key", "message"),
    [
        (lambda: Member("dev/x"), "path", "not absolute"),
        (lambda: Member("/dev/../etc"), "path", "contains .."),
        (lambda: Member("/dev/x/"), "path", "ends in /"),
        (lambda: Member("/dev/x\0"), "path", "NUL"),
        (lambda: Member("/dev/x", container_path="x"), "containerPath", "not absolute"),
        (lambda: Member("/dev/x", permissions="rx"), "permissions", "not made of r, w and m"),
        (lambda: Member("/dev/x", permissions="rr"), "permissions", "not made of r, w and m"),
        (lambda: Member("/dev/x", permissions=""), "permissions", "not made of r, w and m"),
        (lambda: Member("/dev/x", limit=-1), "limit", "negative"),
        (lambda: UsbMember("1a8", "7523"), "idVendor", "four hex digits"),
        (lambda: UsbMember("1a86", "0x7523"), "idProduct", "four hex digits"),
        (lambda: GroupMount("/lib/*.so", container_path="/lib/x.so"), "containerPath", "glob"),
        (lambda: Group("a b", members=(Member("/dev/x"),)), "name", "is not a valid name of a group"),
        (lambda: Group("g"), "name", "needs members"),
        (
            lambda: Group("g", members=(Member("/dev/x"), Member("/dev/y", container_path="/dev/x"))),
            "members[1].containerPath",
            "already has /dev/x",
        ),
        (lambda: Group("g", members=(Member("/dev/x"),), env={"A B": "x"}), "env.A B", "variable's name"),
        (
            lambda: Group("g", members=(Member("/dev/x"),), env={"A": "{nope}"}),
            "env.A",
            "no attribute 'nope'",
        ),
        (
            lambda: Group("g", members=(Member("/dev/x"),), env={"A{nope}": "x"}),
            "env.A{nope}",
            "no attribute 'nope'",
        ),
        (lambda: Member("/dev/x", container_path="/dev/{nope}"), "containerPath", "no attribute 'nope'"),
        (lambda: Member("/dev/x", container_path="/dev/{ID_*}"), "containerPath", "no attribute"),
        (lambda: Member("/dev/x", container_path="/dev/{RESOURCE}"), "containerPath", "no attribute"),
        (lambda: GroupMount("/lib/x", container_path="/lib/{nope}"), "containerPath", "no attribute 'nope'"),
        (lambda: Member("/dev/tty{minor}"), "path", "cannot have a placeholder such as {minor}"),
        (lambda: GroupMount("/opt/{driver}"), "path", "cannot have a placeholder such as {driver}"),
        (lambda: Member(), "where", "needs path or where"),
        (lambda: Member("/dev/x", where=(Block((Term("driver", (Text("x"),)),)),)), "where", "has both"),
        (lambda: Member(where=(Block((Term("group", (Text("x"),)),)),)), "where", "has no group"),
    ],
)
def test_a_wrong_option_is_refused_at_its_key(make: Any, key: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as refusal:
        make()
    assert refusal.value.key == key


def test_several_links_to_one_node_are_one_device(machine: Any) -> None:
    machine.usb_serial("ttyUSB0", "1", "A10B")
    links = machine.root / "dev/serial/by-id"
    links.mkdir(parents=True)
    for name in ("usb-Acme", "usb-Acme-alias"):
        (links / name).symlink_to("../../ttyUSB0")
    (device,) = groups(machine.backend(Group("g", members=(Member("/dev/serial/by-id/*"),))))
    assert device.id == "g-tty-1a86:7523-A10B-00"
    assert device.claims == {"node:/dev/ttyUSB0"}


def test_a_path_that_is_in_several_devices_does_not_name_them_alone(machine: Any) -> None:
    for n in range(2):
        machine.device(f"virtual/a/a{n}", "a", f"a{n}", f"240:{n}")
    machine.device("virtual/c/c", "c", "c", "242:0")
    group = Group("g", members=(Member("/dev/[c]", limit=2), Member("/dev/a*")), pair=Pair.ORDER)
    backend = machine.backend(group)
    assert {d.id: d.former_ids[:2] for d in groups(backend)} == {
        "g-c-c-a-a0": ("g-c-c", "g-c-c.*"),
        "g-c-c-a-a1": ("g-c-c", "g-c-c.*"),
    }
    machine.remove("/sys/devices/virtual/a/a0")
    assert [d.id for d in groups(machine.backend(group))] == ["g-c-c-a-a1"]


def test_alternatives_that_match_one_node_have_different_ids(machine: Any) -> None:
    machine.misc("a", 1)
    machine.misc("b", 2)
    first = Group("g", members=(Member("/dev/[a]"), Member("/dev/b")))
    second = Group("g", members=(Member("/dev/[a]"),))
    (one, two) = groups(machine.backend(first, second))
    assert (one.id, two.id) == ("g-misc-a", "g-misc-a-alt1")
    assert two.former_ids == ("g-misc-a", "g-misc-a.*")


def test_a_group_of_a_withheld_node_is_withheld_and_its_path_alone_is_not(machine: Any) -> None:
    for n in (0, 1):  # two paths to one disk
        machine.device(
            f"pci0000:00/0000:00:05.{n}/nvme/nvme{n}", "nvme", f"nvme{n}", f"240:{n}", {"serial": "S1"}
        )
    by_glob = groups(machine.backend(Group("g", members=(Member("/dev/nvme*"),))))
    assert [(d.id, "sharedSerials" in (d.withheld or "")) for d in by_glob] == [
        ("g-nvme-S1@nvme0", True),
        ("g-nvme-S1@nvme1", True),
    ]
    (by_path,) = groups(machine.backend(Group("g", members=(Member("/dev/nvme1"),))))
    assert (by_path.id, by_path.withheld) == ("g", None)


def test_a_group_of_twins_is_named_by_their_ports(machine: Any) -> None:
    for n in (0, 1):
        machine.usb_serial(f"ttyUSB{n}", str(n + 1), "A10B")
    found = groups(machine.backend(Group("g", members=(Member("/dev/ttyUSB*"),))))
    assert [(d.id, d.withheld) for d in found] == [
        ("g-tty-1a86:7523-A10B-0000:00:14.0-usb1-00", None),
        ("g-tty-1a86:7523-A10B-0000:00:14.0-usb2-00", None),
    ]
    assert all("g-tty-1a86:7523-A10B-00" in d.former_ids for d in found)


def test_a_group_whose_node_has_another_id_now_lists_its_former_ones(machine: Any) -> None:
    machine.pci("pci0000:6a/0000:6a:01.0")
    machine.device("pci0000:6a/0000:6a:01.0/dsa0/wq0.1/dsa!wq0.1", "dsa", "dsa/wq0.1", "234:1")
    (device,) = groups(machine.backend(Group("g", members=(Member("/dev/dsa/wq*"),))))
    assert device.id == "g-dsa-0000:6a:01.0-wq0.1"
    assert device.former_ids == ("g-dsa-0000:6a:01.0", "g-dsa-0000:6a:01.0.*")


def accelerator(machine: Any, card: int, number: int) -> None:
    """A card with two nodes, whose number depends on the order in which the driver probes the cards."""
    function = f"pci0000:00/0000:00:0{card}.0/0000:0{card}:00.0"
    machine.pci(function, driver="npu")
    for major, name in enumerate(("npu", "npu_ctl"), 240):
        machine.device(f"{function}/{name}/{name}{number}", name, f"{name}{number}", f"{major}:{number}")


def test_a_group_with_an_id_keeps_it_if_drivers_probe_in_another_order(machine: Any) -> None:
    members = (Member("/dev/npu[0-9]"), Member("/dev/npu_ctl*"))
    for card, number in ((1, 1), (2, 0)):
        accelerator(machine, card, number)
    before = {d.id: d for d in groups(machine.backend(Group("npu", members=members)))}
    found = groups(machine.backend(Group("npu", members=members, id="pciBusID")))
    assert {d.id: d.attributes["members"] for d in found} == {
        "npu-0000:01:00.0": ("/dev/npu1", "/dev/npu_ctl1"),
        "npu-0000:02:00.0": ("/dev/npu0", "/dev/npu_ctl0"),
    }
    assert all(d.health and not d.withheld for d in found)
    assert before.keys().isdisjoint(d.id for d in found)
    # what pods hold under the ids without the key keeps counting
    same = {d.attributes["members"]: name for name, d in before.items()}
    assert all(same[d.attributes["members"]] in d.former_ids for d in found)


def test_devices_with_one_value_of_the_id_are_withheld(machine: Any) -> None:
    accelerator(machine, 1, 0)
    accelerator(machine, 1, 1)
    accelerator(machine, 2, 2)
    found = groups(machine.backend(Group("npu", members=(Member("/dev/npu[0-9]"),), id="pciBusID")))
    why = "2 devices of the group have the pciBusID 0000:01:00.0: set id to an attribute that differs"
    assert {d.id: d.withheld for d in found} == {
        "npu-0000:01:00.0@npu0": why,
        "npu-0000:01:00.0@npu1": why,
        "npu-0000:02:00.0": None,
    }


def test_a_device_without_the_attribute_of_the_id_is_withheld(machine: Any) -> None:
    machine.misc("npu0", 100)
    (device,) = groups(machine.backend(Group("npu", members=(Member("/dev/npu[0-9]"),), id="pciBusID")))
    assert device.withheld == "its first node has no pciBusID, which is the group's id"


@pytest.mark.parametrize("name", ["pciBus", "number", "index", "sysattr.", "ID_*"])
def test_an_id_that_is_no_attribute_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="there is no attribute") as caught:
        Group("npu", members=(Member("/dev/npu*"),), id=name)
    assert caught.value.key == "id"


def test_the_attribute_of_the_id_is_read(machine: Any) -> None:
    machine.device("virtual/npu/npu0", "npu", "npu0", "240:0", {"uuid": "A-7"})
    group = Group("npu", members=(Member("/dev/npu[0-9]"),), id="sysattr.uuid")
    (device,) = groups(machine.backend(group))
    assert device.id == "npu-A-7"


@pytest.mark.parametrize("pair", list(Pair))
def test_a_node_to_which_several_links_lead_is_one_device(machine: Any, pair: Pair) -> None:
    accelerator(machine, 1, 0)
    for link in ("a0", "b0"):
        machine.link(f"/dev/by-path/{link}", "/dev/npu0")
    members = (Member("/dev/by-path/*"), Member("/dev/npu_ctl*"))
    (device,) = groups(machine.backend(Group("npu", members=members, pair=pair)))
    assert device.health
    assert device.attributes["members"] == ("/dev/npu0", "/dev/npu_ctl0")


def test_a_variable_of_a_group_is_none_that_an_entry_for_it_can_give() -> None:
    groups = (
        Group("npu", members=(Member("/dev/npu*"),), env={"NPU{index}": "{devNode}"}),
        Group("npu", members=(Member("/dev/old*"),), env={"OLD": "yes"}),
    )
    assert UdevOptions(groups).variables == {"npu": ["NPU*", "OLD"]}
