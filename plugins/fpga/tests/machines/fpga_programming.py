"""A machine with regions to program, and a stand-in for the kernel that programs them.

Nothing here is an FPGA: the stand-in writes what a driver would show into the tree.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devhost_fpga.model import DeviceKind, FpgaSysfs, Interface, Reading, Slot, Unit
from devhost_fpga.options import Program
from devhost_fpga.programming.loader import Engines, ProgrammingResult
from devhost_fpga.programming.programmer import PATIENCE, Clock, Programmer

from devhost.backend import Device

INTERFACE = "69528db6eb31577a8c3668f9faa081f6"
OTHER_INTERFACE = "9926ab6d6c925a68aabca7d84c545738"
AFU = "d8424dc4a4a3c413f89e433683f9040b"
OLD_AFU = "9aeffe5f84570612c000c9660d824272"

CARD = "/sys/devices/pci0000:00/0000:3b:00.0/fpga_region/region0"
ENGINE = f"{CARD}/dfl-fme.0"
MANAGER = "/sys/devices/platform/fpga-full/fpga_manager/fpga0"
BITSTREAM = "/srv/fpga/crypto.gbs"


def gbs(interface: str = INTERFACE, afu: str = AFU, image: bytes = b"image" * 9, **metadata: Any) -> bytes:
    """A GBS file as Intel's tools write it."""
    content: dict[str, Any] = {
        "version": 1,
        "platform-name": "DCP",
        "afu-image": {
            "magic-no": 488605312,
            "interface-uuid": interface,
            "power": 0,
            "accelerator-clusters": [{"name": "x", "total-contexts": 1, "accelerator-type-uuid": afu}],
        },
    }
    text = json.dumps(content | metadata).encode()
    return b"XeonFPGA\xb7GBSv001" + len(text).to_bytes(4, "little") + text + image


@dataclass
class FakeClock:
    """Time that passes only by sleeping; ``drawn`` is every random number."""

    time: float = 0.0
    drawn: float = 0.0
    pauses: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        """What the programmer takes for the time."""
        return Clock(lambda: self.time, self._sleep, lambda: self.drawn)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds


@dataclass
class FakeKernel:
    """Represents the programming process and the driver.

    ``verdicts`` are given in turn, by port; ``shows`` is the id that a port shows after it was programmed.
    """

    root: Path
    verdicts: dict[int, ProgrammingResult] = field(default_factory=dict)
    shows: str = AFU
    state: str = "operating"
    requests: list[Mapping[str, Any]] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def __call__(
        self, request: Mapping[str, Any], descriptors: Collection[int], patience: float
    ) -> ProgrammingResult:
        assert patience > 0
        self.requests.append(request)
        self.meanwhile()
        if request["do"] == "firmware":
            (self.root / MANAGER[1:] / "state").write_text(f"{self.state}\n")
            return self.verdicts.get(0, ProgrammingResult())
        assert list(descriptors) == [request["file"]]
        os.fstat(request["file"])  # it is open
        port = int(request["port"])
        verdict = self.verdicts.get(port, ProgrammingResult())
        if not verdict.step:
            show(self.root, port, self.shows)
        return verdict

    @property
    def ports(self) -> list[int]:
        """The ports it was asked to program, in this order."""
        return [request["port"] for request in self.requests]


def show(root: Path, port: int, text: str) -> None:
    """What the driver shows as the AFU id of a port."""
    file = root / CARD[1:] / f"dfl-port.{port}" / "afu_id"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


@dataclass
class Machine:
    """A machine with a card of some ports, and everything that programs it."""

    root: Path
    kernel: FakeKernel
    clock: FakeClock
    engines: Engines
    held: set[str] | None = field(default_factory=set)
    units: list[Unit] = field(default_factory=list)
    patience: float = PATIENCE
    busy_until: float = 0.0
    """Until then the driver answers EBUSY to every process that reads an id."""

    @property
    def programmer(self) -> Programmer:
        """A fresh one, as after a reload of the configuration."""
        return Programmer(
            _BusySysfs(self),
            lambda: None if self.held is None else frozenset(self.held),
            logging.getLogger("test"),
            units=lambda: self.units,
            run=self.kernel,
            engines=self.engines,
            clock=self.clock.clock,
            patience=self.patience,
        )

    def stays_busy(self) -> None:
        """From now on the driver answers EBUSY to every process that reads an id."""
        self.busy_until = 1e9

    def region(self, ports: int = 1, interface: str = INTERFACE, name: str = "0000:3b:00.0-fme") -> Unit:
        """All ports of the card as one device."""
        slots = tuple(
            Slot(Interface.DFL, ENGINE, port, f"{CARD}/dfl-port.{port}", interface) for port in range(ports)
        )
        claims = {"fpga:0000:3b:00.0", *(f"fpga:0000:3b:00.0/port{port}" for port in range(ports))}
        return Unit(Device(name, {"kind": DeviceKind.REGION.value}, frozenset(claims)), slots=slots)

    def af(self, port: int) -> Unit:
        """One port of the card as a device."""
        slot = self.region(port + 1).slots[port]
        claims = frozenset({f"fpga:0000:3b:00.0/port{port}"})
        return Unit(Device(f"0000:3b:00.0-port{port}", {"kind": DeviceKind.AF.value}, claims), slots=(slot,))

    def chip(self, interface: str = "", name: str = "fpga-full") -> Unit:
        """A chip behind an fpga_manager with the ``firmware`` file, or a region of it."""
        slot = Slot(Interface.FIRMWARE, MANAGER, interface_id=interface)
        claims = frozenset({f"fpga:{name}"})
        return Unit(Device(name, {"kind": DeviceKind.REGION.value}, claims), slots=(slot,))

    def put(self, content: bytes, path: str = BITSTREAM) -> Program:
        """Puts a file onto the node; returns the options that program it."""
        file = self.root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o644)
        return Program(Path(path))


class _BusySysfs(FpgaSysfs):
    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.root)
        self._machine = machine

    def reading(self, path: str) -> Reading:
        is_busy = self._machine.clock.time < self._machine.busy_until
        return Reading(error=errno.EBUSY) if is_busy else super().reading(path)


def machine(root: Path, ports: int = 1) -> Machine:
    """A machine below ``root``, whose ports show an old id."""
    engine, manager = root / ENGINE[1:], root / MANAGER[1:]
    (engine / "dfl-fme-mgr.0/fpga_manager/fpga1").mkdir(parents=True)
    (engine / "dfl-fme-mgr.0/fpga_manager/fpga1/state").write_text("operating\n")
    (engine / "dfl-fme-mgr.0/fpga_manager/fpga1/status").write_text("")
    # a device that exists everywhere represents the management engine; only the child opens it
    (engine / "dev").write_text("1:3\n")
    (engine / "uevent").write_text("MAJOR=1\nMINOR=3\nDEVNAME=null\n")
    (root / "dev").symlink_to("/dev")
    for port in range(ports):
        show(root, port, OLD_AFU)
    manager.mkdir(parents=True)
    for name, text in {"state": "unknown", "status": "", "flags": "0", "firmware": ""}.items():
        (manager / name).write_text(f"{text}\n")
    return Machine(root, FakeKernel(root), FakeClock(), Engines())
