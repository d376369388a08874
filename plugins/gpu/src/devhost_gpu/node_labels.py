"""Node labels for GPUs, with the names that each vendor's own labeller uses.

NVIDIA's are in :mod:`.nvidia_labels`. AMD's are those of its node labeller, as far as sysfs tells what is in
them, Intel's those of the rules for Node Feature Discovery that come with its device plugins. For other
DRM devices nobody has made any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from devhost.backend import Device, Offered
from devhost.backend.sysfs import Sysfs

from . import nvidia_labels
from .card import AMD, GPU, INTEL, NVIDIA, PARTITION, Card
from .kfd import Node
from .nvidia_labels import Labels
from .nvml.facts import NvidiaFacts, Shape

MACHINE = "/sys/class/dmi/id/product_name"
"""What the machine's vendor calls it (SMBIOS)."""

_INTEL_SERIES = {
    "56c0": ("Flex_Series", "Flex_170"),
    "56c1": ("Flex_Series", "Flex_140"),
    "0bda": ("Max_Series", "Max_1100"),
    "0bd5": ("Max_Series", "Max_1550"),
}
"""Family and product by PCI device id, those that Intel's rules name."""


def labels(
    devices: Sequence[Device],
    offered: Offered,
    cards: Mapping[str, Card],
    sysfs: Sysfs,
    mps: Collection[str] = (),
) -> Labels:
    """The labels of a node.

    Args:
        devices: all that exist, of every vendor.
        offered: how often each one is handed out, by its id and the name of the resource.
        cards: the same as the vendors' code knows them, by id.
        mps: names of the resources that containers share through NVIDIA's MPS.
    """
    of = {
        vendor: [d for d in devices if d.attributes.get("vendor") == vendor]
        for vendor in (NVIDIA, AMD, INTEL)
    }
    found: Labels = {}
    if of[NVIDIA]:
        classes = _classes(of[NVIDIA], sysfs)
        found |= nvidia_labels.labels(of[NVIDIA], offered, _shapes(cards), sysfs.text(MACHINE), classes, mps)
    if of[AMD]:
        found |= amd(of[AMD], sysfs.text("/sys/module/amdgpu/srcversion"), _nodes(cards))
    if of[INTEL]:
        found |= intel(of[INTEL], _classes(of[INTEL], sysfs))
    return found


def amd(devices: Iterable[Device], source_version: str, nodes: Mapping[str, Node]) -> Labels:
    """As AMD's labeller: a property that all have alike is a label's value, else each value has its count.

    Args:
        devices: AMD's; those that its driver does not drive have no labels.
        source_version: of the driver; empty where that is not known.
        nodes: what the compute topology has of them, by id.
    """
    named = {d.id: d.attributes for d in devices if d.attributes.get("driver") == "amdgpu"}
    named = {name: one for name, one in named.items() if one.get("kind") in (GPU, PARTITION)}
    if not named:
        return {}
    own = [*named.values()]
    computing = [nodes[name] for name in named if name in nodes]
    found: Labels = {}
    found |= _counted("device-id", (str(one["deviceID"]) for one in own if "deviceID" in one))
    found |= _counted("product-name", (_underscored(str(one["product"])) for one in own if "product" in one))
    found |= _counted("vram", (f"{round(int(str(one['memory'])) / 1024)}G" for one in own if "memory" in one))
    found |= _counted("simd-count", (str(node.simds) for node in computing))
    found |= _counted("cu-count", (str(node.compute_units) for node in computing if node.compute_units))
    if version := next((one["driverVersion"] for one in own if "driverVersion" in one), ""):
        found["amd.com/gpu.driver-version"] = str(version)
    if source_version:
        found["amd.com/gpu.driver-src-version"] = source_version
    modes = [str(one["profile"]) for one in own if "profile" in one]
    partitioning: dict[str, str] = {
        "compute-partitioning-supported": "true" if modes else "false",
        "memory-partitioning-supported": "true" if any("_nps" in mode for mode in modes) else "false",
    }
    if len(modes) == len(own) and len(set(modes)) == 1:
        partitioning["compute-memory-partition"] = modes[0]
    for name, value in partitioning.items():  # the later name, and that of its first versions
        found |= {f"amd.com/gpu.{name}": value, f"amd.com/{name}": value}
    return found


def intel(devices: Iterable[Device], classes: Mapping[str, str]) -> Labels:
    """As Intel's rules: how many of each PCI id, and what the data center models are called.

    Args:
        devices: Intel's; virtual functions are not counted beside what they are parts of.
        classes: PCI classes by address.
    """
    gpus = [device.attributes for device in devices if device.attributes.get("kind") == GPU]
    kinds = Counter(
        f"{classes.get(str(one.get('pciBusID')), '')[:4]}-{one['deviceID']}"
        for one in gpus
        if "deviceID" in one and classes.get(str(one.get("pciBusID")))
    )
    found: Labels = {}
    for kind, count in sorted(kinds.items()):
        found |= {
            f"gpu.intel.com/device-id.{kind}.{key}": value
            for key, value in (("count", count), ("present", "true"))
        }
    series = Counter(one["deviceID"] for one in gpus if one.get("deviceID") in _INTEL_SERIES)
    if series:
        most = min(series, key=lambda model: (-series[model], str(model)))
        family, product = _INTEL_SERIES[str(most)]
        found |= {
            "gpu.intel.com/device.count": series[most],
            "gpu.intel.com/family": family,
            "gpu.intel.com/product": product,
        }
    return found


def _counted(kind: str, values: Iterable[str]) -> Labels:
    """One property of AMD's cards, under both of the prefixes that its labeller uses."""
    counts = Counter(value for value in values if value)
    if not counts:
        return {}
    beta, name = f"beta.amd.com/gpu.{kind}", f"amd.com/gpu.{kind}"
    found: Labels = {f"{beta}.{value}": count for value, count in sorted(counts.items())}
    if len(counts) == 1:
        return found | dict.fromkeys((beta, name), next(iter(counts)))
    return found | {f"{name}.{value}": count for value, count in sorted(counts.items())}


def _underscored(product: str) -> str:
    """A product's name as AMD's labeller writes it; what can stand in no label is left out."""
    kept = "".join(c for c in product.replace(" ", "_") if (c.isascii() and c.isalnum()) or c in "-_.")
    return kept.strip("-_.")


def _shapes(cards: Mapping[str, Card]) -> dict[str, Shape]:
    """What MIG instances consist of, by id."""
    facts = {name: card.facts for name, card in cards.items()}
    return {name: one.shape for name, one in facts.items() if isinstance(one, NvidiaFacts) and one.shape}


def _nodes(cards: Mapping[str, Card]) -> dict[str, Node]:
    """What AMD's compute topology has of cards, by id."""
    from .amd import AmdFacts  # only where there are such cards

    facts = {name: card.facts for name, card in cards.items()}
    return {name: one.node for name, one in facts.items() if isinstance(one, AmdFacts) and one.node}


def _classes(devices: Iterable[Device], sysfs: Sysfs) -> dict[str, str]:
    addresses = {str(device.attributes["pciBusID"]) for device in devices if "pciBusID" in device.attributes}
    texts = {address: sysfs.text(f"/sys/bus/pci/devices/{address}/class") for address in addresses}
    return {address: text.removeprefix("0x").rjust(6, "0") for address, text in texts.items() if text}
