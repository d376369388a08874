"""``devhost run`` as a process: the status page, and the names of pods on it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import contextmanager

import pytest
from devhost_testing.kubelet import KubeletSimulator
from kit.command import DEVHOST, completed
from kit.http import get
from kit.waiting import until


@contextmanager
def listening(toys, kubelet_dir, *arguments):
    """A running devhost; yields the address that it logs."""
    options = ("--listen", "127.0.0.1:0", *arguments)
    with toys.running(kubelet_dir, *options, log=subprocess.PIPE, runtime=toys.root / "run") as process:
        line = next(line for line in process.stderr if " listening address=" in line)
        yield line.rpartition("=")[2].strip()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [((), False), (("--hide-pods",), False), (("--pod-metrics",), False), (("--show-pods",), True)],
)
async def test_page_and_json_name_pods_only_if_requested(toys, tmp_path, arguments, shown):
    def shows(path: str) -> str:
        return get(address, path)[1].replace("<wbr>", "")  # where a browser may break a line

    (toys.root / "dev").mkdir(exist_ok=True)
    (toys.root / "dev" / "null").touch()
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "pod-resources") as kubelet:
        with listening(toys, kubelet.directory, *arguments) as address:
            await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/toy") == 2)
            await kubelet.admit("train-7", "main", "example.com/toy", 1)
            told = "default/train-7/main" if shown else "a pod</td>"
            await until(lambda: asyncio.to_thread(lambda: told in shows("/")))
            page = await asyncio.to_thread(shows, "/")
            assert f"<h1>{os.environ.get('NODE_NAME') or socket.gethostname()}</h1>" in page
            everything = page + await asyncio.to_thread(shows, "/status.json")
            assert ("train-7" in everything) is shown
            assert "example.com/toy" in everything


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--hide-pods"], "--hide-pods has no page to hide them from (add --listen HOST:PORT)"),
        (["--show-pods"], "--show-pods has no page to show them on (add --listen HOST:PORT)"),
        (
            ["--hide-pods", "--pod-metrics", "--listen", "127.0.0.1:0"],
            "--pod-metrics and --hide-pods contradict each other (omit one of them)",
        ),
    ],
)
def test_hiding_pods_without_an_http_server_is_refused_in_one_line(toys, arguments, complaint):
    done = completed(*DEVHOST, "run", "--config", toys.config, *arguments)
    assert (done.returncode, done.stderr) == (2, f"devhost: {complaint}\n")
