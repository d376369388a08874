"""``python -m bench``: runs the measurements one after another and prints one table."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from . import (
    absent,
    affinity,
    allocate,
    burst,
    dra,
    footprint,
    fpga,
    gpu,
    isolation,
    latency,
    polled,
    rdma,
    scale,
    scrape,
    sriov,
    startup,
    sysfs,
    verdicts,
)
from .measure import Result
from .measures import MEASURES
from .table import machine, render

BENCHES: dict[str, Callable[[], AsyncIterator[Result]]] = {
    "startup": startup.measure,
    "uevents": latency.uevents,
    "following": latency.following,
    "changes": latency.changes,
    "many": scale.changes,
    "random": scale.at_random,
    "sustained": scale.sustained,
    "beside": scale.beside,
    "ledger": scale.ledger,
    "collect": scale.collected,
    "reload": latency.reload,
    "verdicts": verdicts.listed,
    "allocate": allocate.measure,
    "affinity": affinity.measure,
    "burst": burst.measure,
    "churn": burst.churn,
    "memory": footprint.few,
    "memory-default": footprint.default,
    "memory-10000": footprint.many,
    "memory-verdicts": verdicts.memory,
    "idle": footprint.idle,
    "polled": polled.measure,
    "sysfs": sysfs.measure,
    "rdma": rdma.measure,
    "sriov": sriov.measure,
    "gpu": gpu.measure,
    "fpga": fpga.measure,
    "absent": absent.measure,
    "memory-dra": dra.memory,
    "slices": dra.slices,
    "slices-shared": dra.capacity,
    "change-slice": dra.changes,
    "prepare": dra.prepare,
    "prepare-part": dra.prepare_part,
    "scrape": scrape.measure,
    "isolation": isolation.measure,
}
"""The benches. Each yields one or more lines of the table."""


async def run(names: Sequence[str]) -> tuple[list[Result], list[str]]:
    """The results of these benches in the table's order, and the errors."""
    results: list[Result] = []
    broken: list[str] = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            async for result in BENCHES[name]():
                results.append(result)  # noqa: PERF401 - those before a failure count
        except Exception as error:  # noqa: BLE001 - the other benches still run
            broken.append(f"{name}: {type(error).__name__}: {error}")
    return sorted(results, key=lambda result: MEASURES.index(result.measure)), broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 success, 1 a bench failed or, with ``--strict``, a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--only", action="append", choices=list(BENCHES), metavar="NAME", help=f"one of {', '.join(BENCHES)}"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    load = os.getloadavg()[0]
    results, broken = asyncio.run(run(options.only or list(BENCHES)))
    print(render(results))
    print(f"\n{machine(load)}")
    for text in broken:
        print(f"failed: {text}", file=sys.stderr)
    return int(bool(broken) or (options.strict and any(result.missed for result in results)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that devhost is ended as well
    sys.exit(main())
