"""What containers hold, of all resources at once, for as long as devhost runs. Pure.

The ledger outlives the resources: one that has left the configuration keeps its account until all that was
handed out through it has come back. The plan reads it, so that what a container holds is given to nobody
else, whatever becomes of the configuration.

After a start of devhost only the kubelet knows who holds what, and it knows resources and tokens, no
devices. A token is made from its device's id, so it is read back:

* of a resource that the configuration has, among the devices of its backend;
* an id that an earlier version of the backend gave (``Device.former_ids``) counts for every device that may
  have had it;
* of any other, or where that backend has no such device, among the devices of all backends. Such a resource
  may have left the configuration, or be another plugin's that hands out the same hardware. Both count: what
  a container uses is not free, whoever gave it away;
* a token for all devices of a resource counts for every device that the resource has had since the start;
  where the configuration does not have the resource any more, nothing can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from devhost.backend.model import Device
from devhost.planning.held import Held, Key, Kubelet, Listing
from devhost.planning.plan import Plan, RefusalKind, make_plan
from devhost.planning.settings import ResourceSettings, Settings
from devhost.planning.tokens import Known, stands_for_all, unit_of

from .account import Devices, ResourceAllocations

__all__ = ["Allocations", "Found", "Held", "Released", "ResourceAllocations"]

Found = Mapping[str, Mapping[str, Device]]
"""Every device that exists now: by backend, then by id."""

Released = Callable[[str, tuple[str, ...]], None]
"""Hears which tokens of a resource have come back."""

CALM = 30.0
"""Seconds for which a kubelet must go on naming no pods at all before it is believed that there are none."""


class Allocations:
    """Who has what.

    Args:
        clock: monotonic seconds.
        changed: called when what is held is another than the plan was made for, other than by an Allocate of
            what the plan offered.
    """

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None] = lambda: None) -> None:
        self.awaited = False
        """Whether some resource waits for what a container holds: then releases are looked for sooner."""
        self._clock = clock
        self._changed = changed
        self._devices = Devices()
        self._accounts: dict[str, ResourceAllocations] = {}
        self._released: list[Released] = []
        self._held: tuple[Held, ...] | None = ()
        self._listing: Listing | None = None
        self._recalling: Kubelet | None = None
        self._units: dict[str, frozenset[str]] = {}
        self._first: float | None = None
        self._known = False
        self._found: Found = {}
        self._known_of: dict[str, Known] = {}
        self._settings = Settings()
        self._seen = False
        self._busy = False
        self._stale = False

    @property
    def known(self) -> bool:
        """Whether the kubelet has said since the start who holds what.

        A list without any pod does not count at first: so answers a kubelet that knows no pods yet.
        """
        return self._known

    def account(self, resource: str) -> ResourceAllocations:
        """The account of a resource; a new one where nothing was ever held through it."""
        account = self._accounts.get(resource)
        if account is None:
            account = ResourceAllocations(
                resource, self._clock, self._devices, self._touched, lambda: self._known
            )
            self._accounts[resource] = account
            self._configure(account)
        return account

    def accounts(self) -> Iterator[ResourceAllocations]:
        """The accounts in which something is held, by the names of their resources."""
        return (account for _, account in sorted(self._accounts.items()) if account.tokens())

    def held(self) -> Sequence[Held]:
        """Every device that a container has, or is about to get, in a stable order."""
        if self._held is None:
            self._held = tuple(
                held for _, account in sorted(self._accounts.items()) for held in account.held()
            )
        return self._held

    def is_held(self, resource: str, token: str) -> bool:
        """Whether a container has this token, as far as is known."""
        account = self._accounts.get(resource)
        return account is not None and token in account

    def has_token(self, resource: str, token: str) -> bool | None:
        """Whether a container has this token; ``None`` while not known.

        The resource has an account from now on, so that those who subscribed hear of the token's release.
        """
        is_new = resource not in self._accounts
        account = self.account(resource)
        if is_new and self._listing is not None:
            with self._at_once():
                self._show(account, self._listing)
        if token in account.tokens():
            return True
        return False if self._known else None

    def entries(self, resource: str) -> list[ResourceSettings]:
        """The entries of the configuration from which the resource may come."""
        found = []
        for entry in self._settings.resources:
            plain, brace, _ = entry.name.partition("{")
            if resource == entry.name or (brace and resource.startswith(plain)):
                found.append(entry)
        return found

    def resources(self) -> frozenset[str] | None:
        """Names of all resources of which a container has something, also without account.

        ``None`` while not :attr:`known`.
        """
        if not self._known or self._listing is None:
            return None
        held = (name for name, account in self._accounts.items() if account.tokens())
        return frozenset(self._listing.holders).union(held)

    def claims(self) -> frozenset[str] | None:
        """What containers use up: all claims of held devices, whole or in part, and the devices themselves.

        A device appears as ``device:<backend>/<id>``, also one that the kubelet names and no backend has
        found yet. ``None`` while it is not :attr:`known` who holds what. May be called from any thread.
        """
        if not self._known or not self._seen or self._listing is None:
            return None
        claims: set[str] = set()
        for account in tuple(self._accounts.values()):
            for key in account.devices():
                claims.add(f"device:{key[0]}/{key[1]}")
                if (device := self._devices.get(key)) is not None:
                    claims |= device.claims | device.part_of
        for resource, tokens in self._listing.holders.items():
            backends = {entry.backend for entry in self.entries(resource)} or self._found.keys()
            claims.update(f"device:{backend}/{unit_of(token)}" for token in tokens for backend in backends)
        return frozenset(claims)

    def subscribe(self, released: Released) -> Callable[[], None]:
        """Calls ``released`` with each resource and its tokens that came back; returns what ends that."""
        self._released.append(released)
        return lambda: self._released.remove(released)

    def follow(self, resource: str) -> None:
        """Keeps an account of a resource that need not be ours: something waits for its release."""
        if resource not in self._accounts and self._listing is not None:
            self._show(self.account(resource), self._listing)

    def heard(self, listing: Listing) -> bool:
        """Takes the kubelet's word on who holds what; true when somebody else does than before."""
        if self._first is None:
            self._first = listing.began
        self._known = self._known or bool(listing.pods) or listing.began - self._first >= CALM
        self._listing, self._units = listing, {}
        if self._recalling != listing.kubelet and any(a.recalls(listing) for a in self._accounts.values()):
            self._recalling = listing.kubelet
        freed: dict[str, tuple[str, ...]] = {}
        news = False
        with self._at_once():
            for resource, account in tuple(self._accounts.items()):
                changed, freed[resource] = self._show(account, listing)
                news = news or changed
            self._read()
        for resource, tokens in freed.items():
            if tokens:
                for released in tuple(self._released):
                    released(resource, tokens)
        if self._stale:
            self._stale = False
            self._changed()
        return news

    def plan(self, found: Found, settings: Settings) -> Plan:
        """The plan for what exists and is configured now, and for what containers hold."""
        self._found, self._seen = found, True
        if settings is not self._settings:
            self._settings, self._held = settings, None
            for account in self._accounts.values():
                self._configure(account)
        devices = {backend: tuple(known.values()) for backend, known in found.items()}
        with self._at_once():
            self._see()
            self._read()
        while True:
            self._stale = False
            plan = make_plan(devices, settings, self.held())
            with self._at_once():
                self._learn(plan)
            if not self._stale:  # else it tells more of what is held, and would be another now
                break
        self.awaited = any(refusal.kind is RefusalKind.HELD for refusal in plan.refusals)
        return plan

    def due(self, last: float) -> float | None:
        """When the next list is wanted, in monotonic seconds; ``None`` while there is nothing to learn.

        Args:
            last: when the last list began.
        """
        wishes = [account.due(last, awaited=self.awaited) for account in self._accounts.values()]
        return min((wish for wish in wishes if wish is not None), default=None)

    def _see(self) -> None:
        """Brings what is known of held devices up to date."""
        if self._held is None:
            self._devices.keep({key for account in self._accounts.values() for key in account.devices()})
        for key in self._devices:
            device = self._found.get(key[0], {}).get(key[1])
            if device is not None and self._devices.see(key, device):
                self._held = None

    def _learn(self, plan: Plan) -> None:
        """Takes every device that a resource has for what those hold who hold all of them."""
        for name, account in self._accounts.items():
            resource = plan.resources.get(name)
            everything = [token for token in account.guesses() if stands_for_all(token)]
            if resource is None or not everything:
                continue
            backend = resource.entry.backend
            devices = {(backend, offer.device.id): offer.device for offer in resource.offers}
            for token in everything:
                account.guess(token, devices)

    def _read(self) -> None:
        """Finds the devices behind tokens of which there is only the kubelet's word."""
        if self._listing is not None:
            for resource, tokens in self._listing.holders.items():
                if resource not in self._accounts and self._concerns(resource, tokens):
                    self._show(self.account(resource), self._listing)
        for resource, account in self._accounts.items():
            if guesses := account.guesses():
                entries = self.entries(resource)
                for token in guesses:
                    account.guess(token, self._meant(token, entries))

    def _show(self, account: ResourceAllocations, listing: Listing) -> tuple[bool, tuple[str, ...]]:
        """Shows an account a list, see :meth:`.ResourceAllocations.heard`."""
        return account.heard(listing, recalls=self._recalling == listing.kubelet)

    def _configure(self, account: ResourceAllocations) -> None:
        """Takes what the configuration says of a resource; of one that has left it the last word stays."""
        if entries := self.entries(account.resource):
            account.exclusive = any(entry.exclusive for entry in entries)

    def _concerns(self, resource: str, tokens: Iterable[str]) -> bool:
        """Whether a resource that has no account is of interest: it is ours, or hands out what is ours."""
        if self.entries(resource):
            return True
        units = self._units.get(resource)
        if units is None:  # asked again for each plan, and another plugin may have handed out very many
            units = self._units[resource] = frozenset(map(unit_of, tokens))
        if not all(map(units.isdisjoint, self._found.values())):
            return True
        return any(self._meant(token, ()) for token in tokens)

    def _meant(self, token: str, entries: Collection[ResourceSettings]) -> dict[Key, Device]:
        """The devices that a token may be made from: of the resource's backend, else of any."""
        own = {entry.backend for entry in entries}
        return self._named(token, own) or self._named(token, self._found.keys() - own)

    def _named(self, token: str, backends: Iterable[str]) -> dict[Key, Device]:
        named = {}
        for backend in backends:
            devices = self._found.get(backend, {})
            known = self._known_of.get(backend)
            if known is None or known.devices is not devices:
                known = self._known_of[backend] = Known(devices)
            named.update({(backend, device.id): device for device in known.named(token)})
        return named

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Keeps back the word that the plan may be another until everything is in place."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _touched(self, replan: bool) -> None:
        self._held = None
        if replan and self._busy:
            self._stale = True
        elif replan:
            self._changed()
