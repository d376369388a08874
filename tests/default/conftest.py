"""The modelled machines of all plugins are modules beside their tests."""

from __future__ import annotations

import sys
from pathlib import Path

for machines in sorted((Path(__file__).parents[2] / "plugins").glob("*/tests/machines")):
    sys.path.append(str(machines))
