"""The log of a whole host about devices: no lines at the start, then one for each change."""

from __future__ import annotations

import logging
from dataclasses import replace

from devhost.backend.model import HEALTHY, unhealthy

TOY = "example.com/toy"


async def test_each_change_of_health_is_logged_once(rig, kubelet, caplog):
    caplog.set_level(logging.INFO, "devhost")
    rig.write(f"name: {TOY}, backend: toy, share: {{replicas: 100}}")

    def logged() -> list[tuple[str, str, dict[str, object]]]:
        lines = [record for record in caplog.records if record.name == "devhost.host.shown.device_log"]
        return [(line.levelname, line.getMessage(), vars(line)["fields"]) for line in lines]

    async with rig.running(allocatable={TOY: 200}):
        assert logged() == []
        first, second = rig.scripts["toy"].devices
        rig.change("toy", [replace(first, health=unhealthy("port 1 is down")), second])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 100})
        rig.change("toy", [replace(first, health=HEALTHY), second])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 200})
        rig.change("toy", [first])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 100})
    where = {"resource": TOY, "device": "d0"}
    gone = {"resource": TOY, "device": "d1", "reason": "the device is gone"}
    assert logged() == [
        ("WARNING", "device is unhealthy", {**where, "reason": "port 1 is down"}),
        ("INFO", "device is healthy again", where),
        ("INFO", "device left", gone),
    ]
