"""``make soak``: for DEVHOST_SOAK_SECONDS (600), from DEVHOST_SOAK_SEED (drawn if unset, and printed)."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # tests/, for what several of its directories share

from soak_node import Tally
from soak_run import soak

STEPS = 30


def main() -> int:
    """Exit code: 0 nothing found, 1 findings, which are printed."""
    seconds = float(os.environ.get("DEVHOST_SOAK_SECONDS", "600"))
    seed = int(os.environ.get("DEVHOST_SOAK_SEED") or secrets.randbelow(1_000_000))
    print(f"soak: {seconds:g} s from seed {seed}", flush=True)
    began = time.monotonic()
    shown = 0

    def tell(number: int, tally: Tally) -> None:
        nonlocal shown
        print(
            f"{time.monotonic() - began:6.0f} s  seed {number}: {tally.steps} steps,"
            f" {tally.quiet} quiet periods, {len(tally.findings)} findings",
            flush=True,
        )
        for finding in tally.findings[shown:]:
            print(f"--- finding under seed {number}\n{finding}\n---", flush=True)
        shown = len(tally.findings)

    tally = soak(seed, steps=STEPS, seconds=seconds, tell=tell)
    for finding in tally.findings[shown:]:
        print(f"--- finding\n{finding}\n---")
    print(f"\n{tally.steps} steps, {tally.quiet} quiet periods, {len(tally.findings)} findings; by kind:")
    for kind, count in sorted(tally.kinds.items()):
        print(f"  {kind:32} {count:6}")
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
