"""The backend keeps the promises that every backend makes, on machines with what is hard about FPGAs."""

from __future__ import annotations

from pathlib import Path

import fpga_cards as cards
from devhost_fpga.backend import Fpga
from devhost_testing.contract import BackendContract
from fpga_tree import STRATIX, FpgaTree


class TestFpgaContract(BackendContract):
    """Both Intel drivers, a port on a virtual function, a card without its link, and one on another bus."""

    backend = Fpga

    def tree(self, root: Path) -> None:
        tree: FpgaTree = cards.mixed(root)
        card = tree.function("0000:d8:00.0", cards.PAC, below="0000:d7:00.0")
        tree.engine(tree.container(card))
        part = tree.function("0000:d8:00.1", cards.PAC_VF, below="0000:d7:00.0")
        tree.virtual_functions(card, part)
        tree.port(tree.container(part), 0)
        dead = tree.function("0000:86:00.0", cards.D5005)
        container = tree.container(dead)
        tree.engine(container, interface_id=STRATIX)
        tree.port(container, 0)
        tree.kill(dead)
