"""Node labels for NVIDIA's GPUs: the names and values of GPU feature discovery, from devices. Pure.

Its labels ``nvidia.com/gpu.*`` have room for one model. Where a node has several, they tell of the one that
it has most of, for pods select by them, and there is a block ``nvidia.com/gpu-<product>.*`` for each model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from devhost.backend import AttributeValue, Device, Offered

from .card import GPU, MIG
from .nvml.facts import Shape

DOMAIN = "nvidia.com"
PLAIN = f"{DOMAIN}/gpu"
"""The resource, and what the labels of a whole GPU begin with."""

Labels = dict[str, str | int]

_MODES = {"0300": "graphics", "0302": "compute"}
"""What PCI classes say a GPU is there for: with a display or without."""

_FAMILIES = {
    "5": "maxwell",
    "6": "pascal",
    "7": "volta",
    "8": "ampere",
    "9": "hopper",
    "10": "blackwell",
    "12": "blackwell",
}
_YOUNGER = {"7.5": "turing", "8.9": "ada-lovelace"}
"""Generations by compute capability, those of a minor number of their own apart."""

_MIG_CAPABLE = {
    "8.0": True,
    "9.0": True,
    "10.0": True,
    "10.3": True,
    "8.6": False,
    "8.7": False,
    "8.9": False,
}
"""Which generations can be cut into MIG instances, where all models of one can, or none (MIG User Guide)."""

_LONGEST = 63 - len(".sharing-strategy")
"""Characters a block's name may have."""


def labels(
    devices: Sequence[Device],
    offered: Offered,
    shapes: Mapping[str, Shape],
    machine: str,
    classes: Mapping[str, str],
    mps: Collection[str] = (),
) -> Labels:
    """What GPU feature discovery would say of a node, and a block for each model where there are several.

    Args:
        devices: NVIDIA's, all that exist.
        offered: how often each one is handed out, by its id and the name of the resource.
        shapes: what MIG instances consist of, by id.
        machine: what the machine's vendor calls it; empty where that is not known.
        classes: PCI classes by address, six hex digits.
        mps: names of the resources that containers share through MPS.
    """
    shares = _Shares(offered, frozenset(mps))
    gpus = [device for device in devices if device.attributes.get("kind") == GPU and _known(device)]
    migs = [device for device in devices if device.attributes.get("kind") == MIG and _known(device)]
    if not gpus:
        return {}
    models = sorted(_grouped(gpus, "product"), key=lambda model: (-len(model), _text(model[0], "product")))
    main = models[0]
    found: Labels = {
        f"{PLAIN}.machine": machine or "unknown",
        f"{PLAIN}.mode": _MODES.get(classes.get(_text(main[0], "pciBusID"), "")[:4], "unknown"),
        f"{DOMAIN}/mps.capable": "true" if any(map(shares.by_mps, gpus)) else "false",
        **_versions(main[0]),
        **_capable(gpus, migs),
    }
    blocks = {_product(model[0]): _model(model, shares) for model in models}
    found |= _under(PLAIN, blocks[_product(main[0])])
    if len(models) > 1:
        for product, block in blocks.items():
            found |= _under(f"{PLAIN}-{_fitting(product)}", block)
    return found | _instances(gpus, migs, shares, shapes)


@dataclass(frozen=True, slots=True)
class _Shares:
    """How often devices are handed out, by id and resource, and which resources have an MPS server."""

    offered: Offered
    mps: frozenset[str]

    def of(self, device: Device) -> Mapping[str, int]:
        return self.offered.get(device.id, {})

    def by_mps(self, device: Device) -> bool:
        """Whether a whole GPU is offered through a resource that has an MPS server."""
        return device.attributes.get("kind") == GPU and not self.mps.isdisjoint(self.of(device))


def _known(device: Device) -> bool:
    """Whether its driver has told of it: one that is bound to ``vfio-pci``, or to nothing, is no GPU here."""
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
    """The same as part of a label's name: cut, with a hash, where a name would be too long."""
    room = _LONGEST - len("gpu-")
    if len(product) <= room:
        return product
    return f"{product[: room - 7].rstrip('-_.')}-{hashlib.sha256(product.encode()).hexdigest()[:6]}"


def _under(prefix: str, block: Labels) -> Labels:
    return {f"{prefix}.{key}": value for key, value in block.items()}


def _versions(device: Device) -> Labels:
    """The driver's version and the newest CUDA it supports; both under their deprecated names too."""
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
    return {f"{DOMAIN}/{key}": value for key, value in found.items()}


def _capable(gpus: Sequence[Device], migs: Sequence[Device]) -> Labels:
    verdicts = {_can_be_cut(_text(gpu, "computeCapability")) for gpu in gpus}
    if migs or True in verdicts:
        return {f"{DOMAIN}/mig.capable": "true"}
    return {} if None in verdicts else {f"{DOMAIN}/mig.capable": "false"}


def _can_be_cut(capability: str) -> bool | None:
    major = capability.partition(".")[0]
    older = major.isdigit() and int(major) < 8
    return False if older else _MIG_CAPABLE.get(capability)


def _model(gpus: Sequence[Device], shares: _Shares) -> Labels:
    """What there is to say of one model; ``count`` counts those too that are cut into instances."""
    first = gpus[0].attributes
    block = _base(_product(gpus[0]), gpus, shares, PLAIN)
    if "memory" in first:
        block["memory"] = _number(first["memory"])
    capability = _text(gpus[0], "computeCapability")
    major, _, minor = capability.partition(".")
    if minor:
        family = _YOUNGER.get(capability) or _FAMILIES.get(major, "undefined")
        block |= {"family": family, "compute.major": major, "compute.minor": minor}
    return block


def _base(product: str, devices: Sequence[Device], shares: _Shares, resource: str) -> Labels:
    """The labels that whole GPUs and instances have alike.

    ``replicas`` is the most that any of them is handed out, 0 where none is. The product has ``-SHARED``
    where containers share it under the name that it has alone, be it through MPS or by time slices.
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
    """Of MIG instances: under the GPU's own names where they are offered as GPUs, else by their profiles."""
    profiles = _grouped(migs, "profile")
    if not profiles:
        return {}
    as_gpus = any(PLAIN in shares.of(mig) for mig in migs)
    found: Labels = {f"{DOMAIN}/mig.strategy": "single" if as_gpus else "mixed"}
    whole = any(PLAIN in shares.of(gpu) for gpu in gpus)
    if as_gpus and len(profiles) == 1 and not whole:
        return found | _under(PLAIN, _profile(profiles[0], shares, PLAIN, shapes))
    for group in profiles:
        name = f"{DOMAIN}/mig-{_text(group[0], 'profile').replace('+', '.')}"
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
