#!/usr/bin/env python3
"""Makes an AMD GPU unhealthy while AMD's device metrics exporter reports that. Run it every minute."""

import json
import os
import re
import urllib.request
from pathlib import Path

DIRECTORY = Path(os.environ.get("VERDICTS", "/var/lib/devhost/verdicts"))
EXPORTER = os.environ.get("EXPORTER", "http://localhost:5000/metrics")


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


with urllib.request.urlopen(EXPORTER, timeout=10) as answer:
    found = re.findall(r"^(?:amd_)?gpu_health\{(.*)\} (\S+)$", answer.read().decode(), re.MULTILINE)
bad = [dict(re.findall(r'(\w+)="([^"]*)"', labels)) for labels, value in found if float(value) < 1]
publish("amd", {gpu["serial_number"]: "the metrics exporter reports it unhealthy" for gpu in bad})
