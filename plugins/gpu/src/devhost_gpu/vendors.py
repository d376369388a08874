"""Which vendors this machine has. Code for a vendor is imported with its first card, and not before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from devhost.backend import Context
from devhost.backend.sysfs import Sysfs

from .adapter import ACCELERATOR, DISPLAY, Adapter
from .card import AMD, INTEL, NVIDIA, OTHER, Family
from .options import GpuOptions
from .recordings import AMD_PARTITION

NVIDIA_DRIVER = "/proc/driver/nvidia"
"""There while NVIDIA's driver is loaded."""

_PCI_VENDORS = {"1002": AMD, "10de": NVIDIA, "8086": INTEL}


def vendor_of(adapter: Adapter) -> str:
    """Whose code knows an adapter; empty for one that is of no interest."""
    if AMD_PARTITION.fullmatch(adapter.id):
        return AMD
    vendor = _PCI_VENDORS.get(adapter.vendor, OTHER)
    is_gpu = adapter.pci_class.startswith((DISPLAY, ACCELERATOR) if vendor == AMD else DISPLAY)
    if vendor != OTHER and (is_gpu or adapter.nodes):
        return vendor
    return OTHER if adapter.nodes else ""


def by_vendor(adapters: Iterable[Adapter], sysfs: Sysfs) -> dict[str, list[Adapter]]:
    """The adapters of each vendor that is here; NVIDIA is here too where only its driver is."""
    found: dict[str, list[Adapter]] = {}
    if sysfs.exists(NVIDIA_DRIVER):
        found[NVIDIA] = []
    for adapter in adapters:
        if vendor := vendor_of(adapter):
            found.setdefault(vendor, []).append(adapter)
    return found


def make(vendor: str, options: GpuOptions, context: Context) -> Family | None:
    """The code for a vendor; ``None`` where there is none."""
    maker = _MAKERS.get(vendor)
    return maker(options, context) if maker else None


def _amd(options: GpuOptions, context: Context) -> Family:
    from .amd import Amd

    return Amd(options, context)


def _intel(options: GpuOptions, context: Context) -> Family:
    from .intel import Intel

    return Intel(options, context)


def _nvidia(options: GpuOptions, context: Context) -> Family:
    from .nvidia import Nvidia

    family = Nvidia(options, context)
    if "cdi" not in options.strategies:
        return family
    from .specified import Specified

    return Specified(family, options, context)


def _other(options: GpuOptions, context: Context) -> Family:
    from .other import Other

    return Other(options, context)


_MAKERS: Mapping[str, Callable[[GpuOptions, Context], Family]] = {
    AMD: _amd,
    INTEL: _intel,
    NVIDIA: _nvidia,
    OTHER: _other,
}
"""How each vendor's code is made."""
