"""Status documents for tests of ``devhost status``."""

from __future__ import annotations

from datetime import UTC, datetime

from status_values import Json

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def device(name: str, reason: str = "", allocated: bool = False) -> Json:
    """One device: with a ``reason`` it is Unhealthy."""
    return {
        "id": name,
        "device": name,
        "health": "Unhealthy" if reason else "Healthy",
        "reason": reason,
        "since": "2026-11-20T11:59:15Z",
        "numaNodes": [0, 1],
        "allocated": allocated,
        "given": [],
        "holder": {"namespace": "default", "pod": "meter-0", "container": "main"} if allocated else None,
    }


def document(devices: list[Json] | None = None) -> Json:
    """A host with one resource and these devices, by default a held and an unhealthy one."""
    devices = (
        devices if devices is not None else [device("FT1", allocated=True), device("FT2", "node is gone")]
    )
    return {
        "devhost": {
            "version": "1.2.3",
            "pid": 4711,
            "startedAt": "2026-11-20T09:00:00.000Z",
            "root": "/",
            "config": "/etc/devhost.yaml",
            "configDigest": "",
            "generation": 2,
            "lastReload": {"at": "2026-11-20T11:48:00Z", "result": "ok", "complaints": []},
            "copy": None,
        },
        "kubelet": {
            "dir": "/var/lib/kubelet/device-plugins",
            "socket": "present",
            "podResources": {
                "socket": "/var/lib/kubelet/pod-resources/kubelet.sock",
                "known": True,
                "reason": "",
                "listed": "2026-11-20T11:59:50Z",
            },
        },
        "entries": [
            {
                "entry": "resources[0]",
                "name": "example.com/serial",
                "backend": "udev",
                "optional": False,
                "devices": len(devices),
                "resources": ["example.com/serial"],
                "state": "served",
                "reason": "",
                "remark": "",
                "cordoned": "",
            }
        ],
        "resources": [
            {
                "name": "example.com/serial",
                "backend": "udev",
                "entry": "resources[0]",
                "capacity": len(devices),
                "allocatable": sum(device["health"] == "Healthy" for device in devices),
                "revision": 3,
                "socket": "x.sock",
                "state": "registered",
                "streams": 1,
                "registrations": 1,
                "lastRegistration": "2026-11-20T09:00:00Z",
                "lastError": "",
                "devices": devices,
                "together": [],
                "departed": [],
            }
        ],
        "backends": [
            {
                "name": "udev",
                "state": "ok",
                "reason": "",
                "since": "2026-11-20T09:00:00Z",
                "devices": len(devices),
                "lastDiscovery": "2026-11-20T11:59:15Z",
                "lastDiscoverySeconds": 0.0012,
                "refusedDevices": [],
                "provisioning": None,
                "labels": None,
            }
        ],
        "observers": [],
        "verdicts": [],
        "held": [],
        "refusals": [],
        "dra": None,
        "problems": [],
    }
