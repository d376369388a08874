"""How long the kubelet side waits."""

from __future__ import annotations

from collections.abc import Callable

from devhost.backend.backoff import Backoff
from devhost.backend.frozen import frozen


@frozen
class KubeletTiming:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    poll: float = 5.0
    """Between reads of the kubelet's directory when inotify reports nothing."""

    settle: float = 0.1
    """A ``kubelet.sock`` must be unchanged for so long before a resource is registered with it."""

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
    """Between questions whether another plugin still serves the resource; up to half of it is added."""

    rivals_gap: float = 0.3
    """Least time from the beginning of one call of GetAllocatableResources to the next."""

    rivals_changed: float = 1.0
    """The same for calls that only a change in the kubelet's directory caused.

    Each list that a kubelet receives changes its checkpoint there."""

    kubelet_start: float = 10.0
    """After a kubelet's start, for a plugin that served the resource before to register it first."""

    race: float = 1.0
    """After a registration. A socket that is first seen within it may be older than the registered one."""

    start: float = 2.0
    """From the creation of another devhost's socket until its process listens on it.

    Until then it refuses connections, like one whose process has ended."""

    backoff: Callable[[float, float], Backoff] = Backoff
    """Makes a back-off from a first and a longest delay."""

    drain: float = 2.0
    """For sending the empty list of a resource that leaves the configuration."""

    stop_grace: float = 1.0
    """For calls in progress when a server stops."""

    lists: tuple[tuple[int, float], ...] = ((15, 0.1), (120, 0.2))
    """How many lists a stream may send at once, and seconds until it may send another one; all pairs apply.

    So hot-plug does not wait, and changes that do not end share five lists a second. The kubelet writes its
    checkpoint for each list: 0.7 to 2.6 ms of processor time."""

    list_pods: float = 5.0
    """Deadline of List, who holds what."""

    list_allocatable: float = 2.0
    """Deadline of GetAllocatableResources: a registration may wait for it."""

    confirm: float = 2.0
    """Allocate waits so long for a fresh list. The kubelet admits no other pod meanwhile."""

    question_gap: float = 0.5
    """Least time from the beginning of one call of List to the next."""

    question_first: float = 2.0
    """Until a new kubelet is asked again, twice as long each time: it may not know all pods yet."""

    question_failed: tuple[float, float] = (1.0, 60.0)
    """First and longest delay after a call of List that failed."""

    question_new: float = 300.0
    """A new kubelet is asked for so long even if no container holds anything."""

    given: float = 5.0
    """Between two looks at the nodes that containers were given: a number may change without an event."""

    given_soon: float = 0.1
    """From an Allocate to the look at what it gave, and to its record.

    The kubelet asks for one resource of a pod after another, and waits for each answer."""

    self_check: float = 4.0
    """Deadline of a call to an own socket. It takes 2 ms, but may wait for a free core."""

    handshake: float = 5.0
    """In which a new connection to a plugin socket must have become one of HTTP/2, or it is closed."""

    idle: float = 10.0
    """After which a connection without a call is closed. An open list stream is a call."""

    verdict_holds: float = 1.0
    """A self-check's verdict is reused for so long."""

    self_check_again: float = 10.0
    """Until silent sockets are asked again without a probe."""


NODE = KubeletTiming()
