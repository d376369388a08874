"""The modules of the soak are one program, which these tests import and ``make soak`` runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
