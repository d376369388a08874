"""How long allocation waits."""

from __future__ import annotations

from devhost.backend.frozen import frozen


@frozen
class AllocationTiming:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

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


NODE = AllocationTiming()
