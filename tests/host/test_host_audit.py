"""The audit trail of examples/observers, as the observer of a whole host with a kubelet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

from devhost.backend.model import Device, unhealthy
from devhost.discovery import catalog
from devhost.discovery.health import ALL
from devhost.discovery.verdicts import write

EXAMPLE = Path(__file__).parents[2] / "examples" / "observers" / "audit.py"

TOY = "example.com/toy"
LINE = f"name: {TOY}, backend: toy"


def loaded(place: Path) -> ModuleType:
    """The drop-in as a new process has it."""
    place.mkdir()
    shutil.copy(EXAMPLE, place)
    (observer,) = catalog.load([place], points=()).observers
    assert isinstance(observer.plugin, ModuleType)
    return observer.plugin


async def test_the_trail_has_what_a_host_does_with_a_pod_a_failure_and_a_bad_file(
    rig, kubelet, tmp_path, monkeypatch
):
    trail = tmp_path / "audit" / "audit.jsonl"
    monkeypatch.setenv("DEVHOST_AUDIT_FILE", str(trail))
    monkeypatch.setenv("NODE_NAME", "node7")

    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for line in trail.read_text().splitlines()] if trail.exists() else []

    def events() -> list[object]:
        return [line["event"] for line in lines()]

    rig.scripts["toy"].devices = [Device("d0")]
    rig.write(LINE)
    rig.observe(loaded(tmp_path / "first"))
    async with rig.running(allocatable={TOY: 1}, state_dir=tmp_path / "state"):
        await kubelet.admit("pod", "main", TOY, 1)
        await rig.until(lambda: events()[-1:] == ["held"])
        rig.change("toy", [Device("d0", health=unhealthy("port 1 is down"))])
        await rig.until(lambda: events()[-1:] == ["health"])
        rig.config.write_text("version: 1\nresources: 7\n")
        await rig.until(lambda: events()[-1:] == ["configuration"])
        rig.write(LINE)
        await rig.until(lambda: lines()[-1].get("accepted") is True)
        write(tmp_path / "state" / "verdicts", ALL, "alice", "new power supply", None)
        await rig.until(lambda: events()[-1:] == ["verdict"])
    rig.observe(loaded(tmp_path / "second"))
    async with rig.running(state_dir=tmp_path / "state"):
        await rig.until(lambda: {"held", "verdict"} <= set(events()[8:]))
        kubelet.release("pod")
        await rig.until(lambda: events()[-1:] == ["released"])
    assert events() == [
        *("started", "allocated", "held", "health", "configuration", "configuration", "verdict"),
        *("started", "verdict", "health", "held", "released"),
    ]
    assert lines()[6].items() >= {"by": "alice", "devices": ["*"], "ended": False, "until": None}.items()
    about = {"resource": TOY, "backend": "toy", "device": "d0", "node": "node7"}
    holder = {"namespace": "default", "pod": "pod", "container": "main"}
    held, health, refused, released = lines()[2], lines()[3], lines()[4], lines()[-1]
    assert held.items() >= {**about, **holder, "shares": 1}.items()
    assert health.items() >= {**about, "healthy": False, "reason": "port 1 is down"}.items()
    assert refused["accepted"] is False
    assert "resources" in str(refused["complaints"])
    assert released.items() >= {**about, **holder}.items()
