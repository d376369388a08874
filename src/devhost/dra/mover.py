"""Finds out when devices that change sides are free: what the Node offers, and which claims exist.

:mod:`devhost.planning.sides` decides; this module asks the API server, and only while a device waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from devhost.backend.backoff import Backoff
from devhost.backend.model import ClaimHolder
from devhost.planning.claims import Key
from devhost.planning.sides import Listed, Sides
from devhost.planning.timing import DraTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, FailureLog, Reconciler, Retry

from .answers import API, Json, claim_path
from .kube import ApiError, KubeApi

log = get(__name__)

PAGE = 200
"""ResourceClaims in one answer of the API server."""

CLAIMS = f"{API}/resourceclaims"


class Mover:
    """Asks as long as a device is moving.

    ``sides`` has which devices are moving, ``named`` those that have, or had, a name in a pool, ``listed``
    what the device plugin lists now, by resource. ``freed`` is called when a device is free, or waits for
    something else, so that the plan must be made again, ``changed`` when :attr:`failures` have changed.
    ``leads`` is whether it also looks at the Node, as one mover does.
    """

    def __init__(
        self,
        driver: str,
        node: str,
        api: KubeApi,
        sides: Sides,
        named: Callable[[str, str], frozenset[Key]],
        listed: Callable[[], Mapping[str, Listed]],
        freed: Callable[[], None],
        *,
        changed: Callable[[], None],
        timing: DraTiming,
        leads: Callable[[], bool],
    ) -> None:
        self._timing = timing
        self._driver = driver
        self._node = node
        self._api = api
        self._sides = sides
        self._named = named
        self._listed = listed
        self._freed = freed
        self._blocking: dict[ClaimHolder, frozenset[Key]] = {}
        """The claims of the last list that had moving devices, each with these."""
        self._leads = leads
        self.failures = FailureLog(
            log,
            "cannot check whether moving devices are free",
            "moving devices can be checked again",
            changed=changed,
        )
        self._loop = Reconciler(
            self._pass, backoff=Backoff(1.0, 60.0), failures=self.failures, wakeable=False
        )

    def wake(self) -> None:
        """A device may have begun to move."""
        self._loop.wake()

    async def run(self) -> None:
        """Asks whenever it is needed, until cancelled."""
        await self._loop.run()

    async def _pass(self) -> float | None:
        if await self._ask():
            self._freed()
        due = [wait for wait in (self._sides.claims_due(self._driver),) if wait is not None]
        if self._needs_node():
            due.append(self._timing.node)
        return min(due) if due else None

    async def _ask(self) -> bool:
        freed = False
        if self._needs_node():
            began = LOOP_CLOCK.time()
            node = await node_of(self._api, self._node)
            freed = self._sides.node_seen(began, _allocatable(node), self._listed())
        if self._sides.claims_due(self._driver) == 0.0:
            began = LOOP_CLOCK.time()
            if self._sides.needs_list(self._driver) or not self._blocking:
                await self._list()
            else:
                await self._look_again()
            allocated: dict[Key, list[ClaimHolder]] = {}
            for claim in sorted(self._blocking):
                for key in self._blocking[claim]:
                    allocated.setdefault(key, []).append(claim)
            freed = self._sides.claims_seen(began, allocated, self._driver) or freed
        return freed

    def _needs_node(self) -> bool:
        return self._leads() and self._sides.needs_node()

    async def _list(self) -> None:
        """Finds the claims of the cluster that have moving devices allocated.

        The API server selects them by no field, and only whole objects have the allocation. So all claims are
        listed once for a device that has left its slice. No scheduler allocates it any longer, so after that
        only these claims are looked at.
        """
        withdrawn = set(self._sides.withdrawn(self._driver))
        found = {}
        async for page in self._api.list(CLAIMS, limit=PAGE):
            for claim in page["items"] or ():
                if keys := self._devices(claim) & withdrawn:
                    found[_holder(Json(claim, "a ResourceClaim").at("metadata"))] = keys
        self._blocking = found

    async def _look_again(self) -> None:
        """Finds out which of the known claims still have moving devices."""
        for known, keys in list(self._blocking.items()):
            try:
                claim = await self._api.get(claim_path(known))
            except ApiError as error:
                if not error.absent:
                    raise
                del self._blocking[known]
                continue
            same = Json(claim, "a ResourceClaim").at("metadata").required("uid") == known.uid
            self._blocking[known] = keys & self._devices(claim) if same else frozenset()
            if not self._blocking[known]:
                del self._blocking[known]

    def _devices(self, claim: Mapping[str, Any]) -> frozenset[Key]:
        found = (self._named(pool, device) for pool, device in _results(claim, self._driver))
        return frozenset[Key]().union(*found)


def _holder(metadata: Json) -> ClaimHolder:
    return ClaimHolder(metadata.required("namespace"), metadata.required("name"), metadata.required("uid"))


async def node_of(api: KubeApi, name: str) -> Json:
    """The Node of this name, which has a uid.

    Raises ``Retry`` if there is none, ``Malformed`` for anything else, and the errors of :mod:`.kube`.
    """
    try:
        node = Json(await api.get(f"/api/v1/nodes/{name}"), f"the Node {name}")
    except ApiError as error:
        if error.absent:
            raise Retry(f"there is no Node {name}; check --node-name") from None
        raise
    node.at("metadata").required("uid")  # what is no Node would offer nothing
    return node


def _allocatable(node: Json) -> dict[str, int]:
    """What a Node offers of each resource that is counted in whole numbers."""
    amounts = node.at("status").at("allocatable")
    return {name: amounts.quantity(name) for name in amounts.mapping() if "/" in name}


def _results(claim: Mapping[str, Any], driver: str) -> Collection[tuple[str, str]]:
    """The devices of a driver that a claim has allocated: pool and name."""
    results = Json(claim, "a ResourceClaim").at("status").at("allocation").at("devices").items("results")
    return {(one.required("pool"), one.required("device")) for one in results if one.text("driver") == driver}
