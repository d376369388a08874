"""Models of machines with Intel FPGAs, one function each, with its source in addition to :mod:`fpga_tree`."""

from __future__ import annotations

from pathlib import Path

from fpga_tree import ARRIA, NLB, OTHER, STRATIX, FpgaTree

N3000, D5005, PAC, PAC_VF = "8086:0b30", "8086:0b2b", "8086:09c4", "8086:09c5"
"""Ids of cards (drivers/fpga/dfl-pci.c)."""

N5010 = "1c2c:1000"
"""A card of Silicom Denmark with a Stratix 10 (drivers/fpga/dfl-pci.c)."""


def two_ports(root: Path) -> FpgaTree:
    """A card as the N3000, behind the switch on its board, with two ports of one engine."""
    tree = FpgaTree(root)
    card = tree.function("0000:3f:00.0", N3000, below="0000:3a:00.0/0000:3b:00.0/0000:3c:09.0", numa_node=1)
    container = tree.container(card)
    tree.engine(container, ports=2)
    tree.port(container, 0)
    tree.port(container, 1, OTHER)
    return tree


def d5005(root: Path) -> FpgaTree:
    """A card with a Stratix 10 and one port."""
    tree = FpgaTree(root)
    container = tree.container(tree.function("0000:86:00.0", D5005, below="0000:85:00.0", numa_node=1))
    tree.engine(container, interface_id=STRATIX)
    tree.port(container, 0)
    return tree


def arria10(root: Path, tree: FpgaTree | None = None) -> FpgaTree:
    """A card with an Arria 10 and the OPAE driver, as in the tests of the Intel plugin."""
    tree = tree or FpgaTree(root)
    card = tree.function("0000:05:00.0", PAC, "intel-fpga-pci", below="0000:00:02.0", numa_node=-1)
    container = tree.opae_container(card)
    tree.opae_engine(container)
    tree.opae_port(container, 0)
    return tree


def virtual(root: Path) -> FpgaTree:
    """A card whose only port was given to a virtual function (Documentation/fpga/dfl.rst)."""
    tree = FpgaTree(root)
    card = tree.function("0000:05:00.0", PAC, below="0000:00:02.0")
    tree.engine(tree.container(card))
    part = tree.function("0000:05:00.1", PAC_VF, below="0000:00:02.0")
    tree.virtual_functions(card, part)
    tree.port(tree.container(part), 0)
    return tree


def mixed(root: Path) -> FpgaTree:
    """Cards of both drivers in one machine."""
    return arria10(root, two_ports(root))


def twins(root: Path) -> FpgaTree:
    """Two cards with the same interface and the same accelerator function, one of another maker and class."""
    tree = FpgaTree(root)
    for bus, ids, pci_class in (("af", D5005, "0x120000"), ("d8", N5010, "0x020000")):
        card = tree.function(f"0000:{bus}:00.0", ids, below=f"0000:{bus[0]}0:00.0", pci_class=pci_class)
        container = tree.container(card)
        tree.engine(container, interface_id=ARRIA)
        tree.port(container, 0, NLB)
    return tree


def soc(root: Path) -> FpgaTree:
    """Device Feature Lists that are on no PCI bus (Documentation/fpga/dfl.rst, "Add your own bus")."""
    tree = FpgaTree(root)
    chip = tree.device("platform/c000000.fpga-dfl", "platform", files={}, DRIVER="dfl-platform")
    container = tree.container(chip)
    tree.engine(container, interface_id=STRATIX)
    tree.port(container, 0)
    return tree
