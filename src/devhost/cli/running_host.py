"""Asks the devhost on this node for the health of devices and who holds them, and reads the verdicts here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from devhost.allocation.allocations import Listing
from devhost.backend import trusted
from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError, few
from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, AnyHolder, Device, Health, Holder, unhealthy
from devhost.cli.scan_once import ScanResult, scan_once
from devhost.config.loader import Loaded
from devhost.config.root_directory import OVERRIDE, STATE_DIRECTORY, check_root, state_directory, tree_of
from devhost.discovery import verdicts as files
from devhost.discovery.health import worst
from devhost.discovery.scanner import Scanner
from devhost.discovery.verdict_follower import DIRECTORY
from devhost.planning.plan import RefusalKind
from devhost.runtime.log import printable
from devhost.telemetry import ask
from devhost.telemetry.document import (
    DeviceStatus,
    DraClaimStatus,
    DraDeviceStatus,
    HolderStatus,
    MemberStatus,
    MovingStatus,
    StatusDocument,
    driver_of,
    held_by,
    holder_status,
)
from devhost.telemetry.tables import UNKNOWN_POD, capacity, container, counters


class ReportedHealth(NamedTuple):
    """The health of a device in one resource. ``remark`` names unhealthy shares of a healthy device."""

    health: Health
    remark: str = ""


class Published(NamedTuple):
    """A device that a running devhost offers through DRA: its names at the API server, and its claims.

    ``slice`` is empty until the device is published. ``claims`` are as text, ``holders`` as in the status.
    ``in_use`` is what claims use of a device that they share by amount, as text. ``dropped`` are the fields
    that the API server drops, ``left_out`` the attributes that are not in the slice.
    """

    resource: str
    node: str
    pool: str
    name: str
    slice: str
    claims: tuple[str, ...]
    holders: tuple[HolderStatus, ...]
    in_use: str = ""
    dropped: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()


@frozen
class Running:
    """What a running devhost reports; nothing, if none answers."""

    listing: Listing | None = None
    """What containers hold, as a kubelet would list it."""
    known: bool = True
    """Whether it knows which containers hold devices."""
    digest: str = ""
    """The digest of its configuration, see ``HostStatus.config_digest``."""
    health: Mapping[tuple[str, str, str], ReportedHealth] = field(default_factory=dict)
    """The health of each device in each resource, by resource, backend and the device's id."""
    refused: Mapping[tuple[str, str, str], ReportedHealth] = field(default_factory=dict)
    """The same for devices that no resource gets because of what containers hold."""
    published: Mapping[tuple[str, str], Sequence[Published]] = field(default_factory=dict)
    """The devices that it offers through DRA, by backend and the device's id."""
    moving: Mapping[tuple[str, str], MovingStatus] = field(default_factory=dict)
    """The devices that change sides, by backend and the device's id."""


@frozen
class View:
    """A scan, and what a running devhost reports. ``no_answer`` is why none does; empty if one does.

    ``refused`` is true if one runs here, but does not answer.
    """

    found: ScanResult
    running: Running
    no_answer: str
    same_config: bool
    refused: bool = False

    def warning(self) -> str:
        """What the plan does not consider because no devhost answers."""
        return f"What containers hold is not taken into account: {self.no_answer}."

    def health(self, resource: str, backend: str, device: Device) -> ReportedHealth | None:
        """What the running devhost reports for a device in a resource; ``None`` if that is nothing."""
        place = resource, backend, device.id
        return self.running.health.get(place) or self.running.refused.get(place)

    def everywhere(self, backend: str, device: Device) -> dict[str, ReportedHealth]:
        """The same for every resource in which the running devhost serves the device, or would."""
        offered = self.found.plan.resources
        refused = {
            place: reported
            for place, reported in self.running.refused.items()
            if place[0] in offered and any(offer.device.id == place[2] for offer in offered[place[0]].offers)
        }
        found = {**refused, **self.running.health}
        return {
            resource: reported
            for (resource, of, one), reported in sorted(found.items())
            if (of, one) == (backend, device.id)
        }

    def published(self, backend: str, device: Device) -> Sequence[Published]:
        """Where the running devhost offers a device through DRA."""
        return self.running.published.get((backend, device.id), ())

    def moving(self, backend: str, device: Device) -> MovingStatus | None:
        """What a device that changes sides waits for; ``None`` if it does not."""
        return self.running.moving.get((backend, device.id))

    def holders(self, backend: str, device: Device) -> list[tuple[str, str]]:
        """The resources and containers that hold a device, as text, and the claims that do."""
        held = [(resource, _named(holder)) for resource, holder in self._held(backend, device)]
        held += [(one.resource, claim) for one in self.published(backend, device) for claim in one.claims]
        return held + [(resource, container(claim)) for resource, claim in self._waited_for(backend, device)]

    def _waited_for(self, backend: str, device: Device) -> Iterable[tuple[str, HolderStatus]]:
        """The claims that have a device which is no longer published because it leaves DRA."""
        row = self.moving(backend, device)
        if row is None or self.published(backend, device):
            return []
        return [(row.resource, claim) for claim in row.held_by if claim.claim]

    def held_by(self, backend: str, device: Device) -> str:
        """The containers that hold a device as one cell of a table."""
        names = list(dict.fromkeys(name for _, name in self.holders(backend, device)))
        if not names and not self.running.known:
            return "unknown"
        return few(names)

    def as_json(self, backend: str, device: Device) -> list[dict[str, object]] | None:
        """The containers and claims that hold a device; ``None`` if no running devhost answers."""
        if self.no_answer:
            return None
        held = [(resource, holder_status(holder)) for resource, holder in self._held(backend, device)]
        held += [(one.resource, claim) for one in self.published(backend, device) for claim in one.holders]
        held += self._waited_for(backend, device)
        return [{"resource": resource, "holder": holder} for resource, holder in held]

    def _held(self, backend: str, device: Device) -> Iterable[tuple[str, AnyHolder | None]]:
        return self.found.holders.get((backend, device.id), ())


async def view(
    loaded: Loaded,
    root: Path,
    status_socket: Path | None = None,
    *,
    everything: bool = False,
    links: bool = False,
) -> View:
    """Scans the machine, and asks the devhost that runs on it.

    Without ``status_socket``, the devhost with the same root is searched for. If none answers, the files of
    verdicts count. For ``everything`` and ``links`` see :func:`devhost.cli.scan_once.scan_once`.
    """
    running, no_answer, refused = Running(), "", False
    try:
        running = answer(await document(root, status_socket))
    except DevhostError as error:
        no_answer, refused = error.message, not isinstance(error, ask.NoneHere)
    found = await scan_once(loaded, root, everything=everything, links=links, listing=running.listing)
    if no_answer:
        apply_verdicts(found.scanners, root)
    same = bool(loaded.digest) and running.digest == loaded.digest
    return View(found, running, no_answer, same, refused)


async def document(root: Path, status_socket: Path | None) -> StatusDocument:
    """The status of the devhost behind the socket, or of the one with this root. Raises ``DevhostError``."""
    answers, failure = [], None
    for path in [status_socket] if status_socket else ask.running():
        try:
            answers.append((await ask.fetch(path)).document)
        except DevhostError as error:
            failure = error
    ours = [one for one in answers if status_socket or _same(one.devhost.root, root)]
    if len(ours) == 1:
        return ours[0]
    if ours:
        dirs = ", ".join(printable(one.kubelet.dir) for one in ours)
        raise UsageError(f"several devhosts are running on this node, for {dirs}")
    if failure:
        raise failure
    others = ", ".join(dict.fromkeys(printable(one.devhost.root) for one in answers))
    raise ask.NoneHere(f"the devhost on this node has --root {others}")


def _same(one: str, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def answer(document: StatusDocument) -> Running:
    """The health of devices and the held tokens in a status document."""
    health: dict[tuple[str, str, str], ReportedHealth] = {}
    for resource in document.resources:
        place = resource.name, resource.backend
        for member in resource.together:
            health[(*place, member.device)] = ReportedHealth(_health(member))
        if not resource.together:
            shares: dict[str, list[DeviceStatus]] = {}
            for device in resource.devices:
                shares.setdefault(device.device, []).append(device)
            health.update({(*place, device): _all(found) for device, found in shares.items()})
    known = document.kubelet.pod_resources.known
    digest = document.devhost.config_digest
    published: dict[tuple[str, str], list[Published]] = {}
    moving: dict[tuple[str, str], MovingStatus] = {}
    if dra := document.dra:
        users = {(one.namespace, one.name): _users(one) for one in dra.claims}
        for pool in dra.pools:
            name, backend = pool.resource, pool.backend
            left_out = [one for one in dra.left_out if one.resource == name and one.attribute]
            for each in pool.devices:
                claims = tuple(_claim(one, users) for one in each.claims)
                found = Published(
                    resource=name,
                    node=dra.node,
                    pool=pool.pool,
                    name=each.name,
                    slice=each.slice,
                    claims=claims,
                    holders=tuple(each.claims),
                    in_use=capacity(each) or counters(each, pool),
                    dropped=tuple(driver_of(dra, pool).dropped_fields),
                    left_out=frozenset(one.attribute for one in left_out if one.device in ("", each.device)),
                )
                for identity in each.members or [each.device]:
                    health[name, backend, identity] = ReportedHealth(_health(each))
                    published.setdefault((backend, identity), []).append(found)
        moving = {(one.backend, one.device): one for one in dra.moving}
    return Running(_listing(document), known, digest, health, _refused(document), published, moving)


def _refused(document: StatusDocument) -> dict[tuple[str, str, str], ReportedHealth]:
    """The devices that the plan withholds because of what containers hold, beside what is in the lists."""
    names = {one.entry: one.resources or [one.name] for one in document.entries}
    found = {}
    for one in document.refusals:
        entry, _, reason = one.reason.partition(": ")
        if one.kind == RefusalKind.HELD and len(names.get(entry, ())) == 1:
            found[names[entry][0], one.backend, one.device] = ReportedHealth(unhealthy(reason))
    return found


def _users(claim: DraClaimStatus) -> str:
    """The pods that use a claim, as the end of a sentence; empty if none is known."""
    pods = dict.fromkeys(f"{one.namespace}/{one.pod}" for one in claim.containers)
    return f", used by {few(list(pods))}" if pods else ""


def _claim(claim: HolderStatus, users: Mapping[tuple[str, str], str]) -> str:
    return f"{container(claim)}{users.get((claim.namespace, claim.claim), '')}"


def _all(shares: list[DeviceStatus]) -> ReportedHealth:
    """The health of a device from that of its shares: it is unhealthy if all of them are."""
    unhealthy = [_health(share) for share in shares if share.health != "Healthy"]
    if len(unhealthy) == len(shares):
        return ReportedHealth(worst(*unhealthy))
    remark = (
        f"{len(unhealthy)} of {len(shares)} shares Unhealthy: {worst(*unhealthy).reason}" if unhealthy else ""
    )
    return ReportedHealth(HEALTHY, remark)


def _health(one: DeviceStatus | MemberStatus | DraDeviceStatus) -> Health:
    return HEALTHY if one.health == "Healthy" else unhealthy(one.reason)


def _listing(document: StatusDocument) -> Listing:
    """The held tokens of a status document, as a kubelet would list them."""
    holders: dict[str, dict[str, Holder | None]] = {}
    for resource in document.resources:
        for device in resource.devices:
            if device.allocated:
                holders.setdefault(resource.name, {})[device.id] = _holder(device.holder)
    for held in document.held:
        holders.setdefault(held.resource, {})[held.id] = _holder(held.holder)
    return Listing((0, 0, 0), 0.0, 1, holders)


def _holder(holder: HolderStatus | None) -> Holder | None:
    return Holder(holder.namespace, holder.pod, holder.container) if holder else None


def held_by_key(holders: Sequence[AnyHolder]) -> dict[str, object]:
    """The key in JSON for the containers and claims that a reason refers to."""
    return {"heldBy": held_by(holders)} if holders else {}


def _named(holder: AnyHolder | None) -> str:
    return str(holder) if holder else UNKNOWN_POD


def verdict_directory(root: Path, state_dir: Path | None, of_root: Path = STATE_DIRECTORY) -> Path:
    """The directory of verdicts.

    Raises ``EnvironmentFailure`` if there is none; or others can write to it, so that devhost refuses it; or
    it is one that the devhost of root does not read.
    """
    check_root(root)
    state = state_dir or state_directory(root)
    if state is None:
        raise EnvironmentFailure("this user has no home directory", "name a directory with --state-dir")
    of_user = not (state_dir or os.environ.get(OVERRIDE) or tree_of(root))
    if os.geteuid() and of_user and of_root.exists():
        raise EnvironmentFailure(
            f"the state of the devhost of root is in {of_root}",
            f"run the command as root, or for a devhost of this user add --state-dir {state}",
        )
    place = state / DIRECTORY
    try:
        trusted.names(place)
    except trusted.Untrusted as error:
        if Path(error.path).lstat().st_uid in (0, os.geteuid()):
            raise
        raise EnvironmentFailure(error.message, "run the command as the user of devhost") from None
    except OSError:
        pass  # it does not exist, or the command fails with the reason
    return place


def read_verdicts(place: Path, root: Path) -> files.Reading:
    """What the directory of verdicts has now. Raises ``EnvironmentFailure``."""
    try:
        return files.settled(place, root)
    except OSError as error:
        raise denied("read", place, error) from None


def denied(what: str, place: Path, error: OSError) -> EnvironmentFailure:
    hint = "run the command as root, or as the user of devhost" if os.geteuid() else ""
    return EnvironmentFailure(f"cannot {what} {place}: {error.strerror or error}", hint)


def apply_verdicts(scanners: Mapping[str, Scanner], root: Path) -> None:
    """Applies the verdicts of a machine to its devices, if this user can read them."""
    try:
        found = read_verdicts(verdict_directory(root, None), root)
    except EnvironmentFailure:
        return
    if found.verdicts:
        now = time.time()
        in_force = [one for one in found.verdicts if one.holds(now)]
        backends = {name: one.now() for name, one in scanners.items()}
        files.overrule(scanners, files.matched(backends, in_force, found.ends))
