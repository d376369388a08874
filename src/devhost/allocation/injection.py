"""How a container gets its devices: in the Allocate answer, or by the names of CDI devices.

The direct way, here, puts everything into the answer and has nothing to do before. The other way names what
is on the disk already, so a device waits until its specification is written before the list may show it
(:mod:`.cdi.injector`). A resource's service treats both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from devhost.backend.model import Device
from devhost.discovery.health import HealthOf
from devhost.planning.plan import Offer

from .resource_backend import Granted, Terms


class Injection:
    """What comes between the devices a resource has and the list that shows them: here, nothing."""

    failure = ""
    """Why something cannot be made ready, in the words of the log; empty while all can."""

    lasting = True
    """Whether what is rendered is valid as long as the backend's answer: nothing was read from the host."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        """Set once there may be a list at all."""
        self.ready.set()

    def want(self, offers: Sequence[Offer], health_of: HealthOf) -> None:
        """The resource has these devices now; those that are healthy are made ready."""

    def wake(self) -> None:
        """A device node or a holder may have changed, although no device has."""

    def listable(self, offers: Sequence[Offer], health_of: HealthOf) -> tuple[Sequence[Offer], HealthOf]:
        """What of this the list may show now."""
        return offers, health_of

    def render(self, devices: Sequence[Device], granted: Granted, terms: Terms) -> Granted:
        """Renders what a container gets with these devices. Runs on the backend's thread.

        Raises ``AllocationError`` if a device cannot be rendered, ``BackendError`` if the backend failed.
        """
        return granted

    async def inject(self, rendered: Granted, tokens: Sequence[str]) -> Granted:
        """The answer to Allocate with what :meth:`render` gave.

        The tokens count as held already. Raises ``AllocationError`` if what the answer refers to cannot be
        written.
        """
        return rendered

    async def run(self) -> None:
        """Makes ready what is wanted, until :meth:`stop`."""

    async def refresh(self) -> None:
        """Makes earlier answers refer to what the devices have now. Raises ``AllocationError``."""

    def stop(self) -> None:
        """Ends :meth:`run` and wakes what waits for :attr:`ready`; what pods were given stays valid."""
