"""An FPGA card for the kernel's own drivers: a Device Feature List in the memory of a display.

What QEMU's ``secondary-vga`` has behind its BAR 0 is ordinary memory. A list of feature headers is written
there, as the kernel documents it (Documentation/fpga/dfl.rst; the registers: drivers/fpga/dfl.h,
dfl-fme-main.c, dfl-fme-error.c, dfl-fme-mgr.c, dfl-afu-error.c), and ``dfl-pci`` is told to take the card.
From there on everything is the kernel's: ``fpga_region``, ``dfl-fme.N``, ``dfl-port.N``, nodes and files.

Memory is no logic. A register says what was written to it last: an error is there once a test has put it
there, and does not go by being written to. A port acknowledges every reset at once. Only the programming of
a region needs somebody who answers: :class:`Engine`.

Writing while a driver has the card needs ``iomem=relaxed`` (``machine/hardware.py``).

Never keep a node of a port open while the card goes: closing it afterwards oopses this kernel.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from .functions import BUS, DEVICES, driver_of
from .hotplug import Slots
from .kernel import run, text
from .waiting import until

MODULES = ("dfl-pci", "dfl-fme", "dfl-fme-mgr", "dfl-fme-br", "dfl-fme-region", "dfl-afu")
SLOT, DRIVER = "card", "dfl-pci"
REGION = "dfl-fme-region.*/fpga_region/region*/compat_id"
"""Below a management engine, for each port."""

FUNCTION = "d8424dc4a4a3c413f89e433683f9040b"
OTHER_FUNCTION = "56e203e9864f49a7b94b12284c31e02b"
INTERFACE = "9926ab6d6c925a68aabca7d84c545738"
"""128-bit ids, as the kernel prints them: the upper half first."""
BITSTREAM, METADATA = 0x0123456789ABCDEF, 0x20250101
ONES = (1 << 64) - 1
"""The value of every register of a card that is gone."""

_REGISTER = struct.Struct("<Q")

# A header, DFHv0: type 63:60, end of list 40, offset of the next or own size 39:16, revision 15:12, id 11:0
_AFU, _PRIVATE, _UNIT = 1, 3, 4
_ENGINE_UNIT, _PORT_UNIT = 0, 1
_STEP = 0x1000
"""Bytes from one header to the next, and so the size of a feature."""
_IDENTITY_LOW, _IDENTITY_HIGH = 0x08, 0x10

# The management engine: FME_HDR_*; features follow each other
_CAPABILITY, _OFFSETS, _BITSTREAM, _METADATA = 0x30, 0x38, 0x60, 0x68
_PORTS_SHIFT, _IMPLEMENTED = 17, 1 << 60
_THERMAL, _THERMAL_ID = 0x1000, 0x01
_ERRORS, _ERRORS_ID = 0x2000, 0x04
_RECONFIGURATION, _RECONFIGURATION_ID = 0x3000, 0x05

_THRESHOLDS, _TEMPERATURE = _THERMAL + 0x08, _THERMAL + 0x10
_WARM, _HOT, _TRIP = 85, 90 << 8, 95 << 24
_ALARM, _CRITICAL_ALARM = 1 << 32, 1 << 33
"""Degrees Celsius, and that the first and the second of them was reached."""

ENGINE_ERRORS = {
    "fme_errors": _ERRORS + 0x10,
    "pcie0_errors": _ERRORS + 0x20,
    "pcie1_errors": _ERRORS + 0x30,
    "nonfatal_errors": _ERRORS + 0x50,
    "catfatal_errors": _ERRORS + 0x60,
}
"""By their names in sysfs."""

_CONTROL, _STATUS, _DATA, _FAULT = (_RECONFIGURATION + offset for offset in (0x08, 0x10, 0x18, 0x20))
_INTERFACE_LOW, _INTERFACE_HIGH = _RECONFIGURATION + 0xA8, _RECONFIGURATION + 0xB0
_RESET_DONE, _PORT_SHIFT, _START, _COMPLETE = 1 << 4, 7, 1 << 12, 1 << 13
_CREDITS, _FAILED, _INCOMPATIBLE = 0x1FF, 1 << 16, 1 << 2
_PORT_MASK = 0b111

# A port: PORT_HDR_*; its function has a separate area
_FIRST_PORT, _PORT_SIZE = 0x100000, 0x100000
_NEXT_FUNCTION, _PORT_CAPABILITY, _PORT_CONTROL, _PORT_STATUS = 0x18, 0x30, 0x38, 0x40
_PORT_ERRORS, _PORT_ERRORS_ID, _PORT_ERROR = 0x1000, 0x10, 0x1010
_FUNCTION, _FUNCTION_KIB = 0x4000, 64
_IN_RESET = 1 << 4
"""The port acknowledges every reset, before it is asked for."""


def _header(kind: int, number: int, *, last: bool = False, revision: int = 0) -> int:
    return kind << 60 | last << 40 | (0 if last else _STEP) << 16 | revision << 12 | number


def _halves(identity: str) -> tuple[int, int]:
    """The lower and the upper half of an id."""
    return int(identity[16:], 16), int(identity[:16], 16)


def _port(number: int) -> int:
    return _FIRST_PORT + number * _PORT_SIZE


def _list(functions: Sequence[str], interface: str) -> Iterator[tuple[int, int]]:
    """Every register that is not zero: its place, its value."""
    yield 0, _header(_UNIT, _ENGINE_UNIT)
    yield _CAPABILITY, len(functions) << _PORTS_SHIFT
    yield _BITSTREAM, BITSTREAM
    yield _METADATA, METADATA
    yield _THERMAL, _header(_PRIVATE, _THERMAL_ID)
    yield _THRESHOLDS, _WARM | _HOT | _TRIP
    yield _TEMPERATURE, 40
    yield _ERRORS, _header(_PRIVATE, _ERRORS_ID, revision=1)
    yield _RECONFIGURATION, _header(_PRIVATE, _RECONFIGURATION_ID, last=True)
    yield _CONTROL, _RESET_DONE
    yield _STATUS, _CREDITS
    yield from zip((_INTERFACE_LOW, _INTERFACE_HIGH), _halves(interface), strict=True)
    for number, function in enumerate(functions):
        base = _port(number)
        yield _OFFSETS + number * _REGISTER.size, _IMPLEMENTED | base
        yield base, _header(_UNIT, _PORT_UNIT)
        yield base + _NEXT_FUNCTION, _FUNCTION
        yield base + _PORT_CAPABILITY, _FUNCTION_KIB << 8 | number
        yield base + _PORT_CONTROL, _IN_RESET
        yield base + _PORT_ERRORS, _header(_PRIVATE, _PORT_ERRORS_ID, last=True)
        yield base + _FUNCTION, _header(_AFU, 0, last=True)
        low, high = _halves(function)
        yield base + _FUNCTION + _IDENTITY_LOW, low
        yield base + _FUNCTION + _IDENTITY_HIGH, high


class Registers:
    """The memory of a card while it is mapped: registers of 64 bits by their place."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __getitem__(self, place: int) -> int:
        value: int = _REGISTER.unpack_from(self._memory, place)[0]
        return value

    def __setitem__(self, place: int, value: int) -> None:
        _REGISTER.pack_into(self._memory, place, value)

    def set_function(self, port: int, identity: str) -> None:
        """Makes a port report that another function is programmed."""
        low, high = _halves(identity)
        self[_port(port) + _FUNCTION + _IDENTITY_LOW] = low
        self[_port(port) + _FUNCTION + _IDENTITY_HIGH] = high


class Card:
    """One card. What is plugged is pulled with the test's ``slots``.

    Args:
        functions: what is programmed in each of its ports at first; four at most.
        interface: the interface id of its regions.
    """

    def __init__(
        self, slots: Slots, *, functions: Sequence[str] = (FUNCTION,), interface: str = INTERFACE
    ) -> None:
        self._slots = slots
        self._contents = dict(_list(functions, interface))
        self.functions = tuple(functions)
        self.ports = len(functions)
        self.name = "fpga0"
        self.address = ""

    async def plug(self) -> None:
        """Plugs the card in, writes its registers, and binds it to ``dfl-pci`` if that is loaded."""
        place = await self._slots.plug("secondary-vga", self.name, SLOT, vgamem_mb=16)
        self.address = place.name
        # waits for a driver that is about to take it, and keeps others away from now on
        (place / "driver_override").write_text(DRIVER)
        if driver_of(self.address):
            (place / "driver/unbind").write_text(self.address)
        (place / "enable").write_text("1")
        with self.registers() as registers:
            for offset, value in self._contents.items():
                registers[offset] = value
        (place / "enable").write_text("0")
        self.probe()

    async def pull(self) -> None:
        """Pulls it out, with its driver on it."""
        await self._slots.pull(self.name)

    def probe(self) -> None:
        """Offers the card to its driver."""
        (BUS / "drivers_probe").write_text(self.address)

    @property
    def path(self) -> Path:
        """Its directory in sysfs."""
        return (DEVICES / self.address).resolve()

    @property
    def engine(self) -> Path:
        """The directory of its management engine.

        Raises:
            FileNotFoundError: it has none now.
        """
        return _one(self.path.glob("fpga_region/region*/dfl-fme.*"))

    def port(self, number: int = 0) -> Path:
        """The directory of a port.

        Raises:
            FileNotFoundError: it has no port with this number now.
        """
        found = self.path.glob("fpga_region/region*/dfl-port.*")
        return _one(one for one in found if text(one / "id") == str(number))

    async def ready(self) -> None:
        """Waits until its engine and all ports have their drivers."""
        await until(
            "the card has its drivers",
            lambda: (
                (self._count("dfl-*/driver"), self._count(f"dfl-fme.*/{REGION}"))
                == (1 + self.ports, self.ports)
            ),
        )

    def _count(self, pattern: str) -> int:
        return len(list(self.path.glob(f"fpga_region/region*/{pattern}")))

    @contextmanager
    def registers(self) -> Iterator[Registers]:
        """The card's memory. Not to be held while it is pulled."""
        descriptor = os.open(self.path / "resource0", os.O_RDWR)
        try:
            memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        try:
            yield Registers(memory)
        finally:
            memory.close()

    def set_function(self, identity: str, port: int = 0) -> None:
        """Makes a port report that another function is programmed, for which the kernel sends no event."""
        with self.registers() as registers:
            registers.set_function(port, identity)

    def set_engine_error(self, name: str, value: int) -> None:
        """Sets an error register of the engine; 0 for none.

        Args:
            name: one of :data:`ENGINE_ERRORS`.
        """
        with self.registers() as registers:
            registers[ENGINE_ERRORS[name]] = value

    def set_port_error(self, value: int, port: int = 0) -> None:
        """Sets the error register of a port; 0 for none."""
        with self.registers() as registers:
            registers[_port(port) + _PORT_ERROR] = value

    def set_hot(self, hot: bool) -> None:
        """Whether both thresholds of the thermometer are reached."""
        with self.registers() as registers:
            registers[_THRESHOLDS] = _WARM | _HOT | _TRIP | (_ALARM | _CRITICAL_ALARM) * hot

    def fall_silent(self) -> None:
        """Makes all state registers of the card read as ones, as with a dead link."""
        with self.registers() as registers:
            for place in self._telling():
                registers[place] = ONES

    def speak(self) -> None:
        """Everything reads again as at first."""
        with self.registers() as registers:
            for place in self._telling():
                registers[place] = self._contents.get(place, 0)

    def _telling(self) -> Iterator[int]:
        yield from (_CAPABILITY, _BITSTREAM, _METADATA, _THRESHOLDS, _TEMPERATURE, *ENGINE_ERRORS.values())
        for number in range(self.ports):
            for place in (_PORT_CAPABILITY, _PORT_STATUS, _PORT_ERROR):
                yield _port(number) + place
            for place in (_IDENTITY_LOW, _IDENTITY_HIGH):
                yield _port(number) + _FUNCTION + place


class Engine:
    """What programs the card's regions: it answers the driver while it is entered.

    The kernel's driver hands a bitstream over in words of 32 bits through one register, and waits, for 8 s,
    until the engine says that it is done. The last word is all that memory keeps; it tells which function
    it was.

    Args:
        functions: the function by the last word of its bitstream. No other bitstream fits the region.
    """

    PAUSE = 0.005
    """Seconds between two checks."""

    def __init__(self, card: Card, functions: Mapping[int, str]) -> None:
        self._card = card
        self._functions = functions
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="engine")
        self.done: list[tuple[int, int]] = []
        """What was programmed: the port, the last word; also what did not fit."""

    def __enter__(self) -> Engine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def forget(self) -> None:
        """Forgets that a bitstream did not fit; the driver waits for that before it hands over another."""
        with self._card.registers() as registers:
            registers[_STATUS], registers[_FAULT] = _CREDITS, 0

    def _work(self) -> None:
        with self._card.registers() as registers:
            while not self._end.wait(self.PAUSE):
                control = registers[_CONTROL]
                # nothing else writes here between its completion and our answer
                if control & _COMPLETE and control & _START:
                    self._answer(registers, control >> _PORT_SHIFT & _PORT_MASK)
                    registers[_CONTROL] = control & ~(_COMPLETE | _START)

    def _answer(self, registers: Registers, port: int) -> None:
        word = registers[_DATA]
        if word in self._functions:
            registers.set_function(port, self._functions[word])
        else:
            registers[_FAULT] = _INCOMPATIBLE
            registers[_STATUS] = _CREDITS | _FAILED
        self.done.append((port, word))


def load() -> None:
    """Loads every driver that a card needs."""
    run("modprobe", "--all", *MODULES)


def unload() -> None:
    """Removes all drivers of a card; no process may have one of its nodes open."""
    for module in reversed(MODULES):
        run("modprobe", "--remove", module)


def _one(found: Iterator[Path]) -> Path:
    for path in found:
        return path
    raise FileNotFoundError("the card has no such part now")
