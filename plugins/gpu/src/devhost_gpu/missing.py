"""What cards lack: their driver, without which they keep their last attributes, or what an option needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.backend import AttributeValue, MissingDriver
from devhost.backend.model import present
from devhost.backend.sysfs import Sysfs

from .amd.health import counts_errors
from .discovery import AMD, INTEL, NVIDIA, Adapter
from .drm import SENSOR
from .options import GpuOptions
from .vendor import Card, of_adapter

_NODES = frozenset({"cardNode", "renderNode"})
"""Attributes that a card without a driver does not keep."""


class LastAttributes:
    """Remembers the attributes that cards had with their driver. Used by one thread.

    Without its driver, a card has no model, memory or mode, and would leave a resource that selects by them:
    the node would have fewer devices without a visible reason. So it keeps these attributes and is Unhealthy.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Mapping[str, AttributeValue]] = {}

    def complete(self, cards: Mapping[str, Card], adapters: Iterable[Adapter]) -> dict[str, Card]:
        """Adds their last attributes to the cards that have lost their DRM nodes.

        An adapter that was removed and added again has another inode, and no last attributes.
        """
        completed = dict(cards)
        last: dict[tuple[str, int], Mapping[str, AttributeValue]] = {}
        for adapter in adapters:
            card, key = cards.get(adapter.id), (adapter.id, adapter.inode)
            if card is None or card.device.withheld:
                continue
            if adapter.nodes:
                last[key] = card.device.attributes
            elif before := self._last.get(key):
                last[key] = before
                lost = {name: value for name, value in before.items() if name not in _NODES}
                attributes = lost | dict(card.device.attributes)
                completed[adapter.id] = replace(card, device=replace(card.device, attributes=attributes))
        self._last = last
        return completed


_FIXES = {
    NVIDIA: "install NVIDIA's driver, then run modprobe nvidia",
    AMD: "run modprobe amdgpu",
    INTEL: "run modprobe i915, or modprobe xe for newer cards",
}

_REPLACEMENTS = {NVIDIA: frozenset({"nouveau", "nova_core", "NovaCore"})}
"""Drivers of the kernel with which containers cannot compute. They are bound because the vendor's driver is
missing, unlike ``vfio-pci``, which the user has chosen."""

_FROM_DRIVER = frozenset({"driver", "cardNode", "renderNode"})
"""Attributes that a device has from its driver."""


def missing_drivers(sysfs: Sysfs, adapters: Mapping[str, Sequence[Adapter]]) -> Iterator[MissingDriver]:
    """The GPUs without their vendor's driver. A virtual function may be without a driver on purpose."""
    for vendor, fix in _FIXES.items():
        for adapter in _without_driver(sysfs, adapters.get(vendor, ()), _REPLACEMENTS.get(vendor, ())):
            known = present({"vendor": vendor, **of_adapter(adapter)})
            yield MissingDriver(
                f"{adapter.address} ({adapter.vendor}:{adapter.device})",
                f"{f'bound to {adapter.driver}' if adapter.driver else 'no driver is bound to it'} ({fix})",
                {name: value for name, value in known.items() if name not in _FROM_DRIVER},
            )


def _without_driver(
    sysfs: Sysfs, adapters: Iterable[Adapter], replacements: Iterable[str]
) -> Iterator[Adapter]:
    for adapter in adapters:
        if not adapter.address or adapter.is_virtual or adapter.driver not in ("", *replacements):
            continue
        if not sysfs.driver_override(adapter.path):  # a name there is the user's choice
            yield adapter


def limits_without_effect(
    options: GpuOptions, sysfs: Sysfs, groups: Mapping[str, Sequence[Adapter]], cards: Iterable[Card]
) -> Iterator[MissingDriver]:
    """The offered cards for which ``temperatureLimit`` or ``uncorrectableErrors`` checks nothing.

    The default of ``uncorrectableErrors`` is not reported: the user did not ask for it. NVIDIA GPUs have
    ``healthChecks`` instead.
    """
    offered = {
        str(card.device.attributes.get("pciBusID", card.id)): card.device
        for card in cards
        if card.device.withheld is None and card.device.reserved is None
    }
    wants_temperature = bool(options.temperature_limit)
    wants_errors = options.uncorrectable_errors not in (0, GpuOptions().uncorrectable_errors)
    for vendor, adapters in groups.items() if wants_temperature or wants_errors else ():
        for adapter in adapters if vendor != NVIDIA else ():
            if not adapter.driver or (device := offered.get(adapter.id)) is None:
                continue
            subject = f"{adapter.id} ({adapter.vendor}:{adapter.device})" if adapter.vendor else adapter.id
            if wants_temperature and not _has_sensor(sysfs, adapter.path):
                reason = "backends.gpu.temperatureLimit has no effect: it has no temperature sensor"
                yield MissingDriver(subject, reason, device.attributes, makes_device=False)
            if wants_errors and vendor == AMD and not counts_errors(sysfs, adapter.path):
                reason = "backends.gpu.uncorrectableErrors has no effect: it does not count memory errors"
                yield MissingDriver(subject, reason, device.attributes, makes_device=False)


def _has_sensor(sysfs: Sysfs, path: str) -> bool:
    """Whether there is a sensor. It is not read: a sleeping card stays asleep."""
    chips = [f"{path}/hwmon/{name}" for name in sysfs.names(f"{path}/hwmon")]
    return any(SENSOR.fullmatch(name) for chip in chips for name in sysfs.names(chip))
