"""`devhost import kubevirt`: permittedHostDevices as entries that serve virtual machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peer_machines as machines
import pytest
from devhost_testing.node import Node
from importing import converted, installed, refusal, run, said, wheres

PEER = "kubevirt"

if not {"udev", "sriov"} <= installed().installed.keys():
    pytest.skip("the result is for the sriov and udev backends", allow_module_level=True)


def permitted(**lists: list[dict[str, Any]]) -> str:
    spec = {"configuration": {"permittedHostDevices": lists}}
    return json.dumps({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec})


def pci(selector: str, name: str = "example.com/gpu", **more: object) -> dict[str, object]:
    return {"pciVendorSelector": selector, "resourceName": name, **more}


def mdev(selector: str, name: str, **more: object) -> dict[str, object]:
    return {"mdevNameSelector": selector, "resourceName": name, **more}


USB = {"resourceName": "kubevirt.io/token", "selectors": [{"vendor": "96E", "product": "0850"}]}


def test_only_functions_bound_to_vfio_are_offered_as_in_kubevirt() -> None:
    entry = converted(PEER, permitted(pciHostDevices=[pci("10DE:1EB8")]))["example.com/gpu"]
    assert wheres(entry) == ["vendor: 10de, device: 1eb8, driver: vfio-pci"]


def test_several_selectors_with_one_name_become_one_resource() -> None:
    entry = converted(PEER, permitted(pciHostDevices=[pci("10de:1eb8"), pci("10de:2236")]))["example.com/gpu"]
    assert [block.split(", ")[1] for block in wheres(entry)] == ["device: 1eb8", "device: 2236"]


def test_a_selector_with_several_names_has_the_last_one() -> None:
    """KubeVirt keeps one name for each selector."""
    text = permitted(pciHostDevices=[pci("10de:1eb8"), pci("10DE:1EB8", "example.com/other")])
    assert set(converted(PEER, text)) == {"example.com/other"}
    remark = "example.com/gpu: of several names for a selector KubeVirt uses the last, here example.com/other"
    assert remark in said(run(PEER, text).stdout)


@pytest.mark.parametrize(
    "entry",
    [
        {"pciHostDevices": [pci("8086:*", "gpu.intel.com/vfio", externalResourceProvider=True)]},
        {"usb": [{"resourceName": "gpu.intel.com/vfio", "externalResourceProvider": True}]},
    ],
)
def test_a_selector_of_another_plugin_that_selects_nothing_is_named(entry: dict[str, Any]) -> None:
    """KubeVirt does not read it, and uses the other entries."""
    own = {"pciHostDevices": [*entry.get("pciHostDevices", []), pci("10de:1eb8")]}
    text = permitted(**{**entry, **own})
    assert set(converted(PEER, text)) == {"example.com/gpu"}
    assert "gpu.intel.com/vfio: its selector is invalid" in said(run(PEER, text).stdout)


def test_mediated_devices_are_selected_by_type_as_in_kubevirt() -> None:
    """``removeSelectorSpaces``: blanks are ``_``; several types of one name are one resource."""
    types = [mdev("GRID T4-1Q", "e.x/vgpu"), mdev("a[1]*", "e.x/vgpu"), mdev("i915-GVTg_V5_4", "e.x/gvt")]
    entries = converted(PEER, permitted(mediatedDevices=types))
    assert wheres(entries["e.x/vgpu"]) == [
        "kind: mdev, mdevType: GRID_T4-1Q",
        "kind: mdev, mdevType: a[[]1][*]",
    ]
    assert wheres(entries["e.x/gvt"]) == ["kind: mdev, mdevType: i915-GVTg_V5_4"]
    text = permitted(mediatedDevices=[mdev("GRID T4-1Q", "e.x/a"), mdev("GRID_T4-1Q", "e.x/b")])
    assert set(converted(PEER, text)) == {"e.x/b"}
    remark = "e.x/a: of several names for a selector KubeVirt uses the last, here e.x/b: omitted."
    assert remark in said(run(PEER, text).stdout)


def test_names_without_an_external_provider_are_listed() -> None:
    mine = pci("10de:1eb8", externalResourceProvider=True)
    text = permitted(pciHostDevices=[mine, pci("8086:6f54", "intel.com/qat")], usb=[USB])
    remark = "devhost starts: intel.com/qat, kubevirt.io/token. Otherwise"
    assert remark in said(run(PEER, text).stdout)
    assert "externalResourceProvider: true" not in run(PEER, permitted(pciHostDevices=[mine])).stdout


def test_disabled_devices_of_a_hyperconverged_object_are_not_offered() -> None:
    devices = [
        {"pciDeviceSelector": "10de:1eb8", "resourceName": "example.com/a", "disabled": True},
        {"pciDeviceSelector": "10de:1db6", "resourceName": "example.com/b"},
    ]
    spec = {"permittedHostDevices": {"pciHostDevices": devices}}
    assert set(converted(PEER, json.dumps({"kind": "HyperConverged", "spec": spec}))) == {"example.com/b"}


async def test_a_virtual_machine_gets_a_mediated_device_as_from_kubevirt(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        machines.virtual_machines(node.root)
        text = run(PEER, permitted(mediatedDevices=[mdev("GRID T4-1Q", "nvidia.com/GRID_T4-1Q")])).stdout
        node.configure(text.split("version: 1\n", 1)[1])
        async with node.served({"nvidia.com/GRID_T4-1Q": 1}):
            started = await node.container({"nvidia.com/GRID_T4-1Q": 1})
    assert dict(started.envs) == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": machines.MDEV}
    nodes = {one.host_path: one.permissions for one in started.devices}
    assert nodes == {"/dev/vfio/vfio": "mrw", "/dev/vfio/30": "mrw"}


async def test_a_virtual_machine_gets_the_same_as_from_kubevirt(tmp_path: Path) -> None:
    """Nodes of the IOMMU group with mrw, PCI_RESOURCE_<NAME> with the address."""
    async with Node(tmp_path) as node:
        machines.virtual_machines(node.root)
        text = run(PEER, permitted(pciHostDevices=[pci("10de:1eb8")])).stdout
        node.configure(text.split("version: 1\n", 1)[1])
        async with node.served({"example.com/gpu": 1}):
            started = await node.container({"example.com/gpu": 1})
    assert started.envs["PCI_RESOURCE_EXAMPLE_COM_GPU"] == "0000:65:00.0"
    nodes = {one.host_path: one.permissions for one in started.devices}
    assert {path: nodes[path] for path in ("/dev/vfio/vfio", "/dev/vfio/20")} == {
        "/dev/vfio/vfio": "mrw",
        "/dev/vfio/20": "mrw",
    }


def test_a_usb_device_of_several_selectors_needs_all_of_them() -> None:
    several = {"resourceName": "kubevirt.io/set", "selectors": [{"vendor": "1", "product": "2"}] * 2}
    entry = converted(PEER, permitted(usb=[several]))["kubevirt.io/set"]
    assert wheres(entry) == ["group: kubevirt.io_set"]
    one = converted(PEER, permitted(usb=[USB]))["kubevirt.io/token"]
    assert wheres(one) == ["devType: usb_device, idVendor: 096e, idProduct: 0850"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: KubeVirt\nspec: {}", "<stdin>:1:1: it has no spec.configuration.permittedHostDevices"),
        ("kind: VirtualMachine", 'a "VirtualMachine" contains no configuration (give a KubeVirt'),
        (permitted(pciHostDevices=[pci("10de")]), "pciVendorSelector: must be a vendor id and a device id"),
        (permitted(pciHostDevices=[pci("10de:1", "gpu")]), 'resourceName: "gpu" '),
        (permitted(usb=[USB | {"resourceName": ""}]), 'usb[0].resourceName: "" '),
        (permitted(pciHostDevices=[{"resourceName": "a.b/c"}]), "the key pciVendorSelector is required"),
        (permitted(mediatedDevices=[{"resourceName": "a.b/c"}]), "the key mdevNameSelector is required"),
        (permitted(mediatedDevices=[mdev(" ", "a.b/c")]), "mdevNameSelector: must be the name of a type"),
        (permitted(mediatedDevices=[mdev("GRID T4-1Q", "vgpu")]), 'resourceName: "vgpu" '),
        (permitted(usb=[{**USB, "selectors": []}]), "usb[0].selectors: must be from 1 to 100 members"),
        (
            permitted(usb=[{**USB, "selectors": [{"vendor": "x", "product": "1"}]}]),
            'usb[0].selectors[0].vendor: must be a USB id, not "x"',
        ),
        ("permittedHostDevices: {usb: {}}", "permittedHostDevices.usb: must be a list"),
        ("permittedHostDevices: []", "permittedHostDevices: must be a mapping"),
    ],
)
def test_an_object_that_kubevirt_refuses_is_refused_in_one_line(text: str, message: str) -> None:
    assert message in refusal(PEER, text)


def test_unknown_keys_are_named() -> None:
    text = permitted(pciHostDevices=[pci("10de:1eb8", externalResourceprovider=True, note="x")])
    assert "permittedHostDevices.pciHostDevices[0].note: this import does not know it" in said(
        run(PEER, text).stdout
    )


def test_a_misspelt_list_of_devices_is_named_with_the_right_spelling() -> None:
    notes = said(run(PEER, permitted(pciHostDevice=[pci("10de:1eb8")])).stdout)
    wanted = "permittedHostDevices.pciHostDevice: this import does not know it (did you mean pciHostDevices?)"
    assert wanted in notes
