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
  :attr:`.Timing.release_gap` seconds apart and without one in between that names it. Such a kubelet knows the
  pod, so only the end of the pod removes the token from the list; the second list guards against a wrong
  answer;
* a token that it has not named (the pod was shorter-lived than the interval between lists, or one of the
  reasons above) is released when the lists of one kubelet have lacked it for :attr:`.Timing.unnamed` seconds.
  A list without any pod is no evidence: a kubelet that knows no pods yet answers with one;
* however often the kubelet restarts, a token that no list names counts for :attr:`.Timing.unnamed` seconds in
  all.

A container's devices never change while it runs. So a container that an earlier kubelet listed with a
token, and that the present one lists without any device, still holds the token: this kubelet has lost its
checkpoint. Such a token is *forgotten*. It is released when the lists of the kubelet that forgot it show that
the container has ended:

* two lists, :attr:`.Timing.release_gap` seconds apart, of which the first does not have the container (a
  container of that name in the second list is new: the pod of a StatefulSet that was created again);
* or the container has devices: a kubelet that lost its checkpoint gives none to a container that already runs
  (kubelet 1.28 and later), so this is a new container, too.

A kubelet that names what an earlier one named has read its checkpoint, which is read whole or not at all. It
has forgotten nothing: a container that it lists without devices is a new one, or has ended.

Without lists nothing is ever released: an Allocate counts as long as devhost runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from devhost.backend.model import Holder

from .listing import Kubelet, Listing
from .timing import NODE, Timing


@dataclass(slots=True)
class _Lease:
    """One token that is held. ``since`` is its last Allocate, or the list that first named it."""

    since: float
    holder: Holder | None = None
    named_by: Kubelet | None = None
    forgotten_by: Kubelet | None = None
    """The kubelet that lists the container without any device, though an earlier one named this token."""
    missing_since: float | None = None
    """When the first list began that lacks it, of any kubelet."""
    missing_from: tuple[Kubelet, float] | None = None
    """The kubelet whose lists lack it now, and when the first of them began."""
    ending: bool = False
    """Whether the newest list shows that its container has ended, so that another such list releases it."""
    number: int = 0
    """The number of its Allocate, see :class:`.Admissions`; 0 if only a list has named it."""

    def named(self, holder: Holder | None, kubelet: Kubelet) -> None:
        """A list names it."""
        self.holder, self.named_by = holder, kubelet
        self.forgotten_by = self.missing_since = self.missing_from = None
        self.ending = False

    def forgotten(self, kubelet: Kubelet) -> None:
        """A list of this kubelet has the container, without the token."""
        self.forgotten_by = kubelet
        self.missing_since = self.missing_from = None
        self.ending = False

    def due(self, last: float, timing: Timing, *, vanished: bool) -> float:
        """When the next list is wanted because of it, in monotonic seconds."""
        if self.ending and self.missing_from is not None:
            return self.missing_from[1] + timing.release_gap
        if self.forgotten_by is not None:
            return last + timing.list_forgotten
        usual = timing.list_vanished if vanished else timing.list_held
        if self.named_by is None:
            # soon after Allocate, then less and less often: as long again as has passed since
            last = max(last, self.since)
            return last + min(usual, max(timing.list_allocated, last - self.since))
        return last + usual

    def is_released(self, listing: Listing, timing: Timing, *, recalls: bool) -> bool:
        """Takes a list that does not name the token; true if it shows that the token is released."""
        if listing.began < self.since:
            return False
        kubelet, began = listing.kubelet, listing.began
        has_devices = None if self.holder is None else listing.containers.get(self.holder)
        named = self.named_by == kubelet
        is_new = self.forgotten_by is not None and self.ending  # a list has lacked the container since
        if has_devices is False and not (named or recalls or is_new):
            self.forgotten(kubelet)
            return False
        # This kubelet has named it, has forgotten it, or shows that the container is another one.
        ends = named or self.forgotten_by == kubelet or has_devices is not None
        if recalls:
            self.forgotten_by = None
        if not (ends or listing.pods):
            return False
        if self.missing_since is None:
            self.missing_since = began
        self.ending = ends
        if self.missing_from is None or self.missing_from[0] != kubelet:
            self.missing_from = (kubelet, began)
            return False
        if began - self.missing_from[1] < timing.release_gap:
            return False
        return ends or began - self.missing_since >= timing.unnamed


@dataclass(slots=True)
class Leases:
    """The tokens of one resource that containers hold, as far as that is known.

    Args:
        clock: monotonic seconds.
    """

    clock: Callable[[], float]
    timing: Timing = NODE
    _leases: dict[str, _Lease] = field(init=False, default_factory=dict)
    _listed: bool = field(init=False, default=False)
    _due: tuple[object, float | None] | None = field(init=False, default=None)
    """The last question of :meth:`due` since a change, with its answer."""

    def __contains__(self, token: object) -> bool:
        return token in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def tokens(self) -> frozenset[str]:
        """Every token that is held."""
        return frozenset(self._leases)

    def holder(self, token: str) -> Holder | None:
        """The container that holds a token; ``None`` if none does, or it is not known."""
        lease = self._leases.get(token)
        return lease.holder if lease else None

    def numbered(self) -> Iterator[tuple[Holder | None, int]]:
        """The holder of each token, and the number of its Allocate."""
        return ((one.holder, one.number) for one in self._leases.values())

    def numbers(self) -> Iterator[tuple[str, int]]:
        """Each token, and the number of its Allocate."""
        return ((token, one.number) for token, one in self._leases.items())

    def named_by(self, tokens: Iterable[str]) -> set[Kubelet]:
        """The kubelets that named the holders of these tokens last, since their Allocate."""
        held = self._leases.keys() & tokens
        return {by for token in held if (by := self._leases[token].named_by) is not None}

    def holders(self) -> Iterator[tuple[str, Holder | None]]:
        """Every token that is held, with :meth:`holder`."""
        return ((token, lease.holder) for token, lease in self._leases.items())

    def forgotten(self) -> dict[str, Holder]:
        """The tokens that the kubelet has forgotten, each with the container that holds it."""
        return {
            token: lease.holder
            for token, lease in self._leases.items()
            if lease.forgotten_by is not None and lease.holder is not None
        }

    def is_forgotten(self, token: str) -> bool:
        """Whether the kubelet has forgotten this token, which a container holds."""
        lease = self._leases.get(token)
        return lease is not None and lease.forgotten_by is not None and lease.holder is not None

    def has_ended(self, token: str) -> bool:
        """Whether the newest list shows that the container that held the token has ended."""
        lease = self._leases.get(token)
        return lease is not None and lease.ending

    def allocated(self, tokens: Iterable[str], number: int = 0) -> None:
        """A container gets these tokens. The containers that held them before no longer do."""
        self._due = None
        now = self.clock()
        self._leases.update((token, _Lease(now, number=number)) for token in tokens)

    def release(self, token: str) -> None:
        """The token is free."""
        self._due = None
        self._leases.pop(token, None)

    def recalls(self, listing: Listing, resource: str) -> bool:
        """Whether the kubelet names a holder that an earlier kubelet named: it has read its checkpoint."""
        for token, holder in listing.holders.get(resource, {}).items():
            lease = self._leases.get(token)
            if lease is None or lease.named_by in (None, listing.kubelet):
                continue
            if holder is not None and holder == lease.holder:
                return True
        return False

    def apply(self, listing: Listing, resource: str, *, recalls: bool = False) -> bool:
        """Takes what the kubelet lists of ``resource``; true if the holder of a token has changed.

        It is also true when the kubelet has forgotten a token, or knows it again.

        Args:
            recalls: whether this kubelet has shown that it read its checkpoint, see :meth:`recalls`.
        """
        self._listed = True
        self._due = None
        named = listing.holders.get(resource, {})
        changed = False
        for token, holder in named.items():
            lease = self._leases.get(token)
            if lease is None:
                lease, changed = _Lease(listing.began), True
                self._leases[token] = lease
            elif listing.began < lease.since:
                continue  # it is about the time before this Allocate
            changed = changed or lease.holder != holder or lease.forgotten_by is not None
            lease.named(holder, listing.kubelet)
        for token in [token for token in self._leases if token not in named]:
            lease = self._leases[token]
            was_forgotten = lease.forgotten_by is not None
            if lease.is_released(listing, self.timing, recalls=recalls):
                del self._leases[token]
                changed = True
            changed = changed or was_forgotten != (lease.forgotten_by is not None)
        return changed

    def due(self, last: float, vanished: Collection[str] = ()) -> float | None:
        """When the next list is wanted, in monotonic seconds; ``None`` while there is nothing to learn.

        Args:
            last: when the last list began.
            vanished: tokens whose device has gone.
        """
        if not self._listed:
            return last
        asked = last, frozenset(vanished)
        if self._due is None or self._due[0] != asked:
            wishes = (
                lease.due(last, self.timing, vanished=token in vanished)
                for token, lease in self._leases.items()
            )
            self._due = asked, min(wishes, default=None)
        return self._due[1]
