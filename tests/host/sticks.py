"""Two serial sticks whose nodes change: a backend on real device nodes below a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from status_values import status

from devhost.backend import Device
from devhost.backend.claim import node

TTY = "example.com/serial"
A, B = "tty-A", "tty-B"
USB0, USB1 = "/dev/ttyUSB0", "/dev/ttyUSB1"


def stick(name: str, path: str) -> Device:
    return Device(name, {"model": "x100"}, claims=frozenset({node(path), f"usb:{name}"}))


class Sticks:
    """The sticks of a rig.

    Nodes are plain files whose content is their number, as in a tree that was recorded.
    """

    def __init__(self, rig, place: Path) -> None:
        self.rig = rig
        self.root = place / "root"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "sys").mkdir()
        self.options = {"root": self.root, "state_dir": place / "state", "boot_id": place / "boot_id"}
        self.boot("boot-1")
        self.nodes: dict[str, str] = {}
        self.plug({A: USB0, B: USB1})

    def boot(self, name: str) -> None:
        self.options["boot_id"].write_text(f"{name}\n")

    def number(self, path: str, number: str) -> None:
        (self.root / path.lstrip("/")).write_text(f"{number}\n")

    def plug(self, nodes: Mapping[str, str]) -> None:
        """These sticks are plugged, each with its node, and no others."""
        for path in self.nodes.values():
            (self.root / path.lstrip("/")).unlink(missing_ok=True)
        self.nodes = dict(nodes)
        for path in nodes.values():
            self.number(path, f"c188:{path[-1]}")
        script = self.rig.scripts["toy"]
        script.nodes = dict(nodes)
        script.devices = [stick(name, path) for name, path in nodes.items()]

    def replug(self, nodes: Mapping[str, str]) -> None:
        """The same while the host runs."""
        self.plug(nodes)
        self.rig.host.scanners["toy"].request_scan()

    def plug_real(self, nodes: Mapping[str, str]) -> None:
        """These sticks are nodes of this machine, which CDI needs."""
        self.options["root"] = Path("/")
        script = self.rig.scripts["toy"]
        script.nodes = dict(nodes)
        script.devices = [stick(name, path) for name, path in nodes.items()]

    def running(self, *resources: str, **options: object):
        return self.rig.running(*resources, **self.options, **options)


def problems(host) -> list[tuple[str, str, list[str]]]:
    """The problems of devices: subject, reason, and the pods to which it refers."""
    return [
        (one["subject"], one["reason"], [holder["pod"] for holder in one.get("heldBy", ())])
        for one in status(host)["problems"]
        if one["kind"] == "device"
    ]


def reason(host, device: str) -> str:
    """The reason of the problem that a device has; empty if it has none."""
    return next((reason for subject, reason, _ in problems(host) if subject == f"{TTY} {device}"), "")


def healthy(kubelet) -> set[str]:
    return set(kubelet.healthy(TTY))


async def given(kubelet, pod: str) -> tuple[str, str]:
    """A pod gets a stick: its id, and the path of the node."""
    got = await kubelet.admit(pod, "main", TTY, 1)
    (device,), (node,) = got.device_ids, (*got.response.devices, *got.response.mounts)
    return device, node.host_path
