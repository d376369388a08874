"""What the kubelet side needs from a resource; the allocator provides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from devhost.allocation.allocator import Granted
from devhost.allocation.inventory import Snapshot


class Inventory(Protocol):
    """The tokens of a resource."""

    @property
    def backend(self) -> str:
        """The name of the backend of their devices."""

    @property
    def snapshot(self) -> Snapshot:
        """The tokens as they are now."""

    def subscribe(self, changed: Callable[[], None], /) -> Callable[[], None]:
        """Calls ``changed`` after each new revision; returns a function that ends this."""

    def clear(self) -> None:
        """Removes all tokens, because the resource leaves the configuration."""


class Resource(Protocol):
    """One resource: its tokens, and the answers to the kubelet's requests.

    A refused request raises a :class:`~devhost.backend.errors.DevhostError`.
    """

    @property
    def name(self) -> str:
        """The name that pods request, such as ``example.com/serial``."""

    @property
    def inventory(self) -> Inventory:
        """The tokens that are listed."""

    @property
    def prepares(self) -> bool:
        """Whether PreStartContainer has anything to do."""

    async def settle(self, available: Sequence[str], must_include: Sequence[str]) -> None:
        """Finds out who holds the offered tokens. Call it before :meth:`prefer`."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """The tokens that suit a container best."""

    async def allocate(self, tokens: Sequence[str]) -> Granted:
        """What a container gets for these tokens."""

    async def prepare(self, tokens: Sequence[str]) -> None:
        """Prepares the devices of a container that is about to start."""

    def given(self, tokens: Iterable[str]) -> list[str]:
        """The ids of the devices that containers got for these tokens."""
