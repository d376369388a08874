#!/usr/bin/env python3
"""Makes a GPU unhealthy when it violates a DCGM policy: `dcgm.py UUID GROUP`, with a group of this GPU alone.

Keep it running. A violation does not end by itself: remove the file once the GPU was reset or replaced.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(os.environ.get("VERDICTS", "/var/lib/devhost/verdicts"))
OF_PROGRAMS = {13, 31, 43, 45, 68, 109}  # a program can cause these on a healthy GPU


def reason(line: str) -> str:
    """Why the GPU is unhealthy; empty if this line of dcgmi is no reason."""
    if xid := re.fullmatch(r"XID error (\d+) detected\.", line):
        return "" if int(xid[1]) in OF_PROGRAMS else f"XID {xid[1]}"
    violated = re.fullmatch(r"(?:An? |The )?(.*) has violated policy manager values\.", line)
    return violated[1] if violated else ""


uuid, group = sys.argv[1:]
file, part = DIRECTORY / f"dcgm-{uuid}.json", DIRECTORY / f".dcgm-{uuid}.json"
command = ["dcgmi", "policy", "-g", group, "--reg"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dcgmi:
    for line in dcgmi.stdout:
        if why := reason(line.strip()):
            DIRECTORY.mkdir(parents=True, exist_ok=True)
            verdict = {"devices": [uuid], "kind": "unhealthy", "reason": why, "by": "dcgm"}
            part.write_text(json.dumps(verdict))
            part.rename(file)
sys.exit(dcgmi.returncode)
