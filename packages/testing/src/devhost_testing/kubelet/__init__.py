"""A kubelet for tests: it registers device plugins and allocates their devices to simulated pods.

See :class:`KubeletSimulator`. ``docs/simulator.md`` describes where it behaves like a kubelet and where not.
"""

from __future__ import annotations

from .admission import ContainerStartError, Role, UnexpectedAdmissionError
from .checkpoint import Allocation
from .events import Event, EventLog, ListedDevice
from .faults import Fault, Faults, Gate, Point, answer, cut, delay, fail, hang, refuse
from .plugin import OtherPlugin
from .podresources import ClaimDevice
from .registry import Profile
from .simulator import KubeletSimulator

__all__ = [
    "Allocation",
    "ClaimDevice",
    "ContainerStartError",
    "Event",
    "EventLog",
    "Fault",
    "Faults",
    "Gate",
    "KubeletSimulator",
    "ListedDevice",
    "OtherPlugin",
    "Point",
    "Profile",
    "Role",
    "UnexpectedAdmissionError",
    "answer",
    "cut",
    "delay",
    "fail",
    "hang",
    "refuse",
]
