"""A problem has the same words in the log, in ``devhost status``, on the page and in metrics."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from devhost_testing.kubelet import OtherPlugin
from kit.drop_in import drop_in
from reading_node import RESOURCE, ReadingNode

from devhost.kubelet.kubelet_socket import ABSENT

DEAF = drop_in("""
class Deaf(Plain):
    name = "deaf"

    def discover(self):
        yield Device(id="d0")

    async def watch(self):
        if not (self.context.root / "heard").exists():
            raise OSError(19, "netlink is gone")
        while True:
            yield Event()
            await __import__("asyncio").sleep(60)
""")


LACKING = drop_in("""
class Lacking(Plain):
    name = "lacking"

    def missing_drivers(self):
        if not (self.context.root / "driver").exists():
            yield MissingDriver("0000:3b:00.0 (10de:2330)", "no driver is bound to it (run modprobe x)")
""")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ReadingNode]:
    async with ReadingNode(tmp_path) as made:
        await made.kubelet.wait_for(lambda: made.kubelet.allocatable() == {RESOURCE: 3})
        await made.until(lambda: made.get("/readyz") == (200, "ok\n"))
        await made.until(lambda: made.document()["problems"] == [])
        assert "PROBLEM" not in made.status()
        yield made


async def everywhere(node: ReadingNode, kind: str, subject: str, *, of: int = 1) -> list[str]:
    """The reasons of all problems of a kind, once every place shows the same words."""
    await node.until(lambda: len(node.problems(kind)) == of)
    reasons = [problem["reason"] for problem in node.problems(kind)]
    for reason in reasons:
        await node.until(lambda reason=reason: not node.unsaid(kind, subject, reason))
        assert len(node.log(reason=reason)) == 1
    assert node.value("devhost_problems", kind=kind) == of
    return reasons


async def over(node: ReadingNode, kind: str, back: str) -> None:
    """Waits until no place shows a problem of a kind, and the log reports its end."""
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


async def test_an_entry_that_no_device_matches(node: ReadingNode) -> None:
    """Other plugins do not report a selector that selects nothing."""
    node.configure(f"{{name: {RESOURCE}, backend: toy, where: {{model: X100}}}}")
    reason = '0 devices; 3 match all but model ("x100", not "X100")'
    assert await everywhere(node, "entry", RESOURCE) == [reason]
    assert [(one["state"], one["reason"]) for one in node.document()["entries"]] == [("none", reason)]
    labels = {"entry": "resources[0]", "resource": RESOURCE, "backend": "toy", "optional": "false"}
    assert node.value("devhost_entry_devices", **labels) == 0
    assert "No problems" not in node.get("/")[1]
    assert node.get("/readyz") == (200, "ok\n")  # a node without the hardware stops no rollout
    node.configure(f"{{name: {RESOURCE}, backend: toy, optional: true, where: {{model: X100}}}}")
    await node.until(lambda: not node.problems("entry"))
    assert node.document()["entries"][0]["state"] == "absent"
    assert "not on this node" in node.get("/")[1]
    assert f"Not on this node (optional): {RESOURCE}" in node.status()
    assert reason in node.status("--all")
    node.configure(f"{{name: {RESOURCE}, backend: toy}}")
    await over(node, "entry", "entry has devices")
    assert node.value("devhost_entry_devices", **labels) == 3
    assert node.series("devhost_entry_devices", optional="true") == []


async def test_hardware_without_its_driver(node: ReadingNode) -> None:
    (node.drop_ins / "lacking.py").write_text(LACKING)
    node.configure(
        f"{{name: {RESOURCE}, backend: toy}}",
        "{name: example.com/lacking, backend: lacking, optional: true}",
    )
    reason = "no driver is bound to it (run modprobe x)"
    assert await everywhere(node, "driver", "lacking 0000:3b:00.0 (10de:2330)") == [reason]
    assert [line["level"] for line in node.log(reason=reason)] == ["warning"]
    (node.root / "driver").touch()
    node.look()
    await over(node, "driver", "hardware no longer lacks its driver")
    assert "No problems" in node.get("/")[1]


async def test_a_device_without_the_attribute_that_a_template_needs(node: ReadingNode) -> None:
    node.configure("{name: 'example.com/toy-{model}', backend: toy}")
    node.replug("a", "b", "bare")
    reason = "resources[0]: it has no model, which the name example.com/toy-{model} needs"
    assert await everywhere(node, "plan", "toy bare") == [reason]
    node.replug("a", "b", "c")
    await over(node, "plan", "device no longer refused by the plan")


async def test_another_plugin_that_takes_a_resource_over(node: ReadingNode) -> None:
    async with OtherPlugin(node.kubelet.directory, RESOURCE, ["x"]):
        (reason,) = await everywhere(node, "resource", RESOURCE)
        assert reason.startswith("another device plugin registered it after devhost: other-plugin.sock")
        assert [one["state"] for one in node.document()["resources"]] == ["displaced"]
        assert node.get("/readyz") == (200, "ok\n")
        assert node.get("/healthz")[0] == 200
    await over(node, "resource", "registered")
    await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {RESOURCE: 3})


async def test_another_plugin_that_has_a_resource_when_devhost_starts(node: ReadingNode) -> None:
    node.configure("{name: example.com/before, backend: toy}")
    await node.until(lambda: node.log(message="resource removed", resource=RESOURCE))
    await node.until(lambda: [one["name"] for one in node.document()["resources"]] == ["example.com/before"])
    async with OtherPlugin(node.kubelet.directory, RESOURCE, ["x"]) as plugin:
        node.configure(f"{{name: {RESOURCE}, backend: toy}}")
        (reason,) = await everywhere(node, "resource", RESOURCE)
        assert reason.startswith("another device plugin serves it on this node: other-plugin.sock")
        assert reason.endswith("; remove that plugin, or set takeOver: true")
        assert [one["state"] for one in node.document()["resources"]] == ["waiting"]
        assert node.get("/readyz") == (200, "ok\n")
        assert node.kubelet.allocatable()[RESOURCE] == 1
        await plugin.stop()
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable()[RESOURCE] == 3)
    await over(node, "resource", "registered")


async def test_a_killed_devhost_does_not_count_as_another_plugin(node: ReadingNode) -> None:
    for _ in range(3):
        await node.again()
        await node.until(lambda: node.log(message="registered"))
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {RESOURCE: 3})
        assert node.log(message="not registered") == []
        assert node.problems("resource") == []


async def test_a_device_that_is_unplugged_while_a_pod_has_it(node: ReadingNode) -> None:
    await node.kubelet.admit("train", "main", RESOURCE, 1)
    (held,) = node.kubelet.in_use(RESOURCE)
    node.replug(*{"a", "b", "c"} - {held})
    (reason,) = await everywhere(node, "device", f"{RESOURCE} {held}")
    assert reason == "the device is gone"
    assert node.value("devhost_devices", resource=RESOURCE, health="Unhealthy", reason=reason) == 1
    assert node.value("devhost_devices", resource=RESOURCE, health="Unhealthy", reason="") == 0
    assert [line["message"] for line in node.log(reason=reason)] == ["device left"]
    node.replug("a", "b", "c")
    await over(node, "device", "device appeared")
    assert node.series("devhost_devices", resource=RESOURCE, health="Unhealthy") == []


async def test_a_device_that_is_unplugged_while_no_container_holds_it(node: ReadingNode) -> None:
    def departed() -> list[tuple[str, str]]:
        return [
            (left["device"], left["reason"])
            for resource in node.document()["resources"]
            for left in resource["departed"]
        ]

    node.replug("a", "c")
    await node.until(departed)
    assert departed() == [("b", "the device is gone")]
    assert node.problems("device") == []
    (line,) = [line for line in node.status().splitlines() if line.endswith("the device is gone")]
    assert line.split()[:2] == [RESOURCE, "b"]
    assert node.value("devhost_devices_left", resource=RESOURCE, reason="the device is gone") == 1
    (line,) = node.log(reason="the device is gone")
    assert (line["message"], line["resource"], line["device"]) == ("device left", RESOURCE, "b")
    node.replug("a", "b", "c")
    await node.until(lambda: not departed())
    assert "LEFT RECENTLY" not in node.status()
    assert node.series("devhost_devices_left") == []


async def test_a_device_that_was_unplugged_while_a_pod_had_it_and_devhost_was_away(node: ReadingNode) -> None:
    await node.kubelet.admit("train", "main", RESOURCE, 1)
    (held,) = node.kubelet.in_use(RESOURCE)
    node.plug(*{"a", "b", "c"} - {held})
    await node.again()
    assert await everywhere(node, "device", f"{RESOURCE} {held}") == ["the device is gone"]
    (line,) = node.log(reason="the device is gone")
    assert line["message"] == "a container holds a device that no longer exists"
    (told,) = node.document()["held"]
    assert (told["holder"]["pod"], told["reason"]) == ("train", "the device is gone")
    node.replug("a", "b", "c")
    await node.until(lambda: not node.problems("device") and not node.document()["held"])


async def test_a_device_that_reports_that_it_is_unhealthy(node: ReadingNode) -> None:
    node.replug("a", "illb", "c")
    assert await everywhere(node, "device", f"{RESOURCE} b") == ["port 1 is down"]
    assert node.value("devhost_devices", resource=RESOURCE, reason="port 1 is down") == 1
    node.replug("a", "b", "c")
    await over(node, "device", "device is healthy again")


async def test_a_reason_that_no_terminal_and_no_utf_8_can_bear(node: ReadingNode) -> None:
    node.replug("a", "illegibleb", "c")
    (reason,) = await everywhere(node, "device", f"{RESOURCE} b")
    assert reason == r'port 1\x1b[1A\n\udcff\u202e <is> "down"'
    assert node.value("devhost_devices", resource=RESOURCE, reason=reason) == 1
    node.replug("a", "b", "c")
    await over(node, "device", "device is healthy again")


async def test_a_device_that_its_backend_reports_unusably(node: ReadingNode) -> None:
    node.replug("a", "b", "twice")
    assert await everywhere(node, "refused", "toy twice") == ["another device has the same id"]
    node.replug("a", "b", "c")
    await over(node, "refused", "device is no longer refused")


@pytest.mark.parametrize("crash", [False, True], ids=["its socket goes", "its socket stays"])
async def test_a_kubelet_that_is_killed(node: ReadingNode, crash: bool) -> None:
    found = len(node.log(message="kubelet socket found"))
    await node.kubelet.stop(crash)
    if crash:
        silent = f"no process listens on {node.kubelet.socket}"
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
        ("hang", "backend toy did not answer within 3 s"),
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
