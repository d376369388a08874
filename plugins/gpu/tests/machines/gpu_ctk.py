"""A substitute for ``nvidia-ctk``: it prints what a test configures, and records its arguments.

Options and output are those of ``nvidia-ctk cdi generate`` of the NVIDIA container toolkit 1.19.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROGRAM = """#!{python}
import json, os, pathlib, sys, time
here = pathlib.Path({here!r})
(here / "pid").write_text(str(os.getpid()))
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
what = json.loads((here / "what.json").read_text())
asked = [word.partition("=")[2] for word in sys.argv if word.startswith("--device-id=")]
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
if "--mode" in words:
    nothing = "invalid device, empty device edits"
    found = what.get("modes", {{}}).get(words["--mode"], {{"fails": nothing}})
    what = {{"control": [], "mounts": []}} | found
if what.get("hangs"):
    time.sleep(3600)
if what.get("fails") and not (asked and what.get("picks")):
    sys.exit("flag provided but not defined: -device-id" if asked else what["fails"])
kind = words["--vendor"] + "/" + words["--class"]
names = asked or what["names"]
edits = {{"deviceNodes": [{{"path": path}} for path in what["control"]], "mounts": what["mounts"]}}
usual = [what.get("node", "/dev/nvidia0")]
nodes = {{name: what.get("nodes", {{}}).get(name, usual) for name in names}}
given = {{name: {{"deviceNodes": [{{"path": path}} for path in nodes[name]]}} for name in names}}
devices = [{{"name": name, "containerEdits": given[name]}} for name in names]
print(json.dumps({{"cdiVersion": "0.5.0", "kind": kind, "containerEdits": edits, "devices": devices}}))
"""


def install(root: Path, here: Path, **what: object) -> None:
    """Installs it below ``root``, or changes its behavior.

    Args:
        root: the directory used as ``/``.
        here: the directory for its own files; ``calls`` there has a line for each call, ``pid``
            the last process.
        what: ``names`` of devices, nodes of ``control``, ``mounts``; ``fails`` with words, or ``hangs``. One
            that ``picks`` works where single devices are asked for. ``nodes`` are those of devices by their
            names. ``modes`` has the same by mode, and a ``node`` for each name; in any other mode it finds
            nothing, and says so as the original does.
    """
    here.mkdir(exist_ok=True)
    (here / "what.json").write_text(json.dumps({"control": [], "mounts": [], **what}))
    program = root / "usr/bin/nvidia-ctk"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(PROGRAM.format(python=sys.executable, here=str(here)))
    program.chmod(0o755)
