"""NVIDIA GPUs and MIG instances as cards: attributes, claims, and why one is not offered."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from devhost.backend import HEALTHY, AttributeValue, Context, Health, claim, unhealthy
from devhost.backend.errors import counted
from devhost.backend.frozen import frozen
from devhost.backend.purpose import DISPLAY, PURPOSE
from devhost.backend.sysfs import Sysfs
from devhost_gpu.attributes import ENGINES, GPU, MIG, VF
from devhost_gpu.discovery import NVIDIA, Adapter
from devhost_gpu.nvml.reports import Gpu, Instance, Made, Placement, Profile, Shape
from devhost_gpu.vendor import CardOf, device, named, of_adapter, own_claims

CAPABILITIES = "/dev/nvidia-caps"
"""The directory of the driver's capability nodes."""


@frozen
class NvidiaFacts:
    """A GPU, or a MIG instance of one.

    ``uuid``
        ``GPU-…`` or ``MIG-…``; empty if the driver has not reported it: then the GPU is withheld.
    ``gpu_uuid``
        That of the physical GPU: the same for a GPU, the parent's for a MIG instance.
    ``address``
        PCI address of the physical GPU, ``0000:3b:00.0``.
    ``index``
        NVIDIA's number, as in ``NVIDIA_VISIBLE_DEVICES``: ``0``, or ``0:1`` for a MIG instance; empty if it
        is unknown. It may change at a reboot.
    ``minor``
        The physical GPU's node is ``/dev/nvidia<minor>``; ``None`` where it is unknown.
    ``instance``
        Of a MIG instance: the ids of its GPU instance and of its compute instance.
    ``capabilities``
        Of a MIG instance: the minors of the capability nodes that give access to these two,
        ``/dev/nvidia-caps/nvidia-cap<minor>``. Empty where the driver does not report them.
    ``shape``
        Of a MIG instance, where NVML reports it.
    ``placement``
        Of a partition that devhost creates on demand: where. It has no ``instance`` while it does not exist.
    ``clique``
        Of a GPU: see :class:`.Gpu`.
    ``cdi``
        Its qualified name in a CDI specification, ``nvidia.com/gpu=GPU-…``; empty where no specification
        names it, or CDI is not used.
    ``cdi_additional``
        The qualified names of additional devices that a container gets with it: ``…/gds=all``.
    """

    uuid: str
    gpu_uuid: str
    address: str
    index: str = ""
    minor: int | None = None
    instance: tuple[int, int] | None = None
    capabilities: tuple[int, ...] = ()
    shape: Shape | None = None
    placement: Placement | None = None
    clique: str = ""
    cdi: str = ""
    cdi_additional: tuple[str, ...] = ()

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG instance, or a partition that can become one."""
        return self.instance is not None or self.placement is not None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its device nodes, including those that it shares with other instances, without control nodes."""
        own = () if self.minor is None else (f"/dev/nvidia{self.minor}",)
        return (*own, *self.access)

    @property
    def access(self) -> tuple[str, ...]:
        """The nodes without which a container cannot use a MIG instance."""
        return tuple(f"{CAPABILITIES}/nvidia-cap{minor}" for minor in self.capabilities)


NvidiaCard = CardOf[NvidiaFacts]

PROC_DRIVER = "/proc/driver/nvidia"
PROC_SWITCHES = "/proc/driver/nvidia-nvswitch"
MODULE = "/sys/module/nvidia"

_VERSION = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_UUID = re.compile(r"GPU-[0-9a-f-]{8,59}")
_MINOR = re.compile(r"DeviceFileMinor:\s*(\d+)")


@frozen
class Information:
    """What the driver reports about one GPU. ``uuid`` is empty for one that has not been woken up yet."""

    uuid: str = ""
    minor: int | None = None
    model: str = ""
    is_excluded: bool = False


class DriverFiles:
    """Reads what NVIDIA's driver reports under ``/proc/driver/nvidia``, with or without NVML."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    @property
    def is_loaded(self) -> bool:
        """Whether the driver is loaded and is not being unloaded (module_state, ``initstate``)."""
        return self._sysfs.exists(PROC_DRIVER) and self._sysfs.text(f"{MODULE}/initstate") != "going"

    @property
    def has_switches(self) -> bool:
        """Whether the driver has NVSwitches, of generations before that of HGX B200."""
        return bool(self._sysfs.names(f"{PROC_SWITCHES}/devices"))

    @property
    def identity(self) -> tuple[int, str] | None:
        """Identifies one loading of the driver; ``None`` if it is not loaded."""
        if not self.is_loaded:
            return None
        return self._sysfs.inode(MODULE), self.version()

    def exists(self, path: str) -> bool:
        return self._sysfs.exists(path)

    def version(self) -> str:
        """The version of the loaded driver; empty if there is none."""
        if version := self._sysfs.text(f"{MODULE}/version"):
            return version
        found = _VERSION.search(self._sysfs.text(f"{PROC_DRIVER}/version"))
        return found[1] if found else ""

    def information(self, address: str) -> Information:
        """The driver's report about the GPU at a PCI address."""
        fields = {}
        for line in self._sysfs.text(f"{PROC_DRIVER}/gpus/{address}/information").splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
        return Information(
            uuid=uuid if _UUID.fullmatch(uuid) else "",
            minor=int(minor) if minor.isdecimal() else None,
            model=fields.get("Model", ""),
            is_excluded=fields.get("GPU Excluded", "") == "Yes",
        )

    def capabilities(self, minor: int | None, gi: int, ci: int) -> tuple[int, ...]:
        """The minors of the nodes that give access to a GPU instance and one of its compute instances.

        Empty if the driver does not report both (MIG user guide, "Device Nodes and Capabilities").
        """
        base = f"{PROC_DRIVER}/capabilities/gpu{minor}/mig/gi{gi}"
        found = [
            _MINOR.search(self._sysfs.text(path)) for path in (f"{base}/access", f"{base}/ci{ci}/access")
        ]
        return tuple(int(match[1]) for match in found if match) if all(found) else ()


_NAME = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z.+-]*)?)")
"""The end of a MIG instance's name: ``NVIDIA A100-SXM4-80GB MIG 1g.10gb``."""


def profile(instance: Instance, gpu_memory: int | None) -> str:
    """The profile of a MIG instance, from its name, else from its shape; empty if neither has it.

    For a compute instance without all slices of its GPU instance, it begins with the number of its slices.
    ``gpu_memory`` is that of the whole GPU, in MiB.
    """
    if found := _NAME.search(instance.name):
        return found[1]
    shape = instance.shape
    if shape is None or not instance.memory:
        return ""
    part = f"{shape.compute_slices}c." if shape.compute_slices != shape.gpu_slices else ""
    return f"{part}{shape.gpu_slices}g.{_gigabytes(instance.memory, gpu_memory)}gb"


def _gigabytes(memory: int, gpu_memory: int | None) -> int:
    """The memory in the name of a profile: eighths of the GPU's, rounded up (A100 40GB: 5 for 4864 MiB)."""
    if not gpu_memory:
        return -(-memory // 1024)
    whole = -(-gpu_memory // 1024)
    eighths = max(1, round(memory * 8 / gpu_memory))
    return -(-eighths * whole // 8)


DISPLAY_MODELS = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Models that only drive the screen of a DGX Station, by product name; NVIDIA's own library go-nvlib omits
them, too."""

DRIVES_DISPLAY = "it only drives the display of this machine"
"""The reason for the purpose of these models."""

DRIVER = "nvidia"
"""The name of the NVIDIA kernel driver on the PCI bus."""

MIG_RECORD = "/run/devhost/mig-instances.json"
"""Which MIG instances devhost created for claims."""


@frozen
class GpuState:
    """The state of one GPU: ``gpu`` from the last report of NVML, ``information`` from the driver's files.

    ``health`` is whether it, and every GPU, can be used.
    """

    adapter: Adapter
    gpu: Gpu | None
    information: Information
    health: Health
    driver_version: str
    cuda_version: str

    @property
    def uuid(self) -> str:
        """Its UUID, if it is known."""
        return self.gpu.uuid if self.gpu else self.information.uuid

    @property
    def minor(self) -> int | None:
        """The number of its node."""
        return self.information.minor if self.gpu is None else self.gpu.minor


def gpu_card(state: GpuState, root: str = "", divided: str = "") -> NvidiaCard:
    """The card of a GPU as a whole, whose nodes on the host have the prefix ``root``.

    ``divided`` is why it is not offered if MIG is on; if empty, by its instances.
    """
    adapter, gpu = state.adapter, state.gpu
    facts = NvidiaFacts(
        uuid=state.uuid,
        gpu_uuid=state.uuid,
        address=adapter.address,
        index="" if gpu is None or gpu.index is None else str(gpu.index),
        minor=state.minor,
        clique=gpu.clique if gpu else "",
    )
    shared = shared_attributes(state)
    is_display = shared["product"] in DISPLAY_MODELS
    attributes = {
        **shared,
        PURPOSE: DISPLAY if is_display else None,
        "kind": VF if adapter.is_virtual else GPU,
        "uuid": state.uuid,
        "index": gpu.index if gpu else None,
        "memory": gpu.memory if gpu else None,
        "renderNode": adapter.render_node,
        "cardNode": adapter.card_node,
    }
    made = device(
        adapter,
        attributes,
        state.health,
        name=state.uuid,
        claims=own_claims(adapter) | _node_claims(facts.nodes, root),
        withheld=_why_withheld(state, divided),
        reserved=DRIVES_DISPLAY if is_display else None,
    )
    return CardOf(made, NVIDIA, facts)


def mig_card(
    state: GpuState,
    instance: Instance,
    health: Health,
    capabilities: Callable[[int, int], tuple[int, ...]],
    root: str = "",
    engines: Mapping[str, AttributeValue] | None = None,
) -> NvidiaCard:
    """The card of a MIG instance, whose nodes on the host have the prefix ``root``.

    ``capabilities`` returns the minors of its capability nodes. ``engines`` are its attributes that are
    :data:`~devhost_gpu.attributes.ENGINES`.
    """
    adapter, gpu = state.adapter, state.gpu
    facts = with_instance(part_facts(state, shape=instance.shape), state, instance, capabilities)
    own = _node_claims(facts.nodes[-1:] if facts.capabilities else (), root)
    common = _node_claims(facts.nodes, root) - own
    attributes = {
        **shared_attributes(state),
        "kind": MIG,
        "uuid": instance.uuid,
        "index": instance.index,
        "memory": instance.memory,
        "profile": profile(instance, gpu.memory if gpu else None),
        "parent": state.uuid,
        **(engines or {}),
    }
    made = device(
        adapter,
        attributes,
        health,
        name=instance.uuid,
        claims=frozenset({claim.mig(instance.uuid), *own}),
        part_of=frozenset({claim.pci(adapter.address), *common}),
    )
    return CardOf(made, NVIDIA, facts)


def part_facts(
    state: GpuState, *, shape: Shape | None = None, placement: Placement | None = None
) -> NvidiaFacts:
    """The facts of a part of a GPU that does not exist yet."""
    return NvidiaFacts(
        "", state.uuid, state.adapter.address, minor=state.minor, shape=shape, placement=placement
    )


def with_instance(
    facts: NvidiaFacts,
    state: GpuState,
    one: Instance | Made,
    capabilities: Callable[[int, int], tuple[int, ...]],
) -> NvidiaFacts:
    """The facts of a part that exists as this MIG instance."""
    number = state.gpu.index if state.gpu else None
    return replace(
        facts,
        uuid=one.uuid,
        index="" if number is None else f"{number}:{one.index}",
        instance=(one.gi, one.ci),
        capabilities=capabilities(one.gi, one.ci),
    )


def _node_claims(nodes: Sequence[str], root: str) -> set[str]:
    """The claims of nodes, also below another root on the host, where containers may get them from."""
    places = ("", f"/{root.lstrip('/')}" if root else "")
    return {claim.node(posixpath.normpath(f"{place}{node}")) for place in places for node in nodes}


def engines_of(context: Context, has: Shape | Profile | None) -> dict[str, AttributeValue]:
    """The engines of a MIG instance that the configuration asks for."""
    return named(context, {name: getattr(has, of) for name, of in ENGINES.items()} if has else {})


def common_claims(state: GpuState, root: str) -> frozenset[str]:
    """What the instances of a GPU have in common."""
    nodes = () if state.minor is None else (f"/dev/nvidia{state.minor}",)
    return frozenset({claim.pci(state.adapter.address), *_node_claims(nodes, root)})


def shared_attributes(state: GpuState) -> dict[str, AttributeValue | None]:
    """The attributes that a GPU and its instances have in common."""
    gpu, found = state.gpu, of_adapter(state.adapter)
    del found["renderNode"], found["cardNode"]  # these give access to the whole GPU
    return {
        **found,
        "vendor": NVIDIA,
        "product": gpu.name if gpu else state.information.model,
        "architecture": gpu.architecture if gpu else "",
        "computeCapability": gpu.capability if gpu else "",
        "driverVersion": state.driver_version,
        "cudaVersion": state.cuda_version,
        "firmware": gpu.firmware if gpu else "",
        "serial": gpu.serial if gpu else "",
    }


def _why_withheld(state: GpuState, divided: str) -> str | None:
    adapter, gpu = state.adapter, state.gpu
    if adapter.num_vfs:
        parts = counted(adapter.num_vfs, "virtual function")
        return f"it has {parts}, which belong to virtual machines"
    if adapter.is_virtual:
        return "it is a virtual function, which belongs to a virtual machine"
    if adapter.driver and adapter.driver != DRIVER:
        return f"it is bound to {adapter.driver}, which makes no GPU of it for containers"
    if state.information.is_excluded:
        return "its driver is configured to exclude it (NVreg_ExcludedGpus)"
    if not state.uuid:
        return state.health.reason or "its driver has not reported its UUID"
    if gpu is None:
        return None
    if gpu.mig and divided:
        return divided
    if gpu.mig:
        count = len(gpu.instances)
        if not count:
            return "MIG is on, but it has no instance"
        return f"MIG is on: its {count} instance{'s are' if count > 1 else ' is'} offered instead"
    return "MIG will be on after its next reset" if gpu.mig_next else None


def health_of(reason: str) -> Health:
    """The health of a card by why it cannot be used; empty if it can."""
    return unhealthy(reason) if reason else HEALTHY
