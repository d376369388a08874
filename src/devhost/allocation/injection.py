"""How a container gets its devices: in the Allocate answer, or by the names of CDI devices.

The direct way puts everything into the answer and has nothing to do before. The other way names what is on
the disk already, so a device waits until its specification is written before the list may show it
(:mod:`.cdi.injector`). A resource's service treats both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from devhost.backend.frozen import frozen
from devhost.backend.model import Device, Health
from devhost.planning.plan import Offer
from devhost.planning.settings import Inject

from .cdi.files import SpecFiles
from .inventory import Inventory
from .resource_backend import Granted, ResourceBackend, Terms
from .timing import NODE, AllocationTiming

Verdict = Callable[[Device], Health]
"""The health of a device, as far as is known."""


class Rendered(Protocol):
    """What one container gets, ready to be injected."""

    @property
    def lasting(self) -> bool:
        """Whether nothing in it was read from the host: it is then valid as long as the backend's answer."""

    async def inject(self, tokens: Sequence[str]) -> Granted:
        """The answer to Allocate.

        The tokens count as held already. Raises ``AllocationError`` if what the answer refers to cannot be
        written.
        """


class Injection(Protocol):
    """What comes between the devices a resource has and the list that shows them."""

    ready: asyncio.Event
    """Set once there may be a list at all."""

    @property
    def failure(self) -> str:
        """Why something cannot be made ready, in the words of the log; empty while all can."""

    def want(self, offers: Sequence[Offer], verdict: Verdict) -> None:
        """The resource has these devices now; those that are healthy are made ready."""

    def wake(self) -> None:
        """A device node or a holder may have changed, although no device has."""

    def listable(self, offers: Sequence[Offer], verdict: Verdict) -> tuple[Sequence[Offer], Verdict]:
        """What of this the list may show now."""

    def render(self, devices: Sequence[Device], granted: Granted, terms: Terms) -> Rendered:
        """Renders what a container gets with these devices. Runs on the backend's thread.

        Raises ``AllocationError`` if a device cannot be rendered, ``BackendError`` if the backend failed.
        """

    async def run(self) -> None:
        """Makes ready what is wanted, until :meth:`stop`."""

    async def refresh(self) -> None:
        """Makes earlier answers refer to what the devices have now. Raises ``AllocationError``."""

    def stop(self) -> None:
        """Ends :meth:`run` and wakes what waits for :attr:`ready`; what pods were given stays valid."""


@frozen
class _Direct:
    """Everything is in the answer."""

    granted: Granted

    @property
    def lasting(self) -> bool:
        return True

    async def inject(self, tokens: Sequence[str]) -> Granted:
        return self.granted


class DirectInjection:
    """Everything is in the answer: the list shows every device, and nothing has to be made ready."""

    failure = ""
    """Nothing can be wrong."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()

    def want(self, offers: Sequence[Offer], verdict: Verdict) -> None: ...
    def wake(self) -> None: ...
    def listable(self, offers: Sequence[Offer], verdict: Verdict) -> tuple[Sequence[Offer], Verdict]:
        return offers, verdict

    def render(self, devices: Sequence[Device], granted: Granted, terms: Terms) -> Rendered:
        return _Direct(granted)

    async def run(self) -> None: ...
    async def refresh(self) -> None: ...
    def stop(self) -> None: ...


def make_injection(
    way: Inject,
    backend: ResourceBackend,
    inventory: Inventory,
    specifications: SpecFiles,
    settled: Callable[[], None],
    timing: AllocationTiming = NODE,
) -> Injection:
    """The way in which a resource gives containers its devices.

    ``settled`` is called in the loop when the result of :meth:`Injection.listable` may have changed.
    """
    if way is Inject.DIRECT:
        return DirectInjection()
    from .cdi.injector import CdiInjection  # most nodes have no resource with CDI injection

    return CdiInjection(backend, inventory, specifications, settled, deadline=timing.render)
