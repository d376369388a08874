"""Puts what the tests of plans and affinity share on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
