"""How what a resource has reaches a container: two ways, which its service does not tell apart.

The direct way puts everything into the Allocate answer and has nothing to do before. The other way names
what lies on the disk already, so a device waits there before the list may show it (:mod:`.injection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from devhost.backend.model import Device, Health
from devhost.planning.plan import Offer
from devhost.planning.settings import Inject

from .allocator import Allocator
from .cdi.files import SpecDirectory

Verdict = Callable[[Device], Health]
"""The health of a device, as far as is known."""


class Injection(Protocol):
    """What comes between the devices a resource has and the list that shows them."""

    ready: asyncio.Event
    """Set once there may be a list at all."""

    @property
    def trouble(self) -> str:
        """Why something cannot be made ready, in the words of the log; empty while all can."""

    def want(self, offers: Sequence[Offer], verdict: Verdict) -> None:
        """The resource has these devices now; those that are healthy are made ready."""

    def listable(self, offers: Sequence[Offer], verdict: Verdict) -> tuple[Sequence[Offer], Verdict]:
        """What of this the list may show now."""

    async def run(self) -> None:
        """Makes ready what is wanted, until :meth:`stop`."""

    def stop(self) -> None:
        """Ends :meth:`run` and wakes who waits for :attr:`ready`; what pods were told stays good."""


class DirectInjection:
    """Everything is in the answer: the list shows what there is."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()

    @property
    def trouble(self) -> str:
        """Nothing can be wrong."""
        return ""

    def want(self, offers: Sequence[Offer], verdict: Verdict) -> None:
        """Nothing has to be made ready."""

    def listable(self, offers: Sequence[Offer], verdict: Verdict) -> tuple[Sequence[Offer], Verdict]:
        """All of it."""
        return offers, verdict

    async def run(self) -> None:
        """Has nothing to do."""

    def stop(self) -> None:
        """Has nothing to end."""


def delivery(
    way: Inject, supply: Allocator, specifications: SpecDirectory, settled: Callable[[], None]
) -> Injection:
    """The way a resource goes; the supply is told where its answers pass through it.

    Args:
        specifications: where a CDI specification goes, if the resource has one.
        settled: called in the loop when what :meth:`Injection.listable` says may be another.
    """
    if way is Inject.DIRECT:
        return DirectInjection()
    from .cdi.injector import CdiInjection  # most nodes have no resource that goes this way

    injection = CdiInjection(supply, specifications, settled)
    supply.inject = injection.inject
    return injection
