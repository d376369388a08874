"""A kubelet for tests: it registers device plugins and hands their devices to pods that do not exist.

See :class:`KubeletSimulator`. ``docs/simulator.md`` tells what it does as a kubelet and what it does not.
"""

from __future__ import annotations

from .admission import ContainerStartError, Role, UnexpectedAdmissionError
from .checkpoint import Allocation
from .events import Event, EventLog, ListedDevice
from .faults import Fault, Faults, Gate, Point, answer, cut, delay, fail, hang, refuse
from .plugin import OtherPlugin
from .registry import Profile
from .simulator import KubeletSimulator

__all__ = [
    "Allocation",
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
