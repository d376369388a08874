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

Where no list is ever heard nothing is ever released: an Allocate counts for as long as devhost runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .model import Device

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

Key = tuple[str, str]
"""A device across backends: the backend's name and the device's id."""

Kubelet = tuple[int, int, int]
"""One kubelet from its start to its end: device, inode and change time of its podresources socket."""


UNNAMED = "a container that the kubelet has not named yet"
"""Who holds what nobody is known to hold, in words."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A container and the pod it belongs to."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


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
    """

    kubelet: Kubelet
    began: float
    pods: int
    holders: Mapping[str, Mapping[str, Holder | None]]


@dataclass(slots=True)
class _Hold:
    """One token that is held. ``since`` is its last Allocate, or the list that first named it."""

    since: float
    holder: Holder | None = None
    named_by: Kubelet | None = None
    lacked: tuple[Kubelet, float] | None = None
    """The kubelet whose lists lack it, and when the first of them began."""


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

    def allocated(self, tokens: Iterable[str]) -> None:
        """A container gets these tokens. Whoever had them before has them no more."""
        now = self.clock()
        self._holds.update((token, _Hold(now)) for token in tokens)

    def heard(self, listing: Listing, resource: str) -> bool:
        """Takes what the kubelet says of ``resource``; true when somebody else holds a token than before."""
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
            changed = changed or hold.holder != holder
            hold.holder, hold.named_by, hold.lacked = holder, listing.kubelet, None
        for token in [token for token in self._holds if token not in named]:
            if self._released(self._holds[token], listing):
                del self._holds[token]
                changed = True
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
        if hold.lacked is not None and hold.named_by == hold.lacked[0]:
            return hold.lacked[1] + APART
        usual = MISSED if vanished else RELAXED
        if hold.named_by is None:
            # As long again as has passed since Allocate: soon at first, then ever more slowly.
            last = max(last, hold.since)
            return last + min(usual, max(EAGER, last - hold.since))
        return last + usual

    def _released(self, hold: _Hold, listing: Listing) -> bool:
        """Whether this list, which does not name the token, is the one to believe."""
        known = hold.named_by == listing.kubelet
        if listing.began < hold.since or not (known or listing.pods):
            return False
        if hold.lacked is None or hold.lacked[0] != listing.kubelet:
            hold.lacked = (listing.kubelet, listing.began)
            return False
        return listing.began - hold.lacked[1] >= (APART if known else PATIENCE)
