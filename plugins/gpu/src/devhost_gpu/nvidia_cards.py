"""NVIDIA's GPUs and MIG instances as cards: attributes, claims, and why one is not offered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devhost.backend import HEALTHY, AttributeValue, Device, Health, unhealthy

from .adapter import Adapter
from .attributes import of_adapter
from .card import GPU, MIG, NVIDIA, VF, Card, own_claims, parents
from .nvidia_mig import profile
from .nvidia_proc import Information
from .nvml.facts import NvidiaFacts
from .nvml.reports import Gpu, Instance

DRIVER = "nvidia"
"""The name of NVIDIA's kernel driver on the PCI bus."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of one GPU: ``gpu`` what NVML last told, ``information`` what the driver does.

    ``reason`` is why it, or all of them, cannot be used; empty if nothing speaks against it.
    """

    adapter: Adapter
    gpu: Gpu | None
    information: Information
    reason: str
    driver_version: str
    cuda_version: str

    @property
    def uuid(self) -> str:
        """Its UUID, if anything tells it."""
        return self.gpu.uuid if self.gpu else self.information.uuid

    @property
    def minor(self) -> int | None:
        """The number of its node."""
        return self.information.minor if self.gpu is None else self.gpu.minor


def whole(known: Knowledge) -> Card:
    """The card of a GPU as a whole."""
    adapter, gpu = known.adapter, known.gpu
    withheld = _why_withheld(known)
    facts = NvidiaFacts(
        uuid=known.uuid,
        gpu_uuid=known.uuid,
        address=adapter.address,
        index="" if gpu is None or gpu.index is None else str(gpu.index),
        minor=known.minor,
    )
    device = Device(
        id=known.uuid or adapter.id,
        attributes=_present(
            {
                **_shared(known),
                "kind": VF if adapter.is_virtual else GPU,
                "uuid": known.uuid,
                "index": gpu.index if gpu else None,
                "memory": gpu.memory if gpu else None,
                "renderNode": adapter.render_node,
                "cardNode": adapter.card_node,
            }
        ),
        claims=own_claims(adapter) | {f"node:{node}" for node in facts.nodes},
        part_of=parents(adapter),
        numa_nodes=_numa(adapter),
        pcie_path=adapter.pcie_path,
        health=_health(known.reason),
        withheld=withheld,
    )
    return Card(device, NVIDIA, facts)


def part(
    known: Knowledge, instance: Instance, reason: str, capabilities: Callable[[int, int], tuple[int, ...]]
) -> Card:
    """The card of a MIG instance.

    Args:
        known: its GPU.
        instance: what NVML tells of it.
        reason: why it cannot be used; empty if it can.
        capabilities: gives the minors of its capability nodes.
    """
    adapter, gpu = known.adapter, known.gpu
    number = gpu.index if gpu else None
    facts = NvidiaFacts(
        uuid=instance.uuid,
        gpu_uuid=known.uuid,
        address=adapter.address,
        index="" if number is None else f"{number}:{instance.index}",
        minor=known.minor,
        instance=(instance.gi, instance.ci),
        capabilities=capabilities(instance.gi, instance.ci),
        shape=instance.shape,
    )
    own = {f"node:{node}" for node in facts.nodes[-1:]} if facts.capabilities else set()
    device = Device(
        id=instance.uuid,
        attributes=_present(
            {
                **_shared(known),
                "kind": MIG,
                "uuid": instance.uuid,
                "index": instance.index,
                "memory": instance.memory,
                "profile": profile(instance, gpu.memory if gpu else None),
                "parent": known.uuid,
            }
        ),
        claims=frozenset({f"mig:{instance.uuid}", *own}),
        part_of=frozenset({f"pci:{adapter.address}"}),
        numa_nodes=_numa(adapter),
        pcie_path=adapter.pcie_path,
        health=_health(reason),
    )
    return Card(device, NVIDIA, facts)


def _shared(known: Knowledge) -> dict[str, AttributeValue | None]:
    """The attributes that a GPU and its instances have alike."""
    gpu, found = known.gpu, of_adapter(known.adapter)
    del found["renderNode"], found["cardNode"]  # they reach the whole GPU
    return {
        **found,
        "vendor": NVIDIA,
        "product": gpu.name if gpu else known.information.model,
        "architecture": gpu.architecture if gpu else "",
        "computeCapability": gpu.capability if gpu else "",
        "driverVersion": known.driver_version,
        "cudaVersion": known.cuda_version,
        "firmware": gpu.firmware if gpu else "",
        "serial": gpu.serial if gpu else "",
    }


def _why_withheld(known: Knowledge) -> str:
    adapter, gpu = known.adapter, known.gpu
    if adapter.num_vfs:
        plural = "s" * (adapter.num_vfs > 1)
        return f"it has {adapter.num_vfs} virtual function{plural}, which belong to virtual machines"
    if adapter.is_virtual:
        return "it is a virtual function, which belongs to a virtual machine"
    if adapter.driver and adapter.driver != DRIVER:
        return f"it is bound to {adapter.driver}, which makes no GPU of it for containers"
    if known.information.is_excluded:
        return "its driver was told to leave it out (NVreg_ExcludedGpus)"
    if not known.uuid:
        return known.reason or "its driver has not told its UUID"
    if gpu is None:
        return ""
    if gpu.mig:
        count = len(gpu.instances)
        if not count:
            return "MIG is on and it has no instance"
        return f"MIG is on: its {count} instance{'s are' if count > 1 else ' is'} offered instead"
    return "MIG will be on after its next reset" if gpu.mig_next else ""


def _health(reason: str) -> Health:
    return unhealthy(reason) if reason else HEALTHY


def _numa(adapter: Adapter) -> tuple[int, ...]:
    return () if adapter.numa_node is None else (adapter.numa_node,)


def _present(attributes: dict[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
