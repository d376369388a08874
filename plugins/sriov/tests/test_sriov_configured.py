"""Configurations on modelled machines: what selects what, and who wins where two want one thing."""

from __future__ import annotations

import pytest
import sriov_network as network
import sriov_others as others
from kit.plan import offered

from devhost.backend.errors import ConfigError
from devhost.config import load, loads
from devhost.discovery import catalog
from devhost.planning.plan import RefusalKind
from devhost.planning.planner import make_plan


@pytest.fixture
def planned(looking, tmp_path):
    """Makes the plan of a machine for these conditions, each of a resource ``r/0``, ``r/1``, …"""

    def plan(machine, *conditions: str):
        lines = ["version: 1", "resources:"]
        for number, where in enumerate(conditions):
            lines += [f"  - name: r/{number}", "    backend: sriov", f"    where: {where}"]
        file = tmp_path / "devhost.yaml"
        file.write_text("\n".join(lines))
        settings = load(file, catalog.load)
        wanted = tuple(settings.wanted("sriov"))
        backend = looking(machine(tmp_path / "root"), settings.backends["sriov"], wanted)
        return make_plan({"sriov": backend.discover()}, settings)

    return plan


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ('{pfName: enp2s0, vfIndex: "0-1,3"}', 3),
        ('{pfPciBusID: "0000:02:00.0", vfIndex: 2}', 1),
        ('{pciBusID: ["0000:02:10.0", "0000:02:10.6"]}', 2),
        ('{vendor: "8086", device: 10CA}', 4),
        ('{mac: "02:00:5E:10:00:*"}', 4),
        ("{driver: igbvf, linkType: ether}", 4),
        ("{driver: vfio-pci}", 0),
        ('{vendor: "8086", not: {vfIndex: "1-"}}', 1),
    ],
)
def test_every_selector_of_sriov_network_device_plugin_has_a_condition(planned, where, count):
    assert len(offered(planned(network.igb, where), "r/0")) == count


@pytest.mark.parametrize(
    ("machine", "where", "expected"),
    [
        (network.mlx5_switchdev, "{kind: sf, pfName: ens3f0np0, sfNum: 89}", ["mlx5_core.sf.3"]),
        (
            network.mlx5_switchdev,
            "{isRdma: true, kind: vf, pfName: ens3f1np1}",
            ["0000:3b:01.2", "0000:3b:01.3"],
        ),
        (network.connectx_infiniband, '{linkType: infiniband, pKey: "0x8001"}', ["0000:af:00.2"]),
        (network.vdpa, "{vdpaType: vhost}", ["0000:3b:00.2"]),
        (network.i40e_with_vfio, "{kind: vf, driver: iavf}", ["0000:5e:02.0", "0000:5e:02.1"]),
        (others.qat, '{pciClass: "0b40*", driver: 4xxxvf}', ["0000:6b:00.1", "0000:6b:00.2"]),
        (others.gpu, '{pciClass: "03*", kind: vf}', ["0000:4d:00.1", "0000:4d:00.2"]),
    ],
)
def test_functions_of_every_kind_can_be_selected(planned, machine, where, expected):
    assert offered(planned(machine, where), "r/0") == expected


def test_a_physical_function_never_excludes_its_virtual_ones(planned):
    plan = planned(network.igb, '{vendor: "8086"}')
    assert offered(plan, "r/0") == [f"0000:02:10.{number}" for number in (0, 2, 4, 6)]
    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.device) == (RefusalKind.WITHHELD, "0000:02:00.0")


def test_every_function_of_an_iommu_group_is_offered(planned):
    """A group binds pods: a virtual machine may use all of its functions."""
    plan = planned(network.i40e_with_vfio, "{driver: vfio-pci}")
    assert (offered(plan, "r/0"), plan.refusals) == (["0000:5e:02.2", "0000:5e:02.3"], ())


def test_expensive_attributes_are_not_needed_to_find_a_function(looking, tmp_path):
    tree = network.mlx5_switchdev(tmp_path)
    full = {device.id for device in looking(tree).discover()}
    assert {device.id for device in looking(tree, None, ()).discover()} == full


@pytest.mark.parametrize("key", ["pciBusID", "pfPciBusID"])
def test_an_address_without_its_domain_is_refused_with_the_full_one(planned, key):
    with pytest.raises(ConfigError) as refused:
        planned(network.igb, f'{{{key}: "02:10.0"}}')
    assert [complaint.hint for complaint in refused.value.diagnostics] == ['write "0000:02:10.0"']


def test_former_backend_keys_are_refused_with_their_new_place():
    """``rdma`` and similar keys belong to each resource, as in sriov-network-device-plugin."""
    lines = ["version: 1", "backends:", "  sriov:", "    rdma: true", '    info: {"*": {token: a}}']
    with pytest.raises(ConfigError) as refused:
        loads("\n".join([*lines, "resources: []"]), "f.yaml", catalog.load)
    hint = "(put it into each entry under resources that needs it, beside backend: sriov)"
    assert [str(complaint) for complaint in refused.value.diagnostics] == [
        f'f.yaml:4:5: backends.sriov: "rdma" is a key of an entry, not of the backend {hint}',
        f'f.yaml:5:5: backends.sriov: "info" is a key of an entry, not of the backend {hint}',
    ]
