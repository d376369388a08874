"""The program that opens devices with pyverbs, in a process of its own (see :mod:`devhost_rdma.verbs`).

It imports nothing of devhost. Arguments are names of RDMA devices; for each it writes one line of JSON before
it asks, with the time, and one with the answer: so it shows which device hung, and what was learnt before.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main(names: list[str]) -> int:
    """Asks each device; 0 when pyverbs could be asked at all, else 1 with the reason on standard error."""
    try:
        pyverbs: Any = importlib.import_module("pyverbs.device")
    except ImportError as error:  # installed without the libraries it needs
        sys.stderr.write(f"{error}\n")
        return 1
    failure: type[Exception] = pyverbs.PyverbsError
    try:
        known = {_text(device.name) for device in pyverbs.get_device_list()}
    except failure:
        known = set()  # so it says where there is no RDMA core
    for name in names:
        _write({"name": name, "since": time.monotonic()})
        answer: dict[str, object] = {"name": name}
        if name in known:
            try:
                context = pyverbs.Context(name=name)
            except (failure, OSError) as error:
                answer |= {"step": "open", **_trouble(error)}
            else:
                try:
                    try:
                        answer |= _ask(context)
                    finally:
                        context.close()  # while it is open the kernel cannot remove the device
                except (failure, OSError) as error:
                    answer |= {"step": "ask", **_trouble(error)}
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


def _trouble(error: Exception) -> dict[str, object]:
    # pyverbs' own exceptions call it error_code
    return {"error": str(error), "errno": getattr(error, "error_code", None) or getattr(error, "errno", None)}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
