"""The modelled machines through a user's configuration: ``devhost discover`` and ``devhost explain``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from rdma_node import Node
from rdma_tree import RdmaTree

from devhost.cli import explain

Machine = Callable[[Path], RdmaTree]
VIRTUAL = [f"0000:3b:00.{number}" for number in range(2, 6)]


SELECTIONS: dict[Machine, dict[str, list[str]]] = {
    connectx.infiniband_and_roce: {
        "{linkLayer: infiniband}": ["0000:3b:00.0"],
        "{linkLayer: ethernet}": ["0000:af:00.0"],
        "{linkLayer: [ethernet, infiniband]}": ["0000:3b:00.0", "0000:af:00.0"],
        "{rate: '200-'}": ["0000:3b:00.0"],
        "{rate: '400-'}": [],
        "{hasIssm: true}": ["0000:3b:00.0"],
        "{netDevs: 'ens*'}": ["0000:af:00.0"],
    },
    connectx.virtual_functions: {
        "{pfName: ens3f0np0}": VIRTUAL,
        "{isVf: false}": ["0000:3b:00.0"],
        "{vendor: 15B3, device: 101E, numaNode: 1}": VIRTUAL,
        "{not: {device: 101e}}": ["0000:3b:00.0"],
        "{ibDevice: 'mlx5_[23]'}": ["0000:3b:00.2", "0000:3b:00.3"],
        "[{ibDevice: mlx5_0}, {netDevs: ens3f0v3}]": ["0000:3b:00.0", "0000:3b:00.5"],
    },
    connectx.scalable_function: {
        "{pciBusID: '0000:03:00.0'}": ["0000:03:00.0", "mlx5_core.sf.2"],
        "{netDevs: en3f0pf0sf88}": ["mlx5_core.sf.2"],
    },
    connectx.connectx8_xdr: {"{rate: '400-'}": ["0000:19:00.0"], "{ibDevices: 'smi*'}": ["0000:19:00.0"]},
    machines.efa: {
        "{linkLayer: unspecified, hasUmad: false}": ["0000:00:06.0"],
        "{driver: efa}": ["0000:00:06.0"],
        "{numaNode: '0-'}": [],
    },
    machines.irdma: {
        "{transport: iwarp}": ["0000:4b:00.1", "0000:5e:00.0"],
        "{driver: ice}": ["0000:4b:00.0", "0000:4b:00.1"],
    },
    machines.software: {"{nodeType: ca}": ["rxe0"], "{driver: siw}": ["siw0"], "{vendor: '*'}": []},
}


@pytest.mark.parametrize("machine", SELECTIONS, ids=lambda machine: machine.__name__)
def test_where_selects_the_expected_devices(machine: Machine, node: Node):
    machine(node.root)
    entries = dict(enumerate(SELECTIONS[machine].items()))
    offers = node.offers(
        *(
            f"name: rdma/n{number}, backend: rdma, exclusive: false, where: {where}"
            for number, (where, _) in entries.items()
        )
    )
    taken = {where: offers.get(f"rdma/n{number}", []) for number, (where, _) in entries.items()}
    assert taken == SELECTIONS[machine]


def test_a_name_with_the_link_layer_gives_a_resource_for_each(node: Node):
    connectx.infiniband_and_roce(node.root)
    offers = node.offers("name: 'rdma/hca-{linkLayer}', backend: rdma")
    assert offers == {"rdma/hca-infiniband": ["0000:3b:00.0"], "rdma/hca-ethernet": ["0000:af:00.0"]}


@pytest.mark.parametrize(
    ("share", "replicas"),
    [("", 1), (", share: {replicas: 50}", 50), (", share: {replicas: 20, of: all}", 20)],
    ids=["exclusive", "shared", "all"],
)
def test_each_way_of_sharing_offers_every_device(share: str, replicas: int, node: Node):
    connectx.virtual_functions(node.root)
    (resource,) = node.discover(f"name: rdma/hca, backend: rdma{share}")["resources"]
    assert [device["id"] for device in resource["devices"]] == ["0000:3b:00.0", *VIRTUAL]
    assert {device["replicas"] for device in resource["devices"]} == {replicas}
    assert {device["health"] for device in resource["devices"]} == {"Healthy"}
    done = node.run(explain.command, "mlx5_4")
    assert done.stdout.startswith("0000:3b:00.4 of backend rdma: Healthy\n")
    (verdict,) = (line for line in done.stdout.splitlines() if line.startswith("rdma/hca ("))
    assert verdict.startswith("rdma/hca (resources[0]): yes, it takes the device")
    assert ("all devices together" in verdict) is ("all" in share)
    assert (f"{replicas} times" in verdict) is (replicas > 1)


def test_a_device_in_two_resources_serves_the_first_only(node: Node):
    connectx.virtual_functions(node.root)
    document = node.discover(
        "name: rdma/vf, backend: rdma, where: {isVf: true}", "name: rdma/any, backend: rdma"
    )
    by_name = {r["name"]: [d["id"] for d in r["devices"]] for r in document["resources"]}
    assert by_name == {"rdma/vf": VIRTUAL, "rdma/any": ["0000:3b:00.0"]}
    assert [refusal["device"] for refusal in document["refusals"]] == VIRTUAL


def test_a_node_of_an_rdma_device_is_not_allocated_by_another_backend(node: Node):
    machines.efa(node.root)
    document = node.discover(
        "name: rdma/efa, backend: rdma",
        "name: example.com/verbs, backend: udev, where: {subsystem: infiniband_verbs}",
    )
    assert [resource["name"] for resource in document["resources"] if resource["devices"]] == ["rdma/efa"]
    (refusal,) = document["refusals"]
    assert "node:/dev/infiniband/uverbs0" in refusal["reason"]


def test_explain_shows_why_a_device_is_unhealthy_and_which_condition_fails(node: Node):
    connectx.connectx6_infiniband(node.root, without="rdma_ucm")
    node.write(
        "name: rdma/roce, backend: rdma, where: {linkLayer: ethernet}", "name: rdma/hca, backend: rdma"
    )
    lines = node.run(explain.command, "mlx5_0").stdout.splitlines()
    assert (
        lines[0] == "0000:3b:00.0 of backend rdma: Unhealthy: rdma_cm is missing (is module rdma_ucm loaded?)"
    )
    assert "rdma/roce (resources[0]): no, linkLayer must be ethernet, it is infiniband" in lines
    assert "rdma/hca (resources[1]): yes, it takes the device" in lines


def test_a_device_is_found_by_its_interface_or_its_rdma_name(node: Node):
    connectx.scalable_function(node.root)
    node.write("name: rdma/hca, backend: rdma")
    for word in ("mlx5_2", "mlx5_core.sf.2", "en3f0pf0sf88"):
        assert node.run(explain.command, word).stdout.startswith("mlx5_core.sf.2 of backend rdma: Healthy")


def test_an_unknown_attribute_is_refused_with_a_suggestion(node: Node):
    machines.efa(node.root)
    node.write("name: rdma/hca, backend: rdma, where: {linklayer: ethernet}")
    done = node.program("discover")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "did you mean linkLayer?" in line


def test_a_machine_without_rdma_offers_nothing_without_an_error(node: Node):
    assert node.offers("name: rdma/hca, backend: rdma") == {}
    done = node.program("discover", "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
