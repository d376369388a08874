"""A kubelet for tests of DRA drivers, in any language: see :class:`DraKubelet`.

It finds drivers in a directory, prepares claims, releases them, and follows the health of devices. It checks
every answer as a kubelet does, and is stricter where a kubelet would only misbehave later. There is no API
server and no scheduler: the driver reads its claims where the test has put them.
"""

from __future__ import annotations

from .answers import Claim, Prepared, Violation
from .health import DeviceState
from .kubelet import DraKubelet, Profile, Refused
from .rival import Rival
from .state import DraState

__all__ = [
    "Claim",
    "DeviceState",
    "DraKubelet",
    "DraState",
    "Prepared",
    "Profile",
    "Refused",
    "Rival",
    "Violation",
]
