"""What a configuration can say of a card: the declaration of its attributes, and those every adapter has."""

from __future__ import annotations

import re

from devhost.backend import Attribute, AttributeValue

from .adapter import Adapter
from .card import KINDS, VENDORS

ATTRIBUTES = {
    "vendor": Attribute(str, "whose GPU it is", "nvidia", words=VENDORS),
    "kind": Attribute(
        str, "GPU, a part of one (NVIDIA: `mig`, AMD: `partition`) or virtual function", "gpu", words=KINDS
    ),
    "product": Attribute(str, "name of the model, as its driver has it", "NVIDIA H100 80GB HBM3"),
    "uuid": Attribute(
        str, "NVIDIA: UUID; AMD: unique id of the chip", "GPU-8dfe9b2c-3b5a-11ee-be56-0242ac120002"
    ),
    "index": Attribute(int, "number from 0: NVIDIA's own, else among all of the vendor by PCI address", 0),
    "memory": Attribute(int, "own memory in MiB", 81559),
    "architecture": Attribute(str, "NVIDIA: name of the generation; AMD: compiler target", "gfx90a"),
    "computeCapability": Attribute(str, "NVIDIA: CUDA compute capability", "9.0"),
    "driverVersion": Attribute(str, "version of the driver", "570.86.15"),
    "cudaVersion": Attribute(str, "NVIDIA: newest CUDA version that the driver supports", "12.8"),
    "profile": Attribute(str, "MIG profile, or AMD's compute and memory partition mode", "1g.10gb"),
    "parent": Attribute(str, "id of the GPU that a part is a part of", "0000:05:00.0"),
    "pciBusID": Attribute(str, "PCI address; of a partition, that of its GPU", "0000:05:00.0", hex=True),
    "pcieRoot": Attribute(str, "PCI root complex it is below", "pci0000:00", hex=True),
    "numaNode": Attribute(int, "NUMA node it is near", 0),
    "driver": Attribute(str, "kernel driver it is bound to", "amdgpu"),
    "renderNode": Attribute(str, "DRM node for rendering and computing", "/dev/dri/renderD128"),
    "cardNode": Attribute(str, "DRM node for mode setting", "/dev/dri/card0"),
    "vendorID": Attribute(str, "PCI vendor id", "1002", hex=True),
    "deviceID": Attribute(str, "PCI device id", "740f", hex=True),
    "subsystemVendorID": Attribute(str, "PCI vendor id of the board", "1002", hex=True),
    "subsystemDeviceID": Attribute(str, "PCI device id of the board", "0c34", hex=True),
    "firmware": Attribute(str, "version of the card's video BIOS", "113-D67301-063"),
    "serial": Attribute(str, "serial number of the board", "692229001234"),
}
"""The declaration of the backend's attributes."""

_ROOT = re.compile(r"/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/")


def of_adapter(adapter: Adapter) -> dict[str, AttributeValue | None]:
    """What sysfs tells of any adapter; what it does not tell is empty or ``None``."""
    root = _ROOT.search(adapter.path) if adapter.address else None
    return {
        "driver": adapter.driver,
        "pciBusID": adapter.address,
        "pcieRoot": root[1] if root else "",
        "numaNode": adapter.numa_node,
        "renderNode": adapter.render_node,
        "cardNode": adapter.card_node,
        "vendorID": adapter.vendor,
        "deviceID": adapter.device,
        "subsystemVendorID": adapter.subsystem_vendor,
        "subsystemDeviceID": adapter.subsystem_device,
    }
