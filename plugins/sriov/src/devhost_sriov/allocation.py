"""What one container gets with some functions: the nodes that go with their drivers, and variables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from devhost.backend import AllocationError, DeviceNode, Edits
from devhost.backend.sysfs import Sysfs, natural

from . import nodes
from .function import Function
from .options import SriovUse

VARIABLE = "PCIDEVICE"
"""With the resource's name behind it: the ids of the functions. With ``_INFO`` behind that: what they give,
as JSON. Both are the names that sriov-network-device-plugin uses, whose pods and programs read them."""

KUBEVIRT = "PCI_RESOURCE_{RESOURCE-}"
"""KubeVirt's virt-launcher looks for the addresses of host devices here (its ``ResourceNameToEnvVar``, which
leaves hyphens as they are)."""


def edits(sysfs: Sysfs, functions: Sequence[Function], use: SriovUse) -> Edits:
    """Everything one container needs in order to use these functions.

    Raises:
        AllocationError: one of them cannot be used as it is now.
    """
    ordered = sorted(functions, key=lambda function: natural(function.id))
    for function in ordered:
        _check_unchanged(sysfs, function)
    parts = {function.id: list(nodes.parts(sysfs, function, use.uses)) for function in ordered}
    given = [node for own in parts.values() for part in own for node in _nodes(part, use)]
    ids = ",".join(parts)
    info = json.dumps({name: _info(name, own, use) for name, own in parts.items()}, sort_keys=True)
    env = {}
    for resource in ("{RESOURCE}", "{RESOURCE-}"):  # the one shells can expand, and the peer's own
        env[f"{VARIABLE}_{resource}"] = ids
        env[f"{VARIABLE}_{resource}_INFO"] = info
    if use.kubevirt:
        env |= _kubevirt([function for function in ordered if function.uses_vfio])
    return Edits(tuple(given), env=env)


def _check_unchanged(sysfs: Sysfs, function: Function) -> None:
    """Refuses a function that is not what the plan took it for: the pod would get what it did not ask for."""
    if not sysfs.exists(function.path):
        raise AllocationError(f"{function.id} is gone")
    driver = sysfs.target(f"{function.path}/driver")
    if driver != function.driver:
        before = f"; it was bound to {function.driver}" if function.driver else ""
        raise AllocationError(f"{function.id} is bound to {driver or 'no driver'} now{before}")


def _nodes(part: nodes.Part, use: SriovUse) -> Sequence[DeviceNode]:
    """The nodes of a part; for KubeVirt those of vfio with the permissions that its own plugin gives.

    They are ``mrw`` (its ``formatVFIODeviceSpecs``, pkg/virt-handler/device-manager/pci_device.go).
    """
    if not use.kubevirt or part.provider != "vfio":
        return part.nodes
    return [replace(node, permissions="mrw") for node in part.nodes]


def _info(name: str, parts: Sequence[nodes.Part], use: SriovUse) -> Mapping[str, Mapping[str, str]]:
    """What the variable tells of one function: by provider, as the peer's pods expect it."""
    info = {"generic": {"deviceID": name}} | {part.provider: dict(part.info) for part in parts}
    extra = use.info.get("*", {}) | use.info.get(name, {})
    return info | {"extra": extra} if extra else info


def _kubevirt(functions: Sequence[Function]) -> dict[str, str]:
    return {KUBEVIRT: ",".join(function.address for function in functions)} if functions else {}
