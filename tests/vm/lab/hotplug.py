"""Plugs PCI devices into the machine and pulls them out, through QEMU's monitor from inside.

The port ``/dev/virtio-ports/qmp`` leads to QEMU's monitor (https://www.qemu.org/docs/master/interop/qmp-spec.html).
Which ports and which spare disks there are says ``machine/hardware.py``.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .waiting import until

PORT = Path("/dev/virtio-ports/qmp")
ANSWER_LIMIT = 120.0
DEVICES = Path("/sys/bus/pci/devices")

BUSY = re.compile(r"busy|in use|[Dd]uplicate|in the process of unplug")
"""The error of QEMU for a request that succeeds a little later, when the guest has done its part."""

PATIENCE = (30.0, 60.0, 90.0)
"""Seconds for a device to go, each time it is asked for: a guest that is busy plugging takes the request to
unplug for one to stop that."""


def usable(address: str) -> bool:
    """Whether the kernel has done with a function what it does before drivers may have it.

    Its directory in sysfs comes first, then its memory and the files for that, then its file in ``/proc``
    (``pci_bus_add_device`` in drivers/pci/bus.c). Enabled in between, it answers ``EINVAL``.
    """
    domain, bus, function = address.split(":")
    return Path("/proc/bus/pci", bus if domain == "0000" else f"{domain}:{bus}", function).exists()


class Refused(Exception):
    """QEMU refused a request; the text is QEMU's."""


class Monitor:
    """A connection to QEMU's monitor. There is only one port, and so one connection at a time."""

    def __init__(self) -> None:
        self._port = os.open(PORT, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._session = time.monotonic_ns()  # distinguishes our answers from those to an earlier program
        self._number = 0
        with suppress(Refused):  # QEMU does not notice that programs change: an earlier one may have sent it
            self("qmp_capabilities")

    def close(self) -> None:
        os.close(self._port)

    def __call__(self, command: str, **arguments: object) -> Any:
        """What QEMU answers to a command.

        Raises:
            Refused: the command failed.
            TimeoutError: there was no answer.
        """
        self._number += 1
        name = f"{self._session}/{self._number}"
        message = {"execute": command, "id": name, **({"arguments": arguments} if arguments else {})}
        os.write(self._port, json.dumps(message).encode() + b"\n")
        deadline = time.monotonic() + ANSWER_LIMIT
        while True:
            answer = self._next(deadline)
            if answer.get("id") != name:
                continue  # an event, or the greeting
            if "error" in answer:
                raise Refused(f"{command}: {answer['error']['desc']}")
            return answer["return"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._rest:
            if not select.select([self._port], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"QEMU did not answer within {ANSWER_LIMIT:.0f} s")
            self._rest += os.read(self._port, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Slots:
    """Devices in the machine's ports. What was plugged is pulled at the end; what was pulled stays out."""

    def __init__(self) -> None:
        self.monitor = Monitor()
        self._plugged: list[str] = []

    async def __aenter__(self) -> Slots:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for name in list(self._plugged):
                await self.pull(name)
        finally:
            self.monitor.close()

    async def plug(
        self, driver: str, name: str, port: str, *, keep: bool = False, **properties: object
    ) -> Path:
        """Plugs a device in, and waits until the kernel has given it its memory: its directory in sysfs.

        Args:
            driver: QEMU's kind of device: ``nvme``, ``igb``, ``secondary-vga``.
            port: ``free0`` and so on.
            keep: whether it stays after the test: it is one that the machine has from the start.
            properties: QEMU's, such as ``serial`` and ``drive`` of an NVMe controller.

        Raises:
            Refused: QEMU does not want it.
            TimeoutError: the kernel did not see it.
        """
        memory = f"{self._address(port)}:"
        await until(f"QEMU has freed what was in {port}", lambda: memory not in self._memory())
        before = self.present()
        await self._ask("device_add", driver=driver, id=name, bus=port, **properties)
        if not keep:
            self._plugged.append(name)
        new = await until(f"{driver} in {port}", lambda: set(filter(usable, self.present() - before)))
        return (DEVICES / min(new)).resolve()

    async def pull(self, name: str) -> None:
        """Pulls a device out, and waits until it is gone.

        Raises:
            Refused: there is no device of that name.
            TimeoutError: it is still there; a driver may hold it.
        """
        if name in self._plugged:
            self._plugged.remove(name)
        for wait in PATIENCE:
            await self._ask("device_del", id=name)
            with suppress(TimeoutError):
                await until(f"{name} is gone", lambda: name not in self.names(), limit=wait)
                return
        raise TimeoutError(f"{name} did not go; a driver may hold it")

    async def _ask(self, command: str, **arguments: object) -> None:
        """Asks QEMU until neither the slot nor a drive is busy with what was there before.

        Raises:
            Refused: the command failed.
            TimeoutError: something stays busy.
        """

        def is_done() -> bool:
            try:
                self.monitor(command, **arguments)
            except Refused as error:
                if BUSY.search(str(error)):
                    return False
                raise
            return True

        await until(f"QEMU does {command} {arguments}", is_done)

    def _memory(self) -> str:
        """QEMU's table of memory, which names each device's by the addresses that lead to it.

        A device that was pulled has its memory a little longer, and QEMU aborts when the next one's gets the
        same name.
        """
        table: str = self.monitor("human-monitor-command", **{"command-line": "info ramblock"})
        return table

    def _address(self, port: str) -> str:
        """The address of a root port."""
        (found,) = (
            f"0000:{one['bus']:02x}:{one['slot']:02x}.{one['function']}"
            for bus in self.monitor("query-pci")
            for one in bus["devices"]
            if one["qdev_id"] == port
        )
        return found

    def names(self) -> set[str]:
        """The names of all devices that have one."""
        return {one["name"] for one in self.monitor("qom-list", path="/machine/peripheral")}

    def present(self) -> set[str]:
        """The addresses of all PCI functions, as the kernel sees them."""
        return {entry.name for entry in DEVICES.iterdir()}
