"""GPUs that the vendor's driver does not drive, and how to change that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from devhost.backend import MissingDriver
from devhost.backend.sysfs import Sysfs

from .adapter import Adapter
from .attributes import of_adapter
from .card import AMD, INTEL, NVIDIA

_FIX = {
    NVIDIA: "install NVIDIA's driver, then run modprobe nvidia",
    AMD: "run modprobe amdgpu",
    INTEL: "run modprobe i915, or modprobe xe for newer cards",
}

_INSTEAD = {NVIDIA: frozenset({"nouveau", "nova_core", "NovaCore"})}
"""Drivers of the kernel's own tree, with which containers cannot compute. They are bound because the vendor's
is missing, unlike ``vfio-pci``, which the user has chosen."""

_LOST = frozenset({"driver", "cardNode", "renderNode"})
"""Attributes that a device has from its driver."""


def missing(sysfs: Sysfs, adapters: Mapping[str, Sequence[Adapter]]) -> Iterator[MissingDriver]:
    """The GPUs without a driver of their vendor. A virtual function may be without one on purpose.

    Args:
        sysfs: the machine.
        adapters: all there are, by their vendors.
    """
    for vendor, fix in _FIX.items():
        for adapter in _undriven(sysfs, adapters.get(vendor, ()), _INSTEAD.get(vendor, ())):
            known = {"vendor": vendor, **of_adapter(adapter)}
            yield MissingDriver(
                f"{adapter.address} ({adapter.vendor}:{adapter.device})",
                f"{f'bound to {adapter.driver}' if adapter.driver else 'no driver is bound to it'} ({fix})",
                {
                    name: value
                    for name, value in known.items()
                    if value not in (None, "") and name not in _LOST
                },
            )


def _undriven(sysfs: Sysfs, adapters: Iterable[Adapter], instead: Iterable[str]) -> Iterator[Adapter]:
    for adapter in adapters:
        if not adapter.address or adapter.is_virtual or adapter.driver not in ("", *instead):
            continue
        if not sysfs.driver_override(adapter.path):  # a name there is the user's choice
            yield adapter
