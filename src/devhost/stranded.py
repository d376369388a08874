"""What containers have that no list shows, and why nobody finds it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .account import Account
from .discovery import Discovery
from .holding import Holder
from .ledger import Ledger
from .service import GONE, ResourceService
from .telemetry.log import get
from .tokens import device_of, stands_for_all, unit_of

log = get(__name__)

SHARED_OTHERWISE = "the resource is shared in another way now"
UNSERVED = "devhost does not serve this resource now"


@dataclass(frozen=True, slots=True)
class Stranded:
    """A token in the hands of a container, and the ids of the devices behind it as far as they are known."""

    resource: str
    token: str
    devices: tuple[str, ...]
    holder: Holder | None
    reason: str

    @property
    def gone(self) -> bool:
        """Whether the hardware itself is away, and not only its place in a list."""
        return self.reason == GONE

    @property
    def named(self) -> tuple[str, ...]:
        """Its devices, or where nobody knows them what the token is named after."""
        return self.devices or (unit_of(self.token),)


class Strand:
    """Finds it, and logs of what is gone that somebody has it, once.

    Args:
        ledger: who has what.
        services: the resources that are served, by name.
        discoveries: the backends that run, by name.
    """

    def __init__(
        self, ledger: Ledger, services: Mapping[str, ResourceService], discoveries: Mapping[str, Discovery]
    ) -> None:
        self._ledger = ledger
        self._services = services
        self._discoveries = discoveries
        self._told: frozenset[tuple[str, str]] = frozenset()

    def found(self) -> Iterator[Stranded]:
        """All of it, by resource and token."""
        for account in self._ledger.accounts():
            service = self._services.get(account.resource)
            listed = service.inventory.snapshot.entries if service else {}
            for token in sorted(account.tokens()):
                if token not in listed:
                    devices = tuple(sorted({device for _, device in account.in_hands(token)}))
                    reason = self._reason(account, token, devices)
                    yield Stranded(account.resource, token, devices, account.holder(token), reason)

    def tell(self) -> None:
        """Logs what is gone since this was last called. What was seen to go is told of when it goes."""
        gone = {(one.resource, name): one for one in self.found() if one.gone for name in one.named}
        for (resource, device), one in gone.items():
            if (resource, device) not in self._told:
                log.warning(
                    "a container has a device that is not there",
                    resource=resource,
                    device=device,
                    reason=one.reason,
                )
        self._told = frozenset(gone)

    def _reason(self, account: Account, token: str, devices: tuple[str, ...]) -> str:
        service = self._services.get(account.resource)
        backends = {entry.backend for entry in self._ledger.entries(account.resource)}
        asked = [self._discoveries[name] for name in sorted(backends & self._discoveries.keys())]
        if asked and all(one.listed for one in asked) and not stands_for_all(token):
            known = (
                any(name in one.devices for name in devices) if devices else device_of(token, one.devices)
                for one in asked
            )
            if not any(known):
                return GONE
        if service is None:
            return UNSERVED
        return next((why for name in devices if (why := service.why_not(name))), SHARED_OTHERWISE)
