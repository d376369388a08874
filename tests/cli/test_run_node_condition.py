"""``devhost run --node-condition`` as a process: an API server, a kubelet, and what depends on neither."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import AccessFiles, ApiServer
from devhost_testing.kubelet import KubeletSimulator
from kit.waiting import until
from status_values import Json

from devhost.telemetry import ask

PATH = "/api/v1/nodes/n1"
WATCH = '''
    async def watch(self):
        """Looks for other toys all the time: otherwise devhost looks once a minute."""
        import asyncio

        from devhost.backend import Event

        while True:
            await asyncio.sleep(0.1)
            yield Event()
'''
TAINT = {"key": "example.com/starting", "effect": "NoSchedule"}


class Running:
    """What a test sees of the process."""

    def __init__(self, kubelet: KubeletSimulator, socket: Path) -> None:
        self.kubelet = kubelet
        self._socket = socket

    async def problems(self) -> list[Json]:
        """The problems with the node."""
        found = (await ask.fetch(self._socket)).json["problems"]
        return [one for one in found if one["kind"] == "node"]


@asynccontextmanager
async def running(toys: Any, place: Path, server: ApiServer) -> AsyncIterator[Running]:
    access = AccessFiles(place)
    access.write(server.url)
    with tempfile.TemporaryDirectory(prefix="devhost-") as short:
        socket = Path(short) / "status.sock"
        options = [f"--status-socket={socket}", f"--kubeconfig={access.file}", "--node-name=n1"]
        options += [f"--state-dir={place / 'state'}", "--node-condition"]
        options += [f"--startup-taints={TAINT['key']}:NoSchedule"]
        async with KubeletSimulator(place / "kubelet") as kubelet:
            with toys.running(kubelet.directory, *options):
                yield Running(kubelet, socket)


async def test_the_condition_follows_expect_and_then_the_startup_taint_leaves(
    toys: Any, tmp_path: Path
) -> None:
    toys.write("name: example.com/toy, backend: toy, expect: 3")
    drop_in = tmp_path / "backends" / "toy.py"
    head, allocate, rest = drop_in.read_text().partition("    def allocate(")
    drop_in.write_text(head + WATCH + "\n" + allocate + rest)
    async with ApiServer() as server:
        server.node("n1")
        server.put(PATH, {"metadata": {"name": "n1"}, "spec": {"taints": [TAINT]}, "status": {}})

        def condition() -> dict[str, Any]:
            (node,) = server.stored(PATH)
            return next(iter(node["status"].get("conditions", ())), {})

        async with running(toys, tmp_path, server) as devhost:
            await until(lambda: condition().get("status") == "False")
            assert "example.com/toy: 2 of 3 devices" in condition()["message"]
            assert server.stored(PATH)[0]["spec"]["taints"] == [TAINT]
            toys.plug("one=x100", "two=x200", "three=x300")
            await until(lambda: condition()["status"] == "True", 120)
            await until(lambda: server.stored(PATH)[0]["spec"]["taints"] == [], 120)
            assert await devhost.problems() == []


async def test_a_node_that_cannot_be_written_is_one_problem_and_devices_are_served(
    toys: Any, tmp_path: Path
) -> None:
    async with ApiServer() as server, running(toys, tmp_path, server) as devhost:
        await devhost.kubelet.wait_for(lambda: devhost.kubelet.allocatable().get("example.com/toy") == 2)
        await until(lambda: server.requests)
        (problem,) = await until(devhost.problems)
    assert problem["subject"] == "n1"
    assert 'nodes "n1" not found' in problem["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--startup-taints=a"], "--startup-taints has no condition to wait for (add --node-condition)"),
        (["--node-condition", "--startup-taints=a b"], "--startup-taints: 'a b' is no taint"),
        (["--node-condition", "--node-name=N_1"], "'N_1' is not the name of a node in Kubernetes"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    toys: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    kubeconfig = f"--kubeconfig={tmp_path / 'kubeconfig'}"
    done = toys.devhost("run", f"--kubelet-dir={tmp_path}", kubeconfig, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_without_access_to_an_api_server_the_condition_is_refused(
    toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = toys.devhost("run", f"--kubelet-dir={tmp_path}", "--node-condition", "--node-name=n1")
    assert done.returncode == 3
    assert "run devhost in a pod, or give --kubeconfig FILE" in done.stderr
