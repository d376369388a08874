"""What AMD's cards count of their errors (drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, "AMDGPU RAS sysfs").

``ras/<block>_err_count`` has a line for uncorrectable errors (``ue: 0``) and one for those that were
corrected, counted since the driver was loaded.
"""

from __future__ import annotations

import re

from devhost.backend.sysfs import Sysfs

_COUNTS = re.compile(r"(\w{1,16})_err_count")
_UNCORRECTABLE = re.compile(r"ue:\s*(\d{1,18})")


def uncorrectable(sysfs: Sysfs, path: str) -> dict[str, int]:
    """How many uncorrectable errors each block of the card at ``path`` has had, by its name (``umc``)."""
    found = {}
    for name in sysfs.names(f"{path}/ras"):
        block = _COUNTS.fullmatch(name)
        count = _UNCORRECTABLE.search(sysfs.text(f"{path}/ras/{name}")) if block else None
        if block and count and int(count[1]):
            found[block[1]] = int(count[1])
    return found
