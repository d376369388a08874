"""Tests each device before its first container since the boot; a device that fails is given to no pod."""

from __future__ import annotations

from pathlib import Path

from devhost.backend import ContainerRequest, hookimpl, process

for_backends = ("udev",)

PROGRAM = "/usr/local/bin/burn-in"
"""Gets the id of a device; its exit code is 0 if the device is fine."""

PASSED = Path("/run/devhost-burn-in")
"""Has a file for each device that has passed; a reboot clears ``/run``."""


@hookimpl
def devhost_before_container(request: ContainerRequest) -> None:
    """Runs the program for devices that have not passed; an error refuses the pod."""
    for device in request.devices:
        passed = PASSED / request.backend / device.id.replace("/", "_")
        if passed.exists():
            continue
        failure = process.run([PROGRAM, device.id], deadline=4, name="burn-in").failure
        if failure:
            raise RuntimeError(f"{device.id}: burn-in {failure}")
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
