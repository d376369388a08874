"""Everything that is true of a host at one moment: what people and programs see is a function of it.

It refers to values that never change, so it takes no longer for many devices than for few. Only what few of
its readers need is worked out when they ask for it: the devices of verdicts, and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from devhost.backend.frozen import frozen
from devhost.discovery.verdict_follower import VerdictsNow
from devhost.planning.claims import Key, Reason
from devhost.runtime.tasks import Failing

if TYPE_CHECKING:
    from devhost.allocation.allocations import Holding
    from devhost.allocation.claims import Claimed
    from devhost.allocation.given import Difference
    from devhost.allocation.inventory import Snapshot
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
    """The socket on which the kubelet reports who holds what, and whether it answers.

    ``unrecorded`` is the file that should have what containers were given, and why it cannot be written.
    """

    socket: Path
    condition: KubeletCondition
    unrecorded: tuple[Path, str] | None = None


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
    sides. ``event_sources`` is why files and uevents are not followed. ``failing`` are tasks,
    ``dead_links`` those that entries name, by the index of the entry.
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
