"""The attributes of GPUs and their parts that a configuration can select by."""

from __future__ import annotations

from devhost.backend import Attribute
from devhost.backend.purpose import DISPLAY, PURPOSE, purpose_attribute

from .discovery import VENDORS

KINDS = GPU, MIG, PARTITION, VF = "gpu", "mig", "partition", "vf"
"""The values of the attribute ``kind``."""

ATTRIBUTES = {
    "vendor": Attribute(str, "vendor of the GPU", "nvidia", words=VENDORS),
    "kind": Attribute(
        str, "GPU, a part of one (NVIDIA: `mig`, AMD: `partition`) or virtual function", "gpu", words=KINDS
    ),
    PURPOSE: purpose_attribute(DISPLAY),
    "product": Attribute(str, "name of the model, as its driver reports it", "NVIDIA H100 80GB HBM3"),
    "uuid": Attribute(
        str, "NVIDIA: UUID; AMD: unique id of the chip", "GPU-8dfe9b2c-3b5a-11ee-be56-0242ac120002"
    ),
    "index": Attribute(
        int, "number from 0: NVIDIA's number, else by PCI address among those of the vendor", 0
    ),
    "memory": Attribute(int, "memory of the device in MiB", 81559, unit="Mi"),
    "architecture": Attribute(str, "NVIDIA: name of the generation; AMD: compiler target", "gfx90a"),
    "computeCapability": Attribute(str, "NVIDIA: CUDA compute capability", "9.0"),
    "driverVersion": Attribute(str, "version of the driver", "570.86.15"),
    "cudaVersion": Attribute(str, "NVIDIA: newest CUDA version that the driver supports", "12.8"),
    "profile": Attribute(str, "MIG profile, or AMD's compute and memory partition mode", "1g.10gb"),
    "parent": Attribute(str, "id of the GPU that a part belongs to", "0000:05:00.0"),
    "pciBusID": Attribute(str, "PCI address; of a partition, that of its GPU", "0000:05:00.0", hex=True),
    "pcieRoot": Attribute(str, "its PCI root complex", "pci0000:00", hex=True),
    "numaNode": Attribute(int, "NUMA node near the device", 0),
    "driver": Attribute(str, "kernel driver that it is bound to", "amdgpu", plain=True),
    "renderNode": Attribute(
        str, "DRM node for rendering and computing", "/dev/dri/renderD128", begins="/dev/"
    ),
    "cardNode": Attribute(str, "DRM node for mode setting", "/dev/dri/card0", begins="/dev/"),
    "vendorID": Attribute(str, "PCI vendor id", "1002", hex=True),
    "deviceID": Attribute(str, "PCI device id", "740f", hex=True),
    "subsystemVendorID": Attribute(str, "PCI vendor id of the board", "1002", hex=True),
    "subsystemDeviceID": Attribute(str, "PCI device id of the board", "0c34", hex=True),
    "firmware": Attribute(str, "version of the card's video BIOS", "113-D67301-063"),
    "serial": Attribute(str, "serial number of the board", "692229001234"),
    "multiprocessors": Attribute(
        int, "NVIDIA: multiprocessors of a MIG instance, if an entry names this", 14
    ),
    "copyEngines": Attribute(int, "NVIDIA: copy engines of a MIG instance, if an entry names this", 1),
    "decoders": Attribute(int, "NVIDIA: video decoders of a MIG instance, if an entry names this", 1),
    "encoders": Attribute(int, "NVIDIA: video encoders of a MIG instance, if an entry names this", 0),
    "jpegEngines": Attribute(int, "NVIDIA: JPEG engines of a MIG instance, if an entry names this", 1),
    "ofaEngines": Attribute(int, "NVIDIA: optical flow engines of a MIG instance, if an entry names this", 0),
    "totalVfs": Attribute(
        int, "Intel: largest number of virtual functions that get a driver, if an entry names this", 31
    ),
    "computeUnits": Attribute(int, "AMD: compute units, if an entry names this", 304),
    "simdUnits": Attribute(int, "AMD: SIMD units of these, if an entry names this", 1216),
}
"""The attributes that a configuration can select by."""

ENGINES = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg_engines",
    "ofaEngines": "ofa_engines",
}
"""Those of MIG instances, and the names in NVML's reports."""

COUNTED = frozenset({*ENGINES, "totalVfs", "computeUnits", "simdUnits"})
"""Those that a device has only if the configuration names them, or ``dra.profile`` does."""

CHANGING = COUNTED | {*("kind", PURPOSE, "index", "memory", "profile", "parent", "renderNode", "cardNode")}
"""Those that change with the partitions of a GPU, or differ between them."""

OF_WHOLE = {name: one for name, one in ATTRIBUTES.items() if name not in CHANGING}
"""The others, which all parts of a GPU have from it."""
