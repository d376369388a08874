"""How long devhost waits, in seconds. The defaults are those of a node; tests pass shorter ones."""

from __future__ import annotations

from collections.abc import Callable

from devhost.backend.backoff import Backoff
from devhost.backend.frozen import frozen


@frozen
class DiscoveryTiming:
    """Of scans, probes and observers."""

    resync: float = 60.0
    """Between full scans, and between probes: a safeguard against lost events."""

    missing_resync: float = 5.0
    """Between two looks for a host path that was missing when a pod needed it.

    While one is missing that ``give`` needs, the pause doubles from here up to ``resync``."""

    scan_budget: float = 0.1
    """Total duration of scans without a pause; sustained scans get a fifth of the time.

    The budget refills within half a second. One change causes several events, and each of them a scan."""

    stale_after: float = 30.0
    """How long a backend may fail before its devices become Unhealthy."""

    silence: float = 60.0
    """An event source that had failed counts as working after being open for this long without an event."""

    between_probes: float = 5.0
    """Least time between two probes, regardless of what requests them."""

    provision: float = 60.0
    """Deadline of ``provision``: an adapter takes a second for a few functions."""

    provision_resync: float = 60.0
    """Between successful calls of ``provision``: hardware may have been replaced without an event."""

    releases: float = 2.0
    """Between checks whether the release of a driver is over."""

    verdicts: float = 5.0
    """Between two readings of the directory of verdicts if inotify reports no event."""

    observer: float = 5.0
    """Deadline of one call of an observer's hook."""

    observer_pauses: tuple[float, float] = (5.0, 300.0)
    """First and longest pause of a failing observer; each pause is twice as long as the one before."""

    handover_before: float = 5.0
    """Deadline of ``devhost_before_container``: the kubelet admits no other pod meanwhile."""

    handover_wait: float = 5.0
    """How long a container waits until its devices are prepared; then it is refused."""

    handover_pod: float = 0.5
    """For so long after a container got a device, the next one that gets it is of the same pod.

    An init container passes its devices on while its pod is admitted. No container starts and ends, and no
    pod follows it, within this time."""

    handover_after: float = 60.0
    """Deadline of ``devhost_after_release``."""

    handover_record: float = 60.0
    """Between checks that the record of used devices has not been removed."""

    handover_pauses: tuple[float, float] = (1.0, 60.0)
    """First and longest pause after ``devhost_after_release`` failed; each is twice as long as before."""


@frozen
class AllocationTiming:
    """Of Allocate, and of the conclusions from the kubelet's lists."""

    allocate: float = 8.0
    """Deadline of Allocate. The kubelet has none, and admits no other pod meanwhile."""

    prepare: float = 25.0
    """Deadline of PreStartContainer, for which the kubelet allows 30."""

    render: float = 5.0
    """Deadline for a backend to answer what one device of a CDI specification needs."""

    grace: float = 2.0
    """A vanished token stays in the list as Unhealthy for so long."""

    release_gap: float = 2.0
    """Least time between the two lists that show a release."""

    unnamed: float = 300.0
    """Lists must lack a token that the kubelet never named for so long.

    The kubelet itself waits as long for a plugin that has gone. An init container may take longer; its device
    then counts as free although it is not."""

    admission: float = 2.0
    """Longest pause between two Allocates of one admission.

    A kubelet needs milliseconds, unless another plugin answers an Allocate in between."""

    together: float = 0.5
    """Longest pause between two requests for preferences that are taken for those of one admission.

    Between two resources of a container a kubelet needs less than a millisecond; the rest is for a node so
    busy that processes wait for their turn. Pods that a person creates one after another come later."""

    list_allocated: float = 0.5
    """From Allocate until the list is wanted that names the container."""

    list_held: float = 15.0
    """Between lists while everything that is held is named."""

    list_vanished: float = 5.0
    """Between lists while a vanished token is kept only because a container holds it."""

    list_forgotten: float = 2.0
    """Between lists while a token is forgotten.

    A list has to show that its container has ended before another container of that name exists."""

    no_pods: float = 30.0
    """A kubelet must name no pods for so long before devhost believes that there are none."""


@frozen
class DraTiming:
    """Of Dynamic Resource Allocation."""

    settle: float = 1.0
    """From a change to the writes of slices that follow from it: devices often change together."""

    gap: float = 5.0
    """Least time between two rounds of writes: each write wakes every scheduler."""

    write: float = 0.2
    """Between two writes."""

    node: float = 3.0
    """Between two looks at the Node; a kubelet updates its status about every ten seconds."""

    sockets: float = 5.0
    """Between two checks that the sockets of a driver still exist."""

    unregistered: float = 60.0
    """After which it is a problem that the kubelet has not registered a driver."""

    statuses: float = 5.0
    """Least time between two writes of the status of one claim."""

    schedulers: float = 30.0
    """After which every scheduler has noticed that a device left its ResourceSlice."""

    recheck: float = 60.0
    """Between two lists of ResourceClaims while one of them has a moving device allocated."""


@frozen
class KubeletTiming:
    """Of everything that talks to the kubelet."""

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

    result_holds: float = 1.0
    """A self-check's result is reused for so long."""

    self_check_again: float = 10.0
    """Until silent sockets are asked again without a probe."""


@frozen
class ConfigTiming:
    """Of the watch on the configuration file."""

    poll: float = 5.0
    """Between two checks if inotify reports no event."""

    settle: float = 0.1
    """The content must stay the same for so long before it is read: editors write in several steps."""

    retry: float = 15.0
    """After which a refused file is read again even if it is the same.

    The error may have been in a drop-in or in a directory of ``backendPaths``, and fixed there."""


@frozen
class Timing:
    """Of the host, and of its parts."""

    first_plan: float = 2.0
    """The first plan waits so long for backends and for the kubelet's list of who holds what.

    Without them it could give a device to a resource and take it back a moment later, or give away a device
    that a container holds through another resource."""

    plan_piece: float = 0.002
    """A plan that takes longer lets other work be done in between."""

    reload: float = 30.0
    """Deadline for reading the configuration; importing drop-ins is part of it."""

    labels_settle: float = 1.0
    """From a change to the node labels that follow from it: several devices often change at once."""

    labels_pending: float = 2.0
    """Between checks whether a backend whose labels are wanted has listed its devices."""

    labels_resync: float = 60.0
    """After which every file with labels is checked: another program may have removed one."""

    leave: float = 4.0
    """For stopping in good order; then the process ends anyway."""

    flush: float = 1.0
    """For observers to receive queued events while the host stops."""

    allocation: AllocationTiming = AllocationTiming()
    config: ConfigTiming = ConfigTiming()
    discovery: DiscoveryTiming = DiscoveryTiming()
    kubelet: KubeletTiming = KubeletTiming()
    dra: DraTiming = DraTiming()


NODE = Timing()
"""The timing on a node."""

ALLOCATION, DISCOVERY, KUBELET, DRA = NODE.allocation, NODE.discovery, NODE.kubelet, NODE.dra
