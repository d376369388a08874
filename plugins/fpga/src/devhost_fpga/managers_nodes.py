"""The device nodes of what is programmed into a region: every character device below it.

uio, a misc device, a render node, whatever driver an overlay of the device tree brought: what lies below a
region is made of its logic, so it belongs to whoever gets the region. Not the node of a flash memory, which
outlives it, and of a DRM device not the one for mode setting where there is another for computing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from devhost.backend.sysfs import Sysfs

DEPTH = 8
"""Directories below a region that are looked into; drivers of drivers need five."""

LARGEST = 2000
"""Directories that are looked into for one region, whatever is mounted or linked there."""

_SKIPPED = frozenset(
    {"power", "subsystem", "driver", "of_node", "firmware_node", "iommu", "statistics", "msi_irqs"}
)
"""Directories of each device that have no devices in them."""

_OUTLIVING = frozenset({"mtd", "block", "nvmem"})


def below(sysfs: Sysfs, path: str, apart: Collection[str] = ()) -> tuple[str, ...]:
    """The sysfs directories of the character devices below ``path``, in order.

    Args:
        apart: directories that belong to something else, with all below them.
    """
    found = [place for place in _walk(sysfs, path, apart) if sysfs.exists(f"{place}/dev")]
    kept = [place for place in found if sysfs.target(f"{place}/subsystem") not in _OUTLIVING]
    computing = {place.rpartition("/")[0] for place in kept if "/drm/renderD" in place}
    return tuple(
        place for place in kept if place.rpartition("/")[0] not in computing or "/drm/renderD" in place
    )


def _walk(sysfs: Sysfs, path: str, apart: Collection[str]) -> Iterator[str]:
    waiting, looked = [(path, 0)], 0
    while waiting and looked < LARGEST:
        place, depth = waiting.pop(0)
        looked += 1
        for name in sysfs.names(place):
            inner = f"{place}/{name}"
            if name in _SKIPPED or inner in apart or sysfs.link(inner) or not sysfs.names(inner):
                continue
            yield inner
            if depth < DEPTH:
                waiting.append((inner, depth + 1))
