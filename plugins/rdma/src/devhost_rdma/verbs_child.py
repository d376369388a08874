"""The program that opens devices with pyverbs in a separate process (see :mod:`devhost_rdma.verbs`).

It imports nothing from devhost. Its arguments are names of RDMA devices. For each it writes one line of JSON
with the time before opening it, and one with the answer, so the output shows which device hung.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main(names: list[str]) -> int:
    """Queries each device; returns 1 with the reason on standard error if pyverbs cannot be used, else 0."""
    try:
        pyverbs: Any = importlib.import_module("pyverbs.device")
    except ImportError as error:  # installed without its libraries
        sys.stderr.write(f"{error}\n")
        return 1
    failure: type[Exception] = pyverbs.PyverbsError
    try:
        known = {_text(device.name) for device in pyverbs.get_device_list()}
    except failure:
        known = set()  # there is no RDMA core
    for name in names:
        _write({"name": name, "since": time.monotonic()})
        answer: dict[str, object] = {"name": name}
        if name in known:
            try:
                context = pyverbs.Context(name=name)
            except (failure, OSError) as error:
                answer |= {"step": "open", **_failure(error)}
            else:
                try:
                    try:
                        answer |= _ask(context)
                    finally:
                        context.close()  # the kernel cannot remove an open device
                except (failure, OSError) as error:
                    answer |= {"step": "ask", **_failure(error)}
        _write(answer)
    return 0


def _ask(context: Any) -> dict[str, object]:
    ports = context.query_device().phys_port_cnt
    for number in range(1, ports + 1):
        context.query_port(number)
    return {"ports": ports}


def _write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _failure(error: Exception) -> dict[str, object]:
    # exceptions of pyverbs have error_code
    return {"error": str(error), "errno": getattr(error, "error_code", None) or getattr(error, "errno", None)}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
