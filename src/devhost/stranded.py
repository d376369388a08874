"""What containers have that no list shows, and why nobody finds it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .discovery import Discovery
from .holding import Holder
from .ledger import Ledger
from .service import GONE, ResourceService
from .telemetry.log import get
from .tokens import device_of, stands_for_all, unit_of

log = get(__name__)

SHARED_OTHERWISE = "the resource is shared in another way now"
UNSERVED = "devhost does not serve this resource now"

NAMED = 20
"""Devices that the log names at most of those that are missed at one time."""


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
            missed = sorted(token for token in account.tokens() if token not in listed)
            if not missed:
                continue
            why = self._reasons(account.resource, service)
            for token in missed:
                devices = tuple(sorted({device for _, device in account.in_hands(token)}))
                holder = account.holder(token)
                yield Stranded(account.resource, token, devices, holder, why(token, devices))

    def tell(self) -> None:
        """Logs what is gone since this was last called. What was seen to go is told of when it goes."""
        gone = {(one.resource, name): one.reason for one in self.found() if one.gone for name in one.named}
        new = [one for one in gone.items() if one[0] not in self._told]
        for (resource, device), reason in new[:NAMED]:
            log.warning(
                "a container has a device that is not there", resource=resource, device=device, reason=reason
            )
        if len(new) > NAMED:
            log.warning("containers have more devices that are not there", devices=len(new) - NAMED)
        self._told = frozenset(gone)

    def _reasons(
        self, resource: str, service: ResourceService | None
    ) -> Callable[[str, tuple[str, ...]], str]:
        """What says of a token of a resource, and the devices behind it, why no list shows it."""
        backends = {entry.backend for entry in self._ledger.entries(resource)}
        asked = [self._discoveries[name] for name in sorted(backends & self._discoveries.keys())]
        certain = bool(asked) and all(one.listed for one in asked)
        offered = service.offered() if service else frozenset()

        def there(token: str, devices: tuple[str, ...]) -> bool:
            if not devices:
                return any(device_of(token, one.devices) for one in asked)
            return any(name in one.devices for one in asked for name in devices)

        def why(token: str, devices: tuple[str, ...]) -> str:
            if certain and not stands_for_all(token) and not there(token, devices):
                return GONE
            if service is None:
                return UNSERVED
            return next((service.why_not(name) for name in devices if name not in offered), SHARED_OTHERWISE)

        return why
