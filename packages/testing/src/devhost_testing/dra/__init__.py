"""A kubelet and an API server for tests of DRA drivers, in any language.

:class:`DraKubelet` finds drivers in a directory, prepares claims, releases them, and follows the health of
devices. It checks every answer as a kubelet does, and is stricter where a kubelet would only misbehave later.
:class:`ApiServer` has ResourceSlices and ResourceClaims, and fails in the ways of a real one. There is no
scheduler: the test allocates claims.
"""

from __future__ import annotations

from .access import AccessFiles
from .answers import Claim, Prepared, Violation
from .api_server import ApiServer
from .health import DeviceState
from .kubelet import DraKubelet, Profile, Refused
from .rival import Rival
from .state import DraState

__all__ = [
    "AccessFiles",
    "ApiServer",
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
