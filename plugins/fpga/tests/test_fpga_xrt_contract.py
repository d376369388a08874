"""The promises of every backend, on machines with XRT's cards and with the kernel's own classes."""

from __future__ import annotations

from pathlib import Path

import fpga_kernel
import fpga_xrt
from devhost_fpga.backend import Fpga
from devhost_testing.contract import BackendContract


class TestXrtCards(BackendContract):
    """Two healthy cards, one being reset, one without driver, and a management function alone."""

    backend = Fpga

    def tree(self, root: Path) -> None:
        tree = fpga_xrt.alveo_u280(root)
        user = tree.function("0000:18:00.1", fpga_xrt.U250, "xocl")
        tree.user(user)
        tree.reset_begins(user)
        tree.function("0000:19:00.1", fpga_xrt.VCK5000)
        tree.function("0000:1a:00.0", fpga_xrt.U250_MANAGEMENT, "xclmgmt")


class TestTranscoders(BackendContract):
    """Both of a card's, and one that has lost its driver."""

    backend = Fpga

    def tree(self, root: Path) -> None:
        fpga_xrt.ma35d(root).function("0000:05:00.0", fpga_xrt.MA35D)


class TestEmbedded(BackendContract):
    """A Kria, with a small chip on SPI beside it."""

    backend = Fpga

    def tree(self, root: Path) -> None:
        tree = fpga_kernel.kria_kv260(root)
        tree.device("platform/soc/spi0.0", "spi", DRIVER="ice40-spi")
        tree.fpga_manager("platform/soc/spi0.0", 1, "Lattice iCE40 FPGA Manager", "write error")


class TestRegions(BackendContract):
    """Regions in a region."""

    backend = Fpga

    def tree(self, root: Path) -> None:
        fpga_kernel.nested(root)
