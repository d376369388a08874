"""A resource without a backend; a test sets its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from devhost.allocation.allocator import Allocated
from devhost.allocation.inventory import Entry, Snapshot
from devhost.allocation.resource_backend import Granted
from devhost.backend.model import HEALTHY, Edits


class ToyInventory:
    """Makes a revision of each :meth:`show`."""

    backend = "toy"

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._subscribers: set[Callable[[], None]] = set()

    def show(self, *tokens: str) -> None:
        entries = {token: Entry(token, token, (), (), HEALTHY, 0.0) for token in tokens}
        self.snapshot = Snapshot(self.snapshot.revision + 1, entries)
        for subscriber in tuple(self._subscribers):
            subscriber()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def clear(self) -> None:
        self.show()


async def _nothing() -> None:
    """Nothing has to be recorded."""


class ToyResource:
    """Grants everything."""

    name = "example.com/toy"
    prepares = False
    fault = ""

    def __init__(self) -> None:
        self.inventory = ToyInventory()
        self.inventory.show("a")

    async def settle(self, available: Sequence[str], must_include: Sequence[str]) -> None:
        """No container holds anything."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        return list(available)[:size]

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        return Allocated(Granted(Edits()), _nothing)

    async def prepare(self, tokens: Sequence[str]) -> None:
        """There is nothing to prepare."""

    def given(self, tokens: Iterable[str]) -> list[str]:
        return list(tokens)
