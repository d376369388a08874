"""How long the kubelet side waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devhost.backend.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    poll: float = 5.0
    """Between looks at the kubelet's directory when inotify reports nothing."""

    settle: float = 0.1
    """A ``kubelet.sock`` must have been left alone for so long before a resource is registered with it."""

    register: float = 15.0
    """Deadline of Register: the kubelet takes up to 10 to dial back, which must not be cut short."""

    unanswered: float = 5.0
    """From Register until its missing answer is reported; the kubelet may still answer."""

    stream: float = 10.0
    """From Register until the kubelet must have opened the list stream."""

    steady: float = 10.0
    """A registration that held for so long is made again without back-off."""

    back_off: tuple[float, float] = (1.0, 30.0)
    """First and longest delay after a registration was lost."""

    refused: tuple[float, float] = (0.05, 1.0)
    """First and longest delay while no process listens on ``kubelet.sock``."""

    ask: float = 0.4
    """Until the kubelet is asked again whether another plugin still serves the resource, plus up to half."""

    kubelet_start: float = 10.0
    """After a kubelet's start, in which a plugin that served the resource before may register it first."""

    race: float = 1.0
    """After a registration, in which a socket that is seen for the first time may be older than its own."""

    backoff: Callable[[float, float], Backoff] = Backoff
    """Makes the delays between a first and a longest one."""

    drain: float = 2.0
    """A resource that leaves the configuration waits so long for its empty list to be sent."""

    stop_grace: float = 1.0
    """For calls in progress when a server stops."""

    lists_at_once: int = 4
    """Lists that a stream may send without a pause: a change soon after another one does not wait."""

    list_interval: float = 0.2
    """Between two lists of a stream under sustained churn; the changes in between share one list."""

    list_pods: float = 5.0
    """Deadline of the question who holds what."""

    list_allocatable: float = 2.0
    """Deadline of the question which devices the kubelet knows: a registration may wait for it."""

    confirm: float = 2.0
    """Allocate waits so long for a fresh list: the kubelet admits no other pod meanwhile."""

    question_gap: float = 0.5
    """Least time from the beginning of one question who holds what to the next."""

    question_first: float = 2.0
    """Until a kubelet that was just met is asked again, each time twice as long: it may not know all pods."""

    question_failed: tuple[float, float] = (1.0, 60.0)
    """First and longest delay after a question who holds what without an answer."""

    question_new: float = 300.0
    """A new kubelet is asked for so long though no container holds anything."""

    self_check: float = 4.0
    """Deadline of a call to an own socket. It takes 2 ms; a machine without a free core is not hung."""

    verdict_holds: float = 1.0
    """A self-check's verdict is given without new calls for so long."""

    self_check_again: float = 10.0
    """Until silent sockets are asked again though no probe asks."""


NODE = Timing()
"""The timing on a node."""
