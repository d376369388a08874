"""Node labels for GPUs, with the names that the labelers of the vendors use.

The labels for NVIDIA are those of GPU feature discovery. Its labels ``nvidia.com/gpu.*`` can describe one
model only: on a node with several models they describe the most frequent one, because pods select by them,
and each model also gets labels ``nvidia.com/gpu-<product>.*``. The labels for AMD are those of its node
labeller whose values are in sysfs. The labels for Intel are those of the rules for Node Feature Discovery of
its device plugins. Other DRM devices have none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from devhost.backend import AttributeValue, Device, Offered
from devhost.backend.frozen import frozen
from devhost.backend.purpose import PURPOSE
from devhost.backend.sysfs import PCI_BUS, Sysfs

from .amd.kfd import KfdNode
from .attributes import GPU, MIG, PARTITION
from .discovery import AMD, INTEL, NVIDIA
from .nvml.reports import Shape
from .vendor import Card

NVIDIA_DOMAIN = "nvidia.com"
NVIDIA_GPU = f"{NVIDIA_DOMAIN}/gpu"
"""The resource, and the prefix of the labels of a whole GPU."""

Labels = dict[str, str | int]

_NVIDIA_MODES = {"0300": "graphics", "0302": "compute"}
"""The mode of a GPU by its PCI class: with a display or without."""

_FAMILIES = {
    "5": "maxwell",
    "6": "pascal",
    "7": "volta",
    "8": "ampere",
    "9": "hopper",
    "10": "blackwell",
    "12": "blackwell",
    "13": "rubin",
}
_YOUNGER = {"7.5": "turing", "8.9": "ada-lovelace"}
"""Generations by compute capability, in place of those by its major number."""

_MIG_CAPABLE = {
    "8.0": True,
    "9.0": True,
    "10.0": True,
    "10.3": True,
    "8.6": False,
    "8.7": False,
    "8.9": False,
}
"""Whether all models with a compute capability, or none, support MIG (MIG User Guide)."""

_LONGEST = 63 - len(".sharing-strategy")
"""Characters of the name before the keys of one model."""


def nvidia(
    devices: Sequence[Device],
    offered: Offered,
    shapes: Mapping[str, Shape],
    machine: str,
    classes: Mapping[str, str],
    mps: Collection[str] = (),
) -> Labels:
    """The labels of GPU feature discovery, and further labels for each model if there are several.

    ``offered`` is the number of replicas of each device, by its id and the name of the resource, ``shapes``
    are the parts of MIG instances, by id, and ``machine`` is the model name of the machine, if known.
    ``classes`` are PCI classes by address, six hex digits. ``mps`` are resources that containers share
    through MPS.
    """
    shares = _Shares(offered, frozenset(mps))
    gpus = [device for device in devices if device.attributes.get("kind") == GPU and _is_known(device)]
    migs = [device for device in devices if device.attributes.get("kind") == MIG and _is_known(device)]
    if not gpus:
        return {}
    models = sorted(_grouped(gpus, "product"), key=lambda model: (-len(model), _text(model[0], "product")))
    main = models[0]
    found: Labels = {
        f"{NVIDIA_GPU}.machine": machine or "unknown",
        f"{NVIDIA_GPU}.mode": _NVIDIA_MODES.get(classes.get(_text(main[0], "pciBusID"), "")[:4], "unknown"),
        f"{NVIDIA_DOMAIN}/mps.capable": "true" if any(map(shares.by_mps, gpus)) else "false",
        **_versions(main[0]),
        **_capable(gpus, migs),
    }
    blocks = {_product(model[0]): _model(model, shares) for model in models}
    found |= _under(NVIDIA_GPU, blocks[_product(main[0])])
    if len(models) > 1:
        for product, block in blocks.items():
            found |= _under(f"{NVIDIA_GPU}-{_fitting(product)}", block)
    return found | _instances(gpus, migs, shares, shapes)


@frozen
class _Shares:
    """The number of replicas of devices, by id and resource, and the resources with an MPS server."""

    offered: Offered
    mps: frozenset[str]

    def of(self, device: Device) -> Mapping[str, int]:
        return self.offered.get(device.id, {})

    def by_mps(self, device: Device) -> bool:
        """Whether a whole GPU is offered through a resource that has an MPS server."""
        return device.attributes.get("kind") == GPU and not self.mps.isdisjoint(self.of(device))


def _is_known(device: Device) -> bool:
    """Whether NVIDIA's driver has reported it; otherwise it gets no labels."""
    return "product" in device.attributes and "driverVersion" in device.attributes


def _grouped(devices: Iterable[Device], attribute: str) -> list[list[Device]]:
    ordered = sorted(devices, key=lambda device: (_text(device, attribute), device.id))
    return [list(group) for _, group in groupby(ordered, lambda device: _text(device, attribute))]


def _text(device: Device, attribute: str) -> str:
    return str(device.attributes.get(attribute, ""))


def _product(device: Device) -> str:
    """A model's name in a label, as GPU feature discovery writes it."""
    name = _text(device, "product")
    return "-".join("".join(c for c in name if (c.isascii() and c.isalnum()) or c in "-_. ").split())


def _fitting(product: str) -> str:
    """The same as part of a label's name: shortened, with a hash, if the name would be too long."""
    room = _LONGEST - len("gpu-")
    if len(product) <= room:
        return product
    return f"{product[: room - 7].rstrip('-_.')}-{hashlib.sha256(product.encode()).hexdigest()[:6]}"


def _under(prefix: str, block: Labels) -> Labels:
    return {f"{prefix}.{key}": value for key, value in block.items()}


def _versions(device: Device) -> Labels:
    """The driver's version and the newest CUDA version that it supports, including the deprecated labels."""
    driver = _text(device, "driverVersion")
    major, minor, revision = [*driver.split("."), "", ""][:3]
    found: Labels = {
        "cuda.driver-version.full": driver,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
    }
    if cuda := _text(device, "cudaVersion"):
        major, _, minor = cuda.partition(".")
        found |= {
            "cuda.runtime-version.full": cuda,
            "cuda.runtime-version.major": major,
            "cuda.runtime-version.minor": minor,
            "cuda.runtime.major": major,
            "cuda.runtime.minor": minor,
        }
    return {f"{NVIDIA_DOMAIN}/{key}": value for key, value in found.items()}


def _capable(gpus: Sequence[Device], migs: Sequence[Device]) -> Labels:
    verdicts = {_supports_mig(_text(gpu, "computeCapability")) for gpu in gpus}
    if migs or True in verdicts:
        return {f"{NVIDIA_DOMAIN}/mig.capable": "true"}
    return {} if None in verdicts else {f"{NVIDIA_DOMAIN}/mig.capable": "false"}


def _supports_mig(capability: str) -> bool | None:
    major = capability.partition(".")[0]
    older = major.isdigit() and int(major) < 8
    return False if older else _MIG_CAPABLE.get(capability)


def _model(gpus: Sequence[Device], shares: _Shares) -> Labels:
    """The labels of one model; ``count`` includes GPUs that are split into instances."""
    first = gpus[0].attributes
    block = _base(_product(gpus[0]), gpus, shares, NVIDIA_GPU)
    if "memory" in first:
        block["memory"] = _number(first["memory"])
    capability = _text(gpus[0], "computeCapability")
    major, _, minor = capability.partition(".")
    if minor:
        family = _YOUNGER.get(capability) or _FAMILIES.get(major, "undefined")
        block |= {"family": family, "compute.major": major, "compute.minor": minor}
    return block


def _base(product: str, devices: Sequence[Device], shares: _Shares, resource: str) -> Labels:
    """The labels that whole GPUs and instances have in common.

    ``replicas`` is the highest number of replicas of any of them, 0 if none is offered. The product ends in
    ``-SHARED`` if containers share it, through MPS or time slicing, as a resource with the usual name.
    """
    offered = [pair for device in devices for pair in shares.of(device).items()]
    replicas = max((number for _, number in offered), default=0)
    shared = any(number > 1 and name == resource for name, number in offered)
    sharing = "mps" if any(map(shares.by_mps, devices)) else "time-slicing"
    return {
        "product": f"{product}-SHARED" if shared else product,
        "count": len(devices),
        "replicas": replicas,
        "sharing-strategy": sharing if replicas > 1 else "none",
    }


def _number(value: AttributeValue) -> int:
    return value if isinstance(value, int) else 0


def _instances(
    gpus: Sequence[Device], migs: Sequence[Device], shares: _Shares, shapes: Mapping[str, Shape]
) -> Labels:
    """The labels of MIG instances: with the names for GPUs if they are offered as GPUs, else by profile."""
    profiles = _grouped(migs, "profile")
    if not profiles:
        return {}
    as_gpus = any(NVIDIA_GPU in shares.of(mig) for mig in migs)
    found: Labels = {f"{NVIDIA_DOMAIN}/mig.strategy": "single" if as_gpus else "mixed"}
    whole = any(NVIDIA_GPU in shares.of(gpu) for gpu in gpus)
    if as_gpus and len(profiles) == 1 and not whole:
        return found | _under(NVIDIA_GPU, _profile(profiles[0], shares, NVIDIA_GPU, shapes))
    for group in profiles:
        name = f"{NVIDIA_DOMAIN}/mig-{_text(group[0], 'profile').replace('+', '.')}"
        found |= _under(name, _profile(group, shares, name, shapes))
    return found


def _profile(migs: Sequence[Device], shares: _Shares, resource: str, shapes: Mapping[str, Shape]) -> Labels:
    first = migs[0]
    profile = _text(first, "profile").replace("+", "")
    block = _base(f"{_product(first)}-MIG-{profile}", migs, shares, resource)
    if "memory" in first.attributes:
        block["memory"] = _number(first.attributes["memory"])
    if (shape := shapes.get(first.id)) is not None:
        block |= {
            "multiprocessors": shape.multiprocessors,
            "slices.gi": shape.gpu_slices,
            "slices.ci": shape.compute_slices,
            "engines.copy": shape.copy_engines,
            "engines.decoder": shape.decoders,
            "engines.encoder": shape.encoders,
            "engines.jpeg": shape.jpeg_engines,
            "engines.ofa": shape.ofa_engines,
        }
    return block


MACHINE = "/sys/class/dmi/id/product_name"
"""The machine's model name (SMBIOS)."""

_INTEL_SERIES = {
    "56c0": ("Flex_Series", "Flex_170"),
    "56c1": ("Flex_Series", "Flex_140"),
    "0bda": ("Max_Series", "Max_1100"),
    "0bd5": ("Max_Series", "Max_1550"),
}
"""Family and product by PCI device id, for the models in Intel's rules."""


def labels(
    devices: Sequence[Device],
    offered: Offered,
    cards: Mapping[str, Card],
    sysfs: Sysfs,
    mps: Collection[str] = (),
) -> Labels:
    """The labels of a node with these devices of every vendor, and their cards by id.

    ``offered`` is the number of replicas of each device, by its id and the name of the resource. ``mps`` are
    the names of the resources that containers share through NVIDIA's MPS.
    """
    of = {
        vendor: [d for d in devices if d.attributes.get("vendor") == vendor]
        for vendor in (NVIDIA, AMD, INTEL)
    }
    on_demand = {name for name, card in cards.items() if getattr(card.facts, "placement", None)}
    of[NVIDIA] = [
        device
        for device in of[NVIDIA]
        if PURPOSE not in device.attributes and device.id not in on_demand  # as NVIDIA's labeler
    ]
    found: Labels = {}
    if of[NVIDIA]:
        classes = _classes(of[NVIDIA], sysfs)
        found |= nvidia(of[NVIDIA], offered, _shapes(cards), sysfs.text(MACHINE), classes, mps)
        found |= _clique(of[NVIDIA], cards) | _vgpu(classes, sysfs)
    if of[AMD]:
        found |= amd(of[AMD], sysfs.text("/sys/module/amdgpu/srcversion"), _nodes(cards))
        found |= _firmware(of[AMD], sysfs)
    if of[INTEL]:
        found |= intel(of[INTEL], _classes(of[INTEL], sysfs))
    return found


def _clique(devices: Iterable[Device], cards: Mapping[str, Card]) -> Labels:
    """Where the node is in a fabric that several nodes share; none if its GPUs differ."""
    facts = (cards[device.id].facts for device in devices if device.id in cards)
    cliques = {clique for one in facts if (clique := getattr(one, "clique", ""))}
    return {f"{NVIDIA_GPU}.clique": cliques.pop()} if len(cliques) == 1 else {}


def _vgpu(addresses: Iterable[str], sysfs: Sysfs) -> Labels:
    """Whether any GPU is a vGPU, and the driver of its hypervisor; none if that cannot be known."""
    from .nvidia import vgpu

    found = [vgpu.read(sysfs, address) for address in addresses]
    first = next((one for one in found if one and one.present), None)
    if first is None:
        return {} if None in found else {f"{NVIDIA_DOMAIN}/vgpu.present": "false"}
    host = {"version": first.version, "branch": first.branch}
    texts = {f"{NVIDIA_DOMAIN}/vgpu.host-driver-{name}": text for name, text in host.items() if text}
    return {f"{NVIDIA_DOMAIN}/vgpu.present": "true", **texts}


_FIRMWARE = {
    "VCE": "vce",
    "UVD": "uvd",
    "MC": "mc",
    "ME": "me",
    "PFP": "pfp",
    "CE": "ce",
    "RLC": "rlc",
    "MEC": "mec",
    "SMC": "smc",
    "SDMA0": "sdma",
}
"""The firmware in the labels, and the file for it in ``fw_version`` of a card (amdgpu_ucode.c)."""


def _firmware(devices: Iterable[Device], sysfs: Sysfs) -> Labels:
    """The versions of firmware: the number of cards by each."""
    counts: Counter[str] = Counter()
    for address in {str(device.attributes.get("pciBusID", "")) for device in devices} - {""}:
        place = f"{PCI_BUS}/{address}/fw_version"
        for name, file in _FIRMWARE.items():
            if (version := sysfs.integer(f"{place}/{file}_fw_version")) is not None:
                counts[f"beta.amd.com/gpu.firmware.{name}.fw.{version}"] += 1
    return dict(counts)


def amd(devices: Iterable[Device], source_version: str, nodes: Mapping[str, KfdNode]) -> Labels:
    """The labels of the AMD labeler: a property's value if all cards have the same, and counts of values.

    Devices without AMD's driver have no labels. ``source_version`` is that of the driver, ``nodes`` are the
    nodes of the devices in the compute topology, by id.
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
    for name, value in partitioning.items():  # the current name, and that of the first versions
        found |= {f"amd.com/gpu.{name}": value, f"amd.com/{name}": value}
    return found


def intel(devices: Iterable[Device], classes: Mapping[str, str]) -> Labels:
    """The labels of the Intel rules: the count of each PCI id, and the names of the data center models.

    Virtual functions are not counted. ``classes`` are PCI classes by address.
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
    """One property of AMD cards, with both prefixes that AMD's labeler uses."""
    counts = Counter(value for value in values if value)
    if not counts:
        return {}
    beta, name = f"beta.amd.com/gpu.{kind}", f"amd.com/gpu.{kind}"
    found: Labels = {f"{beta}.{value}": count for value, count in sorted(counts.items())}
    if len(counts) == 1:
        return found | dict.fromkeys((beta, name), next(iter(counts)))
    return found | {f"{name}.{value}": count for value, count in sorted(counts.items())}


def _underscored(product: str) -> str:
    """A product's name as AMD's labeler writes it, without characters that labels cannot have."""
    kept = "".join(c for c in product.replace(" ", "_") if (c.isascii() and c.isalnum()) or c in "-_.")
    return kept.strip("-_.")


def _shapes(cards: Mapping[str, Card]) -> dict[str, Shape]:
    """The parts of MIG instances, by id."""
    from .nvidia.cards import NvidiaFacts  # only where there are such cards

    facts = {name: card.facts for name, card in cards.items()}
    return {name: one.shape for name, one in facts.items() if isinstance(one, NvidiaFacts) and one.shape}


def _nodes(cards: Mapping[str, Card]) -> dict[str, KfdNode]:
    """The nodes of AMD cards in the compute topology, by id."""
    from .amd.cards import AmdFacts

    facts = {name: card.facts for name, card in cards.items()}
    return {name: one.node for name, one in facts.items() if isinstance(one, AmdFacts) and one.node}


def _classes(devices: Iterable[Device], sysfs: Sysfs) -> dict[str, str]:
    addresses = {str(device.attributes["pciBusID"]) for device in devices if "pciBusID" in device.attributes}
    texts = {address: sysfs.text(f"{PCI_BUS}/{address}/class") for address in addresses}
    return {address: text.removeprefix("0x").rjust(6, "0") for address, text in texts.items() if text}
