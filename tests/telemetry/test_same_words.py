"""What is wrong stands in the same words in the log, in ``devhost status``, on the page and in metrics."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from reading_node import RESOURCE, ReadingNode

from devhost.kubelet.registration import ABSENT

DEAF = """
from devhost.backend import Backend, Device, Edits, Event, hookimpl


class Deaf(Backend):
    name = "deaf"

    def discover(self):
        yield Device(id="d0")

    async def watch(self):
        if not (self.context.root / "heard").exists():
            raise OSError(19, "netlink is gone")
        while True:
            yield Event()
            await __import__("asyncio").sleep(60)

    def allocate(self, devices):
        return Edits()


@hookimpl
def devhost_backends():
    return [Deaf]
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ReadingNode]:
    async with ReadingNode(tmp_path) as made:
        await made.kubelet.wait_for(lambda: made.kubelet.allocatable() == {RESOURCE: 3})
        await made.until(lambda: made.get("/readyz") == (200, "ok\n"))
        assert made.document()["problems"] == []
        assert "PROBLEM" not in made.status()
        yield made


async def everywhere(node: ReadingNode, kind: str, subject: str, *, of: int = 1) -> list[str]:
    """The reasons of all problems of a kind, once they stand in the same words in every place."""
    await node.until(lambda: len(node.problems(kind)) == of)
    reasons = [problem["reason"] for problem in node.problems(kind)]
    for reason in reasons:
        await node.until(lambda reason=reason: not node.unsaid(kind, subject, reason))
        assert len(node.log(reason=reason)) == 1
    assert node.value("devhost_problems", kind=kind) == of
    return reasons


async def over(node: ReadingNode, kind: str, back: str) -> None:
    """Waits until nothing says any more that anything of a kind is wrong, and the log that it is over."""
    await node.until(lambda: not node.problems(kind) and node.log(message=back))
    assert node.value("devhost_problems", kind=kind) == 0
    assert node.series("devhost_problem_info", kind=kind) == []
    assert not any(line.startswith(f"{kind} ") for line in node.status().splitlines()[4:8])


async def test_a_broken_configuration(node: ReadingNode) -> None:
    loaded = len(node.log(message="configuration loaded"))
    node.configure(f"{{name: {RESOURCE}, backend: toy, wehre: {{model: x}}, share: {{replicas: none}}}}")
    reasons = await everywhere(node, "config", str(node.config), of=2)
    assert any("wehre" in reason and "did you mean where?" in reason for reason in reasons)
    assert node.value("devhost_config_last_reload_success") == 0
    assert node.document()["devhost"]["lastReload"]["complaints"] == reasons
    assert node.get("/readyz") == (200, "ok\n")  # what was served is served on
    node.configure(f"{{name: {RESOURCE}, backend: toy}}")
    await over(node, "config", "configuration loaded")
    assert len(node.log(message="configuration loaded")) == loaded + 1
    assert node.value("devhost_config_last_reload_success") == 1


async def test_a_device_that_is_unplugged_while_a_pod_has_it(node: ReadingNode) -> None:
    await node.kubelet.admit("train", "main", RESOURCE, 1)
    (held,) = node.kubelet.in_use(RESOURCE)
    node.plug(*{"a", "b", "c"} - {held})
    node.look()
    (reason,) = await everywhere(node, "device", f"{RESOURCE} {held}")
    assert reason == "the device is gone"
    assert node.value("devhost_devices", resource=RESOURCE, health="Unhealthy", reason=reason) == 1
    assert node.value("devhost_devices", resource=RESOURCE, health="Unhealthy", reason="") == 0
    assert [line["message"] for line in node.log(reason=reason)] == ["device left"]
    node.plug("a", "b", "c")
    node.look()
    await over(node, "device", "device appeared")
    assert node.series("devhost_devices", resource=RESOURCE, health="Unhealthy") == []


async def test_a_device_that_is_unplugged_while_nobody_has_it(node: ReadingNode) -> None:
    def departed() -> list[tuple[str, str]]:
        return [
            (left["device"], left["reason"])
            for resource in node.document()["resources"]
            for left in resource["departed"]
        ]

    node.plug("a", "c")
    node.look()
    await node.until(departed)
    assert departed() == [("b", "the device is gone")]
    assert node.problems("device") == []
    (line,) = [line for line in node.status().splitlines() if line.endswith("the device is gone")]
    assert line.split()[:2] == [RESOURCE, "b"]
    assert node.value("devhost_devices_left", resource=RESOURCE, reason="the device is gone") == 1
    (line,) = node.log(reason="the device is gone")
    assert (line["message"], line["resource"], line["device"]) == ("device left", RESOURCE, "b")
    node.plug("a", "b", "c")
    node.look()
    await node.until(lambda: not departed())
    assert "LEFT LATELY" not in node.status()
    assert node.series("devhost_devices_left") == []


async def test_a_device_that_was_unplugged_while_a_pod_had_it_and_devhost_was_away(node: ReadingNode) -> None:
    await node.kubelet.admit("train", "main", RESOURCE, 1)
    (held,) = node.kubelet.in_use(RESOURCE)
    node.plug(*{"a", "b", "c"} - {held})
    await node.again()
    assert await everywhere(node, "device", f"{RESOURCE} {held}") == ["the device is gone"]
    (line,) = node.log(reason="the device is gone")
    assert line["message"] == "a container has a device that is not there"
    (told,) = node.document()["held"]
    assert (told["holder"]["pod"], told["reason"]) == ("train", "the device is gone")
    node.plug("a", "b", "c")
    node.look()
    await node.until(lambda: not node.problems("device") and not node.document()["held"])


async def test_a_device_that_says_it_is_ill(node: ReadingNode) -> None:
    node.plug("a", "illb", "c")
    node.look()
    assert await everywhere(node, "device", f"{RESOURCE} b") == ["port 1 is down"]
    assert node.value("devhost_devices", resource=RESOURCE, reason="port 1 is down") == 1
    node.plug("a", "b", "c")
    node.look()
    await over(node, "device", "device is healthy again")


async def test_a_reason_that_no_terminal_and_no_utf_8_can_bear(node: ReadingNode) -> None:
    node.plug("a", "illegibleb", "c")
    node.look()
    (reason,) = await everywhere(node, "device", f"{RESOURCE} b")
    assert reason == r'port 1\x1b[1A\n\udcff\u202e <is> "down"'
    assert node.value("devhost_devices", resource=RESOURCE, reason=reason) == 1
    node.plug("a", "b", "c")
    node.look()
    await over(node, "device", "device is healthy again")


async def test_a_device_that_its_backend_reports_unusably(node: ReadingNode) -> None:
    node.plug("a", "b", "twice")
    node.look()
    assert await everywhere(node, "refused", "toy twice") == ["another device has the same id"]
    node.plug("a", "b", "c")
    node.look()
    await over(node, "refused", "device is refused no more")


@pytest.mark.parametrize("crash", [False, True], ids=["its socket goes", "its socket stays"])
async def test_a_kubelet_that_is_killed(node: ReadingNode, crash: bool) -> None:
    found = len(node.log(message="kubelet socket found"))
    await node.kubelet.stop(crash)
    if crash:
        silent = f"nobody listens on {node.kubelet.socket}"
        await node.until(lambda: [one["reason"] for one in node.problems("resource")] == [silent])
        assert await everywhere(node, "resource", RESOURCE) == [silent]
        assert node.document()["resources"][0]["lastError"] == silent
        assert node.get("/readyz") == (503, f"no list stream yet: {RESOURCE} (lost: {silent})\n")
    else:
        assert await everywhere(node, "kubelet", str(node.kubelet.directory)) == [ABSENT]
        assert await everywhere(node, "resource", RESOURCE) == ["the kubelet closed the list stream"]
        assert node.get("/readyz")[0] == 503
    await node.kubelet.start()
    await over(node, "resource", "registered")
    await over(node, "kubelet", "kubelet socket found")
    await node.until(lambda: node.get("/readyz") == (200, "ok\n"))
    if not crash:
        assert len(node.log(message="kubelet socket found")) == found + 1


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ("fail", "the firmware does not answer"),
        ("hang", "backend toy did not answer within 1 s"),
        ("killed", "died with <Signals.SIGKILL: 9>"),
    ],
)
async def test_a_backend_that_fails_or_hangs_or_is_killed(node: ReadingNode, mood: str, words: str) -> None:
    node.mood(mood)
    node.look()
    (reason,) = await everywhere(node, "backend", "toy")
    assert words in reason
    assert node.value("devhost_backend_degraded", backend="toy") == 1
    assert [line["message"] for line in node.log(reason=reason)] == ["backend is degraded"]
    assert node.get("/readyz") == (200, "ok\n")  # its last list stays
    node.mood("well")
    await over(node, "backend", "backend is back")
    assert len(node.log(message="backend is back")) == 1


async def test_a_plugin_that_cannot_be_used(node: ReadingNode) -> None:
    broken = node.drop_ins / "broken.py"
    broken.write_text("raise ImportError('libvendor.so.1 is not there')\n")
    node.look()
    reason = f"{broken}:1: ImportError: libvendor.so.1 is not there"
    assert await everywhere(node, "plugin", str(broken)) == [reason]
    broken.unlink()
    node.look()
    await node.until(lambda: not node.problems("plugin"))


async def test_an_event_source_of_a_backend_that_fails(node: ReadingNode) -> None:
    (node.drop_ins / "deaf.py").write_text(DEAF)
    node.configure(f"{{name: {RESOURCE}, backend: toy}}", "{name: example.com/deaf, backend: deaf}")
    assert await everywhere(node, "events", "deaf") == ["netlink is gone"]
    (node.root / "heard").touch()
    await over(node, "events", "event source is back")


async def test_a_socket_of_devhost_that_is_another_ones_by_now(node: ReadingNode) -> None:
    (mine,) = node.kubelet.directory.glob("dh-*.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(mine.with_name("other")))
        mine.with_name("other").replace(mine)
    code, said = node.get("/healthz")
    (reason,) = await everywhere(node, "kubelet", str(node.kubelet.directory))
    assert (code, said) == (503, f"{reason}\n")
    assert RESOURCE in reason
    assert [line["message"] for line in node.log(reason=reason)] == ["own sockets do not answer"]
    mine.unlink()
    await over(node, "kubelet", "own sockets answer again")
    assert node.get("/healthz") == (200, "ok\n")
