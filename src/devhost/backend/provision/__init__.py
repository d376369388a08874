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

from .changes import Changes

__all__ = ["Changes"]
