"""Whether this machine has an NVIDIA GPU for tests."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from .smi import SMI, Failed, gpus

SWITCH = "DEVHOST_GPU"
"""The variable that ``make gpu`` sets: no other run touches a GPU, which may have work to do."""

DRIVER = Path("/proc/driver/nvidia/version")


def why_not() -> str:
    """Why the tests cannot run here; empty if they can."""
    if not DRIVER.exists():
        return f"NVIDIA's driver is not loaded here: there is no {DRIVER}"
    if shutil.which(SMI) is None:
        return f"there is no program {SMI}"
    if find_spec("pynvml") is None:
        return "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    try:
        found = gpus()
    except Failed as error:
        return str(error)
    return "" if found else f"{SMI} reports no GPU"
