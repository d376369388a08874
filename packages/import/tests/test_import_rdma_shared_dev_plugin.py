"""`devhost import rdma-shared-dev-plugin`: the same resources from the same HCAs, with remarks on
differences."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import importing
import pytest
from click.testing import CliRunner, Result
from devhost_import.command import command

from devhost.cli.scan_once import scan_once
from devhost.config.loader import Loaded
from devhost.planning.settings import Of, ResourceSettings, WhenEmpty

if "rdma" not in importing.installed().installed:
    pytest.skip("the result is for the rdma backend", allow_module_level=True)

MACHINES = Path(__file__).parents[3] / "plugins/rdma/tests/machines"

README = """{
  "configList": [{
      "resourceName": "hca_shared_devices_a",
      "rdmaHcaMax": 1000,
      "devices": ["ib0", "ib1"]
    },
    {
      "resourceName": "hca_shared_devices_b",
      "rdmaHcaMax": 500,
      "selectors": {
        "vendors": ["15b3"],
        "deviceIDs": ["1017"],
        "ifNames": ["ib3", "ib4"]
      }
    }
  ]
}"""
"""The example of the plugin's own documentation; its manifests hold the same in a ConfigMap."""

OPERATOR = '{"configList": [{"resourceName": "rdma_shared_device_a", "rdmaHcaMax": 63, "selectors": %s}]}'
"""The shape of the network operator's examples."""

RELEASE = OPERATOR % '{"vendors": ["15b3"], "deviceIDs": ["101b"]}'
"""Its complete example, from release 1.0 to 26.1."""

BY_LINK = """{"periodicUpdateInterval": 300, "configList": [
  {"resourceName": "shared_ib", "rdmaHcaMax": 63,
   "selectors": {"vendors": ["15b3"], "linkTypes": ["infiniband"]}},
  {"resourceName": "shared_eth", "resourcePrefix": "nvidia.com", "rdmaHcaMax": 8,
   "selectors": {"vendors": ["15b3"], "linkTypes": ["ether"], "drivers": ["mlx5_core"]}}
]}"""


OPENSHIFT = """{
  "configList": [
    {
      "resourceName": "rdma_shared_device_ib",
      "rdmaHcaMax": 63,
      "selectors": {
        "ifNames": ["ib0"]
      }
    },
    {
      "resourceName": "rdma_shared_device_eth",
      "rdmaHcaMax": 63,
      "selectors": {
        "ifNames": ["ens1f0np0"]
      }
    }
  ]
}"""
"""As OpenShift's documentation has it, with the interfaces of the modelled machines."""


def config_map(text: str, key: str = "config.json") -> str:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rdma-devices"}}
    return json.dumps({**document, "data": {key: text}})


def policy(text: str) -> str:
    lines = "".join(f"      {line}\n" for line in text.splitlines())
    return (
        "apiVersion: mellanox.com/v1alpha1\nkind: NicClusterPolicy\nmetadata:\n  name: nic-cluster-policy\n"
        "  creationTimestamp: 2026-11-20T12:00:00Z\nspec:\n  ofedDriver:\n    image: doca-driver\n"
        f"  rdmaSharedDevicePlugin:\n    image: k8s-rdma-shared-dev-plugin\n    config: |\n{lines}"
    )


def node_policy(text: str) -> str:
    """Its policy for a group of nodes, behind one for the cluster that has no device plugin."""
    cluster = "kind: NicClusterPolicy\nspec:\n  nvIpam: {image: nvidia-k8s-ipam}\n"
    return f"{cluster}---\n{policy(text).replace('NicClusterPolicy', 'NicNodePolicy')}"


def node_policies(text: str) -> str:
    """What kubectl prints of them where it is given no name."""
    spec = {"nodeSelector": {"a": "b"}, "rdmaSharedDevicePlugin": {"config": text}}
    items = [{"apiVersion": "mellanox.com/v1alpha1", "kind": "NicNodePolicy", "spec": spec}]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def run(text: str | bytes) -> Result:
    return CliRunner().invoke(command, ["rdma-shared-dev-plugin", "-"], input=text)


def loaded(text: str) -> Loaded:
    """The output as settings, which must be valid."""
    done = run(text)
    assert done.exit_code == 0, (done.output, done.exception)
    return importing.loaded(done.stdout)


def converted(text: str) -> tuple[ResourceSettings, ...]:
    return loaded(text).settings.resources


def wheres(entries: tuple[ResourceSettings, ...]) -> dict[str, str]:
    return {entry.name: str(entry.where[0]) for entry in entries}


def one_of_a_list(text: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [json.loads(config_map(text))]})


def one_of_a_namespace(text: str) -> str:
    """`kubectl get configmap -o yaml`: each namespace has one with the cluster's certificate."""
    root = {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "x"}}
    return json.dumps({"kind": "List", "items": [root, json.loads(config_map(text))]})


@pytest.mark.parametrize(
    "wrap",
    [str, config_map, policy, one_of_a_list, one_of_a_namespace, node_policy, node_policies],
    ids=lambda one: one.__name__,
)
def test_the_documented_example_is_read_from_every_kind_of_object(wrap: Callable[[str], str]) -> None:
    a, b = converted(wrap(README))
    assert wheres((a, b)) == {
        "rdma/hca_shared_devices_a": "netDevs: ib0 or ib1, pciBusID: *",
        "rdma/hca_shared_devices_b": "vendor: 15b3, device: 1017, netDevs: ib3 or ib4",
    }
    assert [(e.share.replicas, e.share.of, e.when_empty) for e in (a, b)] == [
        (1000, Of.ALL, WhenEmpty.REGISTER),
        (500, Of.ALL, WhenEmpty.REGISTER),
    ]


def test_policies_that_differ_for_several_groups_of_nodes_are_refused() -> None:
    """The operator runs the plugin once for each of them, each on its own nodes."""
    one, other = (
        policy(RELEASE).replace("NicClusterPolicy", "NicNodePolicy").replace("nic-cluster-policy", name)
        for name in ("gpu-nodes", "storage-nodes")
    )
    done = run(f"{one}---\n{other.replace('63', '1000')}")
    assert getattr(done.exception, "exit_code", None) == 2
    message = str(done.exception)
    assert (
        "of rdma-shared-dev-plugin: NicNodePolicy gpu-nodes, NicNodePolicy storage-nodes (import" in message
    )
    assert run(f"{one}---\n{other}").stdout == run(one).stdout


def test_the_error_for_a_policy_of_another_plugin_names_its_importer() -> None:
    text = json.dumps({"kind": "NicClusterPolicy", "spec": {"sriovDevicePlugin": {"config": "{}"}}})
    done = run(text)
    assert "has spec.sriovDevicePlugin.config, but no spec.rdmaSharedDevicePlugin.config" in str(
        done.exception
    )
    assert "devhost import sriov-network-device-plugin" in str(done.exception)
    neither = run('{"kind": "NicNodePolicy", "spec": {"ofedDriver": {}}}')
    assert "it has no spec.rdmaSharedDevicePlugin" in str(neither.exception)


def test_nodes_have_the_permissions_that_the_plugin_gives() -> None:
    """It gives every node with rwm."""
    assert {entry.permissions for entry in converted(BY_LINK)} == {"rwm"}


def test_every_selector_and_the_prefix_are_kept() -> None:
    assert wheres(converted(BY_LINK)) == {
        "rdma/shared_ib": "vendor: 15b3, linkLayer: infiniband",
        "nvidia.com/shared_eth": "vendor: 15b3, driver: mlx5_core, linkLayer: ethernet",
    }
    assert "# periodicUpdateInterval: 300 is omitted" in run(BY_LINK).stdout


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The rdma backend's modelled machines."""
    if not MACHINES.is_dir():
        pytest.skip("the machines of the rdma backend's tests are not here")
    monkeypatch.syspath_prepend(str(MACHINES))
    return importlib.import_module("rdma_connectx")


@pytest.mark.parametrize(
    ("text", "machine", "selected"),
    [
        (README, "connectx6_infiniband", {"rdma/hca_shared_devices_a": ["0000:3b:00.0"]}),
        (RELEASE, "connectx6_infiniband", {"rdma/rdma_shared_device_a": ["0000:3b:00.0"]}),
        (RELEASE, "connectx5_roce", {}),
        (OPENSHIFT, "connectx6_infiniband", {"rdma/rdma_shared_device_ib": ["0000:3b:00.0"]}),
        (OPENSHIFT, "connectx5_roce", {"rdma/rdma_shared_device_eth": ["0000:af:00.0"]}),
        (BY_LINK, "connectx6_infiniband", {"rdma/shared_ib": ["0000:3b:00.0"]}),
        (BY_LINK, "connectx5_roce", {"nvidia.com/shared_eth": ["0000:af:00.0", "0000:af:00.1"]}),
    ],
)
def test_the_documented_examples_select_the_same_devices_as_in_the_plugin(
    tmp_path: Path, machines: ModuleType, text: str, machine: str, selected: dict[str, list[str]]
) -> None:
    getattr(machines, machine)(tmp_path)
    found = asyncio.run(scan_once(loaded(text), tmp_path))
    plan = {name: [offer.device.id for offer in r.offers] for name, r in found.plan.resources.items()}
    assert {name: ids for name, ids in plan.items() if ids} == selected
    assert plan.keys() == {entry.name for entry in found.settings.resources}
    assert not found.plan.refusals


def test_software_devices_on_an_interface_are_not_selected(tmp_path: Path, machines: ModuleType) -> None:
    importlib.import_module("rdma_machines").software(tmp_path)
    text = OPERATOR % '{"ifNames": ["dum0", "dum1"]}'
    found = asyncio.run(scan_once(loaded(text), tmp_path))
    assert found.devices()
    assert [resource.offers for resource in found.plan.resources.values()] == [()]


def entries(*selectors: dict[str, Any]) -> str:
    listed = [{"resourceName": f"r{n}", "rdmaHcaMax": 5, "selectors": s} for n, s in enumerate(selectors)]
    return json.dumps({"configList": listed})


def test_entries_that_may_select_the_same_hca_share_it_with_a_remark() -> None:
    text = entries(
        {"vendors": ["15b3"]},
        {"vendors": ["15b3"], "deviceIDs": ["1017"]},
        {"vendors": ["8086"]},
        {"linkTypes": ["ether"], "vendors": ["1d0f"]},
    )
    assert [entry.exclusive for entry in converted(text)] == [False, False, True, True]
    assert "# If an HCA is also selected by rdma/r1, it serves both, as with the plugin." in run(text).stdout


def test_one_hca_in_two_pools_serves_both(tmp_path: Path, machines: ModuleType) -> None:
    machines.connectx6_infiniband(tmp_path)
    text = entries({"vendors": ["15b3"]}, {"ifNames": ["ib0"]})
    found = asyncio.run(scan_once(loaded(text), tmp_path))
    assert {name: len(resource.offers) for name, resource in found.plan.resources.items()} == {
        "rdma/r0": 1,
        "rdma/r1": 1,
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"ifNames": ["a"]}, {"ifNames": ["b"]}),
        ({"linkTypes": ["ether"]}, {"linkTypes": ["infiniband"]}),
        ({"vendors": ["15b3"], "drivers": ["x"]}, {"vendors": ["15b3"], "drivers": ["y"]}),
    ],
)
def test_entries_that_cannot_overlap_stay_exclusive(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert [entry.exclusive for entry in converted(entries(one, other))] == [True, True]


def test_ids_in_a_notation_that_the_plugin_never_matches_match_with_a_remark() -> None:
    text = OPERATOR % '{"vendors": ["0x15B3"], "deviceIDs": ["101B"]}'
    assert wheres(converted(text)) == {"rdma/rdma_shared_device_a": "vendor: 15b3, device: 101b"}
    assert '"0x15B3" never matches for the plugin; devhost takes it as "15b3"' in run(text).stdout


def test_a_star_in_a_name_is_literal() -> None:
    assert wheres(converted(OPERATOR % '{"ifNames": ["ib*"]}')) == {
        "rdma/rdma_shared_device_a": "netDevs: ib[*], pciBusID: *"
    }


@pytest.mark.parametrize("name", ['a"b', "a: b", "# x", "no", "ü", "\\u0007", "\\u007f", "a\\nb", "'", "{x}"])
def test_any_name_is_kept_unchanged(name: str) -> None:
    text = OPERATOR % json.dumps({"ifNames": [json.loads(f'"{name}"') if "\\" in name else name]})
    ((entry,),) = (converted(text),)
    (term, _) = entry.where[0].terms
    assert str(term) == f"netDevs: {json.loads(text)['configList'][0]['selectors']['ifNames'][0]}"


def test_a_resource_without_tokens_is_omitted_with_a_remark() -> None:
    text = '{"configList": [{"resourceName": "a", "devices": ["ib0"]}]}'
    assert converted(text) == ()
    assert "rdma/a has rdmaHcaMax 0, so no pod could ever get it" in run(text).stdout


def test_ignored_keys_are_reported_with_a_suggestion() -> None:
    text = (
        '{"kubeletRootDir": "/var/lib/kubelet", "configList": [{"resourceName": "a", "rdmaHcaMax": 1,'
        ' "isRdma": true, "selectors": {"vendors": ["15b3"], "deviceID": ["1017"]}}]}'
    )
    assert wheres(converted(text)) == {"rdma/a": "vendor: 15b3"}
    said = run(text).stdout
    assert "# kubeletRootDir: this import does not know it" in said and "--kubelet-dir" in said
    assert "# configList[0].isRdma: this import does not know it" in said
    assert "# configList[0].selectors.deviceID: " in said and "(did you mean deviceIDs?)" in said


def test_the_maximum_number_of_resources_is_read_and_overlaps_are_named() -> None:
    pools = [{"resourceName": f"a{n}", "rdmaHcaMax": 1, "devices": [f"ib{n // 2}"]} for n in range(1000)]
    entries = converted(json.dumps({"configList": pools}))
    assert len(entries) == 1000
    assert not any(entry.exclusive for entry in entries)


def test_json_is_read_as_in_go() -> None:
    """Keys in any case of letters, null for nothing, tabs between values, a byte order mark."""
    text = (
        '\ufeff{\t"CONFIGLIST":[\n\t\t{"resourcename":"a","RdmaHcaMax":7,"resourcePrefix":"","devices":null,'
        '"selectors":{"vendors":["15b3"],"ifNames":null}}\n\t]}'
    )
    (entry,) = converted(text)
    assert (entry.name, entry.share.replicas) == ("rdma/a", 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<stdin>: it is empty (is it the right file?)"),
        (config_map(""), "data.config.json: it is empty (is it the right file?)"),
        ("{", "<stdin>:2:1: "),
        (b"\xff\xfe\0", "<stdin>:1:"),
        ("[]", "<stdin>:1:1: must be a mapping"),
        ("{}", "<stdin>:1:1: the key configList is required"),
        ('{"configList": []}', "configList: must be from 1 to 1000 members, not 0"),
        ('{"configList": {}}', "configList: must be a list"),
        ('{"configList": [3]}', "configList[0]: must be a mapping"),
        ('{"configList": [{"rdmaHcaMax": 1, "devices": ["a"]}]}', "the key resourceName is required"),
        ('{"configList": [{"resourceName": "a-b", "devices": ["a"]}]}', 'must be a name, not "a-b"'),
        ('{"configList": [{"resourceName": "_", "devices": ["a"]}]}', "illegal part"),
        (
            '{"configList": [{"resourceName": "a", "resourcePrefix": "x_y", "devices": ["a"]}]}',
            "illegal domain",
        ),
        ('{"configList": [{"resourceName": "a"}]}', "it selects nothing: neither selectors nor devices"),
        (
            '{"configList": [{"resourceName": "a", "selectors": {"vendor": ["15b3"]}}]}',
            "(did you mean vendors?)",
        ),
        (
            '{"configList": [{"resourceName": "a", "devices": ["a"], "selectors": {"vendors": ["15b3"]}}]}',
            "configList[0].devices: not allowed with selectors (put the names into ifNames)",
        ),
        ('{"configList": [{"resourceName": "a", "devices": ["a"], "rdmaHcaMax": -1}]}', "from 0 to 100000"),
        ('{"configList": [{"resourceName": "a", "devices": ["a"], "rdmaHcaMax": "1"}]}', "remove the quotes"),
        ('{"configList": [{"resourceName": "a", "devices": "ib0"}]}', "put it in brackets"),
        ('{"configList": [{"resourceName": "a", "devices": [""]}]}', "[0]: must be text that is not empty"),
        (OPERATOR % '{"vendors": [15]}', "put it in quotes"),
        (OPERATOR % '{"vendors": ["mellanox"]}', 'vendors[0]: must be a PCI id, not "mellanox"'),
        (OPERATOR % '{"linkTypes": ["ethernet"]}', 'not the text "ethernet" (did you mean ether?)'),
        (OPERATOR % '{"drivers": ["mlx5/core"]}', 'must be the name of a driver, not "mlx5/core"'),
        (OPERATOR % '{"ifNames": [""]}', "ifNames[0]: must be text that is not empty"),
        ('{"periodicUpdateInterval": -1, "configList": []}', "periodicUpdateInterval: must be from 0"),
        (
            '{"configList": [{"resourceName": "a", "devices": ["a"]},'
            ' {"resourceName": "a", "resourcePrefix": "x.io", "devices": ["b"]}]}',
            '"a" occurs twice',
        ),
        ("kind: DaemonSet", 'a "DaemonSet" contains no configuration (give one ConfigMap'),
        ("{kind: List, items: [{}, {}]}", 'a "List" contains no configuration'),
        ("{kind: List}", "it has no items"),
        ("kind: ConfigMap", "it has no data"),
        ('{"kind": "ConfigMap", "data": {"a": "1", "b": "2"}}', "it has no data.config.json"),
        ('{"kind": "ConfigMap", "data": {"a": 3}}', "data.a must be text"),
        ('{"kind": "NicClusterPolicy", "spec": {}}', "it has no spec.rdmaSharedDevicePlugin"),
        (config_map("["), "<stdin>:1: data.config.json:2:1: "),
        (config_map('{"configList": [{}]}'), "<stdin>:1: data.config.json:1:17: configList[0]"),
        (config_map("\ud800"), "found invalid Unicode character"),
        (config_map("x", "a\nb"), "must be a mapping"),
    ],
)
def test_each_error_that_the_plugin_finds_is_refused_in_one_line(text: str | bytes, message: str) -> None:
    done = run(text)
    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert message in str(done.exception)
    assert str(done.exception).replace("\n", "").isprintable()
    assert done.stdout == ""


def test_a_file_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["rdma-shared-dev-plugin", str(tmp_path / "none.json")])
    assert "none.json: there is no such file" in str(done.exception)
