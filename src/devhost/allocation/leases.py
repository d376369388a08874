"""When a token counts as held, and when a release is believed. Pure.

There are two sources. Allocate reports that a container gets tokens; no call ever reports that it returned
them. The kubelet's list of pods (podresources) names the tokens that containers hold. A list can lack a
token that is held:

* the list began before the kubelet had written down what Allocate gave;
* the kubelet has just started: it learns of its pods one after another from the API server, and of none
  while that does not answer, though their containers keep running;
* the container is an init container: the kubelet lists only those that keep running;
* the answer is wrong or truncated.

Dropping a held token from the device list (its CDI name goes with it) is worse than keeping a free one, so
devhost believes a release late:

* a token that this kubelet has named since its last Allocate is released when two lists lack it, at least
  :attr:`.AllocationTiming.release_gap` seconds apart and without one in between that names it. Such a kubelet
  knows the pod, so only the end of the pod removes the token from the list; the second list guards against a
  wrong answer;
* a token that it has not named (the pod was shorter-lived than the interval between lists, or one of the
  reasons above) is released when the lists of one kubelet have lacked it for
  :attr:`.AllocationTiming.unnamed` seconds. A list without any pod is no evidence: a kubelet that knows no
  pods yet answers with one;
* however often the kubelet restarts, a token that no list names counts for :attr:`.AllocationTiming.unnamed`
  seconds in all.

A container's devices never change while it runs. So a container that an earlier kubelet listed with a
token, and that the present one lists without any device, still holds the token: this kubelet has lost its
checkpoint. Such a token is *forgotten*. It is released when the lists of the kubelet that forgot it show that
the container has ended:

* two lists, :attr:`.AllocationTiming.release_gap` seconds apart, of which the first does not have the
  container (a container of that name in the second list is new: the pod of a StatefulSet that was created
  again);
* or the container has devices: a kubelet that lost its checkpoint gives none to a container that already runs
  (kubelet 1.28 and later), so this is a new container, too.

A kubelet that names what an earlier one named has read its checkpoint, which is read whole or not at all. It
has forgotten nothing: a container that it lists without devices is a new one, or has ended.

Without lists nothing is ever released: an Allocate counts as long as devhost runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import Holder
from devhost.planning.claims import Key, Pod, pod_of
from devhost.planning.timing import ALLOCATION, AllocationTiming

Kubelet = tuple[int, ...]
"""One kubelet from its start to its end: device, inode and change time of its podresources socket, and how
often another kubelet.sock was seen until then."""


@frozen(slots=True)
class ClaimUseDevice:
    """One device of a claim: the driver that gave it, and the driver's names for it.

    ``share`` is the share id of a device that several claims use, or empty. ``cdi_names`` are qualified:
    ``vendor/class=name``.
    """

    driver: str
    pool: str
    device: str
    share: str = ""
    cdi_names: tuple[str, ...] = ()


@frozen(slots=True)
class ClaimUse:
    """The containers that use a claim, in the kubelet's order, and the devices that it gives them."""

    holders: tuple[Holder, ...]
    devices: tuple[ClaimUseDevice, ...]


Claims = Mapping[tuple[str, str], ClaimUse]
"""The claims by namespace and name. The kubelet does not list their uids."""

NO_CLAIMS: Claims = MappingProxyType({})


@frozen
class Listing:
    """A complete answer of a kubelet.

    ``began`` is the monotonic time at which it was asked, ``pods`` how many pods it named, with devices or
    without, ``holders`` who holds what: by resource, then by token; ``None`` for a container without name.
    ``containers`` are all containers that it names, and whether each has devices of device plugins.
    ``claims`` are the ResourceClaims that containers use, of all DRA drivers.
    """

    kubelet: Kubelet
    began: float
    pods: int
    holders: Mapping[str, Mapping[str, Holder | None]]
    containers: Mapping[Holder, bool] = field(default_factory=dict)
    claims: Claims = field(default_factory=dict)


class LeaseState(Enum):
    """What the lists have shown of a token since its Allocate."""

    ALLOCATED = "allocated"
    """No list has named it."""
    NAMED = "named"
    """A list has named the container that holds it."""
    FORGOTTEN = "forgotten"
    """The kubelet lists that container without any device, though an earlier kubelet named this token."""
    LACKING = "lacking"
    """The newest list shows that its container has ended, so that another such list releases it."""


class Absence(NamedTuple):
    """The lists that lack a token: the time at which the first of any kubelet began, and of this kubelet.

    ``ends`` is whether the newest shows that the container has ended.
    """

    since: float
    kubelet: Kubelet
    first: float
    ends: bool


@mutable(slots=True)
class Lease:
    """One token that a container holds: a state machine, whose events are the lists of kubelets.

    ``since`` is the last Allocate, or the list that first named the token. ``number`` is that of the
    Allocate, see :class:`.Admissions`; 0 if only a list has named the token. ``named_by`` is the kubelet that
    named the holder last, ``forgotten_by`` the one that has forgotten the token since.

    ``keys`` are the devices behind the token, as far as they are known: one object for all tokens that a
    container got together. ``inferred`` is whether they are only a conclusion. What this run of devhost
    allocated has ``terms``, and ``alone`` is whether it allocated the devices to one container only; ``None``
    if that is not known.
    """

    since: float
    number: int = 0
    terms: Any = None
    keys: tuple[Key, ...] = ()
    inferred: bool = False
    alone: bool | None = None
    holder: Holder | None = None
    named_by: Kubelet | None = None
    forgotten_by: Kubelet | None = None
    absence: Absence | None = None

    @property
    def got(self) -> tuple[Key, ...]:
        """The devices that the container certainly got."""
        return () if self.inferred else self.keys

    @property
    def state(self) -> LeaseState:
        if self.absence is not None and self.absence.ends:
            return LeaseState.LACKING
        if self.forgotten_by is not None:
            return LeaseState.FORGOTTEN
        return LeaseState.ALLOCATED if self.named_by is None else LeaseState.NAMED

    def named(self, holder: Holder | None, kubelet: Kubelet) -> None:
        self.holder, self.named_by = holder, kubelet
        self.forgotten_by = self.absence = None

    def is_released(self, listing: Listing, timing: AllocationTiming, *, recalls: bool) -> bool:
        """Takes a list that lacks the token; true if it shows the release. See :meth:`Leases.recalls`."""
        kubelet, began = listing.kubelet, listing.began
        # a kubelet that lists the container without devices, though an earlier one named the token, has
        # forgotten it; unless it has read its checkpoint, or the container is another one
        has_devices = None if self.holder is None else listing.containers.get(self.holder)
        is_new = self.forgotten_by is not None and self.state is LeaseState.LACKING
        if has_devices is False and self.named_by != kubelet and not (recalls or is_new):
            self.forgotten_by, self.absence = kubelet, None
            return False
        # it has ended: this kubelet has named it, has forgotten it, or lists another container of its name
        ends = kubelet in (self.named_by, self.forgotten_by) or has_devices is not None
        if recalls:
            self.forgotten_by = None
        if not (ends or listing.pods):  # a kubelet that knows no pods yet shows nothing
            return False
        # a second list confirms it; lists of two kubelets are not counted together, except for patience
        since, by, first, _ = self.absence or (began, kubelet, began, ends)
        if by != kubelet:
            first = began
        self.absence = Absence(since, kubelet, first, ends)
        return began - first >= timing.release_gap and (ends or began - since >= timing.unnamed)

    def due(self, last: float, timing: AllocationTiming, *, vanished: bool) -> float:
        """When the next list is wanted because of it, in monotonic seconds."""
        if self.absence is not None and self.absence.ends:
            return self.absence.first + timing.release_gap
        if self.forgotten_by is not None:
            return last + timing.list_forgotten
        usual = timing.list_vanished if vanished else timing.list_held
        if self.named_by is None:
            # soon after Allocate, then less and less often: as long again as has passed since
            last = max(last, self.since)
            return last + min(usual, max(timing.list_allocated, last - self.since))
        return last + usual


@mutable
class Leases:
    """The tokens of one resource that containers hold, as far as that is known.

    ``clock`` gives monotonic seconds.
    """

    clock: Callable[[], float]
    timing: AllocationTiming = ALLOCATION
    held: dict[str, Lease] = field(init=False, default_factory=dict)
    _listed: bool = field(init=False, default=False)
    _due: tuple[object, float | None] | None = field(init=False, default=None)
    """The last question of :meth:`due` since a change, with its answer."""

    def __contains__(self, token: object) -> bool:
        return token in self.held

    def __len__(self) -> int:
        return len(self.held)

    def tokens(self) -> frozenset[str]:
        return frozenset(self.held)

    def holder(self, token: str) -> Holder | None:
        """The container that holds a token; ``None`` if none does, or the kubelet has not named it."""
        lease = self.held.get(token)
        return lease.holder if lease else None

    def state(self, token: str) -> LeaseState | None:
        """The state of a token; ``None`` if no container holds it."""
        lease = self.held.get(token)
        return lease.state if lease else None

    def named_by(self, tokens: Iterable[str]) -> set[Kubelet]:
        """The kubelets that named the holders of these tokens last, since their Allocate."""
        held = self.held.keys() & tokens
        return {by for token in held if (by := self.held[token].named_by) is not None}

    def forgotten(self) -> dict[str, Holder]:
        """The tokens that the kubelet has forgotten, each with the container that holds it, or held it."""
        return {
            token: lease.holder
            for token, lease in self.held.items()
            if lease.forgotten_by is not None and lease.holder is not None
        }

    def allocated(self, tokens: Iterable[str], number: int = 0, terms: Any = None) -> None:
        """A container gets these tokens. The containers that held them before no longer do."""
        self._due = None
        now = self.clock()
        self.held.update((token, Lease(now, number, terms)) for token in tokens)

    def release(self, token: str) -> None:
        self._due = None
        self.held.pop(token, None)

    def recalls(self, listing: Listing, resource: str) -> bool:
        """Whether the kubelet names a holder that an earlier kubelet named: it has read its checkpoint."""
        for token, holder in listing.holders.get(resource, {}).items():
            lease = self.held.get(token)
            if lease is None or lease.named_by in (None, listing.kubelet):
                continue
            if holder is not None and holder == lease.holder:
                return True
        return False

    def apply(self, listing: Listing, resource: str, *, recalls: bool = False) -> bool:
        """Takes what the kubelet lists of ``resource``; true if the holder of a token has changed.

        It is also true when the kubelet has forgotten a token, or knows it again. For ``recalls`` see
        :meth:`recalls`.
        """
        self._listed = True
        self._due = None
        named = listing.holders.get(resource, {})
        changed = False
        # what the list names is held
        for token, holder in named.items():
            lease = self.held.get(token)
            if lease is None:
                lease, changed = Lease(listing.began), True
                self.held[token] = lease
            elif listing.began < lease.since:
                continue  # it is about the time before this Allocate
            changed = changed or lease.holder != holder or lease.forgotten_by is not None
            lease.named(holder, listing.kubelet)
        # what it lacks may have been released, or forgotten
        for token in [token for token in self.held if token not in named]:
            lease = self.held[token]
            if listing.began < lease.since:
                continue
            was_forgotten = lease.forgotten_by is not None
            if lease.is_released(listing, self.timing, recalls=recalls):
                del self.held[token]
                changed = True
            changed = changed or was_forgotten != (lease.forgotten_by is not None)
        return changed

    def due(self, last: float, vanished: Collection[str] = ()) -> float | None:
        """When the next list is wanted, in monotonic seconds; ``None`` while there is nothing to learn.

        ``last`` is when the last list began, ``vanished`` are tokens whose device has gone.
        """
        if not self._listed:
            return last
        asked = last, frozenset(vanished)
        if self._due is None or self._due[0] != asked:
            wishes = (
                lease.due(last, self.timing, vanished=token in vanished) for token, lease in self.held.items()
            )
            self._due = asked, min(wishes, default=None)
        return self._due[1]


class Admissions:
    """Numbers the Allocates of all resources, and knows which pods the kubelet may still be admitting.

    A kubelet admits one pod after another: it asks for one resource of a container after another, then for
    the next container, and does not name the pod (``HandlePodAdditions`` of the kubelet, ``Allocate`` of its
    device manager). Its list has what a pod got so far, so a pod that a list names may be about to get more.

    An admission is certainly over when a later Allocate was for another pod, or none has followed for
    :attr:`.AllocationTiming.admission`. ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], timing: AllocationTiming) -> None:
        self._clock = clock
        self._pause = timing.admission
        self._running = 0
        self._ended = -math.inf
        self._first = 0
        self.number = 0
        """That of the newest Allocate."""

    def begin(self) -> None:
        """An Allocate is in progress, until :meth:`end`."""
        if not self._running and self._clock() - self._ended >= self._pause:
            self._first = self.number + 1
        self.number += 1
        self._running += 1

    def end(self) -> None:
        """An Allocate has been answered, and what it gave is recorded."""
        self._running -= 1
        self._ended = self._clock()

    def is_recent(self, number: int) -> bool:
        """Whether the admission of this Allocate may go on, if it was for the pod of the newest one."""
        return number >= self._first > 0 and self._clock() < self._until()

    def _until(self) -> float:
        return (self._clock() if self._running else self._ended) + self._pause

    def ends(self, allocated: Iterable[tuple[Holder | None, int]]) -> Callable[[Pod], float]:
        """From when a pod gets nothing more, in monotonic seconds.

        ``allocated`` has the holder of each token, ``None`` while it is not known, and the number of its
        Allocate; 0 if an earlier run of devhost answered it.
        """
        last: dict[Pod, int] = {}
        for holder, number in allocated:
            if holder is not None:
                last[pod_of(holder)] = max(number, last.get(pod_of(holder), 0))
        newest = max(last.values(), default=0)

        def end(pod: Pod) -> float:
            own = last.get(pod, 0)
            if own < newest or own < self._first:
                return -math.inf
            return self._until()

        return end
