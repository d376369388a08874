"""Everything that is true of a host at one moment: what people and programs see is a function of it.

It refers to values that never change, so it takes no longer for many devices than for few. Only what few of
its readers need is worked out when they ask for it: the devices of verdicts, and tokens. What differs between
two moments is in the :class:`Changes` of each resource.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from devhost.allocation.inventory import Member, Snapshot, present
from devhost.backend.frozen import frozen
from devhost.backend.model import NO_REASON
from devhost.discovery.verdict_follower import VerdictsNow
from devhost.planning.claims import Key, Reason
from devhost.planning.plan import differences
from devhost.runtime.tasks import Failing
from devhost.telemetry.metrics import ProblemKind

if TYPE_CHECKING:
    from devhost.allocation.allocations import Holding
    from devhost.allocation.claims import Claimed
    from devhost.allocation.given import Difference
    from devhost.backend import MissingDriver
    from devhost.backend.files import Fingerprint
    from devhost.backend.model import Holder
    from devhost.config.loader import Copied
    from devhost.discovery.catalog import InstalledObserver
    from devhost.discovery.catalog import Refusal as RefusedPlugin
    from devhost.discovery.manager import ProvisioningCondition
    from devhost.discovery.observers import ObserverCondition
    from devhost.discovery.scanner import BackendNow
    from devhost.dra.now import DraNow
    from devhost.host.node_labels import LabelFile
    from devhost.host.reload import LastReload
    from devhost.kubelet.podresources_poller import KubeletCondition
    from devhost.kubelet.registration import RegistrationCondition
    from devhost.planning.claims import Held
    from devhost.planning.plan import Offer, Plan, Refusal
    from devhost.planning.settings import Identity, ResourceSettings, Settings
    from devhost.planning.sides import Move

    from .entries import EntryOutcomes
    from .recent_removals import Removals

GONE = "the device is gone"
"""Why a device that its backend does not find is no longer listed."""

NOT_GIVEN = Reason("the configuration no longer gives it to this resource")
"""Why a device that exists is no longer listed."""

NONE: Mapping[Any, Any] = MappingProxyType({})

Fault = tuple[ProblemKind, str, Failing]
"""The kind of a problem, its subject, and the reason."""

Token = tuple[str, str]
"""A resource and one of its tokens."""

Reasons = Mapping[str, Sequence[str]]
"""The reasons that were logged for each device that is unhealthy, if there were several."""


@frozen
class ConfigurationNow:
    """The file in force, with its fingerprint, and the copy in use if the file was refused at the start."""

    file: Path
    sha256: str = ""
    read_from: Fingerprint = None
    copied: Copied | None = None


@frozen
class Lacking:
    """An entry without devices, or with an unexpected number, with the reasons that were logged.

    ``since`` is wall-clock seconds.
    """

    entry: ResourceSettings
    since: float
    logged: Sequence[str] = ()


@frozen
class EntriesNow:
    """What the file asks for and the node lacks, see :mod:`.shortages`.

    ``takers`` are entries, with the index of an earlier one that takes devices from each, and how many.
    ``look_at`` is when reasons are to be looked at again, in monotonic seconds.
    """

    outcomes: EntryOutcomes
    missing_drivers: Sequence[tuple[str, MissingDriver]] = ()
    refusals: Sequence[Refusal] = ()
    lacking: Mapping[Identity, Lacking] = field(default_factory=dict)
    takers: Mapping[tuple[Identity, int], tuple[ResourceSettings, int]] = field(default_factory=dict)
    look_at: float | None = None

    @property
    def since(self) -> Mapping[int, float]:
        """When entries lost their devices, by their index, in wall-clock seconds."""
        return {one.entry.index: one.since for one in self.lacking.values()}


@frozen
class ResourceNow:
    """One resource in service. ``number`` is another one if it has left in between.

    ``failure`` is why it is not served as it should be, ``missing`` why no list stream is open. ``refused``
    is why the plan does not give it devices, by their ids.
    """

    name: str
    entry: ResourceSettings
    snapshot: Snapshot
    condition: RegistrationCondition
    streams: int = 0
    socket: str | None = None
    failure: str = ""
    missing: str = ""
    offers: Sequence[Offer] = ()
    refused: Mapping[str, Reason] = field(default_factory=dict)
    number: int = 0


@frozen
class KubeletNow:
    """The kubelet's directory, its socket if there is one, and why it is not used."""

    directory: Path
    identity: object = None
    failure: Failing | None = None


@frozen
class PodsNow:
    """The socket on which the kubelet reports who holds what, and whether it answers."""

    socket: Path
    condition: KubeletCondition


@frozen
class ObserverNow:
    """An observer, and how many of its events have not been delivered."""

    plugin: InstalledObserver
    condition: ObserverCondition
    waiting: int = 0


@frozen
class Lost:
    """What containers hold that is gone, by resource and device, and what the kubelet has forgotten."""

    gone: Sequence[tuple[str, str]] = ()
    forgotten: Mapping[tuple[str, str], Holder] = field(default_factory=dict)


@frozen
class Memory:
    """What is known of earlier moments: of each resource its removals and the reasons that were logged."""

    removals: Mapping[str, Removals] = field(default_factory=dict)
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    lost: Lost = Lost()
    shortages: EntriesNow | None = None


@frozen(kw_only=True)
class Now:
    """A host at one moment: ``at`` is wall-clock seconds, ``clock`` monotonic ones.

    Everything with names is by name. ``plans`` is how many plans were made. ``tokens`` are those of the
    device plugin that containers have, each with its devices, ``claimed`` is what claims hold, if there are
    observers. ``holdings`` are the resources of which containers have something, ``held`` the devices of
    these and of claims. ``dra`` are the DRA drivers, if there are any, ``moves`` the devices that change
    sides. ``faults`` is what else fails: the kind of problem, the subject, and why.
    ``event_sources`` is why files and uevents are not followed. ``failing`` are tasks.
    ``dead_links`` are links that entries name and that lead to nothing, by the index of the entry.
    """

    at: float = 0.0
    clock: float = 0.0
    started: float
    root: Path
    planned: bool
    generation: int
    configuration: ConfigurationNow
    settings: Settings
    last_reload: LastReload
    last_good: Failing | None = None
    rollout: Failing | None = None
    plan: Plan
    plans: int = 0
    dead_links: Mapping[int, str] = field(default_factory=dict)
    shortages: EntriesNow
    backends: Mapping[str, BackendNow] = field(default_factory=dict)
    provisioning: Mapping[str, ProvisioningCondition] = field(default_factory=dict)
    released: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, LabelFile | None] = field(default_factory=dict)
    refused_plugins: Sequence[RefusedPlugin] = ()
    resources: Mapping[str, ResourceNow] = field(default_factory=dict)
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    held: Sequence[Held] = ()
    tokens: Callable[[], Mapping[Token, Sequence[Held]]] = dict
    claimed: Sequence[Claimed] = ()
    differences: Mapping[tuple[str, Key], Difference] = field(default_factory=dict)
    dra: DraNow | None = None
    moves: Sequence[Move] = ()
    kubelet: KubeletNow
    self_check: Failing | None = None
    pod_resources: PodsNow
    faults: Sequence[Fault] = ()
    node: tuple[str, Failing] | None = None
    event_sources: Mapping[str, str] = field(default_factory=dict)
    verdicts: VerdictsNow = VerdictsNow()
    observers: Sequence[ObserverNow] = ()
    failing: Mapping[str, Failing] = field(default_factory=dict)
    memory: Memory = Memory()


def failing(reason: str, since: float) -> Failing | None:
    """What fails, if there is a reason."""
    return Failing(reason, since) if reason else None


def why_not_listed(
    resource: str,
    key: Key,
    there: Container[str],
    differences: Mapping[tuple[str, Key], Difference],
    refused: Mapping[str, Reason],
) -> Reason:
    """Why a device is not in the list of a resource; ``there`` are the devices of its backend."""
    if key[1] in there:
        return refused.get(key[1]) or NOT_GIVEN
    difference = differences.get((resource, key))
    return Reason(difference.reason, difference.held_by) if difference else Reason(GONE)


REMOVED = Reason("the resource has left the configuration")
"""Why all devices of a resource leave its list."""


@frozen
class Changes:
    """The devices of a resource that have changed, by id, each with its reason, if any.

    Devices that appear unhealthy are in ``unhealthy`` too. ``other_reason`` has those that stay unhealthy,
    for another reason than before. ``before`` and ``after`` are the devices that may have changed, as they
    were and as they are. Where the ``whole`` list begins or ends, all of them appear or leave.
    """

    resource: str
    backend: str
    before: Mapping[str, Member]
    after: Mapping[str, Member]
    left: Mapping[str, Reason]
    appeared: Sequence[str]
    unhealthy: Mapping[str, str]
    other_reason: Mapping[str, str]
    healthy_again: Sequence[str]
    whole: bool = False


@frozen
class Step:
    """From what was shown last to what is true now, and what differs between the lists of the resources."""

    before: Now
    now: Now
    lists: Sequence[Changes]


def is_same(before: Now, now: Now, name: str) -> bool:
    """Whether a resource has been in service since, so that its list has only changed."""
    was, one = before.resources.get(name), now.resources.get(name)
    return was is not None and one is not None and was.number == one.number


def changes(before: Now, now: Now) -> Iterator[Changes]:
    """The lists that have changed, those that have ended first."""
    for name, was in before.resources.items():
        if not is_same(before, now, name) and (devices := was.snapshot.present()):
            yield _changes(was, devices, {}, lambda device: REMOVED, whole=True)
    for name, one in now.resources.items():
        last = before.resources[name].snapshot if is_same(before, now, name) else Snapshot()
        if one.snapshot is last or not one.snapshot.revision:
            continue
        if not last.revision:
            yield _changes(one, {}, one.snapshot.present(), lambda device: REMOVED, whole=True)
        elif found := _between(one, last, now):
            yield found


def _between(one: ResourceNow, last: Snapshot, now: Now) -> Changes | None:
    new = differences(last.entries, one.snapshot.entries)
    was = present(entry for name in new if (entry := last.entries.get(name)) is not None)
    became = present(filter(None, new.values()))
    # a token may come or go while its device stays, with fewer replicas or another way to share it
    if not became.keys() <= was.keys():
        earlier = last.present()
        was |= {name: earlier[name] for name in became if name in earlier}
    if not was.keys() <= became.keys():
        later = one.snapshot.present()
        became |= {name: later[name] for name in was if name in later}
    backend = now.backends.get(one.entry.backend)
    devices = backend.devices if backend else {}

    def why_gone(device: str) -> Reason:
        key = one.entry.backend, device
        return why_not_listed(one.name, key, devices, now.differences, one.refused)

    return _changes(one, was, became, why_gone) if was or became else None


def _changes(
    resource: ResourceNow,
    before: Mapping[str, Member],
    after: Mapping[str, Member],
    why_gone: Callable[[str], Reason],
    *,
    whole: bool = False,
) -> Changes:
    left = {name: why_gone(name) for name in before if name not in after}
    appeared: list[str] = []
    unhealthy: dict[str, str] = {}
    other_reason: dict[str, str] = {}
    healthy_again: list[str] = []
    for name, member in after.items():
        was, health = before.get(name), member.health
        if was is None:
            appeared.append(name)
        if health.healthy:
            if was is not None and not was.health.healthy:
                healthy_again.append(name)
        elif was is None or was.health.healthy:
            unhealthy[name] = health.reason or NO_REASON
        elif was.health.reason != health.reason:
            other_reason[name] = health.reason or NO_REASON
    return Changes(
        resource.name,
        resource.entry.backend,
        before,
        after,
        left,
        appeared,
        unhealthy,
        other_reason,
        healthy_again,
        whole,
    )
