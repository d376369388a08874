"""Limits of the options that nothing on a card can exceed, because it does not report the value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from devhost.backend import MissingDriver
from devhost.backend.sysfs import Sysfs

from .amd.health import counts_errors
from .discovery import AMD, NVIDIA, Adapter
from .drm import SENSOR
from .options import GpuOptions
from .vendor import Card


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
