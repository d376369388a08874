"""The tests of a whole host have the rig of ``kit.host``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kit import host

sys.path.append(str(Path(__file__).parent))  # for what several test modules share

rig, kubelet = host.rig, host.kubelet


@pytest.fixture
def specs(rig, tmp_path):
    """The CDI directory of the rig: paths and contents of its files."""
    from cdi_scene import Specs, alone

    rig.cdi = tmp_path / "cdi"
    rig.scripts["toy"].nodes = {"d0": "/dev/null", "d1": "/dev/zero", "d2": "/dev/full"}
    write = rig.write

    def with_directory(*resources):
        write(*resources)
        rig.config.write_text(rig.config.read_text() + f"cdi: {{directory: {rig.cdi}}}\n")

    rig.write = with_directory
    # variables that are the same for each device, so that the names of single devices are used
    together = rig.classes["toy"].allocate
    rig.classes["toy"].allocate = alone(together)
    return Specs(rig, together)
