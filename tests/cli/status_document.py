"""Status documents for tests of ``devhost status``."""

from __future__ import annotations

from datetime import UTC, datetime

import status_values
from status_values import Json

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def device(name: str, reason: str = "", allocated: bool = False) -> Json:
    """One device: with a ``reason`` it is Unhealthy."""
    holder = "default/meter-0/main" if allocated else ""
    return status_values.device(
        name, reason, holder, device=name, since="2026-11-20T11:59:15Z", numaNodes=[0, 1]
    )


def document(devices: list[Json] | None = None) -> Json:
    """A host with one resource and these devices, by default a held and an unhealthy one."""
    if devices is None:
        devices = [device("FT1", allocated=True), device("FT2", "node is gone")]
    started = "2026-11-20T09:00:00Z"
    looked: Json = {"lastDiscovery": "2026-11-20T11:59:15Z", "lastDiscoverySeconds": 0.0012}
    made = status_values.document(
        status_values.resource("example.com/serial", "udev", devices, lastRegistration=started),
        started=started,
        backends=[status_values.backend("udev", len(devices), since=started, **looked)],
    )
    made["devhost"] |= {"version": "1.2.3", "config": "/etc/devhost.yaml", "generation": 2}
    made["devhost"]["lastReload"]["at"] = "2026-11-20T11:48:00Z"
    made["kubelet"]["podResources"]["listed"] = "2026-11-20T11:59:50Z"
    return made
