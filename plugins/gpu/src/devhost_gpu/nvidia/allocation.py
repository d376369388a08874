"""What a container gets for NVIDIA GPUs and MIG instances by each strategy.

The strategies and the names of variables are those of the device plugin that NVIDIA provides, so that pods
and container runtimes for it need no change. ``device-specs`` with a driver directory is what Google's plugin
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from devhost.backend import AllocationError, DeviceNode, Edits, MissingDriver, Mount
from devhost.backend.sysfs import Sysfs
from devhost_gpu.discovery import NVIDIA
from devhost_gpu.options import GpuOptions
from devhost_gpu.vendor import ContainerRequest

from .cards import NvidiaCard, NvidiaFacts
from .sharing import limit_edits

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable from which NVIDIA's container runtime reads the GPUs of a container."""

VOLUMES = "/var/run/nvidia-container-devices"
"""A value of that variable: the runtime reads the GPUs from the mounts in this directory instead."""

CONTROL = {"nvidiactl": True, "nvidia-uvm": True, "nvidia-uvm-tools": False, "nvidia-modeset": False}
"""Nodes below ``/dev`` that every container gets, and whether CUDA needs them."""

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
"""The path of an IMEX channel's node without its number."""

IN_CONTAINER = "/usr/local/nvidia"
"""The path of the driver's directory in a container: CUDA images have its ``lib64`` in their library path."""

VULKAN, VULKAN_IN_CONTAINER = "vulkan/icd.d", "/etc/vulkan/icd.d"
"""The directory's files for the Vulkan loader, and the path where the loader expects them."""


def edits(cards: Sequence[NvidiaCard], request: ContainerRequest) -> Edits:
    """What the strategies, and what limits the containers of the resource, need in the container.

    Raises:
        AllocationError: something that a strategy needs is unknown for a card.
    """
    created = {card.id: {"uuid": card.facts.uuid} for card in cards if card.facts.placement is not None}
    return Edits.merge(
        [
            strategy_edits([card.facts for card in cards], request.options, request.sysfs.exists),
            limit_edits(request, in_order(cards)),
            Edits(attributes=created),
        ]
    )


def strategy_edits(cards: Sequence[NvidiaFacts], options: GpuOptions, exists: Callable[[str], bool]) -> Edits:
    """What one container needs to use these cards. ``exists`` is whether the host has a path.

    Raises ``AllocationError`` if something that a strategy needs is unknown for a card.
    """
    ordered = sorted({card.uuid: card for card in cards}.values(), key=_order)
    parts: list[Edits] = []
    if "envvar" in options.strategies:
        parts.append(Edits(env={VISIBLE: ",".join(_id(card, options) for card in ordered)}))
    if "volume-mounts" in options.strategies:
        mounts = tuple(Mount("/dev/null", f"{VOLUMES}/{_id(card, options)}") for card in ordered)
        parts.append(Edits(mounts=mounts, env={VISIBLE: VOLUMES}))
    if options.uses_runtime or "cdi" in options.strategies:
        parts.append(Edits(env=dict.fromkeys(_runtime_variables(options), "enabled")))
    root = dev_root(options, exists)
    parts.append(_channels(options, root, exists))
    if "device-specs" in options.strategies:
        nodes = [_node(root, path) for card in ordered for path in _paths(card)]
        # NVIDIA's container runtime and CDI create those that are missing
        alone = options.strategies == {"device-specs"}
        nodes += [
            _node(root, f"/dev/{name}", required=needed and alone, shared=True)
            for name, needed in CONTROL.items()
        ]
        parts.append(Edits(tuple(nodes), _driver(options)))
    if "cdi" in options.strategies:
        names = [_cdi_name(card) for card in ordered]
        names += [name for card in ordered for name in card.cdi_additional]
        parts.append(Edits(cdi_devices=tuple(names)))
    return Edits.merge(parts)


def in_order(cards: Sequence[NvidiaCard]) -> list[NvidiaCard]:
    """The cards in NVIDIA's order."""
    return sorted(cards, key=lambda card: _order(card.facts))


def _order(card: NvidiaFacts) -> tuple[list[int], str]:
    """NVIDIA's order, so that the same cards always give the same result."""
    return [int(part) for part in card.index.split(":") if part], card.uuid


def unallocatable(card: NvidiaFacts, options: GpuOptions) -> str:
    """Why the strategies cannot name a card; empty if they can. Those of CDI wait for their specification."""
    try:
        if options.uses_runtime:
            _id(card, options)
        if "device-specs" in options.strategies:
            _paths(card)
    except AllocationError as error:
        return error.message
    return ""


MODULES = {
    "gdsEnabled": ("GPUDirect Storage", "/dev", "nvidia-fs", "run modprobe nvidia_fs"),
    "gdrcopyEnabled": ("GDRCopy", "/dev", "gdrdrv", "run modprobe gdrdrv"),
    "mofedEnabled": ("NVIDIA's network driver", "/dev/infiniband", "uverbs", "install it, or load ib_uverbs"),
}
"""What an option gives containers: its name, the directory and the beginning of its nodes, and how to get
them (NVIDIA container toolkit, ``internal/discover``)."""


def missing_modules(options: GpuOptions, sysfs: Sysfs) -> Iterator[MissingDriver]:
    """The modules that options need and the node lacks: containers would silently get nothing."""
    enabled = {
        "gdsEnabled": options.gds_enabled,
        "gdrcopyEnabled": options.gdrcopy_enabled,
        "mofedEnabled": options.mofed_enabled,
    }
    root = dev_root(options, sysfs.exists)
    for option, (subject, directory, begin, fix) in MODULES.items():
        names = sysfs.names(f"{root}{directory}") if enabled[option] else ()
        if enabled[option] and not any(name.startswith(begin) for name in names):
            reason = f"backends.gpu.{option} is set, but there is no {root}{directory}/{begin}* ({fix})"
            yield MissingDriver(subject, reason, {"vendor": NVIDIA}, makes_device=False)


def _id(card: NvidiaFacts, options: GpuOptions) -> str:
    """The name by which the runtime knows a card."""
    if options.device_ID_strategy == "index":
        if not card.index:
            raise AllocationError(f"{card.uuid or card.address}: its number is not known")
        return card.index
    if not card.uuid:
        raise AllocationError(f"{card.address}: NVIDIA's driver has not reported its UUID")
    return card.uuid


def _runtime_variables(options: GpuOptions) -> Iterator[str]:
    """Variables that request additional devices of the runtime."""
    if options.gds_enabled:
        yield "NVIDIA_GDS"
    if options.mofed_enabled:
        yield "NVIDIA_MOFED"
    if options.gdrcopy_enabled:
        yield "NVIDIA_GDRCOPY"


def _paths(card: NvidiaFacts) -> Sequence[str]:
    """The GPU's node; for a MIG instance also the nodes that give access only to that instance."""
    if card.minor is None:
        raise AllocationError(
            f"{card.uuid or card.address}: the driver does not report the number of its /dev/nvidia…"
        )
    if card.is_mig and not card.capabilities:
        raise AllocationError(f"{card.uuid}: the driver does not report the nodes that give access to it")
    return card.nodes


def _node(root: str, path: str, *, required: bool = True, shared: bool = False) -> DeviceNode:
    """A node, which may be below another root on the host."""
    return DeviceNode(f"{root}{path}", path, required=required, shared=shared)


def dev_root(options: GpuOptions, exists: Callable[[str], bool]) -> str:
    """The prefix of ``/dev/nvidia…`` on the host; empty if there is none."""
    if options.dev_root:
        return options.dev_root.rstrip("/")
    root = options.driver_root.rstrip("/")
    return root if root and exists(f"{root}/dev/nvidiactl") else ""


def _channels(options: GpuOptions, root: str, exists: Callable[[str], bool]) -> Edits:
    """The IMEX channels that the node has: all GPUs of a container use the same."""
    numbers = [number for number in options.imex_channel_IDs if exists(f"{root}{CHANNEL}{number}")]
    if not numbers:
        return Edits()
    env, mounts, nodes = {}, [], []
    if "envvar" in options.strategies:
        env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, numbers))
    if "volume-mounts" in options.strategies:
        mounts = [Mount("/dev/null", f"{VOLUMES}/imex/{number}") for number in numbers]
    if "device-specs" in options.strategies:
        nodes = [_node(root, f"{CHANNEL}{number}", shared=True) for number in numbers]
    return Edits(tuple(nodes), tuple(mounts), env)


def _driver(options: GpuOptions) -> tuple[Mount, ...]:
    """The directory with the driver's programs and libraries, if the options name it."""
    if not (directory := options.driver_directory.rstrip("/")):
        return ()
    return (
        Mount(directory, IN_CONTAINER),
        Mount(f"{directory}/{VULKAN}", VULKAN_IN_CONTAINER, required=False),
    )


def _cdi_name(card: NvidiaFacts) -> str:
    if not card.cdi:
        raise AllocationError(f"{card.uuid or card.address}: no CDI specification names it")
    return card.cdi
