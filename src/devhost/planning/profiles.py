"""The attributes and capacities of other DRA drivers, made of those of devhost's backends.

Claims and DeviceClasses that are written for such a driver select devhost's devices by them. A fact that no
backend has is not published; the documentation names it. The sources are in ``test_gpu_dra_profiles.py`` and
``test_sriov_dra_profiles.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from devhost.backend.frozen import frozen
from devhost.backend.model import AttributeValue

from .settings import Alias, Profile, Version

_PARTS = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?(?:\.([0-9]{1,19})(?:\.[0-9]+)*)?")
"""Numbers that fit into 64 bits, as schedulers need."""


@frozen
class Published:
    """What a driver publishes of a device that a backend has found.

    ``driver`` is its name; empty if all names have a domain, so that readers find them with any driver.
    ``vendor`` is that of its devices; others are not published. ``optional`` are capacities of backends that
    have these numbers.
    """

    backend: str
    attributes: tuple[Alias, ...]
    capacity: tuple[Alias, ...] = ()
    driver: str = ""
    vendor: str = ""
    optional: tuple[Alias, ...] = ()


def version(value: AttributeValue) -> Version | None:
    """A version with three numbers and without leading zeros: ``9.0`` becomes ``9.0.0``.

    Of a longer one it is the first three, because the kernel's modules may end in the number of a build:
    ``6.19.14.31400000``.
    """
    found = _PARTS.fullmatch(str(value))
    return Version(".".join(str(int(part or 0)) for part in found.groups())) if found else None


def prefixed(value: AttributeValue) -> str:
    """An id as sysfs prints it."""
    return f"0x{value}"


def titled(value: AttributeValue) -> str:
    """The name of a generation: ``Ada Lovelace`` for ``ada-lovelace``."""
    return str(value).replace("-", " ").title()


def joined(value: AttributeValue) -> str:
    """A product's name as one word: ``Instinct_MI210``."""
    return str(value).replace(" ", "_").replace("(", "").replace(")", "")


def bus(value: AttributeValue) -> str:
    """The bus of a PCI root complex: ``60`` of ``pci0000:60``."""
    return str(value).rpartition(":")[2]


def first(value: AttributeValue) -> AttributeValue | None:
    """The first member of a list."""
    return next(iter(value), None) if isinstance(value, tuple) else value


def positive(value: AttributeValue) -> bool:
    """Whether a number is more than 0."""
    return isinstance(value, int) and value > 0


def one_of(words: Mapping[str, AttributeValue]) -> Callable[[AttributeValue], AttributeValue | None]:
    """Translates words; another one is not published."""
    return lambda value: words.get(str(value))


def always(constant: AttributeValue) -> Callable[[AttributeValue], AttributeValue]:
    """The same value for all devices."""
    return lambda _: constant


UNKNOWN = "Unknown"
"""The model and the family of any other GPU."""

INTEL_MODELS: Mapping[str, Mapping[str, str]] = {
    "Iris Xe": {"Alder Lake-P": "4626", "Raptor Lake-P": "a7a0"},
    "Intel Graphics": {"Arrow Lake-S": "7d67"},
    "Arc A-Series": {"A770": "56a0", "A750": "56a1", "A580": "56a2", "A380": "56a5", "A310": "56a6"},
    "Arc Pro A-Series": {"A30M": "56b0", "A40/A50": "56b1", "A60M": "56b2", "A60": "56b3"},
    "Arc B-Series": {
        "B390": "b080 b082 b084 b086",
        "B370": "b081 b083 b085 b087",
        "B580": "e20b",
        "B570": "e20c",
    },
    "Arc Pro B-Series": {"B60": "e211", "B50": "e212", "B65": "e222", "B70": "e223"},
    "Data Center Flex": {"Flex 170": "56c0", "Flex 140": "56c1"},
    "Data Center Max": {"Max 1550": "0b69 0bd0 0bd5", "Max 1450": "0bd6", "Max 1100": "0bd9 0bda 0bdb"},
}
"""The models of Intel GPUs with their PCI device ids, by family, as Intel's DRA driver names them.

Source: ``pkg/gpu/device/models.go`` in ``intel/intel-resource-drivers-for-kubernetes`` at 1da939fa.
"""

_BY_ID = {
    number: (model, family)
    for family, models in INTEL_MODELS.items()
    for model, numbers in models.items()
    for number in numbers.split()
}


def model(device: AttributeValue) -> str:
    """The model with this PCI device id: ``Flex 170``."""
    return _BY_ID.get(str(device), (UNKNOWN, UNKNOWN))[0]


def family(device: AttributeValue) -> str:
    """Its family: ``Data Center Flex``."""
    return _BY_ID.get(str(device), (UNKNOWN, UNKNOWN))[1]


_SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"
_LINKS = {"ether": "ethernet", "infiniband": "infiniband"}
_KINDS = {"ether": "device", "infiniband": "ipoib"}
_ENGINES = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_MEMORY = Alias("memory", "memory", unit="Mi")

PROFILES: Mapping[Profile, Published] = {
    Profile.NVIDIA: Published(
        "gpu",
        (
            Alias("type", "kind"),
            Alias("uuid", "uuid"),
            Alias("parentUUID", "parent.uuid"),
            Alias("profile", "profile"),
            Alias("resource.kubernetes.io/pciBusID", "pciBusID", kind="mig"),
            Alias("productName", "product"),
            Alias("architecture", "architecture", titled),
            Alias("cudaComputeCapability", "computeCapability", version),
            Alias("driverVersion", "driverVersion", version),
            Alias("cudaDriverVersion", "cudaVersion", version),
        ),
        (_MEMORY,),
        "gpu.nvidia.com",
        "nvidia",
        tuple(Alias(name, name) for name in _ENGINES),
    ),
    Profile.AMD: Published(
        "gpu",
        (
            Alias("type", "kind", one_of({"gpu": "amdgpu", "partition": "amdgpu-partition"})),
            Alias("resource.kubernetes.io/pciBusID", "pciBusID", kind="partition"),
            Alias("deviceID", "deviceID", prefixed),
            Alias("productName", "product", joined),
            Alias("driverVersion", "driverVersion", version),
            Alias("driverVersionFull", "driverVersion"),
            Alias("numaNode", "numaNode", otherwise=-1),
            Alias("partitionProfile", "profile"),
        ),
        (_MEMORY,),
        "gpu.amd.com",
        "amd",
        (Alias("computeUnits", "computeUnits"), Alias("simdUnits", "simdUnits")),
    ),
    Profile.INTEL: Published(
        "gpu",
        (
            Alias("type", "kind"),
            Alias("driver", "driver", otherwise=""),
            Alias("pciId", "deviceID", prefixed),
            Alias("pciAddress", "pciBusID"),
            Alias("pciRoot", "pcieRoot", bus),
            Alias("model", "deviceID", model),
            Alias("family", "deviceID", family),
            Alias("sriov", "totalVfs", positive, otherwise=False),
        ),
        (_MEMORY, Alias("millicores", "id", always(1000))),
        "gpu.intel.com",
        "intel",
    ),
    Profile.DRANET: Published(
        "sriov",
        (
            Alias("dra.net/ifName", "netDevs", first),
            Alias("dra.net/pciAddress", "pciBusID"),
            Alias("dra.net/pciSubsystem", "subsystemDevice"),
            Alias("dra.net/mac", "mac"),
            Alias("dra.net/mtu", "mtu"),
            Alias("dra.net/encapsulation", "linkType"),
            Alias("dra.net/state", "linkState"),
            Alias("dra.net/numaNode", "numaNode"),
            Alias("dra.net/sriov", "totalVfs", positive, otherwise=False, needs="netDevs"),
            Alias("dra.net/sriovVfs", "numVfs"),
            Alias("dra.net/isSriovVf", "kind", one_of({"vf": True}), needs="netDevs"),
            Alias("dra.net/type", "linkType", one_of(_KINDS), otherwise="device", needs="netDevs"),
            Alias("dra.net/virtual", "netDevs", always(False)),
            Alias("dra.net/rdma", "isRdma"),
            Alias("dra.net/rdmaDevice", "rdmaDevices", first),
        ),
    ),
    Profile.SRIOV: Published(
        "sriov",
        (
            Alias(f"{_SRIOV}/vendor", "vendor"),
            Alias(f"{_SRIOV}/deviceID", "device"),
            Alias(f"{_SRIOV}/pfDeviceID", "pfPciBusID.device"),
            Alias(f"{_SRIOV}/pciAddress", "pciBusID"),
            Alias("k8s.cni.cncf.io/deviceID", "pciBusID"),
            Alias(f"{_SRIOV}/PFName", "pfName"),
            Alias(f"{_SRIOV}/EswitchMode", "eswitchMode", otherwise="legacy"),
            Alias(f"{_SRIOV}/vfID", "vfIndex"),
            Alias(f"{_SRIOV}/pfPciAddress", "pfPciBusID"),
            Alias(f"{_SRIOV}/linkType", "linkType", one_of(_LINKS), otherwise="unknown"),
            Alias(f"{_SRIOV}/rdmaCapable", "isRdma"),
            Alias("dra.net/numaNode", "numaNode", otherwise=-1),
        ),
    ),
}
"""What each driver publishes besides the attributes that devhost publishes of every PCI function."""
