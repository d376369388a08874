"""Makes a group of the devices of each container, which it gets as a further node.

Rebellions NPUs, for example, exchange data only within a group. Put the commands of the vendor's tool into a
program.
"""

from __future__ import annotations

from pathlib import Path

from devhost.backend import ContainerRequest, Device, DeviceNode, Edits, hookimpl, process

for_backends = ("udev",)

PROGRAM = "/usr/local/bin/npu-group"
"""``create ID…`` prints the node of the new group, ``destroy NODE`` removes it."""

GROUPS = Path("/run/devhost-groups")
"""Has a file for each device in a group, with the group's node; a reboot clears ``/run``."""


@hookimpl
def devhost_before_container(request: ContainerRequest) -> Edits:
    """Creates the group."""
    ids = [device.id for device in request.devices]
    for device in request.devices:
        _destroy(device)
    node = _run("create", *ids)
    GROUPS.mkdir(parents=True, exist_ok=True)
    for device in request.devices:
        _file(device).write_text(node)
    return Edits(nodes=(DeviceNode(node),))


@hookimpl
def devhost_after_release(devices: tuple[Device, ...]) -> None:
    """Destroys the groups in which these devices are."""
    for device in devices:
        _destroy(device)


def _destroy(device: Device) -> None:
    try:
        node = _file(device).read_text()
    except FileNotFoundError:
        return
    members = [file for file in GROUPS.iterdir() if file.read_text() == node]
    _run("destroy", node)
    for file in members:
        file.unlink()


def _file(device: Device) -> Path:
    return GROUPS / device.id.replace("/", "_")


def _run(*arguments: str) -> str:
    result = process.run([PROGRAM, *arguments], deadline=4, name="npu-group")
    if failure := result.failure:
        raise RuntimeError(f"npu-group {failure}")
    return result.output.decode().strip()
