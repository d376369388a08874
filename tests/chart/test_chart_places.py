"""No mount hides what the container itself runs on."""

from __future__ import annotations

from typing import Any

import pytest
from rendering import Chart, refusal

HIDING = {
    "/opt/devhost": "devhost itself",
    "/opt/devhost/lib": "devhost itself",
    "/opt": "devhost itself",
    "/opt//devhost/": "devhost itself",
    "/etc": "the configuration",
    "/etc/devhost/backends": "the configuration",
    "/run": "devhost's own files",
    "/var/run": "devhost's own files",
    "/var/lib": "devhost's own files",
    "/var/lib/devhost/copies": "devhost's own files",
    "/proc": "the container's processes",
    "/proc/driver": "the container's processes",
    "/usr": "the programs and libraries",
    "/bin": "the programs and libraries",
    "/lib64": "the programs and libraries",
    "/sbin/": "the programs and libraries",
    "/usr/lib/x86_64-linux-gnu": "the programs and libraries",
    "/lib/python3": "the programs and libraries",
    "/usr/lib/python3.13/json": "the programs and libraries",
    "/dev": "what the runtime puts there",
    "/sys": "what the runtime puts there",
    "/host": "the node's directories",
    "//": "devhost's own files",
}

BESIDE = (
    "/opt/devhost-backends",
    "/opt/cards",
    "/etc/libibverbs.d",
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    "/usr/local/nvidia",
    "/dev/shm",
    "/sys/fs/bpf",
    "/host/opt/devhost",
    "/host/usr",
    "/srv",
)


def mounted(place: str) -> dict[str, Any]:
    return {"extraHostPaths": [{"path": "/srv", "mountPath": place}]}


@pytest.mark.parametrize("place", HIDING)
def test_a_directory_that_would_hide_what_runs_there_is_refused(chart: Chart, place: str) -> None:
    said = refusal(chart, mounted(place))
    assert "extraHostPaths[0]: a mount at " in said
    assert f"of the container would hide {HIDING[place]}" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("place", BESIDE)
def test_a_directory_beside_it_or_of_a_vendor_is_mounted(chart: Chart, place: str) -> None:
    assert chart.render(mounted(place), profile="minimal").mounts[place]["hostPath"]["path"] == "/srv"


@pytest.mark.parametrize(
    ("keys", "who"),
    [
        ({"cdi": {"directory": "/etc"}}, "cdi: a mount at /etc"),
        ({"labels": {"directory": "/opt/", "write": True}}, "node-labels: a mount at /opt"),
    ],
)
def test_directories_of_the_configuration_hide_nothing_either(
    chart: Chart, keys: dict[str, Any], who: str
) -> None:
    fuse = {"name": "a.b/c", "backend": "udev", "where": {"devNode": "/dev/fuse"}, "inject": "cdi"}
    assert who in refusal(chart, {"config": {"version": 1, "resources": [fuse], **keys}})
