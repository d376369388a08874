"""Settings of ``devhost run`` for its whole process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator

import pytest
from kit.waiting import until

from devhost.host import daemon


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def test_a_thread_that_computes_gives_up_the_interpreters_lock_every_millisecond(rig):
    rig.config.write_text("version: 1\nresources: []\n")
    socket = rig.config.with_name("status.sock")
    serving = asyncio.create_task(
        daemon.serve(daemon.Options(rig.config, rig.kubelet_dir, status_socket=socket))
    )
    await until(socket.exists)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    signal.raise_signal(signal.SIGTERM)  # devhost handles it once its status socket exists
    await serving
