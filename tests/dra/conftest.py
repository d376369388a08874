"""Puts what the tests of Dynamic Resource Allocation share on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
