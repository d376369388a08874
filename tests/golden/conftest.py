"""The golden tests have the rig of ``kit.host``."""

from __future__ import annotations

import sys
from pathlib import Path

from kit import host

sys.path += [
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "host"),
]  # for what test modules share

rig = host.rig
