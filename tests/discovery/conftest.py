"""Adds the common module of the scanner tests to the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
