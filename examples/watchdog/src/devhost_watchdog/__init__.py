"""Watchdog timers: chips that reset the machine unless a program feeds them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from devhost.backend import (
    HEALTHY,
    AllocateRequest,
    Attribute,
    Backend,
    Device,
    DeviceNode,
    Edits,
    OptionError,
    claim,
    hookimpl,
    option,
    unhealthy,
)


@dataclass(frozen=True)
class WatchdogOptions:
    """The keys under `backends.watchdog`."""

    container_path: str = option("/dev/watchdog", "Path of the first timer in the container.")

    def __post_init__(self) -> None:
        if not self.container_path.startswith("/"):
            raise OptionError(f"{self.container_path!r} is not absolute", key="containerPath")


class Watchdog(Backend):
    """The kernel's class `watchdog`."""

    name = "watchdog"
    subsystems = ("watchdog",)
    Options = WatchdogOptions
    attributes = {
        "identity": Attribute(str, "name that the driver gives the timer", "iTCO_wdt"),
        "timeout": Attribute(int, "seconds until it resets the machine", 30),
        "nowayout": Attribute(bool, "whether it cannot be stopped once started", False),
        "devNode": Attribute(str, "path of the device node", "/dev/watchdog0"),
    }

    def discover(self) -> Iterator[Device]:
        for entry in sorted((self.context.root / "sys/class/watchdog").glob("watchdog*")):
            yield self._device(entry)

    def allocate(self, request: AllocateRequest) -> Edits:
        nodes = [DeviceNode(str(device.attributes["devNode"])) for device in request.devices]
        nodes[0] = replace(nodes[0], container_path=self.options.container_path)
        return Edits(nodes=tuple(nodes))

    def _device(self, entry: Path) -> Device:
        parent, node = Path(os.path.realpath(entry / "device")), f"/dev/{entry.name}"
        identity, timeout, nowayout = (_read(entry / name) for name in ("identity", "timeout", "nowayout"))
        facts: dict[str, str | int] = {"devNode": node, "nowayout": nowayout == "1"}
        facts |= {"identity": identity} if identity else {}
        facts |= {"timeout": int(timeout)} if timeout.isdecimal() and len(timeout) < 10 else {}
        there = (self.context.root / node.lstrip("/")).exists()
        return Device(
            id=parent.name if parent.is_dir() else f"virtual-{entry.name}",
            attributes=facts,
            claims=frozenset({claim.node(node)}),
            health=HEALTHY if there else unhealthy(f"{node} does not exist"),
        )


def _read(file: Path) -> str:
    """The text of a file in sysfs; empty if it does not exist or is invalid."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""
    return text if text.isprintable() and len(text) <= 64 else ""


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    return [Watchdog]
