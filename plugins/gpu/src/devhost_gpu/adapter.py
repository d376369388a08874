"""A graphics adapter as sysfs shows it: a PCI function of a display class, or any device with DRM nodes."""

from __future__ import annotations

from dataclasses import dataclass

from devhost.backend.sysfs import pcie_path

DISPLAY = "03"
"""PCI base class of display controllers (PCI Code and ID Assignment Specification)."""

ACCELERATOR = "1200"
"""PCI class of processing accelerators, which AMD's Instinct from MI300 on are."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. Strings are empty where sysfs says nothing; ids are lower-case hex digits without ``0x``.

    ``id`` is the PCI address, or of what is not on PCI the name of its directory. ``path`` is its directory
    below ``/sys/devices``, ``address`` its PCI address, ``driver`` what drives its DRM device.
    ``physical_function`` is the address of the function that it is a virtual one of, ``num_vfs`` how many
    virtual functions it has itself. ``card`` and ``render`` are names of DRM devices: ``card0``,
    ``renderD128``. ``inode`` tells it from one that was there before under the same name.
    """

    id: str
    path: str
    inode: int = 0
    address: str = ""
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    pci_class: str = ""
    driver: str = ""
    numa_node: int | None = None
    physical_function: str = ""
    num_vfs: int = 0
    card: str = ""
    render: str = ""

    @property
    def card_node(self) -> str:
        """The node for mode setting; empty if it has none."""
        return f"/dev/dri/{self.card}" if self.card else ""

    @property
    def render_node(self) -> str:
        """The node for rendering and computing; empty if it has none."""
        return f"/dev/dri/{self.render}" if self.render else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Both nodes, those that it has."""
        return tuple(node for node in (self.card_node, self.render_node) if node)

    @property
    def is_virtual(self) -> bool:
        """Whether it is an SR-IOV virtual function."""
        return bool(self.physical_function)

    @property
    def pcie_path(self) -> tuple[str, ...]:
        """PCI addresses from the root port down to it; empty if it is not a PCI function."""
        return pcie_path(self.path) if self.address else ()
