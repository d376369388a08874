"""The modelled machines are modules beside the tests, which import them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "machines"))
