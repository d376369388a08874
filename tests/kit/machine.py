"""The rig of backends that change hardware: the calls of devhost, and what pods hold meanwhile.

Machines of plain files are made with ``devhost_testing.trees``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from devhost.backend import NotYet


class Provisioned(ABC):
    """A machine that a backend brings to what its options say."""

    def __init__(self) -> None:
        self.held: frozenset[str] | None = frozenset()
        self.held_first: list[frozenset[str]] = []
        """What is answered before that, one for each question."""
        self.running: tuple[tuple[Any, ...], Any] | None = None
        """The options, and what follows them."""

    @abstractmethod
    def once(self, *wanted: Any) -> None:
        """One call, and the scan after it."""

    def bring(self, *wanted: Any) -> None:
        """Calls until it has nothing to wait for but pods."""
        for _ in range(4):
            try:
                self.once(*wanted)
            except NotYet as error:
                if "must be withdrawn" not in str(error):
                    raise
            else:
                return
        raise AssertionError("it never ends")

    def restart(self) -> None:
        """What devhost knew in memory is gone."""
        self.running = None

    def ask_held(self) -> frozenset[str] | None:
        return self.held_first.pop(0) if self.held_first else self.held
