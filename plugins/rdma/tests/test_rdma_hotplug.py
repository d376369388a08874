"""Hot-plug: after each change and its events, the backend reports the same as a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from devhost_rdma import Rdma
from devhost_testing.fixtures import request
from rdma_tree import DISABLED, EDR, RdmaTree, infiniband, roce

from devhost.backend import Device, Edits, Event

CARD = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"


def add(subsystem: str, path: str, node: str = "") -> Event:
    """The kernel's event for a device that is new; ``path`` is below ``/sys/devices``."""
    return Event(subsystem, "add", f"/sys/devices/{path}", f"/dev/infiniband/{node}" if node else "")


Change = Callable[[Path], Iterator[Event]]


def rename(tree: RdmaTree, kind: str, old: str, new: str) -> Event:
    """Gives a network interface or an RDMA device another name, as udev's rules do at boot."""
    link = tree.root / "sys/class" / kind / old
    directory = link.resolve()
    link.rename(tree.root / f"{kind}-{old}")  # kept, because sysfs gives its inode number to no other file
    there = directory.rename(directory.with_name(new))
    path = f"/{there.relative_to(tree.root)}"
    tree.link(f"/sys/class/{kind}/{new}", path)
    for entry in (*tree.root.glob("sys/class/infiniband_*/*/ibdev"), *tree.root.glob("sys/class/*/*/parent")):
        if entry.read_text().strip() == old:
            entry.write_text(f"{new}\n")
    return Event(kind, "move", path)


RENAMED: dict[str, tuple[Callable[[Path], RdmaTree], str, str, str]] = {
    "rename_rdma_device": (connectx.connectx6_infiniband, "infiniband", "mlx5_0", "ibp59s0"),
    "rename_software_device": (machines.software, "infiniband", "rxe0", "rxe9"),
    "rename_interface": (connectx.connectx5_roce, "net", "ens1f0np0", "storage0"),
    "rename_interface_of_the_physical_function": (connectx.virtual_functions, "net", "ens3f0np0", "fabric0"),
    "rename_interface_above_a_scalable_function": (connectx.scalable_function, "net", "p0", "uplink0"),
    "rename_interface_of_a_software_device": (machines.software, "net", "dum0", "dummy0"),
}
"""The machine, the kind of what gets another name, the old one and the new one."""


def renaming(name: str) -> Change:
    """The change with this name in the table."""
    machine, *words = RENAMED[name]

    def change(root: Path) -> Iterator[Event]:
        tree = machine(root)
        yield Event()
        yield rename(tree, *words)

    change.__name__ = name
    return change


def rename_rdma_device_and_give_its_name_to_a_new_one(root: Path) -> Iterator[Event]:
    tree = connectx.connectx6_infiniband(root)
    yield Event()
    renamed = rename(tree, "infiniband", "mlx5_0", "ibp59s0")
    function = tree.function("0000:3b:00.1", "mlx5_core", "15b3:101b", below="0000:3a:00.0", numa_node=1)
    tree.ibdev(function, "mlx5_0", infiniband(EDR))
    yield renamed
    yield add("infiniband", f"{function}/infiniband/mlx5_0")


def load_rdma_ucm(root: Path) -> Iterator[Event]:
    connectx.connectx6_infiniband(root, without="rdma_ucm")
    yield Event()
    connectx.connectx6_infiniband(root)
    yield add("misc", "virtual/misc/rdma_cm", "rdma_cm")


def load_ib_umad(root: Path) -> Iterator[Event]:
    connectx.connectx6_infiniband(root, without="ib_umad")
    yield Event()
    connectx.connectx6_infiniband(root)
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/umad0", "umad0")
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/issm0", "issm0")


def finish_registering(root: Path) -> Iterator[Event]:
    tree = connectx.infiniband_half_made(root)
    yield Event()
    tree.uverbs(CARD, "mlx5_0")
    yield add("infiniband_verbs", f"{CARD}/infiniband_verbs/uverbs0", "uverbs0")
    tree.umad(CARD, "mlx5_0", 1, issm=True)
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/umad0", "umad0")


def load_the_driver_again(root: Path) -> Iterator[Event]:
    tree = connectx.connectx6_infiniband(root)
    yield Event()
    for path in (
        "infiniband_mad/issm0",
        "infiniband_mad/umad0",
        "infiniband_verbs/uverbs0",
        "infiniband/mlx5_0",
    ):
        yield tree.remove(f"/sys/devices/{CARD}/{path}")
    tree.ibdev(CARD, "mlx5_0", infiniband(EDR), files=connectx.CONNECTX6 | {"fw_ver": "20.43.2566"})
    yield add("infiniband_verbs", f"{CARD}/infiniband_verbs/uverbs1", "uverbs1")
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/umad1", "umad1")
    yield add("infiniband", f"{CARD}/infiniband/mlx5_0")


def make_virtual_functions(root: Path) -> Iterator[Event]:
    connectx.virtual_functions(root, count=0)
    yield Event()
    connectx.virtual_functions(root, count=4)
    for number in range(4):
        function = f"{CARD[:-1]}{number + 2}"
        yield add("pci", function)
        yield add("net", f"{function}/net/ens3f0v{number}")
        yield add(
            "infiniband_verbs", f"{function}/infiniband_verbs/uverbs{number + 1}", f"uverbs{number + 1}"
        )
        yield add("infiniband", f"{function}/infiniband/mlx5_{number + 2}")
    yield Event("pci", "change", f"/sys/devices/{CARD}")


def unplug_a_card(root: Path) -> Iterator[Event]:
    tree = connectx.infiniband_and_roce(root)
    yield Event()
    for path in (
        "infiniband_mad/umad0",
        "infiniband_mad/issm0",
        "infiniband_verbs/uverbs0",
        "infiniband/mlx5_0",
    ):
        yield tree.remove(f"/sys/devices/{CARD}/{path}")
    yield tree.remove(f"/sys/devices/{CARD}")


def add_the_companion_of_an_xdr_card(root: Path) -> Iterator[Event]:
    tree = connectx.connectx6_infiniband(root)
    yield Event()
    tree.ibdev(CARD, "smi1", infiniband(EDR), infiniband(EDR), uverbs=False)
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/umad1", "umad1")
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/issm1", "issm1")
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/umad2", "umad2")
    yield add("infiniband_mad", f"{CARD}/infiniband_mad/issm2", "issm2")
    yield add("infiniband", f"{CARD}/infiniband/smi1")


def make_a_scalable_function(root: Path) -> Iterator[Event]:
    tree = connectx.scalable_function(root)
    yield Event()
    card = "pci0000:00/0000:00:01.0/0000:03:00.0"
    function = tree.auxiliary(card, "mlx5_core.sf.20", "mlx5_core.sf", {"sfnum": "89"})
    yield add("auxiliary", function)
    tree.ibdev(function, "mlx5_3", roce("en3f0pf0sf89", EDR), guid="0000:00ff:fe00:8889")
    yield add("infiniband_verbs", f"{function}/infiniband_verbs/uverbs2", "uverbs2")
    yield add("infiniband", f"{function}/infiniband/mlx5_3")
    tree.netdev(function, "en3f0pf0sf89")
    yield add("net", f"{function}/net/en3f0pf0sf89")


def delete_and_add_a_software_device(root: Path) -> Iterator[Event]:
    tree = machines.software(root)
    yield Event()
    for _ in range(3):
        for kind in ("infiniband_mad", "infiniband_verbs", "infiniband"):
            for entry in sorted((root / "sys/class" / kind).iterdir()):
                owner = entry / "ibdev"
                if entry.name == "rxe0" or (owner.exists() and owner.read_text() == "rxe0\n"):
                    yield tree.remove(f"/sys/devices/virtual/{kind}/{entry.name}")
        path = tree.ibdev("virtual", "rxe0", roce("dum0", EDR), files={"parent": "dum0"})
        yield add("infiniband", path.removeprefix("/sys/devices/"))


CHANGES: list[Change] = [
    *map(renaming, RENAMED),
    rename_rdma_device_and_give_its_name_to_a_new_one,
    load_rdma_ucm,
    load_ib_umad,
    finish_registering,
    load_the_driver_again,
    make_virtual_functions,
    unplug_a_card,
    add_the_companion_of_an_xdr_card,
    make_a_scalable_function,
    delete_and_add_a_software_device,
]


def answers(backend: Rdma) -> dict[str, tuple[Device, Edits | None]]:
    """Each device, and what a container would get of it, if it is healthy."""
    return {
        device.id: (device, backend.allocate(request(backend, [device])) if device.health.healthy else None)
        for device in backend.discover()
    }


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_scan_after_each_event_equals_that_of_a_new_backend(change, tmp_path, looking):
    events = change(tmp_path)
    next(events)
    old = looking(tmp_path)
    before = answers(old)
    for event in events:
        old.notice(event)
        assert answers(old) == answers(looking(tmp_path))
    assert answers(old) != before or change is delete_and_add_a_software_device


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_one_scan_after_all_events_equals_that_of_a_new_backend(change, tmp_path, looking):
    events = change(tmp_path)
    next(events)
    old = looking(tmp_path)
    answers(old)
    for event in events:
        old.notice(event)
    assert answers(old) == answers(looking(tmp_path))


def test_a_port_that_goes_down_is_noticed_by_the_event_of_its_interface(tmp_path, looking):
    tree = connectx.connectx5_roce(tmp_path)
    old = looking(tmp_path)
    assert answers(old)["0000:af:00.0"][0].health.healthy
    state, physical = DISABLED
    tree.file("/sys/class/infiniband/mlx5_0/ports/1/state", state)
    tree.file("/sys/class/infiniband/mlx5_0/ports/1/phys_state", physical)
    old.notice(Event("net", "change", "/sys/class/net"))
    device, _ = answers(old)["0000:af:00.0"]
    assert device.health.reason == "port 1 is down (phys state: disabled)"


def test_unrelated_events_change_nothing(tmp_path, looking):
    connectx.virtual_functions(tmp_path)
    old = looking(tmp_path)
    before = answers(old)
    for subsystem, path in (("net", "virtual/net/veth0"), ("pci", "pci0000:00/0000:00:1f.0"), ("misc", "x")):
        old.notice(add(subsystem, path))
        assert answers(old) == before
