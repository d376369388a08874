"""The code of a family is imported where its hardware may be: nowhere else does it cost memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import fpga_cards
import fpga_kernel
import fpga_xrt
import pytest
from devhost_testing.trees import Tree
from kit.command import completed

SCRIPT = """
import sys
from pathlib import Path
from devhost.discovery.runner import ServiceContext
from devhost_fpga.backend import Fpga
context = ServiceContext("fpga", Path(sys.argv[1]), ("*",))
Fpga(Fpga.Options(), context).discover()
context.close()
names = ("dfl", "xrt", "embedded", "managers", "programming.programmer")
print(*(name for name in names if f"devhost_fpga.{name}" in sys.modules))
"""


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Tree, ""),
        (fpga_cards.two_ports, "dfl managers"),
        (fpga_cards.mixed, "dfl managers"),
        (fpga_xrt.alveo_u250, "xrt"),
        (fpga_kernel.kria_kv260, "dfl embedded managers"),
    ],
)
def test_only_what_may_be_there_is_imported(
    tmp_path: Path, machine: Callable[[Path], object], expected: str
) -> None:
    machine(tmp_path)
    ran = completed(sys.executable, "-c", SCRIPT, tmp_path, check=True)
    assert ran.stdout.strip() == expected
