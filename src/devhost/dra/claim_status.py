"""The status of the devices of claims at the API server (``status.devices``, KEP-4817).

It is written by server-side apply, in the name of the driver: what other drivers and programs have written of
a claim stays. Only claims that were to be prepared on this node are looked at, and one write has all devices
of a claim. When a claim is deallocated, the API server removes what it has of the devices.

Requests are bounded: :data:`BURST` claims at once, then one every :data:`INTERVAL` seconds, and each claim at
most every :data:`GAP` seconds. A claim is read before its first write, so that a restart writes nothing that
is there already. Preparing a claim never waits for any of this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.claims import ClaimedDevice
from devhost.backend.backoff import Backoff, TokenBucket
from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.model import ClaimHolder
from devhost.dra.answers import AllocatedDevice, Json, claim_path, cut, read_claim
from devhost.dra.inventory import DeviceHealth, DraInventory
from devhost.dra.kube import ApiError, KubeApi, Malformed, Object
from devhost.dra.prepare import Refusals
from devhost.planning.timing import DRA
from devhost.runtime.log import get, utc
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler

log = get(__name__)

READY = "Ready"
"""The condition; its name is a convention of the API."""

BURST, INTERVAL = 20, 0.2
"""Claims that are read or written at once, and seconds after which one more may be."""

GAP = DRA.statuses
"""Least seconds between two writes of one claim on a node."""

RETRY = 60.0
"""Seconds until a claim that the API server refuses is tried again."""

SETTLE = 0.5
"""Seconds from a change to the writes that follow from it: devices often change together."""

PATIENCE = 30.0
"""Seconds after a start in which a health that is not known yet is not written."""

_NAME, _ADDRESS = 256, 128
"""Most bytes of the name and of the address of an interface, by the API."""

_DROPPED = "the API server drops the status of devices from claims"


class Name(NamedTuple):
    """What a device is named in the status of a claim."""

    pool: str
    device: str
    share: str


@frozen
class Shown:
    """What the status of a claim has of a device. ``network`` has ``interfaceName`` and so on."""

    ready: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    network: tuple[tuple[str, str], ...] = ()


PREPARED = Shown("True", "Prepared")

Status = Mapping[Name, Shown]


@frozen(slots=True)
class _Wanted:
    """What the status of a claim should have; ``source`` is another object when it is prepared again."""

    claim: ClaimHolder
    source: object
    devices: Status


@frozen(slots=True)
class _WrittenStatus:
    """What the status of a claim has, and since when each device is ready, or not."""

    source: object
    devices: Status
    since: Mapping[Name, str]


class ClaimStatus:
    """Keeps the status of the claims of one driver.

    ``files`` are the claims that are prepared, ``refusals`` those that could not be; these are not kept if no
    status is wanted. ``changed`` is called when :attr:`failure` has changed. ``wall`` gives Unix time.
    """

    def __init__(
        self,
        driver: str,
        api: KubeApi,
        devices: DraInventory,
        files: ClaimFiles,
        refusals: Refusals,
        changed: Callable[[], None] = lambda: None,
        *,
        gap: float = GAP,
        clock: Clock = LOOP_CLOCK,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.failure = ""
        """Why the status of a claim is not what it should be; empty if it is."""
        self._driver = driver
        self._api = api
        self._devices = devices
        self._files = files
        self._refusals = refusals
        self._changed = changed
        self._gap = gap
        self._clock = clock
        self._wall = wall
        self._known: dict[str, _WrittenStatus] = {}
        """By uid. The claims that are not in it must be read first."""
        self._not_before: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        """Why the API server refuses the status of a claim, by uid."""
        self._patient_until = clock.time() + PATIENCE
        self._bucket = TokenBucket(BURST, INTERVAL)
        failures = FailureLog(
            log,
            "the status of claims cannot be written",
            "the status of claims is written again",
            driver=driver,
        )
        self._reconciler = Reconciler(
            self._pass,
            backoff=Backoff(1.0, 60.0),
            failures=failures,
            settle=SETTLE,
            wakeable=False,
            clock=clock,
        )

    async def run(self) -> None:
        """Keeps the status until it is cancelled."""
        end = self._devices.subscribe(self._reconciler.wake)
        try:
            await self._reconciler.run()
        finally:
            end()

    async def _pass(self) -> float | None:
        try:
            wait = await self._follow()
        except DevhostError as error:
            self._show(str(error))
            raise
        self._show(next(iter(self._refused.values()), ""))
        return None if math.isinf(wait) else wait

    async def _follow(self) -> float:
        """Writes what is due; gives the seconds until something is due that must wait.

        Raises ``DevhostError`` if no claim can be written at present.
        """
        wanted = self._wanted()
        self._forget(wanted)
        wait = math.inf
        for uid, one in wanted.items():
            known = self._known.get(uid)
            if known is not None and known.source is one.source and known.devices == one.devices:
                continue
            now = self._clock.time()
            if now < self._patient_until and any(shown.ready == "Unknown" for shown in one.devices.values()):
                wait = min(wait, self._patient_until - now)
                continue
            pause = max(self._bucket.delay(now), self._not_before.get(uid, now) - now)
            if pause > 0:
                wait = min(wait, pause)
                continue
            self._bucket.take(now)
            try:
                self._known[uid] = await self._write(one, known)
                self._refused.pop(uid, None)
            except (ApiError, Malformed) as error:
                if not _concerns_one(error):
                    raise
                self._known.pop(uid, None)
                self._not_before[uid] = self._clock.time() + RETRY
                wait = min(wait, RETRY)
                reason = f"{one.claim}: {error}"
                if self._refused.get(uid) != reason:
                    log.warning(
                        "the status of a claim is refused", claim=str(one.claim), uid=uid, reason=str(error)
                    )
                self._refused[uid] = reason
        return wait

    def _forget(self, wanted: Collection[str]) -> None:
        self._known = {uid: one for uid, one in self._known.items() if uid in wanted}
        self._not_before = {uid: when for uid, when in self._not_before.items() if uid in wanted}
        self._refused = {uid: reason for uid, reason in self._refused.items() if uid in wanted}

    def _wanted(self) -> dict[str, _Wanted]:
        if not self._refusals.kept:
            return {}
        health = {(one.pool, one.device): one for one in self._devices.devices()}
        found = {}
        for uid, record in self._files.records.items():
            shown = {_name(one): self._shown(uid, one, health) for one in record.devices}
            found[uid] = _Wanted(record.claim, record, shown)
        for uid, refusal in self._refusals.found.items():
            failed = Shown("False", "PrepareFailed", cut(refusal.reason))
            names = {_name(one): failed for one in refusal.devices}
            found.setdefault(uid, _Wanted(refusal.claim, refusal, names))
        return found

    def _shown(self, uid: str, one: ClaimedDevice, health: Mapping[tuple[str, str], DeviceHealth]) -> Shown:
        found, present = health.get((one.pool, one.device)), self._devices.present(one)
        if present is not None:
            network = _network(present.device.attributes)
        else:  # the device is gone, but what pods use is not
            known = self._known.get(uid)
            network = known.devices[_name(one)].network if known and _name(one) in known.devices else ()
        if found is None or found.healthy is None:
            return Shown("Unknown", "HealthUnknown", cut(found.message if found else ""), network)
        if found.healthy:
            return replace(PREPARED, network=network)
        return Shown("False", "Unhealthy", cut(found.message), network)

    async def _write(self, one: _Wanted, known: _WrittenStatus | None) -> _WrittenStatus:
        """Makes the status of a claim what it should be; gives what it has."""
        claim, path = one.claim, claim_path(one.claim)
        fresh = known is None or known.source is not one.source
        try:
            if known is None or fresh:
                known = self._read(await self._api.get(path), one)
                if known is None or known.devices == one.devices:
                    return known or _WrittenStatus(one.source, one.devices, {})
            since = {
                name: known.since[name]
                if name in known.since and known.devices[name].ready == shown.ready
                else utc(self._wall())
                for name, shown in one.devices.items()
            }
            stored = await self._apply(f"{path}/status", one, since)
        except ApiError as error:
            if error.absent:
                return _WrittenStatus(one.source, one.devices, {})  # the claim is gone
            if fresh or not _concerns_one(error):
                raise
            return await self._write(one, None)  # it may have been replaced, or allocated again
        if not one.devices.keys() <= self._devices_of(stored).keys():
            raise EnvironmentFailure(_DROPPED, "it needs the feature gate DRAResourceClaimDeviceStatus")
        self._not_before[claim.uid] = self._clock.time() + self._gap
        return _WrittenStatus(one.source, one.devices, since)

    def _read(self, body: Object, one: _Wanted) -> _WrittenStatus | None:
        """What a claim has; ``None`` if these devices are no longer allocated to it."""
        found = read_claim(body, self._driver)
        if found.uid != one.claim.uid or not one.devices.keys() <= set(map(_name, found.devices)):
            return None
        shown = self._devices_of(body)
        there = {name: shown[name] for name in one.devices if name in shown}
        return _WrittenStatus(
            one.source,
            {name: device for name, (device, _) in there.items()},
            {name: since for name, (_, since) in there.items()},
        )

    def _devices_of(self, body: Object) -> dict[Name, tuple[Shown, str]]:
        """What a claim has of the driver, and since when each device is ready, or not."""
        found = {}
        for one in Json(body, "the ResourceClaim").at("status").items("devices"):
            ready = [each for each in one.items("conditions") if each.text("type") == READY]
            if one.text("driver") != self._driver or not ready:
                continue
            name = Name(one.required("pool"), one.required("device"), one.text("shareID"))
            network = one.at("networkData")
            pairs = ((key, network.text(key)) for key in ("interfaceName", "hardwareAddress"))
            status: Any = ready[0].text("status")
            shown = Shown(
                status,
                ready[0].text("reason"),
                ready[0].text("message"),
                tuple((key, text) for key, text in pairs if text),
            )
            found[name] = shown, ready[0].text("lastTransitionTime")
        return found

    async def _apply(self, path: str, one: _Wanted, since: Mapping[Name, str]) -> Object:
        """Writes it; without networks if another program has written other ones, such as a CNI plugin."""
        try:
            return await self._api.apply(path, self._object(one, since), self._driver)
        except ApiError as error:
            if error.status != 409:
                raise
        body = self._object(one, since, network=False)
        return await self._api.apply(path, body, self._driver, force=True)

    def _object(self, one: _Wanted, since: Mapping[Name, str], *, network: bool = True) -> Object:
        claim = one.claim
        devices = []
        for name, shown in one.devices.items():
            device: Object = {
                "driver": self._driver,
                "pool": name.pool,
                "device": name.device,
                "conditions": [
                    {
                        "type": READY,
                        "status": shown.ready,
                        "reason": shown.reason,
                        "message": shown.message,
                        "lastTransitionTime": since[name],
                    }
                ],
            }
            if name.share:
                device["shareID"] = name.share
            if network and shown.network:
                device["networkData"] = dict(shown.network)
            devices.append(device)
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": devices},
        }

    def _show(self, failure: str) -> None:
        if failure != self.failure:
            self.failure = failure
            self._changed()


def _name(one: ClaimedDevice | AllocatedDevice) -> Name:
    return Name(one.pool, one.device, one.share)


def _network(attributes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What is known of the interface of a device: its first name on the node, and its address."""
    names = attributes.get("netDevs") or ("",)
    found = (("interfaceName", names[0], _NAME), ("hardwareAddress", attributes.get("mac", ""), _ADDRESS))
    return tuple((key, text) for key, text, most in found if text and len(text.encode()) <= most)


def _concerns_one(error: ApiError | Malformed) -> bool:
    """Whether the API server may accept the status of other claims."""
    return isinstance(error, Malformed) or error.denied or error.status in (400, 409, 413, 422)
