#!/usr/bin/env python3
"""Makes a Gaudi accelerator unhealthy while it counts uncorrected memory errors. Run it every minute."""

import csv
import json
import os
import subprocess
from pathlib import Path

DIRECTORY = Path(os.environ.get("VERDICTS", "/var/lib/devhost/verdicts"))
QUERY = "bus_id,ecc.errors.uncorrected.volatile.total"


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


command = ["hl-smi", "-Q", QUERY, "-f", "csv,noheader"]
rows = csv.reader(subprocess.check_output(command, text=True).splitlines(), skipinitialspace=True)
counts = {row[0].lower(): row[1] for row in rows if len(row) == 2}
publish(
    "hl-smi", {bus: f"{n} uncorrected memory errors" for bus, n in counts.items() if n.isdecimal() and int(n)}
)
