"""What breaks while devhost runs: status, page, JSON, metric and log name it in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.command import DEVHOST, completed
from kit.drop_in import drop_in
from kit.files import replace
from kit.process import running
from reading_node import RESOURCE, ReadingNode

TOY = f"{{name: {RESOURCE}, backend: toy}}"

PROVISIONS = drop_in("""
class Provisions(Plain):
    name = "provisions"

    def provision(self):
        if not (self.context.root / "firmware").exists():
            raise OSError(5, "the firmware rejects 8 functions")
""")


async def reported(node: ReadingNode, kind: str, subject: str) -> str:
    """The reason of the only problem of a kind, once every place names it in the same words."""
    await node.until(lambda: len(node.problems(kind)) == 1)
    (problem,) = node.problems(kind)
    assert problem["subject"] == subject
    reason: str = problem["reason"]
    await node.until(lambda: not node.unsaid(kind, subject, reason))
    return reason


async def over(node: ReadingNode, kind: str) -> None:
    await node.until(lambda: not node.problems(kind))
    assert node.series("devhost_problem_info", kind=kind) == []


def rewrite(node: ReadingNode, head: str, *entries: str) -> None:
    """Replaces the configuration in one step; ``head`` is what precedes the entries."""
    lines = "".join(f"- {entry}\n" for entry in entries)
    replace(node.config, f"version: 1\nbackendPaths: [backends]\n{head}resources:\n{lines}")


async def test_an_entry_whose_devices_an_earlier_one_takes(node: ReadingNode) -> None:
    node.configure(
        "{name: example.com/x, backend: toy, where: {model: 'x*'}}",
        f"{{name: {RESOURCE}, backend: toy, where: {{model: '*100'}}}}",
    )
    reason = await reported(node, "entry", RESOURCE)
    assert reason == "0 devices; 3 match, but resources[0] (example.com/x) took them"
    node.configure(TOY)
    await over(node, "entry")


async def test_a_kubelet_that_lost_its_checkpoint(node: ReadingNode) -> None:
    await node.again()
    await node.until(lambda: node.log(message="registered"))
    await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {RESOURCE: 3})
    (token,) = (await node.kubelet.admit("train", "main", RESOURCE, 1)).device_ids
    await node.until(lambda: any(device["holder"] for device in node.document()["resources"][0]["devices"]))
    await node.kubelet.restart(forget=True)
    reason = await reported(node, "allocation", f"{RESOURCE} {token}")
    assert reason == "held by a pod, which the kubelet no longer knows"
    node.kubelet.release("train")
    await over(node, "allocation")


async def test_a_kubelet_directory_that_is_moved_away(node: ReadingNode) -> None:
    directory = node.kubelet.directory
    directory.rename(directory.with_name("aside"))
    reason = await reported(node, "kubelet", str(directory))
    assert "director" in reason
    directory.with_name("aside").rename(directory)
    await over(node, "kubelet")


async def test_a_kubelet_that_does_not_report_who_holds_what(node: ReadingNode) -> None:
    socket = node.kubelet.pod_resources
    assert socket is not None
    socket.rename(socket.with_name("aside"))
    reason = await reported(node, "pods", str(socket))
    assert reason == f"{socket} does not exist"
    socket.with_name("aside").rename(socket)
    await over(node, "pods")


async def test_a_specification_that_cannot_be_written(node: ReadingNode) -> None:
    (node.root / "file").touch()
    rewrite(node, "cdi: {directory: /file/cdi}\n", f"{{name: {RESOURCE}, backend: toy, inject: cdi}}")
    reason = await reported(node, "resource", RESOURCE)
    assert f"{node.root}/file" in reason
    rewrite(node, "", TOY)
    await over(node, "resource")


async def test_labels_that_cannot_be_written(node: ReadingNode) -> None:
    toy = node.drop_ins / "toy.py"
    labelled = toy.read_text().replace(
        "    def allocate",
        "    def labels(self, devices, offered):\n        return {'a.b/c': 1}\n\n    def allocate",
    )
    toy.write_text(labelled)
    (node.root / "file").touch()
    rewrite(node, "labels: {write: true, directory: /file/features}\n", TOY)
    await node.again()
    reason = await reported(node, "labels", "toy")
    assert f"{node.root}/file" in reason
    (node.root / "file").unlink()
    node.replug("a", "b")
    await over(node, "labels")


async def test_hardware_that_cannot_be_provisioned(node: ReadingNode) -> None:
    (node.drop_ins / "provisions.py").write_text(PROVISIONS)
    node.configure(TOY, "{name: example.com/made, backend: provisions, optional: true}")
    reason = await reported(node, "provisioning", "provisions")
    assert "the firmware rejects 8 functions" in reason
    (node.root / "firmware").touch()
    node.look()
    await over(node, "provisioning")


async def test_a_backend_that_is_not_installed(node: ReadingNode) -> None:
    node.configure(TOY, "{name: example.com/card, backend: card}")
    reason = await reported(node, "config", str(node.config))
    assert f"{node.config}:5:" in reason
    assert 'backend "card" is not installed' in reason
    node.configure(TOY)
    await over(node, "config")


@pytest.fixture
def second(node: ReadingNode, tmp_path: Path) -> Iterator[Any]:
    """Runs another devhost on the same kubelet; yields its status document."""
    place = tmp_path / "second"
    place.mkdir()
    config, socket = place / "devhost.yaml", place / "status.sock"
    config.write_text(node.config.read_text().replace("[backends]", f"[{node.drop_ins}]"))
    options = ("--state-dir", place / "state", "--pod-resources", node.kubelet.pod_resources)
    with running(config, node.root, node.kubelet.directory, *options, "--status-socket", socket) as process:

        def document() -> Any:
            done = completed(*DEVHOST, "status", "--socket", socket, "--output", "json")
            return json.loads(done.stdout) if done.returncode == 0 else None

        document.stop = process.terminate  # type: ignore[attr-defined]
        yield document


async def test_two_devhosts_on_one_kubelet(node: ReadingNode, second: Any) -> None:
    reason = await reported(node, "resource", RESOURCE)
    assert "another devhost registered it after this one" in reason
    assert "run only one devhost for this resource on the node" in reason
    assert second()["problems"] == []
    second.stop()
    await over(node, "resource")
    await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {RESOURCE: 3})
