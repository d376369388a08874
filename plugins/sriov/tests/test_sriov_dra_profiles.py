"""What slices have of modelled adapters with a profile, beside what other DRA drivers publish of them.

| profile | repository | file | commit |
|---|---|---|---|
| sriov | k8snetworkplumbingwg/dra-driver-sriov | pkg/devicestate/discovery.go | cd9404f0 |
| dranet | kubernetes-sigs/dranet | pkg/inventory/db.go, pkg/apis/attributes.go | f258477c |
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sriov_network as network
from kit.plan import sliced

from devhost.dra.slices import OWN

DOCUMENTED = (Path(__file__).parents[3] / "docs/dra-names.md").read_text()
LEFT_OUT = {
    "dranet": {
        *("pciVendor", "pciDevice", "alias", "ipv4", "ipv6", "ebpf", "tcFilterNames", "tcxProgramNames")
    },
    "sriov": set(),
}
"""What a driver publishes besides, and no backend knows."""

SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"
STANDARD = "resource.kubernetes.io"


@pytest.fixture
def published(looking, tmp_path):
    """The attributes of the devices of a machine by id, as far as they are offered, without devhost's own."""

    def publish(dra: str, machine):
        (one,), left_out = sliced("sriov", dra, looking(machine(tmp_path)).discover())
        assert not ("profile" in dra and left_out)
        return {
            device["attributes"]["id"]["string"]: {
                key: value for key, value in device["attributes"].items() if key not in OWN
            }
            for device in one.devices
        }

    return publish


@pytest.mark.conformance(122)
def test_a_virtual_function_looks_as_published_by_the_sriov_driver(published):
    texts = {
        f"{SRIOV}/vendor": "15b3",
        f"{SRIOV}/deviceID": "101e",
        f"{SRIOV}/pfDeviceID": "101d",
        f"{SRIOV}/pciAddress": "0000:3b:00.3",
        "k8s.cni.cncf.io/deviceID": "0000:3b:00.3",
        f"{SRIOV}/PFName": "ens3f0np0",
        f"{SRIOV}/EswitchMode": "switchdev",
        f"{SRIOV}/pfPciAddress": "0000:3b:00.0",
        f"{SRIOV}/linkType": "ethernet",
        f"{STANDARD}/pciBusID": "0000:3b:00.3",
        f"{STANDARD}/pcieRoot": "pci0000:3a",
    }
    assert published("{profile: sriov}", network.mlx5_switchdev)["0000:3b:00.3"] == {
        **{key: {"string": value} for key, value in texts.items()},
        f"{SRIOV}/vfID": {"int": 1},
        f"{SRIOV}/rdmaCapable": {"bool": True},
        "dra.net/numaNode": {"int": 1},
        f"{STANDARD}/numaNode": {"int": 1},
    }


def test_a_function_without_a_switch_and_a_node_looks_as_published_by_the_sriov_driver(published):
    found = published("{profile: sriov}", network.igb)["0000:02:10.4"]
    assert found[f"{SRIOV}/EswitchMode"] == {"string": "legacy"}
    assert found["dra.net/numaNode"] == {"int": -1}


@pytest.mark.conformance(122)
def test_a_network_function_looks_as_published_by_dranet(published):
    texts = {
        "dra.net/ifName": "enp2s0v2",
        "dra.net/pciAddress": "0000:02:10.4",
        "dra.net/pciSubsystem": "1100",
        "dra.net/mac": "02:00:5e:10:00:05",
        "dra.net/encapsulation": "ether",
        "dra.net/state": "down",
        "dra.net/type": "device",
        f"{STANDARD}/pciBusID": "0000:02:10.4",
        f"{STANDARD}/pcieRoot": "pci0000:00",
    }
    assert published("{profile: dranet}", network.igb)["0000:02:10.4"] == {
        **{key: {"string": value} for key, value in texts.items()},
        "dra.net/mtu": {"int": 1500},
        "dra.net/sriov": {"bool": False},
        "dra.net/isSriovVf": {"bool": True},
        "dra.net/virtual": {"bool": False},
        "dra.net/rdma": {"bool": False},
    }


def test_a_physical_function_looks_as_published_by_dranet(published):
    machine = lambda root: network.igb(root, 0)  # noqa: E731 - one without virtual functions
    found = published("{profile: dranet}", machine)["0000:02:00.0"]
    assert (found["dra.net/sriov"], found["dra.net/sriovVfs"]) == ({"bool": True}, {"int": 0})
    assert "dra.net/isSriovVf" not in found


def test_an_infiniband_function_looks_as_published_by_dranet(published):
    found = published("{profile: dranet}", network.connectx_infiniband)
    named = [one for one in found.values() if "dra.net/ifName" in one]
    assert {one["dra.net/type"]["string"] for one in named} == {"ipoib"}
    assert {one["dra.net/encapsulation"]["string"] for one in named} == {"infiniband"}


def test_a_function_without_an_interface_has_no_name_of_dranet_for_one(published):
    found = published("{profile: dranet}", network.i40e_with_vfio)
    bare = [one for one in found.values() if "dra.net/ifName" not in one]
    of_interfaces = {f"dra.net/{name}" for name in ("type", "virtual", "sriov", "isSriovVf", "mtu")}
    assert bare and not any(of_interfaces & one.keys() for one in bare)


@pytest.mark.conformance(122)
def test_multus_finds_the_function_of_a_claim(published):
    names = '{"k8s.cni.cncf.io/deviceID": pciBusID, "k8s.cni.cncf.io/resourceName": resource}'
    found = published(f"{{attributes: {names}}}", network.igb)["0000:02:10.4"]
    assert found["k8s.cni.cncf.io/deviceID"] == {"string": "0000:02:10.4"}
    assert found["k8s.cni.cncf.io/resourceName"] == {"string": "a.b/c"}


@pytest.mark.parametrize("profile", LEFT_OUT)
def test_the_documentation_names_what_a_profile_leaves_out(profile):
    row = next(line for line in DOCUMENTED.splitlines() if line.startswith(f"| `{profile}`"))
    assert set(row.split("|")[-2].replace("`", "").replace(",", " ").split()) == LEFT_OUT[profile]
