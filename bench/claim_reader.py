"""``python -m bench.claim_reader KUBECONFIG``: reads objects of an API server, as devhost does.

Each line of the standard input is a path; each line of the output the milliseconds that it took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from devhost.dra.credentials import from_files
from devhost.dra.kube import KubeApi


async def main() -> None:
    """Reads until the input ends."""
    api = KubeApi(from_files(Path(sys.argv[1]), {}))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        began = time.perf_counter()
        await api.get(line.decode().strip())
        print((time.perf_counter() - began) * 1e3, flush=True)
    api.close()


if __name__ == "__main__":
    asyncio.run(main())
