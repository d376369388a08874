"""What a container gets of NVIDIA's GPUs and MIG instances, by each strategy. Pure.

The strategies and the names of variables are those of NVIDIA's device plugin, so that pods and container
runtimes set up for it need no change; ``device-specs`` with a driver directory is what Google's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from devhost.backend import AllocationError, DeviceNode, Edits, Mount

from .card import Card
from .giving_options import GivingOptions
from .nvml.facts import NvidiaFacts

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's container runtime reads the GPUs from that it is to put into a container."""

VOLUMES = "/var/run/nvidia-container-devices"
"""As a value of that variable: the runtime shall look at what is mounted in this directory instead."""

CONTROL = {"nvidiactl": True, "nvidia-uvm": True, "nvidia-uvm-tools": False, "nvidia-modeset": False}
"""Nodes below ``/dev`` that every container needs, and whether CUDA cannot start without."""

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
"""What the node of an IMEX channel is called before its number."""

IN_CONTAINER = "/usr/local/nvidia"
"""Where a container sees the driver's directory: images made for CUDA have its ``lib64`` in their path."""

VULKAN, VULKAN_IN_CONTAINER = "vulkan/icd.d", "/etc/vulkan/icd.d"
"""What the directory may have for Vulkan's loader, and where that looks."""


def edits(cards: Sequence[NvidiaFacts], options: GivingOptions, exists: Callable[[str], bool]) -> Edits:
    """What one container needs to use these cards.

    Args:
        cards: the cards, as the last look saw them.
        options: what the configuration says.
        exists: whether the host has a path.

    Raises:
        AllocationError: of one it is not known what the strategy needs to know.
    """
    ordered = sorted({card.uuid: card for card in cards}.values(), key=_order)
    parts: list[Edits] = []
    if "envvar" in options.strategies:
        parts.append(Edits(env={VISIBLE: ",".join(_id(card, options) for card in ordered)}))
    if "volume-mounts" in options.strategies:
        mounts = tuple(Mount("/dev/null", f"{VOLUMES}/{_id(card, options)}") for card in ordered)
        parts.append(Edits(mounts=mounts, env={VISIBLE: VOLUMES}))
    if options.tells_runtime or "cdi" in options.strategies:
        parts.append(Edits(env=dict.fromkeys(_extras(options), "enabled")))
    root = dev_root(options, exists)
    parts.append(_channels(options, root, exists))
    if "device-specs" in options.strategies:
        nodes = [_node(root, path) for card in ordered for path in _paths(card)]
        # NVIDIA's container runtime makes those that are missing, as does what CDI names
        alone = options.strategies == {"device-specs"}
        nodes += [_node(root, f"/dev/{name}", required=needed and alone) for name, needed in CONTROL.items()]
        parts.append(Edits(tuple(nodes), _driver(options)))
    if "cdi" in options.strategies:
        names = [_specified(card) for card in ordered]
        names += [name for card in ordered for name in card.cdi_extras]
        parts.append(Edits(cdi_devices=tuple(names)))
    return Edits.merge(parts)


def in_order(cards: Sequence[Card]) -> list[Card]:
    """NVIDIA's cards in NVIDIA's own order."""
    facts = {card.id: card.facts for card in cards}
    known = {name: one for name, one in facts.items() if isinstance(one, NvidiaFacts)}
    return sorted((card for card in cards if card.id in known), key=lambda card: _order(known[card.id]))


def _order(card: NvidiaFacts) -> tuple[list[int], str]:
    """NVIDIA's own order, so that the same cards are always told the same way."""
    return [int(part) for part in card.index.split(":") if part], card.uuid


def _id(card: NvidiaFacts, options: GivingOptions) -> str:
    """What the runtime is told a card by."""
    if options.device_ID_strategy == "index":
        if not card.index:
            raise AllocationError(f"{card.uuid or card.address}: its number is not known")
        return card.index
    if not card.uuid:
        raise AllocationError(f"{card.address}: NVIDIA's driver has not told its UUID")
    return card.uuid


def _extras(options: GivingOptions) -> Iterator[str]:
    """Variables that ask the runtime for what goes with GPUs."""
    if options.gds_enabled:
        yield "NVIDIA_GDS"
    if options.mofed_enabled:
        yield "NVIDIA_MOFED"
    if options.gdrcopy_enabled:
        yield "NVIDIA_GDRCOPY"


def _paths(card: NvidiaFacts) -> Sequence[str]:
    """The GPU's node; of a MIG instance also those that give access to it and nothing beside it."""
    if card.minor is None:
        raise AllocationError(
            f"{card.uuid or card.address}: the driver does not say which /dev/nvidia… it is"
        )
    if card.is_mig and not card.capabilities:
        raise AllocationError(f"{card.uuid}: the driver does not say which nodes give access to it")
    return card.nodes


def _node(root: str, path: str, *, required: bool = True) -> DeviceNode:
    """A node, which the host may have below another root than a container sees it at."""
    return DeviceNode(f"{root}{path}", path, required=required)


def dev_root(options: GivingOptions, exists: Callable[[str], bool]) -> str:
    """What stands before ``/dev/nvidia…`` on the host; empty where nothing does."""
    if options.dev_root:
        return options.dev_root.rstrip("/")
    root = options.driver_root.rstrip("/")
    return root if root and exists(f"{root}/dev/nvidiactl") else ""


def _channels(options: GivingOptions, root: str, exists: Callable[[str], bool]) -> Edits:
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
        nodes = [_node(root, f"{CHANNEL}{number}") for number in numbers]
    return Edits(tuple(nodes), tuple(mounts), env)


def _driver(options: GivingOptions) -> tuple[Mount, ...]:
    """The driver's programs and libraries, where the host keeps them in one directory for containers."""
    if not (directory := options.driver_directory.rstrip("/")):
        return ()
    return (
        Mount(directory, IN_CONTAINER),
        Mount(f"{directory}/{VULKAN}", VULKAN_IN_CONTAINER, required=False),
    )


def _specified(card: NvidiaFacts) -> str:
    if not card.cdi:
        raise AllocationError(f"{card.uuid or card.address}: no CDI specification names it")
    return card.cdi
