#!/usr/bin/env python3
"""Makes devices unhealthy while node-problem-detector has a condition: `CONDITION=DEVICE,…`, every minute."""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path

DIRECTORY = Path(os.environ.get("VERDICTS", "/var/lib/devhost/verdicts"))
DETECTOR = os.environ.get("DETECTOR", "http://localhost:20257/metrics")


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


with urllib.request.urlopen(DETECTOR, timeout=10) as answer:
    found = re.findall(r'^problem_gauge\{reason="([^"]*)",type="([^"]*)"\} 1$', answer.read().decode(), re.M)
reasons = {condition: f"{condition}: {reason}" for reason, condition in found}
asked = [one.partition("=") for one in sys.argv[1:]]
bad = [(name, reasons[it]) for it, _, names in asked if it in reasons for name in names.split(",")]
publish("npd", dict(bad))
