"""Reads cards with management engines and ports, as the DFL and OPAE drivers show them.

Both drivers put their devices into a container below the PCI function (``fpga_region/region<N>`` or
``fpga/intel-fpga-dev.<N>``): one management engine on the physical function, and its ports. A port that a
virtual function has is in a container of that function, which has no engine: its engine is that of the
physical function (Documentation/fpga/dfl.rst, "FPGA virtualization"). Devices on another bus have the same
layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import DEVICES, natural

from .manager_state import Manager, manager_of
from .model import FpgaSysfs, Interface, ParentDevice, Reading, place

_NUMBER = re.compile(r"[0-9]{1,4}")


@frozen
class Layout:
    """How one driver names its directories."""

    interface: Interface
    listing: str
    container: re.Pattern[str]
    engine: re.Pattern[str]
    port: re.Pattern[str]
    region: re.Pattern[str]
    """Directories below an engine that have a ``compat_id`` below them; OPAE has none."""
    module: str
    """The module that ports need."""


@frozen
class Port:
    """A port: its place, its number (``None`` if unknown), and the id of its accelerator function."""

    path: str
    place: ParentDevice
    kernel_name: str
    number: int | None
    afu: Reading

    @property
    def is_bare(self) -> bool:
        """Whether no driver shows its attributes."""
        return self.number is None and self.afu.is_absent


@frozen
class Engine:
    """A management engine: the interface id of each of its regions, and its manager."""

    path: str
    place: ParentDevice
    kernel_name: str
    interfaces: tuple[Reading, ...] = ()
    manager: Manager = field(default_factory=Manager)
    texts: Mapping[str, str] = field(default_factory=dict)


@frozen
class Card:
    """An engine with all its ports, or ports whose engine is not visible."""

    engine: Engine | None
    ports: tuple[Port, ...]


ENGINE_TEXTS = ("bitstream_id", "bitstream_metadata", "ports_num", "socket_id")
"""Files of an engine that never change."""


class Cards:
    """Reads all cards of one driver, without memory of earlier calls."""

    def __init__(self, sysfs: FpgaSysfs, layout: Layout) -> None:
        self._sysfs = sysfs
        self._layout = layout

    def read(self) -> list[Card]:
        """Every card. Raises ``OSError`` if the class exists and cannot be listed."""
        engines: list[tuple[str, Engine]] = []
        ports: list[tuple[str, Port]] = []
        for container in self._containers():
            where = self._place(container)
            for name in self._sysfs.names(container):
                path = f"{container}/{name}"
                if self._layout.engine.fullmatch(name):
                    engines.append((container, self._engine(path, where)))
                elif self._layout.port.fullmatch(name):
                    ports.append((container, self._port(path, where)))
        return list(_joined(engines, ports))

    def _containers(self) -> Iterator[str]:
        """The directories with engines and ports, without duplicates."""
        listing = self._layout.listing
        seen: set[str] = set()
        for name in self._sysfs.listed(listing):
            if self._layout.container.fullmatch(name):
                path = self._sysfs.device(f"{listing}/{name}") or f"{listing}/{name}"
                if path not in seen:
                    seen.add(path)
                    yield path

    def _place(self, container: str) -> ParentDevice:
        """The device that a container belongs to: two directories up, above the class."""
        above = container.rpartition("/")[0].rpartition("/")[0]
        return place(self._sysfs, above if container.startswith(DEVICES) else container)

    def _port(self, path: str, where: ParentDevice) -> Port:
        text = self._sysfs.text(f"{path}/id")
        return Port(
            path=path,
            place=where,
            kernel_name=path.rpartition("/")[2],
            number=int(text) if _NUMBER.fullmatch(text) else None,
            afu=self._sysfs.reading(f"{path}/afu_id"),
        )

    def _engine(self, path: str, where: ParentDevice) -> Engine:
        return Engine(
            path=path,
            place=where,
            kernel_name=path.rpartition("/")[2],
            interfaces=tuple(map(self._sysfs.reading, self._interface_files(path))),
            manager=manager_of(self._sysfs, path),
            texts={name: self._sysfs.text(f"{path}/{name}") for name in ENGINE_TEXTS},
        )

    def _interface_files(self, engine: str) -> Iterator[str]:
        """The files with the interface id: one for each region, all with the id of the engine."""
        if self._layout.interface is Interface.OPAE:
            yield f"{engine}/pr/interface_id"
        for name in self._sysfs.names(engine):
            if self._layout.region.fullmatch(name):
                below = f"{engine}/{name}/fpga_region"
                yield from (f"{below}/{region}/compat_id" for region in self._sysfs.names(below))


def _joined(engines: Sequence[tuple[str, Engine]], ports: Sequence[tuple[str, Port]]) -> Iterator[Card]:
    """Assigns ports to the engine of their container, else to that of their physical function."""
    own: dict[str, list[Port]] = {engine.path: [] for _, engine in engines}
    strays: dict[str, list[Port]] = {}
    for container, port in ports:
        near = [engine for where, engine in engines if where == container]
        near = near or [one for _, one in engines if one.place.path == port.place.path]
        near = near or [one for _, one in engines if port.place.whole and one.place.name == port.place.whole]
        if near:
            own[near[0].path].append(port)
        else:
            strays.setdefault(port.place.whole or port.place.path, []).append(port)
    for _, engine in engines:
        yield Card(engine, tuple(sorted(own[engine.path], key=_order)))
    for several in strays.values():
        yield Card(None, tuple(sorted(several, key=_order)))


def _order(port: Port) -> tuple[int, object]:
    return (1 << 16 if port.number is None else port.number), natural(port.kernel_name)
