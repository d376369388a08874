"""What ``devhost run`` sets for its whole process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from devhost.host import daemon
from devhost.host.host import Host


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def test_a_backend_that_computes_gives_up_the_lock_every_millisecond(rig, monkeypatch):
    async def run(_host: Host) -> None:
        assert sys.getswitchinterval() == pytest.approx(0.001)

    rig.config.write_text("version: 1\nresources: []\n")
    monkeypatch.setattr(Host, "run", run)
    monkeypatch.setattr(daemon, "on_signals", lambda _host: None)
    socket = rig.config.with_name("status.sock")
    await daemon.serve(daemon.Options(rig.config, rig.kubelet_dir, status_socket=socket))
