"""AMD's MA35D transcoders, which Xilinx's plugin serves beside FPGAs (``amd.com/MA35``).

The driver ``ama_transcoder`` makes a misc device for each of the two chips of a card,
``/sys/devices/virtual/misc/ama_transcoder<n>``, with the chip's PCI address in ``bus_id`` and lines such as
``Product serial number = …`` in ``device_info`` (``GetAMADevices`` in k8s-device-plugin/fpga.go of
FPGA_as_a_Service).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from devhost.backend import HEALTHY, Device, Health, unhealthy
from devhost.backend.sysfs import BDF, Sysfs

from . import attributes, pci
from .unit import Kind, Unit
from .xrt_ids import AMA

_CLASS, _BUS = "/sys/class/misc", "/sys/bus/pci/devices"
_IDS = ("10ee", "5070")
"""The chip's PCI function."""

NAME = "MA35"
"""What Xilinx's plugin calls all of them."""


class Ama:
    """Finds the transcoders."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    def scan(self) -> Iterable[Unit]:
        """The chips that have a misc device, and those that no driver is bound to.

        Raises:
            OSError: the class cannot be listed, so that nobody takes silence for absence.
        """
        seen: set[str] = set()
        units = [
            self._unit(path, name, seen)
            for name in self._sysfs.listed(_CLASS)
            if name.startswith(AMA) and (path := self._sysfs.device(f"{_CLASS}/{name}"))
        ]
        return [*units, *self._idle(seen)]

    def _unit(self, path: str, name: str, seen: set[str]) -> Unit:
        text = self._sysfs.text(f"{path}/bus_id")
        address = text if BDF.fullmatch(text) else f"0000:{text}"
        where = self._sysfs.device(f"{_BUS}/{address}") if BDF.fullmatch(address) else ""
        if not where or address in seen:
            reason = (
                "its driver does not say which PCI function it is"
                if not where
                else f"{address} has two of it"
            )
            claims = frozenset((f"node:/dev/{name}",))
            facts = attributes.present({"vendor": attributes.XILINX, "kind": str(Kind.CARD)})
            return Unit(Device(id=name, attributes=facts, claims=claims, health=unhealthy(reason)), (path,))
        seen.add(address)
        health = unhealthy(pci.LOST) if self._sysfs.is_dead(where) else HEALTHY
        device = self._device(
            where, self._serial(path), frozenset((f"pci:{address}", f"node:/dev/{name}")), health
        )
        return Unit(device, (path,))

    def _idle(self, seen: set[str]) -> Iterator[Unit]:
        for address in self._sysfs.names(_BUS):
            if address in seen or self._sysfs.hexadecimal(f"{_BUS}/{address}/device") != _IDS[1]:
                continue
            where = self._sysfs.device(f"{_BUS}/{address}")
            function = self._sysfs.pci(where) if where else None
            if function and (function.vendor, function.device) == _IDS and not function.driver:
                reason = f"no driver is bound to it: load the module {AMA}"
                device = self._device(where, "", frozenset((f"pci:{address}",)), unhealthy(reason))
                yield Unit(device, lacks_driver=True)

    def _device(self, where: str, serial: str, claims: frozenset[str], health: Health) -> Device:
        place = pci.place(self._sysfs, where)
        facts = {"vendor": attributes.XILINX, "kind": str(Kind.CARD), "serial": serial, "xilinxName": NAME}
        return Device(
            id=place.name,
            attributes=attributes.present(attributes.of_pci(place.function) | facts),
            claims=claims,
            part_of=frozenset((f"pci:{place.whole}",) if place.whole else ()),
            numa_nodes=() if place.numa_node is None else (place.numa_node,),
            pcie_path=place.pcie_path,
            health=health,
        )

    def _serial(self, path: str) -> str:
        for line in self._sysfs.text(f"{path}/device_info").splitlines():
            key, _, value = line.partition("=")
            if key.strip().lower() == "product serial number":
                return value.strip()
        return ""
