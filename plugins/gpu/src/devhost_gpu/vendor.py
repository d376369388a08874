"""The common parts of the vendors' modules: cards, their attributes and claims, and the vendors' interface.

The code of a vendor is a :class:`Vendor`, in a module that is imported when the machine has such a card.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from devhost.backend import (
    AttributeValue,
    Consumed,
    Context,
    Device,
    Edits,
    Event,
    Health,
    Usage,
    claim,
)
from devhost.backend.frozen import frozen
from devhost.backend.model import NOTHING, present
from devhost.backend.sysfs import Sysfs, pcie_root

from .discovery import Adapter
from .environment import DEFAULT, Timings
from .options import NO_OPTIONS, GpuOptions, GpuResourceOptions, Layout

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where devices are shared


F = TypeVar("F", covariant=True)


@frozen
class CardOf(Generic[F]):
    """A GPU, or a part of one, that a container can get.

    ``device`` is the device for the core. ``facts`` is a frozen value of the vendor's code with what
    allocation needs in addition to the attributes (``AmdFacts``, ``IntelFacts``, …).
    """

    device: Device
    vendor: str
    facts: F

    @property
    def id(self) -> str:
        """The device's id."""
        return self.device.id


Card = CardOf[Any]
"""A card of any vendor. A vendor's code gets only its own cards."""


@frozen
class ContainerRequest:
    """What determines, in addition to the cards, what a container gets.

    ``resource_options`` are those of the entry. ``shares`` is how much of each card the container requests,
    by id; ``consumed`` what its claim uses, if claims share cards by amount.
    """

    options: GpuOptions
    sysfs: Sysfs
    resource_options: GpuResourceOptions = NO_OPTIONS
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    consumed: Mapping[str, Mapping[str, Consumed]] = field(default_factory=dict)


@frozen
class Change:
    """What has to be done to partition a GPU as configured.

    ``present`` and ``wanted`` are its partitions in words. ``make`` makes the change, and raises NotYet or
    BackendError if it cannot. With ``replaces`` it replaces the devices of the GPU.
    """

    present: str
    wanted: str
    make: Callable[[], None]
    replaces: bool = True


class Vendor:
    """The cards of one vendor. Most methods do nothing here, for a vendor without the ability.

    ``scan``, ``notice`` and ``release`` are called on one thread, the others on further ones. A vendor with
    events that cause no uevent is also a :class:`CanWatch`.
    """

    @property
    def is_closed(self) -> bool:
        """Whether the driver was not to be opened at the last scan."""
        return False

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """All current cards, given all adapters of the vendor (an empty list if they are gone).

        A broken card never hides another: it becomes an Unhealthy or withheld device with a reason.
        """
        raise NotImplementedError

    def edits(self, cards: Sequence[Card], request: ContainerRequest) -> Edits:
        """What one container needs to use these cards.

        Raises ``AllocationError`` if one cannot be used in its current state.
        """
        raise NotImplementedError

    def notice(self, event: Event) -> None:
        """Receives each event before the ``scan`` that it causes."""

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Health by id, from checks too expensive for each ``scan``; cards without an entry are healthy."""
        return {}

    def links(self, a: Card, b: Card) -> int:
        """How closely two cards are connected beyond PCIe and NUMA; 0 for not connected."""
        return 0

    def usage(self, cards: Sequence[Card]) -> Mapping[str, Usage]:
        """How much of each card is in use, by id, as far as the driver reports it."""
        return {}

    def processes(self, cards: Sequence[Card]) -> Mapping[str, Collection[int]]:
        """The ids of the processes that use each card, by its id, as far as the driver reports them."""
        return {}

    def change(self, cards: Sequence[Card], layout: Layout) -> Change | None:
        """How the GPU of these cards gets this layout; ``None`` if it has it, or is not to be used.

        Raises ``NotYet`` if it has to wait for something, and ``BackendError`` if it cannot become that.
        """
        return None

    def release(self) -> None:
        """Closes the driver, and returns when it is closed.

        Raises ``BackendError`` if something does not close.
        """

    def close(self) -> None:
        """Releases what it keeps open."""


@runtime_checkable
class CanWatch(Protocol):
    """A source of events that cause no uevent."""

    def watch(self) -> AsyncIterator[Event]:
        """Yields the events. Called when the source was added."""


def device(
    adapter: Adapter,
    attributes: Mapping[str, AttributeValue | None],
    health: Health,
    *,
    name: str = "",
    withheld: str | None = None,
    reserved: str | None = None,
    claims: frozenset[str] = frozenset(),
    part_of: frozenset[str] = frozenset(),
    divided: bool = False,
    counters: Mapping[str, int] = NOTHING,
    consumes: Mapping[str, int] = NOTHING,
) -> Device:
    """The device of an adapter or of a part of it, without attributes that are empty or ``None``.

    ``name`` is its id, if that is not the adapter's.
    """
    return Device(
        id=name or adapter.id,
        attributes=present(attributes),
        claims=claims or own_claims(adapter),
        part_of=part_of or parents(adapter),
        numa_nodes=() if adapter.numa_node is None else (adapter.numa_node,),
        pcie_path=adapter.pcie_path,
        health=health,
        withheld=withheld,
        reserved=reserved,
        divided=divided,
        counters=counters,
        consumes=consumes,
    )


def named(context: Context, attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Those of these attributes that are known and that the configuration uses."""
    wanted = context.wanted
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and (name in wanted or "*" in wanted)
    }


def own_claims(adapter: Adapter) -> frozenset[str]:
    """The claims of an adapter: its PCI function, and its DRM nodes, which udev could offer, too."""
    claims = {claim.node(node) for node in adapter.nodes}
    if adapter.address:
        claims.add(claim.pci(adapter.address))
    return frozenset(claims)


def parents(adapter: Adapter) -> frozenset[str]:
    """What an adapter is part of: for a virtual function, its physical function."""
    return frozenset((claim.pci(adapter.physical_function),) if adapter.physical_function else ())


def of_adapter(adapter: Adapter) -> dict[str, AttributeValue | None]:
    """The attributes that sysfs has for any adapter; missing ones are empty or ``None``."""
    return {
        "driver": adapter.driver,
        "pciBusID": adapter.address,
        "pcieRoot": pcie_root(adapter.path) if adapter.address else "",
        "numaNode": adapter.numa_node,
        "renderNode": adapter.render_node,
        "cardNode": adapter.card_node,
        "vendorID": adapter.vendor,
        "deviceID": adapter.device,
        "subsystemVendorID": adapter.subsystem_vendor,
        "subsystemDeviceID": adapter.subsystem_device,
    }


class MergedEvents:
    """The events of several sources as one stream. A source that fails ends it; the core starts it again."""

    def __init__(self, timings: Timings = DEFAULT) -> None:
        self._timings = timings
        self._sources: Mapping[str, object] = {}

    def update(self, sources: Mapping[str, object]) -> None:
        """Sets the current sources. May be called from any thread."""
        self._sources = sources

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields the events of all sources, including those that are added later."""
        queue: asyncio.Queue[Event] = asyncio.Queue(maxsize=100)
        listening: dict[str, asyncio.Future[None]] = {}
        try:
            while True:
                for name, source in self._sources.items():
                    if isinstance(source, CanWatch) and name not in listening:
                        listening[name] = asyncio.ensure_future(_pass_on(source, queue))
                for task in listening.values():
                    if task.done():
                        task.result()
                        return
                if (event := await _next(queue, self._timings.new_vendor)) is not None:
                    yield event
        finally:
            for task in listening.values():
                task.cancel()
            await asyncio.gather(*listening.values(), return_exceptions=True)


async def _pass_on(source: CanWatch, queue: asyncio.Queue[Event]) -> None:
    events = source.watch()
    try:
        async for event in events:
            await queue.put(event)
    finally:
        # now, not when the generator is garbage-collected: its end releases the hardware
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _next(queue: asyncio.Queue[Event], patience: float) -> Event | None:
    try:
        async with asyncio.timeout(patience):
            return await queue.get()
    except TimeoutError:
        return None
