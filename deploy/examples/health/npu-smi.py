#!/usr/bin/env python3
"""Makes an Ascend NPU unhealthy while `npu-smi info` reports an alarm for it. Run it every minute."""

import json
import os
import re
import subprocess
from pathlib import Path

DIRECTORY = Path(os.environ.get("VERDICTS", "/var/lib/devhost/verdicts"))
HEALTHY = ("OK", "Warning")
# the row with name and health, and below it the row with the PCI address
ROWS = re.compile(r"^\| *(\d+) +\S+ *\| *(\w+) *\|.*\n\| *\d+ *\| *([0-9A-Fa-f:.]+) *\|", re.MULTILINE)


def publish(by: str, bad: dict[str, str]) -> None:
    """Makes the files of this program name the bad devices, each with its reason, and no others."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    old = {*DIRECTORY.glob(f"{by}-*.json")}
    for device, reason in bad.items():
        file = DIRECTORY / f"{by}-{device.replace('/', '-')}.json"
        text = json.dumps({"devices": [device], "kind": "unhealthy", "reason": reason, "by": by})
        if file not in old or file.read_text() != text:
            part = file.with_name(f".{file.name}")
            part.write_text(text)
            part.rename(file)
        old.discard(file)
    for file in old:
        file.unlink()


found = ROWS.findall(subprocess.check_output(["npu-smi", "info"], text=True))
publish(
    "npu-smi", {bus.lower(): f"NPU {npu}: {health}" for npu, health, bus in found if health not in HEALTHY}
)
