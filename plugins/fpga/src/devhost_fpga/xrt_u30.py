"""Alveo U30: two FPGAs on one card, which together are one device.

Each FPGA has a user and a management function, with PCI addresses that say nothing of the card: they differ
in the bus, and the slot of the machine divides the lanes between them. What both have in common is the
serial number of the card. Xilinx's plugin pairs them by that (``Allocate`` in k8s-device-plugin/server.go of
FPGA_as_a_Service, ``U30AllocUnit=Card``) and lists no FPGA without one. Here such an FPGA is listed and
Unhealthy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from devhost.backend import HEALTHY, AttributeValue, Device, Health, unhealthy

from . import xrt_ids
from .unit import Unit

FPGAS = 2
"""FPGAs on a U30."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]")

_LONGEST = 50
"""Characters of a serial number that go into an id, which may have 63."""

Members = Mapping[str, Unit]
"""The FPGAs of one card by PCI slot, the address without the number of the function."""


class Cards:
    """Joins the FPGAs of each U30. Keeps what was on a card while one of its FPGAs is gone or in a reset."""

    def __init__(self) -> None:
        self._known: Mapping[str, Members] = {}

    def joined(self, units: Iterable[Unit]) -> list[Unit]:
        """The same units, with one for both FPGAs of a U30."""
        others: list[Unit] = []
        fpgas: dict[str, Unit] = {}
        for unit in units:
            if _is_u30(unit):
                fpgas[_slot(unit)] = unit
            else:
                others.append(unit)
        last = {slot: serial for serial, members in self._known.items() for slot in members}
        found: dict[str, dict[str, Unit]] = {}
        for slot, unit in fpgas.items():
            serial = str(unit.device.attributes.get("serial", ""))
            if serial:
                found.setdefault(serial, {})[slot] = unit
            elif slot in last:
                found.setdefault(last[slot], {})[slot] = _unnamed(unit)
            else:
                others.append(_unnamed(unit))
        known: dict[str, Members] = {}
        for serial, members in found.items():
            if len(members) > FPGAS:
                others += [_ambiguous(unit, serial, len(members)) for unit in members.values()]
                continue
            known[serial] = self._with_absent(serial, members, fpgas)
            others.append(_card(serial, known[serial]))
        self._known = known
        return sorted(others, key=lambda unit: unit.device.id)

    def _with_absent(self, serial: str, members: Members, fpgas: Mapping[str, Unit]) -> Members:
        """The FPGAs of a card that are here, and one that was on it when it was last complete."""
        before = self._known.get(serial, {})
        members = {slot: _remembered(unit, before.get(slot)) for slot, unit in members.items()}
        if len(members) == FPGAS or not members.keys() & before.keys():
            return members
        return {**{slot: _gone(unit) for slot, unit in before.items() if slot not in fpgas}, **members}


def _is_u30(unit: Unit) -> bool:
    facts = unit.device.attributes
    vendor, devices = xrt_ids.U30
    if facts.get("vendorID") == vendor and facts.get("deviceID") in devices:
        return True
    return xrt_ids.U30_SHELL in str(facts.get("shell", ""))


def _slot(unit: Unit) -> str:
    return unit.device.id.rpartition(".")[0]


def _card(serial: str, members: Members) -> Unit:
    """Both FPGAs of a card as one unit: as healthy as the worst of them."""
    units = [members[slot] for slot in sorted(members)]
    devices = [unit.device for unit in units]
    facts: dict[str, AttributeValue] = {}
    for device in reversed(devices):
        facts.update(device.attributes)  # those of the lower address last
    device = Device(
        id=f"u30-{_ILLEGAL.sub('_', serial)[:_LONGEST]}",
        attributes={**facts, "serial": serial},
        claims=frozenset[str]().union(*(one.claims for one in devices)),
        part_of=frozenset[str]().union(*(one.part_of for one in devices)),
        numa_nodes=tuple(sorted({node for one in devices for node in one.numa_nodes})),
        pcie_path=devices[0].pcie_path,
        health=_health(devices),
        withheld=next((f"{one.id}: {one.withheld}" for one in devices if one.withheld), ""),
        former_ids=tuple(one.id for one in devices),  # each FPGA was a device of its own
    )
    return Unit(
        device,
        nodes=tuple(node for unit in units for node in unit.nodes),
        management=tuple(node for unit in units for node in unit.management),
        watched=tuple(file for unit in units for file in unit.watched),
        is_busy=any(unit.is_busy for unit in units),
        hardware=tuple(path for unit in units for path in unit.hardware),
        addresses=tuple(one.id for one in devices),
    )


def _health(devices: Sequence[Device]) -> Health:
    for device in devices:
        if not device.health:
            return unhealthy(f"{device.id}: {device.health.reason}")
    if len(devices) < FPGAS:
        return unhealthy(f"only {devices[0].id} of its two FPGAs is here")
    return HEALTHY


def _ill(unit: Unit, reason: str) -> Unit:
    return replace(unit, device=replace(unit.device, health=unhealthy(reason)))


def _unnamed(unit: Unit) -> Unit:
    """An FPGA that could be another card's: no container gets it before it says which."""
    if not unit.device.health:
        return unit
    return _ill(unit, "it has no serial number, so its card is unknown")


def _ambiguous(unit: Unit, serial: str, number: int) -> Unit:
    return _ill(unit, f"{number} FPGAs have the serial number {serial}, so its card is unknown")


def _remembered(unit: Unit, last: Unit | None) -> Unit:
    """An FPGA of which only the management function is left keeps its name and its claims."""
    if last is None or "shell" in unit.device.attributes or "shell" not in last.device.attributes:
        return unit
    return replace(_gone(last), device=replace(last.device, health=unit.device.health))


def _gone(unit: Unit) -> Unit:
    return replace(_ill(unit, "this FPGA is gone"), nodes=(), management=(), watched=(), is_busy=False)
