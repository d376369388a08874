"""Which tokens of a resource containers hold, and when one counts as released. Pure.

Two witnesses tell of it. Allocate says that a container gets tokens, and nobody ever says that it gave
them back. The kubelet's list of pods (podresources) names the tokens that containers hold, and what it
does not name may be free. "May": these are the ways in which a list can lack a token that is held,

* the list began before the kubelet had written down what Allocate gave;
* the kubelet has just started: it knows its pods one after another, as they come from the API server, and
  none of them while that does not answer, though their containers run on;
* the container is one for initialisation: the kubelet lists only those that keep running;
* the answer is wrong or cut short.

Dropping a held token from the device list (its CDI name goes with it) is worse than keeping a free one, so a
release is believed late:

* a token that this kubelet has named since its last Allocate is released when two lists, at least
  :data:`APART` seconds from one another and with none between that names it, lack it. Such a kubelet knows
  the pod, so only its end takes the token from the list; the second list is for answers that are wrong;
* a token that it has not named (the pod lived shorter than it takes to ask, or one of the reasons above)
  is released when the lists of one kubelet have lacked it for :data:`PATIENCE` seconds. A list without
  any pod says nothing of such a token: that is how a kubelet answers that knows no pods yet.

* however often the kubelet restarts, a token that no list names counts for :data:`PATIENCE` seconds in all.

A container's devices never change while it runs. So a container that an earlier kubelet listed with a
token, and that the present one lists without any device, still holds the token: this kubelet has lost its
checkpoint. Such a token is *forgotten*. It is released when the lists of the kubelet that forgot it show that
the container has ended:

* two lists, :data:`APART` seconds apart, of which the first does not have the container (a container of that
  name that the second one has is new: the pod of a StatefulSet that was created again);
* or the container has devices: a kubelet that lost its checkpoint gives none to a container that runs already
  (kubelet 1.28 and later), so this is a new container, too.

A kubelet that names what an earlier one named has read its checkpoint, which is read whole or not at all. It
has forgotten nothing, and a container that it lists without devices is a new one, or has ended.

Where no list is ever heard nothing is ever released: an Allocate counts for as long as devhost runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from devhost.backend.model import Device, Holder

APART = 2.0
"""Least seconds between the two lists that show a release."""

PATIENCE = 300.0
"""Seconds for which lists must lack a token that the kubelet never named.

As long as the kubelet itself waits for a plugin that has gone; an initialising container may take longer,
and then its device is taken for free although it is not."""

EAGER = 0.5
"""Seconds after Allocate until the list is wanted that tells who got the devices."""

RELAXED = 15.0
"""Seconds between lists while all that is held is named."""

MISSED = 5.0
"""Seconds between lists while a vanished token is kept only because a container holds it."""

WATCHED = 2.0
"""Seconds between lists while a token is forgotten: a list has to show that its container has ended before
another container of that name is there."""

Key = tuple[str, str]
"""A device across backends: the backend's name and the device's id."""

Kubelet = tuple[int, ...]
"""One kubelet from its start to its end: device, inode and change time of its podresources socket, and how
often another kubelet.sock was seen until then."""


UNNAMED = "a container that the kubelet has not named yet"
"""Who holds what nobody is known to hold, in words."""


class Held(NamedTuple):
    """One device that a container has, and the token of the resource by which it has it.

    ``exclusive`` is whether the resource shares its devices with no other, ``holder`` is ``None`` while the
    kubelet has not said who has it. One token may stand for several devices, and several for one.
    """

    resource: str
    token: str
    backend: str
    device: Device
    exclusive: bool
    holder: Holder | None

    @property
    def key(self) -> Key:
        """The device across backends."""
        return self.backend, self.device.id

    @property
    def by(self) -> str:
        """Who has it, in words."""
        return str(self.holder or UNNAMED)


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete answer of a kubelet.

    ``began`` is the monotonic time at which it was asked, ``pods`` how many pods it named, with devices or
    without, ``holders`` who holds what: by resource, then by token; ``None`` for a container without name.
    ``containers`` are all containers that it names, and whether each has devices.
    """

    kubelet: Kubelet
    began: float
    pods: int
    holders: Mapping[str, Mapping[str, Holder | None]]
    containers: Mapping[Holder, bool] = field(default_factory=dict)


@dataclass(slots=True)
class _Hold:
    """One token that is held. ``since`` is its last Allocate, or the list that first named it."""

    since: float
    holder: Holder | None = None
    named_by: Kubelet | None = None
    forgotten_by: Kubelet | None = None
    """The kubelet that lists the container without any device, though an earlier one named this token."""
    lacking_since: float | None = None
    """When the first list began that lacks it, of whichever kubelet."""
    lacked_by: tuple[Kubelet, float] | None = None
    """The kubelet whose lists lack it now, and when the first of them began."""
    ending: bool = False
    """Whether the newest list shows that its container has ended, so that another such list releases it."""

    def named(self, holder: Holder | None, kubelet: Kubelet) -> None:
        """A list names it."""
        self.holder, self.named_by = holder, kubelet
        self.forgotten_by = self.lacking_since = self.lacked_by = None
        self.ending = False

    def forgotten(self, kubelet: Kubelet) -> None:
        """A list of this kubelet has the container, without the token."""
        self.forgotten_by = kubelet
        self.lacking_since = self.lacked_by = None
        self.ending = False


@dataclass(slots=True)
class Holding:
    """The tokens of one resource that containers hold, as far as that is known.

    Args:
        clock: monotonic seconds.
    """

    clock: Callable[[], float]
    _holds: dict[str, _Hold] = field(init=False, default_factory=dict)
    _heard: bool = field(init=False, default=False)

    def __contains__(self, token: object) -> bool:
        return token in self._holds

    def tokens(self) -> frozenset[str]:
        """Every token that is held."""
        return frozenset(self._holds)

    def holder(self, token: str) -> Holder | None:
        """Who holds a token; ``None`` if nobody does, or it is not known who."""
        hold = self._holds.get(token)
        return hold.holder if hold else None

    def named_by(self, token: str) -> Kubelet | None:
        """The kubelet that named the holder of a token last; ``None`` if none has since its Allocate."""
        hold = self._holds.get(token)
        return hold.named_by if hold else None

    def forgotten(self) -> dict[str, Holder]:
        """The tokens that the kubelet has forgotten, each with the container that holds it."""
        return {
            token: hold.holder
            for token, hold in self._holds.items()
            if hold.forgotten_by is not None and hold.holder is not None
        }

    def has_ended(self, token: str) -> bool:
        """Whether the newest list shows that the container that held the token has ended."""
        hold = self._holds.get(token)
        return hold is not None and hold.ending

    def allocated(self, tokens: Iterable[str]) -> None:
        """A container gets these tokens. Whoever had them before has them no more."""
        now = self.clock()
        self._holds.update((token, _Hold(now)) for token in tokens)

    def release(self, token: str) -> None:
        """The token is free."""
        self._holds.pop(token, None)

    def recalls(self, listing: Listing, resource: str) -> bool:
        """Whether the kubelet names a holder that an earlier kubelet named: it has read its checkpoint."""
        for token, holder in listing.holders.get(resource, {}).items():
            hold = self._holds.get(token)
            if hold is None or hold.named_by in (None, listing.kubelet):
                continue
            if holder is not None and holder == hold.holder and listing.began >= hold.since:
                return True
        return False

    def heard(self, listing: Listing, resource: str, *, recalls: bool = False) -> bool:
        """Takes what the kubelet says of ``resource``; true when the holder of a token has changed.

        It is also true when the kubelet has forgotten a token, or knows it again.

        Args:
            recalls: whether this kubelet has shown that it read its checkpoint, see :meth:`recalls`.
        """
        self._heard = True
        named = listing.holders.get(resource, {})
        changed = False
        for token, holder in named.items():
            hold = self._holds.get(token)
            if hold is None:
                hold, changed = _Hold(listing.began), True
                self._holds[token] = hold
            elif listing.began < hold.since:
                continue  # it tells of the time before this Allocate
            changed = changed or hold.holder != holder or hold.forgotten_by is not None
            hold.named(holder, listing.kubelet)
        for token in [token for token in self._holds if token not in named]:
            hold = self._holds[token]
            was_forgotten = hold.forgotten_by is not None
            if self._released(hold, listing, recalls):
                del self._holds[token]
                changed = True
            changed = changed or was_forgotten != (hold.forgotten_by is not None)
        return changed

    def due(self, last: float, vanished: Collection[str] = ()) -> float | None:
        """When the next list is wanted, in monotonic seconds; ``None`` while there is nothing to learn.

        Args:
            last: when the last list began.
            vanished: tokens whose device has gone.
        """
        if not self._heard:
            return last
        return min(
            (self._wanted(hold, last, token in vanished) for token, hold in self._holds.items()), default=None
        )

    def _wanted(self, hold: _Hold, last: float, vanished: bool) -> float:
        if hold.ending and hold.lacked_by is not None:
            return hold.lacked_by[1] + APART
        if hold.forgotten_by is not None:
            return last + WATCHED
        usual = MISSED if vanished else RELAXED
        if hold.named_by is None:
            # As long again as has passed since Allocate: soon at first, then ever more slowly.
            last = max(last, hold.since)
            return last + min(usual, max(EAGER, last - hold.since))
        return last + usual

    def _released(self, hold: _Hold, listing: Listing, recalls: bool) -> bool:
        """Whether this list, which does not name the token, is the one to believe."""
        if listing.began < hold.since:
            return False
        kubelet, began = listing.kubelet, listing.began
        equipped = None if hold.holder is None else listing.containers.get(hold.holder)
        named = hold.named_by == kubelet
        is_new = hold.forgotten_by is not None and hold.ending  # a list has lacked the container since
        if equipped is False and not (named or recalls or is_new):
            hold.forgotten(kubelet)
            return False
        # This kubelet has named it, has forgotten it, or shows that the container is another one.
        ends = named or hold.forgotten_by == kubelet or equipped is not None
        if recalls:
            hold.forgotten_by = None
        if not (ends or listing.pods):
            return False
        if hold.lacking_since is None:
            hold.lacking_since = began
        hold.ending = ends
        if hold.lacked_by is None or hold.lacked_by[0] != kubelet:
            hold.lacked_by = (kubelet, began)
            return False
        if began - hold.lacked_by[1] < APART:
            return False
        return ends or began - hold.lacking_since >= PATIENCE
