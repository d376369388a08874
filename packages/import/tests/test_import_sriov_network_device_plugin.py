"""`devhost import sriov-network-device-plugin`: the same functions, with remarks on differences."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importing
import pytest
from click.testing import CliRunner, Result
from devhost_import.command import command
from devhost_testing.node import Node
from importing import said
from work import Work

from devhost.backend.where import holds
from devhost.cli.scan_once import scan_once
from devhost.config.loader import Loaded

if "sriov" not in importing.installed().installed:
    pytest.skip("the result is for the sriov backend", allow_module_level=True)

MACHINES = Path(__file__).parents[3] / "plugins/sriov/tests/machines"

Machine = Callable[[Path], object]


def pools(*resources: dict[str, Any]) -> str:
    return json.dumps({"resourceList": resources})


def pool(name: str, selectors: Any, **rest: Any) -> dict[str, Any]:
    return {"resourceName": name, "selectors": selectors, **rest}


QUICK_START = pools(
    pool("netdevice", {"vendors": ["8086"], "devices": ["154c", "10ca"], "drivers": ["iavf", "igbvf"]}),
    pool(
        "dpdk",
        {"vendors": ["8086"], "devices": ["154c"], "drivers": ["vfio-pci"], "pfNames": ["eno3", "ens1"]},
        resourcePrefix="dpdk.example.com",
    ),
    pool("rdma", {"vendors": ["15b3"], "devices": ["101e"], "drivers": ["mlx5_core"], "isRdma": True}),
    pool("infiniband", {"linkTypes": ["infiniband"], "isRdma": True}),
)
"""The shape of the plugin's README and of its manifests, with ids of the modelled machines."""

ALL_NICS = pools(
    pool(
        "nic",
        [
            {"vendors": ["15b3"], "devices": ["101e"], "drivers": ["mlx5_core"], "isRdma": True},
            {"vendors": ["8086"], "devices": ["154c"], "drivers": ["vfio-pci"]},
        ],
    )
)
"""One resource for adapters of several makers, as its page on DPDK has it."""

IN_A_VIRTUAL_MACHINE = pools(
    pool("downlink", [{"drivers": ["vfio-pci"], "pciAddresses": ["0000:5e:02.2"]}]),
    pool("uplink", [{"pciAddresses": ["0000:5e:02.1", "0000:02:10.0"]}]),
)
SCALABLE = pools(
    pool("vf", {"vendors": ["15b3"], "devices": ["101e"]}),
    pool(
        "sf",
        {"vendors": ["15b3"], "devices": ["101d"], "pfNames": ["ENS3f0np0#80-88"], "auxTypes": ["sf"]},
        deviceType="auxNetDevice",
        resourcePrefix="nvidia.com",
    ),
    pool("othersf", {"auxTypes": ["sf"]}, deviceType="auxNetDevice"),
)
"""As its page on subfunctions has it."""

VDPA = pools(
    pool("vhost", [{"vendors": ["15b3"], "drivers": ["mlx5_core"], "vdpaType": "vhost"}]),
    pool("virtio", [{"vendors": ["15b3"], "drivers": ["mlx5_core"], "vdpaType": "virtio"}]),
)
PARTITIONS = pools(pool("blue", {"pKeys": ["0x8001"]}), pool("rest", {"pKeys": ["0xffff"]}))
RANGES = pools(
    pool("some", {"pfNames": ["enp2s0#0,2-3", "eno3#1", "ens5f0np0#0", "ens3f0np0"]}),
    pool("others", {"rootDevices": ["0000:02:00.0#1-9", "0000:5E:00.0", "0000:3b:00.1#1"]}),
    pool("both", {"pfNames": ["ens3f1np1#0-4"], "rootDevices": ["0000:3b:00.1#0,7"]}),
    pool("spoilt", {"pfNames": ["ens5f0np0#5-3", "ens2#0", "ens2"]}),
    pool("left", {"acpiIndexes": ["7"]}),
)
PHYSICAL = pools(
    pool("own", {"pfNames": ["ens3f0np0", "ens9"]}),
    pool("by_address", [{"rootDevices": ["0000:86:00.1", "0000:01:00.0"]}]),
    pool("everything", {}),
)
"""A physical function counts as its own one, while it has no virtual ones."""

ACCELERATORS = pools(pool("fpga", {"vendors": ["1172"]}, deviceType="accelerator"), pool("all", {}))
FILES = {
    "quick start": QUICK_START,
    "all adapters": ALL_NICS,
    "in a virtual machine": IN_A_VIRTUAL_MACHINE,
    "scalable": SCALABLE,
    "vdpa": VDPA,
    "partitions": PARTITIONS,
    "ranges": RANGES,
    "physical": PHYSICAL,
    "accelerators": ACCELERATORS,
}


@pytest.fixture(scope="module")
def machines() -> dict[str, Machine]:
    sys.path.append(str(MACHINES))
    network, others = (importlib.import_module(f"sriov_{name}") for name in ("network", "others"))
    names = ("igb", "mlx5_switchdev", "i40e_with_vfio", "bnxt_switchdev", "connectx_infiniband", "vdpa")
    return {
        **{name: getattr(network, name) for name in names},
        **{name: getattr(others, name) for name in ("qat", "nvme", "without_interface", "chipset")},
        "accelerator": accelerator,
    }


@pytest.fixture(scope="module")
def roots(machines: dict[str, Machine], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trees of all machines, which no test changes."""
    directory = tmp_path_factory.mktemp("machines")
    for name, make in machines.items():
        make(directory / name)
    return {name: directory / name for name in machines}


def accelerator(root: Path) -> object:
    """A processing accelerator with one virtual function, and a network adapter with none."""
    tree = importlib.import_module("sriov_tree").SriovTree(root)
    physical = tree.function("0000:0a:00.0", "1172:09c4", "dfl-pci", pci_class="0x120000", total=4)
    tree.virtual(physical, "0000:0a:00.1", "1172:09c5", "vfio-pci", group=5)
    adapter = tree.function("0000:0b:00.0", "8086:10fb", "ixgbe", total=8, files={"acpi_index": "7"})
    tree.netdev(adapter, "ens9")
    return tree


@pytest.fixture(scope="module")
def peer() -> Any:
    sys.path.append(str(Path(__file__).parent))
    return importlib.import_module("sriov_peer")


def run(text: str | bytes, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["sriov-network-device-plugin", *arguments, "-"], input=text)


def loaded(text: str, *arguments: str) -> Loaded:
    """The output as settings, which must be valid."""
    done = run(text, *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return importing.loaded(done.stdout)


def selected(configuration: Loaded, root: Path) -> dict[str, set[str]]:
    """The functions that each resource selects, before conflicts are resolved."""
    found = asyncio.run(scan_once(configuration, root))
    pools: dict[str, set[str]] = {entry.name: set() for entry in found.settings.resources}
    for _, device in found.devices():
        for entry in () if device.withheld else found.settings.resources:
            if holds(entry.where, device.attributes):
                pools[entry.name].add(device.id)
                break
    return pools


@pytest.mark.parametrize("config", FILES.values(), ids=FILES.keys())
def test_each_function_is_in_the_same_resource_as_with_the_plugin(
    roots: dict[str, Path], peer: Any, config: str
) -> None:
    some: dict[str, set[str]] = {}
    configuration = loaded(config)
    for name, root in roots.items():
        expected = peer.offered(root, config)
        if name == "accelerator":  # the plugin offers it together with its virtual function
            expected = {pool: ids - {"0000:0a:00.0"} for pool, ids in expected.items()}
        if name == "mlx5_switchdev":  # the plugin offers it with its scalable functions
            expected = {pool: ids - {"0000:3b:00.0"} for pool, ids in expected.items()}
        found = selected(configuration, root)
        assert {pool: ids for pool, ids in found.items() if ids} == {
            pool: ids for pool, ids in expected.items() if ids
        }, name
        for pool_name, ids in found.items():
            some.setdefault(pool_name, set()).update(ids)
    assert all(ids for name, ids in some.items() if "spoilt" not in name), (
        some
    )  # otherwise this proves nothing


def config_map(text: str, **more: str) -> str:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sriovdp-config"}}
    return json.dumps({**document, "data": {"config.json": text, **more}})


def policy(text: str, kind: str = "NicClusterPolicy") -> str:
    spec = {"sriovDevicePlugin": {"image": "sriov-network-device-plugin", "config": text}}
    return json.dumps({"apiVersion": "mellanox.com/v1alpha1", "kind": kind, "spec": spec})


def node_policy(text: str) -> str:
    """Its policy for a group of nodes, behind one for the cluster that has no device plugin."""
    cluster = json.dumps({"kind": "NicClusterPolicy", "spec": {"nvIpam": {"image": "nvidia-k8s-ipam"}}})
    return f"{cluster}\n---\n{policy(text, 'NicNodePolicy')}"


@pytest.mark.parametrize("wrap", [str, config_map, policy, node_policy])
def test_a_configuration_is_read_from_every_kind_of_object(wrap: Callable[[str], str]) -> None:
    assert run(wrap(RANGES)).stdout.partition("version:")[2] == run(RANGES).stdout.partition("version:")[2]


def test_one_node_of_a_config_map_is_chosen_by_its_key() -> None:
    one, other = (pools(pool(name, {"pfNames": ["ens1#0-4"]})) for name in ("one", "other"))
    text = json.dumps({"kind": "ConfigMap", "data": {"node-0": one, "node-1": other}})
    assert [entry.name for entry in loaded(text, "--key", "node-1").settings.resources] == ["intel.com/other"]
    done = run(text)
    assert done.exit_code != 0
    assert "choose one with --key, which may be node-0, node-1" in str(done.exception)


def test_the_prefix_flag_applies_to_resources_without_a_prefix() -> None:
    names = [entry.name for entry in loaded(QUICK_START, "--resource-prefix", "a.org").settings.resources]
    assert names[:2] == ["a.org/netdevice", "dpdk.example.com/dpdk"]


def test_tabs_trailing_commas_and_keys_in_any_case_are_read() -> None:
    text = '{\t"ResourceList": [{"RESOURCENAME": "a", "SelectorObj": null, "selectors": {"IsRdma": true,},}]}'
    done = run(text)
    assert done.exit_code == 0, done.exception
    assert "isRdma: true" in done.stdout and "ignores this" not in done.stdout


def test_a_misspelt_selector_is_ignored_with_a_remark() -> None:
    done = run(pools(pool("a", {"pfName": ["ens1"], "drivers": ["iavf"]})))
    assert "resourceList[0].selectors.pfName: this import does not know it" in done.stdout
    assert "did you mean pfNames?" in done.stdout


def uses(text: str) -> dict[str, Any]:
    """What each resource says to the backend, by its name without the prefix."""
    return {entry.name.partition("/")[2]: entry.options for entry in loaded(text).settings.resources}


def test_additional_info_of_one_resource_never_reaches_another() -> None:
    """There it is of one resource, also where it says ``*``: a token may be a secret of that one."""
    text = pools(
        pool("b", {"drivers": ["x"]}, additionalInfo={"*": {"token": "1"}, "0000:3b:02.1": {"token": "2"}}),
        pool("c", {"drivers": ["y"]}, additionalInfo={"*": {"token": "3", "more": "x"}}),
        pool("d", {"drivers": ["z"]}, additionalInfo={"0000:3b:02.2": {}}),
    )
    assert {name: use.info for name, use in uses(text).items()} == {
        "b": {"*": {"token": "1"}, "0000:3b:02.1": {"token": "2"}},
        "c": {"*": {"token": "3", "more": "x"}},
        "d": {},
    }
    assert "backends:" not in run(text).stdout.partition("version:")[2]


README = """{
    "resourceList": [
        {"resourceName": "intel_sriov_netdevice",
         "selectors": [{"vendors": ["8086"], "devices": ["154c", "10ed", "1889"],
                        "drivers": ["i40evf", "ixgbevf", "iavf"]}]},
        {"resourceName": "intel_sriov_dpdk", "resourcePrefix": "intel.com",
         "selectors": [{"vendors": ["8086"], "devices": ["154c", "10ed", "1889"], "drivers": ["vfio-pci"],
                        "pfNames": ["enp0s0f0", "enp2s2f1"], "needVhostNet": true}]},
        {"resourceName": "mlnx_sriov_rdma", "resourcePrefix": "mellanox.com",
         "selectors": [{"vendors": ["15b3"], "devices": ["1018"], "drivers": ["mlx5_ib"], "isRdma": true}]},
        {"resourceName": "infiniband_rdma_netdevs",
         "selectors": [{"linkTypes": ["infiniband"], "isRdma": true}]},
        {"resourceName": "ct6dx_vdpa_vhost",
         "selectors": [{"vendors": ["15b3"], "devices": ["101e"], "drivers": ["mlx5_core"],
                        "vdpaType": "vhost"}]},
        {"resourceName": "intel_fpga", "deviceType": "accelerator",
         "selectors": [{"vendors": ["8086"], "devices": ["0d90"]}]},
        {"resourceName": "bf2_sf", "resourcePrefix": "nvidia.com", "deviceType": "auxNetDevice",
         "selectors": [{"vendors": ["15b3"], "devices": ["a2d6"], "pfNames": ["p0#1-5"],
                        "auxTypes": ["sf"]}]},
        %s
        {"resourceName": "brcm_sriov_bnxt", "resourcePrefix": "broadcom.com",
         "selectors": [{"vendors": ["14e4"], "devices": ["1750"], "drivers": ["bnxt_en"]}],},
        {"resourceName": "old_selectors_syntax_example",
         "selectors": {"vendors": ["8086"], "devices": ["154c", "10ed", "1889"],
                       "drivers": ["i40evf", "ixgbevf", "iavf"]}
\t}
    ]
}"""
"""The resources of the example in the plugin's documentation, trailing comma and tab included."""

WITH_TOKEN = """{"resourceName": "intel_sriov_netdevice_additional_env",
         "selectors": [{"vendors": ["8086"], "devices": ["%s"], "drivers": ["i40evf", "ixgbevf", "iavf"]}],
         "additionalInfo": {"*": {"token": "3e49019f-412f-4f02-824e-4cd195944205"}}},"""


def test_the_token_of_the_example_stays_with_its_pool() -> None:
    """One of ten pools has additionalInfo there; no other may hand it out."""
    others = set(uses(README % (WITH_TOKEN % "154c"))) - {"intel_sriov_netdevice_additional_env"}
    assert len(others) == 8
    # as written there, earlier pools take every function that it selects: it never has one, there and here
    assert not any(use.info for use in uses(README % (WITH_TOKEN % "154c")).values())
    assert "token" not in run(README % (WITH_TOKEN % "154c")).stdout
    found = uses(README % (WITH_TOKEN % "1515"))
    assert {name: use.info for name, use in found.items() if use.info} == {
        "intel_sriov_netdevice_additional_env": {"*": {"token": "3e49019f-412f-4f02-824e-4cd195944205"}}
    }
    assert len(found) == 9


async def test_a_container_gets_only_the_additional_information_of_its_pool(
    tmp_path: Path, machines: dict[str, Machine]
) -> None:
    """There it is part of PCIDEVICE_<RESOURCE>_INFO of the pool that says it."""
    text = pools(
        pool("one", {"pfNames": ["enp2s0#0"]}, additionalInfo={"*": {"token": "secret"}}),
        pool("other", {"pfNames": ["enp2s0#1-7"]}),
    )
    async with Node(tmp_path) as node:
        machines["igb"](node.root)
        node.configure(run(text).stdout.partition("version: 1\n")[2])
        async with node.served():
            await node.until(
                lambda: {"intel.com/one", "intel.com/other"} <= node.kubelet.allocatable().keys()
            )
            await node.until(lambda: all(node.kubelet.allocatable().values()))
            given = await node.container({"intel.com/one": 1, "intel.com/other": 1})
    extra = {
        name: [device.get("extra") for device in json.loads(value).values()]
        for name, value in given.envs.items()
        if name.endswith("_INFO")
    }
    assert extra == {
        "PCIDEVICE_INTEL_COM_ONE_INFO": [{"token": "secret"}],
        "PCIDEVICE_INTEL_COM_OTHER_INFO": [None],
    }


def test_the_prefix_is_read_from_a_daemon_set() -> None:
    """`--resource-prefix` of the plugin is the domain of every pool without one."""
    container = {"name": "sriovdp", "args": ["--use-cdi", "--resource-prefix=acme.org", "--log-level=10"]}
    spec = {"template": {"spec": {"containers": [container]}}}
    text = "\n---\n".join([json.dumps({"kind": "DaemonSet", "spec": spec}), config_map(QUICK_START)])
    assert [entry.name for entry in loaded(text).settings.resources][:2] == [
        "acme.org/netdevice",
        "dpdk.example.com/dpdk",
    ]
    given = loaded(text, "--resource-prefix", "b.org").settings.resources
    assert given[0].name == "b.org/netdevice"
    assert "-resource-prefix acme.org" not in said(run(text, "--resource-prefix", "b.org").stdout)


def test_the_error_for_a_policy_of_another_plugin_names_its_importer() -> None:
    text = json.dumps({"kind": "NicNodePolicy", "spec": {"rdmaSharedDevicePlugin": {"config": "{}"}}})
    done = run(text)
    assert "has spec.rdmaSharedDevicePlugin.config, but no spec.sriovDevicePlugin.config" in str(
        done.exception
    )
    assert "devhost import rdma-shared-dev-plugin" in str(done.exception)


def test_only_resources_that_request_rdma_or_vhost_net_get_it() -> None:
    """``isRdma`` selects and gives there; ``needVhostNet`` gives."""
    text = pools(
        pool("plain", {"drivers": ["x"]}),
        pool("rdma", {"drivers": ["y"], "isRdma": True}),
        pool("vhost", {"drivers": ["z"], "needVhostNet": True}),
    )
    found = {name: (use.rdma, use.vhost_net) for name, use in uses(text).items()}
    assert found == {"plain": (False, False), "rdma": (True, False), "vhost": (False, True)}


def test_a_setting_of_some_selectors_applies_to_the_whole_resource_with_a_remark() -> None:
    assert uses(ALL_NICS)["nic"].rdma is True
    assert (
        "# isRdma is in some of its selectors; devhost applies it to the whole resource"
        in run(ALL_NICS).stdout
    )
    assert "in some of its selectors" not in run(QUICK_START).stdout


def test_a_pool_without_topology_is_kept_without_topology() -> None:
    """excludeTopology: the plugin sends no TopologyInfo for the pool."""
    text = pools(pool("a", {"drivers": ["z"]}, excludeTopology=True), pool("b", {"drivers": ["x"]}))
    assert [entry.topology for entry in loaded(text).settings.resources] == [False, True]


def test_notations_that_the_plugin_never_matches_get_a_remark() -> None:
    done = run(pools(pool("a", {"vendors": ["0x8086"], "devices": ["154C"], "pciAddresses": ["3B:00.1"]})))
    for odd, right in (("0x8086", "8086"), ("154C", "154c"), ("3B:00.1", "0000:3b:00.1")):
        assert f'"{odd}" never matches for the plugin; devhost takes it as "{right}"' in done.stdout


def test_a_resource_that_can_select_nothing_is_omitted_with_a_comment() -> None:
    text = pools(
        pool("a", {"pfNames": ["ens1#3-2"]}), pool("b", {"pfNames": ["x#1"], "rootDevices": ["3b:00.0#2"]})
    )
    done = run(text)
    assert done.stdout.count("selects nothing, neither with the plugin nor with devhost: omitted") == 2
    assert "its range is empty" in done.stdout
    assert loaded(text).settings.resources == ()


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ({"resourceName": "a"}, "the key selectors is required"),
        (pool("a b", {}), 'must be a name, not "a b"'),
        (pool("a", []), "an empty list selects nothing"),
        (pool("a", {}, deviceType="gpu"), "must be one of netDevice, auxNetDevice, accelerator"),
        (pool("a", {"vdpaType": "vhost", "isRdma": True}), "isRdma excludes it"),
        (pool("a", {"vdpaType": "user"}), "must be one of"),
        (pool("a", {}, deviceType="auxNetDevice"), "an auxNetDevice requires auxTypes"),
        (pool("a", {"auxTypes": ["eth"]}, deviceType="auxNetDevice"), "must be sf"),
        (pool("a", {"vendors": ["intel"]}), 'must be a PCI id, not "intel"'),
        (pool("a", {"pciAddresses": ["eth0"]}), 'must be a PCI address, not "eth0"'),
        (pool("a", {"rootDevices": ["eth0#1"]}), "must be a PCI address with ranges"),
        (pool("a", {"pfNames": ["ens1#a-b"]}), "must be an interface with ranges"),
        (pool("a", {"pfNames": ["ens1#1#2"]}), "must be an interface with ranges"),
        (pool("a", {"pfNames": ["ens1#"]}), "must be an interface with ranges"),
        (pool("a", {"pfNames": ["#1"]}), "must be an interface with ranges"),
        (pool("a", {"acpiIndexes": ["one"]}), 'must be a number, not "one"'),
        (pool("a", {"drivers": [""]}), "must be the name of a driver"),
        (pool("a", {"drivers": ["/sys/bus/pci/drivers/iavf"]}), "must be the name of a driver"),
        (pool("a", {"drivers": ["iavf "]}), "must be the name of a driver"),
        (pool("a", {"ddpProfiles": [""]}), "must be text that is not empty"),
        (pool("a", {"pKeys": ["8001"]}), 'must be a partition key, not "8001"'),
        (pool("a", {"linkTypes": ["ether", "InfiniBand"]}), "(did you mean infiniband?)"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_their_place(resource: dict[str, Any], words: str) -> None:
    done = run(pools(resource))
    assert done.exit_code != 0
    assert words in str(done.exception) and "<stdin>:1:" in str(done.exception)


def test_a_duplicate_name_is_refused_only_within_a_prefix() -> None:
    done = run(pools(pool("a", {}), pool("a", {})))
    assert "occurs twice" in str(done.exception)
    one, other = ({"drivers": [name]} for name in "xy")
    text = pools(pool("a", one), pool("a", other, resourcePrefix="b.org"))
    assert len(loaded(text).settings.resources) == 2


def test_a_resource_whose_functions_are_all_taken_is_omitted_with_a_comment() -> None:
    text = pools(
        pool("wide", {"vendors": ["8086"], "pfNames": ["a", "b#0-7"]}),
        pool("narrow", {"vendors": ["8086"], "pfNames": ["b#2-3"], "isRdma": True}),
        pool("other", {"vendors": ["8086"], "pfNames": ["b#2-8"], "acpiIndexes": ["1"]}),
        pool(
            "both",
            [
                {"vendors": ["8086"], "pfNames": ["b#1"]},
                {"vendors": ["8086"], "acpiIndexes": ["1"], "pfNames": ["b#8"]},
            ],
        ),
    )
    assert [entry.name for entry in loaded(text).settings.resources] == ["intel.com/wide", "intel.com/other"]
    assert "# intel.com/narrow gets no device: intel.com/wide takes all of them first" in run(text).stdout


def test_an_import_takes_work_in_proportion_to_the_selectors() -> None:
    def lines(count: int) -> int:
        numbers = [divmod(n, 8) for n in range(count)]
        selectors = [{"vendors": ["8086"], "pciAddresses": [f"0000:01:{d:02x}.{f}"]} for d, f in numbers]
        text, work = pools(*(pool(f"r{n}", one) for n, one in enumerate(selectors))), Work()
        with work.counted():
            assert run(text).exit_code == 0
        return work.lines

    few, many = lines(120), lines(240)
    assert many <= 2.3 * few, f"{few} lines, {many} for twice as many selectors"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"resourceList": []}', '{"resourceList": {}}', '{"a": [{ {"b"']
)
def test_all_errors_of_a_configuration_are_reported_together(text: str) -> None:
    done = run(text)
    assert done.exit_code != 0 and str(done.exception).startswith("<stdin>")


def test_wildcard_characters_in_names_are_literal() -> None:
    text = pools(pool("a", {"drivers": ["a*b"], "pfNames": ["e[0]"], "ddpProfiles": ['GTPv1-C/U: "x"?']}))
    where = [str(block) for block in loaded(text).settings.resources[0].where]
    assert "driver: a[*]b" in where[0] and "pfName: e[[]0]" in where[0] and 'GTPv1-C/U: "x"[?]' in where[0]


def test_a_domain_that_is_not_in_the_input_is_assumed_with_a_remark() -> None:
    assumed = "intel.com: the domain of resources without resourcePrefix is that of the plugin's flag"
    text = json.dumps({"resourceList": [{"resourceName": "a", "selectors": {}}]})
    assert assumed in said(run(text).stdout)
    container = {"image": "mirror/sriov-network-device-plugin"}
    plugin = {"kind": "DaemonSet", "spec": {"template": {"spec": {"containers": [container]}}}}
    with_plugin = f"{json.dumps(plugin)}\n---\n{config_map(text)}"
    policy = json.dumps({"kind": "NicClusterPolicy", "spec": {"sriovDevicePlugin": {"config": text}}})
    named = text.replace('"selectors"', '"resourcePrefix": "intel.com", "selectors"')
    for known in (with_plugin, policy, named):
        result = run(known).stdout
        assert "intel.com/a" in result and assumed not in said(result)
    assert assumed not in said(run(text, "--resource-prefix", "intel.com").stdout)


def test_a_node_without_resources_is_refused_in_words() -> None:
    done = run(config_map('{"resourceList": null}'))
    assert "resourceList is null: this node has no resources" in str(done.exception)


def test_a_policy_of_another_plugin_hides_no_configuration_of_this_one() -> None:
    policy = {"kind": "NicClusterPolicy", "spec": {"rdmaSharedDevicePlugin": {"config": "{}"}}}
    assert run(f"{json.dumps(policy)}\n---\n{config_map(QUICK_START)}").exit_code == 0


def test_a_missing_config_map_is_named() -> None:
    pod = {
        "containers": [{"image": "sriov-network-device-plugin"}],
        "volumes": [{"configMap": {"name": "mine"}}],
    }
    done = run(json.dumps({"kind": "DaemonSet", "spec": {"template": {"spec": pod}}}))
    assert "add the ConfigMap mine" in str(done.exception)
