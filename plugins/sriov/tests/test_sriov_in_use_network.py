"""Which interfaces carry the node's own traffic, through all layers between them and the route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import sriov_network as network
from devhost_sriov.options import SriovOptions, SriovUse
from devhost_testing.fixtures import by_id
from kit.backend import missing_drivers
from sriov_tree import SriovTree

from devhost.backend import OptionError
from devhost.backend.sysfs import Sysfs
from devhost.backend.traffic import DefaultRoute, NetFiles, Traffic, carriers

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
NOTHING6 = "0" * 32


def route4(name: str, destination: str = "00000000", mask: str = "00000000", flags: str = "0003") -> str:
    gateway = "010200C0" if flags == "0003" else "00000000"
    return f"{name}\t{destination}\t{gateway}\t{flags}\t0\t0\t100\t{mask}\t0\t0\t0      \n"


def route6(name: str, length: str = "00", flags: str = "00000003") -> str:
    return f"{NOTHING6} {length} {NOTHING6} 00 {NOTHING6} 00000400 00000003 00000000 {flags} {name:>8}\n"


def set_up(tree: SriovTree | Path, v4: str = "", v6: str = "", addresses6: str = "") -> None:
    """Writes the files of the node's network below /proc/1/net."""
    directory = (tree if isinstance(tree, Path) else tree.root) / "proc/1/net"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "route").write_text(HEAD + v4)
    (directory / "ipv6_route").write_text(v6)
    (directory / "if_inet6").write_text(addresses6)


def stack(root: Path, above: str, below: Sequence[str]) -> None:
    """An interface without hardware above others."""
    directory = root / f"sys/class/net/{above}"
    directory.mkdir(parents=True, exist_ok=True)
    for name in below:
        (directory / f"lower_{name}").symlink_to(f"../{name}")


def carrying(routes: Sequence[str], below: Mapping[str, Sequence[str]]) -> dict[str, str]:
    traffic = Traffic(frozenset(DefaultRoute(4, name) for name in routes))
    return carriers(traffic, (), lambda name: below.get(name, ()), lambda _: ())


def test_everything_below_the_interface_of_a_default_route_is_in_use() -> None:
    below = {"br0": ["bond0.7", "veth1"], "bond0.7": ["bond0"], "bond0": ["eth0", "eth1"]}
    found = carrying(["br0"], below)
    assert found["br0"] == "it carries the IPv4 default route"
    assert found["bond0.7"] == "it carries the IPv4 default route, through br0"
    assert found["eth1"] == "it carries the IPv4 default route, through bond0, bond0.7 and br0"
    assert "eth2" not in found


def interface(root: Path, name: str, **files: object) -> None:
    for file, content in files.items():
        path = root / f"sys/class/net/{name}/{file}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan", "vlan", "bond", "bridge", "team", "vrf"])
def test_an_interface_below_any_virtual_one_is_in_use(looking, tmp_path: Path, kind: str) -> None:
    tree = network.i40e_with_vfio(tmp_path)
    uplink = next((tree.root / "sys/bus/pci/devices/0000:5e:00.0/net").iterdir()).name
    interface(tree.root, "top0", uevent=f"DEVTYPE={kind}\nINTERFACE=top0", ifindex=90, iflink=90)
    stack(tree.root, "top0", [uplink])
    set_up(tree, route4("top0"))
    assert by_id(looking(tree))["0000:5e:00.0"].attributes["purpose"] == "node-network"


@pytest.mark.parametrize(
    ("files", "below"),
    [
        ({"uevent": "DEVTYPE=ipvlan", "type": 1, "ifindex": 9, "iflink": 4}, ["eth0"]),
        ({"uevent": "INTERFACE=top0", "type": 32, "ifindex": 9, "iflink": 4}, ["eth0"]),  # IPoIB
        ({"uevent": "INTERFACE=top0", "type": 1, "ifindex": 9, "iflink": 4}, []),  # veth
        ({"uevent": "DEVTYPE=bridge", "type": 1, "ifindex": 9, "iflink": 9}, []),
        ({"uevent": "DEVTYPE=wireguard", "type": 65534, "ifindex": 9, "iflink": 0}, []),
        ({"uevent": "DEVTYPE=ipvlan", "type": 1, "ifindex": 9, "iflink": 77}, []),
    ],
)
def test_the_interface_below_is_found_by_its_number_unless_it_may_be_a_peer(
    tmp_path: Path, files: dict[str, object], below: list[str]
) -> None:
    interface(tmp_path, "eth0", ifindex=4, iflink=4)
    interface(tmp_path, "top0", **files)
    assert list(NetFiles(Sysfs(tmp_path)).lower("top0")) == below


def test_circular_interfaces_end_the_search() -> None:
    assert set(carrying(["a"], {"a": ["b"], "b": ["a"]})) == {"a", "b"}


def test_each_reason_is_named_once_with_the_main_table_first() -> None:
    routes = {DefaultRoute(6, "eth0"), DefaultRoute(4, "eth0", 100), DefaultRoute(4, "eth0")}
    found = carriers(Traffic(frozenset(routes)), (), lambda _: (), lambda _: ())
    assert found["eth0"] == (
        "it carries the IPv4 default route, the IPv6 default route and the IPv4 default route of table 100"
    )


@pytest.mark.parametrize("given", ["2001:db8::7", "2001:DB8:0::7", "2001:db8:0:0:0:0:0:7"])
def test_the_address_of_the_kubelet_may_have_any_spelling(given: str) -> None:
    traffic = Traffic(addresses=frozenset({("2001:db8::7", "eth1"), ("192.0.2.1", "eth2")}))
    found = carriers(traffic, [given], lambda _: (), lambda _: ())
    assert found == {"eth1": "it has the address 2001:db8::7, which the kubelet uses"}


def test_files_without_a_default_route_give_none(tmp_path: Path) -> None:
    set_up(tmp_path, route4("eth0", "000200C0", "00FFFFFF", "0001"), route6("eth0", "40", "00000001"))
    assert NetFiles(Sysfs(tmp_path)).traffic(()) == Traffic()


def test_rejecting_routes_are_not_default_routes(tmp_path: Path) -> None:
    set_up(tmp_path, route4("*", flags="0201"), route6("lo", flags="00200200") + route6("lo"))
    assert NetFiles(Sysfs(tmp_path)).traffic(()) == Traffic()


def test_two_halves_of_all_addresses_are_a_default_route(tmp_path: Path) -> None:
    halves = route4("tun0", mask="00000080") + route4("tun0", "00000080", "00000080")
    set_up(tmp_path, halves, route6("tun1", "01"))
    found = NetFiles(Sysfs(tmp_path)).traffic(())
    assert found == Traffic(frozenset({DefaultRoute(4, "tun0"), DefaultRoute(6, "tun1")}))


def test_the_smallest_connected_network_has_the_address_of_the_kubelet(tmp_path: Path) -> None:
    routes = route4("eth0", "000000C0", "000000FF", "0001") + route4("eth1", "000200C0", "00FFFFFF", "0001")
    set_up(tmp_path, routes, addresses6=f"20010db8{'0' * 23}7 05 40 00 80     eth3\n")
    found = NetFiles(Sysfs(tmp_path)).traffic(["192.0.2.7", "192.9.9.9", "2001:db8::7"])
    assert found is not None
    assert found.addresses == {("192.0.2.7", "eth1"), ("192.9.9.9", "eth0"), ("2001:db8::7", "eth3")}


def test_invalid_lines_are_not_routes(tmp_path: Path) -> None:
    set_up(tmp_path, "eth0\tzz\n\0\0\n" + route4("eth0")[:30], "x y\n" * 3, "eth0\n")
    assert NetFiles(Sysfs(tmp_path)).traffic(["192.0.2.7"]) == Traffic()


# --- the backend


def test_a_function_below_the_default_route_is_withheld_and_its_virtual_ones_are_not(looking, tmp_path):
    tree = network.igb(tmp_path, 2)
    stack(tree.root, "bond0", ["enp2s0"])
    set_up(tree, route4("bond0"))
    (tree.root / "sys/devices/pci0000:00/0000:00:05.0/0000:02:00.0/sriov_numvfs").write_text("0\n")
    found = by_id(looking(tree))
    assert "2 virtual functions" in found["0000:02:00.0"].withheld
    assert not found["0000:02:10.0"].withheld


@pytest.mark.parametrize("allowed", [False, True])
def test_a_function_in_use_is_offered_only_with_the_option(allowed, looking, tmp_path):
    tree = network.igb(tmp_path, 0)
    stack(tree.root, "br0", ["enp2s0"])
    set_up(tree, v6=route6("br0"))
    device = by_id(looking(tree, SriovOptions(allow_in_use=allowed)))["0000:02:00.0"]
    assert bool(device.reserved) is not allowed
    if not allowed:
        assert device.reserved.startswith("it carries the IPv6 default route, through br0")


def test_a_virtual_function_that_has_the_default_route_itself_is_withheld(looking, tmp_path):
    tree = network.igb(tmp_path, 2)
    set_up(tree, route4("enp2s0v1"))
    found = by_id(looking(tree))
    assert found["0000:02:10.2"].reserved.startswith("it carries the IPv4 default route")
    assert not found["0000:02:10.0"].reserved


def test_a_port_of_open_vswitch_is_in_use_while_the_switch_has_the_route(looking, tmp_path):
    tree = network.igb(tmp_path, 0)
    stack(tree.root, "ovs-system", ["enp2s0"])
    stack(tree.root, "br-ex", [])
    set_up(tree, route4("br-ex"))
    assert "through br-ex" in by_id(looking(tree))["0000:02:00.0"].reserved


def test_a_function_with_the_address_of_the_kubelet_is_not_offered(looking, tmp_path):
    tree = network.igb(tmp_path, 0)
    set_up(tree, route4("enp2s0", "000200C0", "00FFFFFF", "0001"))
    device = by_id(looking(tree, SriovOptions(node_addresses=("192.0.2.7",))))["0000:02:00.0"]
    assert device.reserved.startswith("it has the address 192.0.2.7, which the kubelet uses")
    assert not by_id(looking(tree))["0000:02:00.0"].reserved


def test_addresses_that_no_interface_of_the_node_has_are_reported(looking, tmp_path):
    tree = network.igb(tmp_path, 0)
    set_up(tree, route4("enp2s0", "000200C0", "00FFFFFF", "0001"))
    backend = looking(tree, SriovOptions(node_addresses=("198.51.100.7", "2001:db8::7")))
    (lacking,) = missing_drivers(backend)
    assert lacking.subject == "198.51.100.7, 2001:db8::7"
    assert lacking.reason.startswith("backends.sriov.nodeAddresses has no effect")
    assert not lacking.makes_device
    one_file_for_two_nodes = looking(tree, SriovOptions(node_addresses=("198.51.100.7", "192.0.2.7")))
    assert not missing_drivers(one_file_for_two_nodes)


@pytest.mark.parametrize(
    ("ids", "is_reported"),
    [
        (["0000:99:00.0"], True),
        (["0000:99:00.0", "0000:02:00.0"], False),  # one file for nodes with different addresses
        (["0000:99:00.0", "*"], False),
        ([], False),
    ],
)
def test_info_for_functions_that_do_not_exist_is_reported(looking, tmp_path, ids, is_reported):
    backend = looking(network.igb(tmp_path, 0), entries=[SriovUse(info={one: {"rack": "a7"} for one in ids})])
    assert [one.subject for one in missing_drivers(backend)] == (["0000:99:00.0"] if is_reported else [])


@pytest.mark.parametrize("driver", ["igb", "vfio-pci"])
def test_an_adapter_for_fabric_management_is_reserved_with_any_driver(looking, tmp_path, driver):
    tree = network.SriovTree(tmp_path)
    for bus, mark in (("05", b"SMDL=SW_MNG"), ("06", b"SMDL=CX7")):
        tree.function(f"0000:{bus}:00.0", "15b3:1021", driver, pci_class="0x020700")
        (tmp_path / f"sys/bus/pci/devices/0000:{bus}:00.0/vpd").write_bytes(b"\x90\x0e\x00V3" + mark)
    found = by_id(looking(tree))
    assert found["0000:05:00.0"].attributes["purpose"] == "fabric-management"
    assert found["0000:05:00.0"].reserved == "it manages the NVSwitches of this machine (SW_MNG in its VPD)"
    assert "purpose" not in found["0000:06:00.0"].attributes


def test_a_function_in_use_has_its_purpose_also_if_the_option_offers_it(looking, tmp_path):
    tree = network.igb(tmp_path, 0)
    set_up(tree, route4("enp2s0"))
    device = by_id(looking(tree, SriovOptions(allow_in_use=True)))["0000:02:00.0"]
    assert device.attributes["purpose"] == "node-network"


def test_an_invalid_address_is_refused_with_its_place() -> None:
    with pytest.raises(OptionError) as caught:
        SriovOptions(node_addresses=("192.0.2.7", "node7"))
    assert (caught.value.key, caught.value.message) == ("nodeAddresses[1]", '"node7" is not an IP address')
