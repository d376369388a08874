"""``devhost discover`` and ``devhost explain``: the result of the probe, and of a running devhost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import KubeletSimulator, UnexpectedAdmissionError
from kit.drop_in import drop_in
from status_document import device, document
from status_values import Json, document_of

from devhost.cli.running_host import Running, View, answer, view
from devhost.cli.scan_once import scan_once
from devhost.config.loader import load_or_everything
from devhost.planning.plan import explain
from devhost.runtime import rundir

PROBE = """
    def probe(self, devices):
        from devhost.backend import unhealthy
        text = (self.context.root / "probe").read_text()
        if text == "fails":
            raise RuntimeError("the firmware is silent")
        return {one.id: unhealthy("it does not answer") for one in devices if one.id in text.split()}

    def allocate"""


@pytest.fixture
def probed(toys: Any) -> Any:
    """The toys with a probe: those in the file "probe" of the tree are unhealthy."""
    drop_in = toys.config.parent / "backends" / "toy.py"
    drop_in.write_text(drop_in.read_text().replace("\n    def allocate", PROBE))
    (toys.root / "probe").write_text("")
    return toys


def rows(output: str) -> list[str]:
    """The lines of a table with single spaces."""
    return [" ".join(line.split()) for line in output.splitlines()]


def test_discover_and_explain_show_the_result_of_the_probe(probed: Any) -> None:
    (probed.root / "probe").write_text("one")
    shown = rows(probed.devhost("discover").stdout)
    assert "example.com/toy one Unhealthy - 1 it does not answer" in shown
    assert "example.com/toy two Healthy - 1" in shown
    (resource,) = json.loads(probed.devhost("discover", "--output", "json").stdout)["resources"]
    unhealthy = {"health": "Unhealthy", "reason": "it does not answer"}
    first, second = resource["devices"]
    assert {key: first[key] for key in unhealthy} == first["probe"] == unhealthy
    assert second["health"] == "Healthy"
    assert probed.devhost("explain", "one").stdout.startswith(
        "one of backend toy: Unhealthy: it does not answer\n"
    )
    (found,) = json.loads(probed.devhost("explain", "one", "--output", "json").stdout)
    assert (found["health"], found["probe"], found["running"], found["heldBy"]) == (
        "Unhealthy",
        unhealthy,
        None,
        None,
    )


def test_a_failing_probe_makes_devices_unhealthy_without_a_traceback(probed: Any) -> None:
    (probed.root / "probe").write_text("fails")
    done = probed.devhost("discover")
    reason = "backend toy failed: RuntimeError: the firmware is silent"
    assert f"example.com/toy one Unhealthy - 1 {reason}" in rows(done.stdout)
    assert (done.returncode, done.stderr) == (1, f"devhost: {reason}\n")
    assert probed.devhost("explain", "one").stdout.startswith(f"one of backend toy: Unhealthy: {reason}\n")


OPTIONS = drop_in("""
@dataclass(frozen=True)
class Use:
    fast_path: bool = option(False, "Whether the fast path is used.")
    queues: int = option(4, "How many queues there are.")


class Card(Plain):
    name = "card"
    ResourceOptions = Use

    def discover(self):
        return [Device("c0")]
""")


def test_explain_prints_the_backend_options_of_each_entry(toys: Any) -> None:
    (toys.config.parent / "backends/card.py").write_text(OPTIONS)
    toys.write(
        "name: example.com/fast, backend: card, exclusive: false, fastPath: true, queues: 8",
        "name: example.com/slow, backend: card, exclusive: false",
    )
    lines = toys.devhost("explain", "c0").stdout.splitlines()
    first = lines.index("example.com/fast (resources[0]): yes, it takes the device")
    assert lines[first + 1 : first + 4] == [
        "  fastPath: true",
        "  queues: 8",
        "example.com/slow (resources[1]): yes, it takes the device",
    ]
    (found,) = json.loads(toys.devhost("explain", "c0", "--output", "json").stdout)
    assert [verdict["options"] for verdict in found["verdicts"]] == [
        {"fastPath": True, "queues": 8},
        {"fastPath": False, "queues": 4},
    ]


@asynccontextmanager
async def running(toys: Any, tmp_path: Path) -> AsyncIterator[KubeletSimulator]:
    """A devhost that serves the toys to a kubelet."""
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "pod-resources") as kubelet:
        with toys.running(kubelet.directory):
            await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/toy") == 2, 60)
            yield kubelet


async def ask(toys: Any, *arguments: str) -> str:
    done = await asyncio.to_thread(toys.devhost, *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


async def until(toys: Any, text: str, *arguments: str) -> list[str]:
    """The rows of a command's output, once one of them has this text."""
    shown: list[str] = []
    async with asyncio.timeout(60):
        while not any(text in row for row in shown):
            shown = rows(await ask(toys, *arguments))
    return shown


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.mark.usefixtures("runtime")
async def test_a_running_host_is_ready_until_an_entry_lacks_something(toys: Any, tmp_path: Path) -> None:
    async def asked(*arguments: str) -> tuple[int, str]:
        done = await asyncio.to_thread(toys.call, *arguments)
        return done.returncode, done.stdout

    async with running(toys, tmp_path):
        async with asyncio.timeout(60):
            while await asked("ready") != (0, "ready\n"):
                pass
        code, shown = await asked("status", "--exit-code")
        assert (code, "No problems" in shown or "example.com/toy" in shown) == (0, True)
        assert await asked("ready", "--entry", "example.com/toy") == (0, "ready\n")
        code, shown = await asked("ready", "--entry", "x")
        assert (code, shown) == (2, "unknown: no entry is called x (the configuration has example.com/toy)\n")

        toys.write("name: example.com/toy, backend: toy, expect: 3")
        async with asyncio.timeout(60):
            while (await asked("ready"))[0] == 0:
                pass
        code, shown = await asked("ready")
        assert code == 1 and shown.startswith("not ready: example.com/toy: 2 of 3 devices")
        assert (await asked("status", "--exit-code"))[0] == 1
        code, shown = await asked("ready", "-o", "json")
        assert (code, json.loads(shown)["ready"]) == (1, False)


@pytest.mark.usefixtures("runtime")
async def test_holders_and_health_of_a_running_host_are_shown(toys: Any, tmp_path: Path) -> None:
    (toys.root / "dev").mkdir()
    node = toys.root / "dev" / "null"
    node.touch()
    async with running(toys, tmp_path) as kubelet:
        await kubelet.admit("meter", "main", "example.com/toy", 1)
        shown = await until(toys, "default/meter/main", "discover")
        assert shown[0] == "RESOURCE DEVICE HEALTH NUMA HANDED OUT HELD BY"
        held = next(row.split()[1] for row in shown if "default/meter/main" in row)
        free = "two" if held == "one" else "one"
        assert f"example.com/toy {held} Healthy - 1 default/meter/main" in shown
        assert f"example.com/toy {free} Healthy - 1 -" in shown
        assert "  held by: default/meter/main through example.com/toy\n" in await ask(toys, "explain", held)

        node.unlink()  # what neither look nor probe can know: a pod was refused for want of the node
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("other", "main", "example.com/toy", 1)
        missing = "/dev/null does not exist on the node: a pod needed it"
        await until(toys, f"example.com/toy {free} Unhealthy - 1 - {missing}", "discover")
        said = await ask(toys, "explain", free)
        assert said.startswith(f"{free} of backend toy: Healthy\n")
        assert f"  running devhost: Unhealthy: {missing} in example.com/toy\n" in said
        (found,) = json.loads(await ask(toys, "explain", free, "--output", "json"))
        assert found["probe"] == {"health": "Healthy", "reason": ""}
        assert found["running"] == {"example.com/toy": {"health": "Unhealthy", "reason": missing}}
        assert found["heldBy"] == []
        (resource,) = json.loads(await ask(toys, "discover", "--output", "json"))["resources"]
        devices = {one["id"]: one for one in resource["devices"]}
        assert devices[free]["reason"] == missing
        holder = {"namespace": "default", "pod": "meter", "container": "main"}
        assert devices[held]["heldBy"] == [{"resource": "example.com/toy", "holder": holder}]


@pytest.mark.usefixtures("runtime")
async def test_discover_with_another_configuration_shows_its_own_health_and_a_note(
    probed: Any, tmp_path: Path
) -> None:
    async with running(probed, tmp_path):
        (probed.root / "probe").write_text("one")
        remark = "Unhealthy when probed now: it does not answer"
        await until(probed, f"example.com/toy one Healthy - 1 - {remark}", "discover")
        other = tmp_path / "other.yaml"
        other.write_text(probed.config.read_text() + "# edited\n")
        probed.config = other
        done = await asyncio.to_thread(probed.devhost, "discover")
        assert "example.com/toy one Unhealthy - 1 - it does not answer" in " ".join(rows(done.stdout))
        other = "the devhost on this node uses another configuration: HEALTH is the result of this probe"
        assert done.stderr == f"devhost: {other}\n"


@pytest.mark.usefixtures("runtime")
async def test_a_host_with_another_root_is_never_asked(toys: Any, tmp_path: Path) -> None:
    async with running(toys, tmp_path):
        await until(toys, "HELD BY", "discover")
        there = toys.root
        toys.root = tmp_path / "recorded"
        toys.root.mkdir()
        (toys.root / "toys").write_text("one=x100")
        assert "HELD BY" not in await ask(toys, "discover")
        other = "the devhost on this node has --root"
        last = (await ask(toys, "explain", "one")).splitlines()[-1]
        assert last == f"What containers hold is not taken into account: {other} {there}."


@pytest.mark.usefixtures("runtime")
async def test_a_host_whose_socket_is_named_is_asked_also_with_another_root(
    toys: Any, tmp_path: Path
) -> None:
    """A devhost in a container has another root than the command on its node."""
    (toys.root / "dev").mkdir()
    (toys.root / "dev" / "null").touch()
    async with running(toys, tmp_path) as kubelet:
        await kubelet.admit("meter", "main", "example.com/toy", 2)
        await until(toys, "default/meter/main", "discover")
        (socket,) = (tmp_path / "run").glob("*.sock")
        toys.root = tmp_path / "recorded"
        toys.root.mkdir()
        (toys.root / "toys").write_text("one=x100")
        text = await ask(toys, "explain", "one", "--status-socket", str(socket), "--output", "json")
        (found,) = json.loads(text)
        assert [one["holder"]["pod"] for one in found["heldBy"]] == ["meter"]


def status_of(**of_device: Any) -> Json:
    """The document of a host with one held device, and one held token that is in no list."""
    found = document([{**device("one", allocated=True), **of_device}])
    (resource,) = found["resources"]
    resource |= {"name": "example.com/old", "backend": "toy"}
    found["held"] = [
        {"resource": "example.com/gone", "id": "two::3", "devices": [], "holder": None, "reason": "it left"}
    ]
    return found


def test_explain_takes_devices_held_in_a_running_host_into_account(toys: Any) -> None:
    loaded = load_or_everything(toys.config)
    found = asyncio.run(scan_once(loaded, toys.root, listing=answer(document_of(status_of())).listing))
    one, two = (
        explain(found.plan, found.settings, "toy", found.scanners["toy"].devices[name])[0]
        for name in ("one", "two")
    )
    assert one.reason == "a pod holds it through example.com/old; it is free when that pod ends"
    assert [*map(str, one.held_by)] == ["default/meter-0/main"]
    assert two.held_by == ()
    assert two.reason == (
        "a container that the kubelet has not named yet holds it through example.com/gone; "
        "it is free when that pod ends"
    )


def test_a_running_host_does_not_change_the_explanation_of_free_devices(toys: Any) -> None:
    loaded = load_or_everything(toys.config)
    listing = answer(document_of(status_of(allocated=False, holder=None))).listing
    found = asyncio.run(scan_once(loaded, toys.root, listing=listing))
    (match,) = explain(found.plan, found.settings, "toy", found.scanners["toy"].devices["one"])
    assert match.taken


def test_a_device_that_a_running_host_withholds_for_a_container_has_its_reason(toys: Any) -> None:
    reason = "node:/dev/x is in use: a pod holds one of backend toy through example.com/toy"
    status = status_of(allocated=False, holder=None)
    status["entries"][0] |= {"name": "example.com/toy", "resources": ["example.com/toy"]}
    refusal = {"backend": "toy", "device": "two", "reason": f"resources[0]: {reason}", "heldBy": []}
    status["refusals"] = [{**refusal, "kind": "held"}, {**refusal, "device": "one", "kind": "taken"}]  # type: ignore[typeddict-item]
    found = asyncio.run(scan_once(load_or_everything(toys.config), toys.root))
    seen = View(found, answer(document_of(status)), "", True)
    one, two = (found.scanners["toy"].devices[name] for name in ("one", "two"))
    reported = seen.health("example.com/toy", "toy", two)
    assert reported is not None and reported.health.reason == reason
    assert seen.everywhere("toy", two) == {"example.com/toy": reported}
    assert seen.health("example.com/toy", "toy", one) is None


def test_a_device_of_which_some_shares_are_unhealthy_is_healthy_with_a_remark() -> None:
    shares = [{**device(f"hca::{n}", "its pod ends" if n else ""), "device": "hca"} for n in range(3)]
    reported = answer(document_of(document(shares))).health["example.com/serial", "udev", "hca"]
    assert reported.health.healthy
    assert reported.remark == "2 of 3 shares Unhealthy: its pod ends"


def test_devices_handed_out_together_each_have_a_health() -> None:
    found = document([device("all::0")])
    found["resources"][0]["together"] = [
        {"device": "a", "health": "Healthy", "reason": "", "numaNodes": []},
        {"device": "b", "health": "Unhealthy", "reason": "it is gone", "numaNodes": []},
    ]
    health = answer(document_of(found)).health
    assert health["example.com/serial", "udev", "a"].health.healthy
    assert health["example.com/serial", "udev", "b"].health.reason == "it is gone"


@pytest.mark.usefixtures("runtime")
def test_explain_without_a_running_host_notes_that_holders_are_unknown(toys: Any) -> None:
    seen = asyncio.run(view(load_or_everything(toys.config), toys.root))
    assert (seen.running, seen.no_answer) == (Running(), "no devhost is running on this node")
    why = "What containers hold is not taken into account: no devhost is running on this node."
    assert toys.devhost("explain", "one").stdout.splitlines()[-1] == why
    done = toys.devhost("explain", "one", "--output", "json")
    assert json.loads(done.stdout)[0]["id"] == "one"
    assert done.stderr == f"{why}\n"


@pytest.mark.usefixtures("runtime")
def test_explain_names_a_host_that_does_not_answer_and_discover_still_works(
    toys: Any, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(os.fspath(tmp_path / "run" / "x.sock"))
        silent.listen()
        done = toys.devhost("discover")
        assert (done.returncode, "HELD BY" in done.stdout) == (0, False)
        assert "did not answer within 5 s" in toys.devhost("explain", "one").stdout.splitlines()[-1]


def test_explain_beside_the_devhost_of_another_user_reports_that_it_may_not_ask_it(
    toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEVHOST_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    other = Path(f"/tmp/devhost-{4_000_000 + os.getpid()}")  # the usual directory of another user
    other.mkdir(mode=0o700)
    try:
        with rundir.bind(other / "0123456789ab.sock"):
            seen = asyncio.run(view(load_or_everything(toys.config), toys.root))
    finally:
        shutil.rmtree(other)
    said = r"the devhost on this node runs as (root|user \d+) and answers only that user"
    assert re.fullmatch(said, seen.no_answer)
    assert seen.refused


@pytest.mark.usefixtures("runtime")
def test_discover_reports_a_devhost_that_does_not_answer_and_nothing_if_none_runs(
    toys: Any, tmp_path: Path
) -> None:
    assert toys.devhost("discover").stderr == ""
    there = tmp_path / "there.sock"
    done = toys.devhost("discover", "--status-socket", str(there))
    why = f"What containers hold is not taken into account: no devhost listens on {there}."
    assert (done.returncode, done.stderr) == (0, f"devhost: {why}\n")
    assert json.loads(toys.devhost("discover", "-o", "json", "--status-socket", str(there)).stdout)
