"""The rules of :meth:`devhost.backend.Backend.provision` for devices that containers may hold.

A device that is to change is first withheld, so that no further container gets it, and changed only if no
container has it::

    def provision(self):
        self._changes.make(partial(self._change, card) for card in self._cards)

    def _change(self, card):
        if card.mode == self.options.mode:
            return
        self._changes.refuse_held({claim.pci(card.address)}, f"{card.id} keeps its mode")
        self._changes.withdraw([card.id], f"{card.id}")
        self._changes.refuse_held({claim.pci(card.address)}, f"{card.id} keeps its mode")
        card.write(self.options.mode)

``discover`` withholds the devices in :attr:`Changes.leaving`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from devhost.backend.errors import BackendError, NotYet


class Changes:
    """Changes of devices. Used by one thread, except :attr:`leaving`.

    Args:
        held: :meth:`devhost.backend.Context.held`.
        offered: returns whether a device, by its id, was offered at the last scan.
        devices: what the texts call the devices.
    """

    def __init__(
        self,
        held: Callable[[], frozenset[str] | None],
        offered: Callable[[str], bool],
        devices: str = "devices",
    ) -> None:
        self.leaving: frozenset[str] = frozenset()
        """Devices that must not be allocated because they are about to change. Replaced, never modified."""
        self._held = held
        self._offered = offered
        self._devices = devices
        self._going: set[str] = set()

    def make(
        self, changes: Iterable[Callable[[], None]], waits: Sequence[str] = (), faults: Sequence[str] = ()
    ) -> None:
        """Makes all changes that are possible now; a failure of one does not block others.

        Args:
            changes: each raises what this raises if it cannot be made.
            waits: what is waited for besides.
            faults: what failed besides.

        Raises:
            NotYet: a change waits for something.
            BackendError: a change failed.
        """
        self._going = set()
        waits, faults, held = [*waits], [*faults], frozenset[str]()
        for change in changes:
            try:
                change()
            except BackendError as error:
                (waits if isinstance(error, NotYet) else faults).append(error.message)
                held |= error.held
        self.leaving = frozenset(self._going)
        if faults:
            raise BackendError("; ".join(faults + waits), held=held)
        if waits:
            raise NotYet("; ".join(waits), held=held)

    def held(self) -> frozenset[str]:
        """What containers use now.

        Raises:
            NotYet: that is unknown.
        """
        held = self._held()
        if held is None:
            raise NotYet(f"it is not yet known which containers hold {self._devices}")
        return held

    def refuse_held(self, claims: Collection[str], text: str) -> None:
        """Returns if no container has any of these claims.

        Raises:
            NotYet: one has, with this text, or that is unknown.
        """
        if used := self.held().intersection(claims):
            raise NotYet(text, held=used)

    def withdraw(self, devices: Sequence[str], text: str) -> None:
        """Returns if no container can get these devices any longer.

        Raises:
            NotYet: they are offered until the next scan; the text ends with ``must be withdrawn first``.
        """
        shown = [one for one in devices if one not in self.leaving or self._offered(one)]
        if shown:
            self._going.update(devices)
            raise NotYet(f"{text} must be withdrawn first")

    def changed(self, devices: Iterable[str]) -> None:
        """Ends the withdrawal of these devices: they have changed, or do not change."""
        self.leaving -= frozenset(devices)
