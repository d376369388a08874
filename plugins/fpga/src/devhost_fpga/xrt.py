"""AMD (Xilinx) cards: those of XRT, Alveo U30 with its two FPGAs, and MA35D transcoders.

XRT's drivers are xocl and xclmgmt, for Alveo, Versal, Amazon F1 and others. A card has two PCI functions
whose addresses differ in the number of the function. Containers use the render node of the user function. The
management function is for administrators, and may be on another machine, such as the host of a virtual
machine. Both functions are one device, named by the address of the user function.

Alveo U30: each FPGA has a user and a management function. The PCI addresses of the two FPGAs are unrelated;
they share only the serial number of the card. Xilinx's plugin pairs them by this number (``Allocate`` in
k8s-device-plugin/server.go of FPGA_as_a_Service, ``U30AllocUnit=Card``) and does not list an FPGA without it.
Here such an FPGA is unhealthy.

MA35D: the driver ``ama_transcoder`` creates a misc device for each of the two chips of a card,
``/sys/devices/virtual/misc/ama_transcoder<n>``, with the PCI address in ``bus_id`` and lines such as
``Product serial number = …`` in ``device_info`` (``GetAMADevices`` in k8s-device-plugin/fpga.go of the same
project).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.backend import HEALTHY, AttributeValue, Device, Health, claim, unhealthy
from devhost.backend.sysfs import BDF, PCI_BUS, PciFunction, Sysfs

from . import attributes, model, pci_ids, xrt_cards, xrt_health
from .allocation import node_claims
from .model import DeviceKind, Unit
from .pci_ids import AMA
from .xrt_cards import Identity, Role, XrtFunction
from .xrt_health import Condition

_COMMON = {"vendor": attributes.XILINX, "kind": str(DeviceKind.CARD)}

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.-]")

COMMON_U30 = "ama_u30"
"""The name of every U30 shell in Xilinx's plugin, without ``U30NameConvention``."""


def name(shell: str, timestamp: str) -> str:
    """The name, without domain, of a card's resource in Xilinx's plugin; empty without a shell.

    Characters that are illegal in a resource name become ``_``, as XRT's driver does with ``:`` and ``.``.
    (``NewFPGADevicePlugin`` in k8s-device-plugin/server.go of FPGA_as_a_Service.)
    """
    if not shell:
        return ""
    if pci_ids.U30_SHELL in shell:
        return COMMON_U30
    return _NOT_IN_NAME.sub("_", f"{shell}-{timestamp or 0}").strip("_.-")


class Xrt:
    """Finds the cards. Keeps the identity of each, which cannot be read during a reset.

    ``whole_u30`` is whether both FPGAs of a U30 are one device.
    """

    def __init__(self, sysfs: Sysfs, *, whole_u30: bool = True) -> None:
        self._sysfs = sysfs
        self._u30 = Cards() if whole_u30 else None
        self._known: Mapping[tuple[str, int], Identity] = {}

    def scan(self) -> Iterable[Unit]:
        """The cards that exist now, in the order of their addresses."""
        listed = self._sysfs.identities(PCI_BUS)
        functions: dict[str, tuple[XrtFunction, int]] = {}
        for address in sorted(listed):
            path = self._sysfs.device(f"{PCI_BUS}/{address}")
            found = xrt_cards.function(self._sysfs, path) if path else None
            if found:
                functions[address] = (found, listed[address])
        known: dict[tuple[str, int], Identity] = {}
        units = list(self._units(functions, known))
        self._known = known
        return self._u30.joined(units) if self._u30 else units

    def _units(
        self, functions: Mapping[str, tuple[XrtFunction, int]], known: dict[tuple[str, int], Identity]
    ) -> Iterable[Unit]:
        managers = {one.slot: one for one, _ in functions.values() if one.role is Role.MANAGEMENT}
        users = {one.slot for one, _ in functions.values() if one.role is Role.USER}
        for address, (one, inode) in functions.items():
            if one.role is Role.USER:
                manager = managers.get(one.slot)
                known[address, inode] = self._identity(one, manager, self._known.get((address, inode)))
                yield self._card(one, manager, known[address, inode])
            elif one.role is Role.CONTROL:
                yield self._controlled(one)
            elif one.slot not in users:
                yield self._without_user_function(one)

    def _identity(self, user: XrtFunction, manager: XrtFunction | None, last: Identity | None) -> Identity:
        now = xrt_cards.identity(self._sysfs, user.path)
        if not now.shell:
            return last or now
        serial, was_asked = (last.serial, last.was_asked) if last else ("", False)
        if not serial and manager:
            serial = xrt_cards.serial(self._sysfs, manager.path)
        if not serial and not was_asked and self._sysfs.integer(f"{user.path}/ready") != 0:
            # only once: xocl asks the management function, which may be on another machine
            serial, was_asked = xrt_cards.serial(self._sysfs, user.path), True
        return replace(now, serial=serial, was_asked=was_asked)

    def _card(self, user: XrtFunction, manager: XrtFunction | None, identity: Identity) -> Unit:
        render = xrt_cards.render(self._sysfs, user.path)  # once: it may go meanwhile
        condition, withheld = self._condition(user, manager, render)
        nodes = (render, *xrt_cards.queues(self._sysfs, user.path)) if render else ()
        node = xrt_cards.manager(self._sysfs, manager.path) if manager else ""
        management = (node,) if node else ()
        claims = node_claims(self._sysfs, (*nodes, *management))
        claims |= {claim.pci(manager.pci.address)} if manager else set()
        facts = {
            "shell": identity.shell,
            "shellTimestamp": identity.timestamp,
            "shellId": identity.shell_id,
            "interfaceId": identity.interface_id,
            "serial": identity.serial,
            "xilinxName": name(identity.shell, identity.timestamp),
        }
        device = _device(user.pci, facts, condition.health, claims, withheld)
        return Unit(
            device,
            nodes,
            management=management,
            watched=condition.watched,
            is_busy=condition.is_passing,
            hardware=tuple(one.path for one in (user, manager) if one),
            lacks_driver=not user.pci.driver,
        )

    def _condition(
        self, user: XrtFunction, manager: XrtFunction | None, render: str
    ) -> tuple[Condition, str | None]:
        driver = user.pci.driver
        if not driver:
            return Condition(unhealthy("no driver is bound to its user function (run modprobe xocl)")), None
        if driver.startswith("vfio") or self._sysfs.exists(f"{user.path}/vfio-dev"):
            reason = f"its user function is bound to {driver}, for a virtual machine"
            return Condition(unhealthy(reason)), reason
        if driver != pci_ids.USER_DRIVER and not self._sysfs.exists(f"{user.path}/{pci_ids.USER_FILE}"):
            reason = f"its user function is bound to {driver} instead of xocl"
            return Condition(unhealthy(reason)), f"{reason}: XRT cannot use it"
        condition = xrt_health.user(self._sysfs, user.path, render)
        if condition.health.healthy and manager and manager.pci.driver == pci_ids.MANAGEMENT_DRIVER:
            seen = xrt_health.management(self._sysfs, manager.path)
            condition = replace(seen, watched=condition.watched + seen.watched)
        return condition, None

    def _controlled(self, one: XrtFunction) -> Unit:
        condition = xrt_health.control(self._sysfs, one.path)
        facts = {
            "shell": self._sysfs.text(f"{one.path}/dev_name"),
            "shellId": model.Reading(self._sysfs.text(f"{one.path}/logic_uuid")).id,
            "serial": self._sysfs.text(f"{one.path}/board_serial"),
        }
        # the node of ami has no parent, so sysfs does not show which card it belongs to
        withheld = (
            "the node of the ami driver only manages the card; "
            "another function with a separate driver transfers data"
        )
        device = _device(one.pci, facts, condition.health, withheld=withheld)
        return Unit(device, watched=condition.watched, is_busy=condition.is_passing, hardware=(one.path,))

    def _without_user_function(self, one: XrtFunction) -> Unit:
        """A management function without a user function, which containers cannot use."""
        reason = "only its management function is visible: xclmgmt has not enabled the user function yet"
        if one.pci.driver != pci_ids.MANAGEMENT_DRIVER:
            driver = f"it is bound to {one.pci.driver}" if one.pci.driver else "no driver is bound to it"
            reason = f"only its management function is visible, and {driver}"
        facts = {"serial": xrt_cards.serial(self._sysfs, one.path)} if one.pci.driver else {}
        return Unit(_device(one.pci, facts, unhealthy(reason)), hardware=(one.path,))


def _device(
    function: PciFunction,
    facts: Mapping[str, str],
    health: Health,
    claims: frozenset[str] = frozenset(),
    withheld: str | None = None,
) -> Device:
    """The device of a card, by its PCI function; ``claims`` are those besides this one."""
    return attributes.device(
        model.of_function(function),
        {**_COMMON, **facts},
        claims | {claim.pci(function.address)},
        health,
        withheld=withheld,
    )


FPGAS = 2
"""FPGAs on a U30."""

_MAX_SERIAL = 50
"""Characters of a serial number that an id contains; an id may have 63."""

Members = Mapping[str, Unit]
"""The FPGAs of one card by PCI slot: the address without the number of the function."""


class Cards:
    """Joins the FPGAs of each U30. Keeps the members of a card while an FPGA is gone or being reset."""

    def __init__(self) -> None:
        self._known: Mapping[str, Members] = {}

    def joined(self, units: Iterable[Unit]) -> list[Unit]:
        """The units, with both FPGAs of a U30 as one."""
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
        """The present FPGAs of a card, and one that was on it when it was last complete."""
        before = self._known.get(serial, {})
        members = {slot: _remembered(unit, before.get(slot)) for slot, unit in members.items()}
        if len(members) == FPGAS or not members.keys() & before.keys():
            return members
        return {**{slot: _gone(unit) for slot, unit in before.items() if slot not in fpgas}, **members}


def _is_u30(unit: Unit) -> bool:
    facts = unit.device.attributes
    vendor, devices = pci_ids.U30
    if facts.get("vendorID") == vendor and facts.get("deviceID") in devices:
        return True
    return pci_ids.U30_SHELL in str(facts.get("shell", ""))


def _slot(unit: Unit) -> str:
    return unit.device.id.rpartition(".")[0]


def _card(serial: str, members: Members) -> Unit:
    """Both FPGAs of a card as one unit, with the worse health of the two."""
    units = [members[slot] for slot in sorted(members)]
    devices = [unit.device for unit in units]
    facts: dict[str, AttributeValue] = {}
    for device in reversed(devices):
        facts.update(device.attributes)  # the lower address last, so that it wins
    device = Device(
        id=f"u30-{_NOT_IN_NAME.sub('_', serial)[:_MAX_SERIAL]}",
        attributes={**facts, "serial": serial},
        claims=frozenset[str]().union(*(one.claims for one in devices)),
        part_of=frozenset[str]().union(*(one.part_of for one in devices)),
        numa_nodes=tuple(sorted({node for one in devices for node in one.numa_nodes})),
        pcie_path=devices[0].pcie_path,
        health=_health(devices),
        withheld=next((f"{one.id}: {one.withheld}" for one in devices if one.withheld), None),
        former_ids=tuple(one.id for one in devices),  # as with u30Unit: fpga
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
        return unhealthy(f"only {devices[0].id} of its two FPGAs is present")
    return HEALTHY


def _unhealthy_unit(unit: Unit, reason: str) -> Unit:
    return replace(unit, device=replace(unit.device, health=unhealthy(reason)))


def _unnamed(unit: Unit) -> Unit:
    """An FPGA whose card is unknown: unhealthy until it has a serial number."""
    if not unit.device.health:
        return unit
    return _unhealthy_unit(unit, "it has no serial number, so its card is unknown")


def _ambiguous(unit: Unit, serial: str, number: int) -> Unit:
    return _unhealthy_unit(unit, f"{number} FPGAs have the serial number {serial}, so its card is unknown")


def _remembered(unit: Unit, last: Unit | None) -> Unit:
    """An FPGA that only has its management function left keeps its name and its claims."""
    if last is None or "shell" in unit.device.attributes or "shell" not in last.device.attributes:
        return unit
    return replace(_gone(last), device=replace(last.device, health=unit.device.health))


def _gone(unit: Unit) -> Unit:
    return replace(
        _unhealthy_unit(unit, "this FPGA is gone"), nodes=(), management=(), watched=(), is_busy=False
    )


_MISC = "/sys/class/misc"
_TRANSCODER_NAME = re.compile(rf"{AMA}[\w.-]*")
_TRANSCODER = ("10ee", "5070")
"""PCI ids of a transcoder chip."""

MA35 = "MA35"
"""The name of all transcoders in Xilinx's plugin."""


class Ama:
    """Finds the transcoders."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    def scan(self) -> Iterable[Unit]:
        """The chips with a misc device, and those without a driver."""
        seen: set[str] = set()
        units = [
            self._unit(path, name, seen)
            for name in self._sysfs.listed(_MISC)
            if _TRANSCODER_NAME.fullmatch(name) and (path := self._sysfs.device(f"{_MISC}/{name}"))
        ]
        return [*units, *self._idle(seen)]

    def _unit(self, path: str, name: str, seen: set[str]) -> Unit:
        text = self._sysfs.text(f"{path}/bus_id")
        address = text if BDF.fullmatch(text) else f"0000:{text}"
        claims = frozenset((claim.node(f"/dev/{name}"),))
        where = self._sysfs.device(f"{PCI_BUS}/{address}") if BDF.fullmatch(address) else ""
        function = self._sysfs.pci(where) if where else None
        if function is None or address in seen:
            reason = f"{address} has two misc devices"
            if function is None:
                reason = "its driver does not report its PCI function"
            device = Device(id=name, attributes=_COMMON, claims=claims, health=unhealthy(reason))
            return Unit(device, (path,))
        seen.add(address)
        health = unhealthy(model.LOST) if self._sysfs.is_dead(where) else HEALTHY
        facts = {"serial": self._serial(path), "xilinxName": MA35}
        return Unit(_device(function, facts, health, claims), (path,))

    def _idle(self, seen: set[str]) -> Iterator[Unit]:
        for address in self._sysfs.names(PCI_BUS):
            if address in seen or self._sysfs.hexadecimal(f"{PCI_BUS}/{address}/device") != _TRANSCODER[1]:
                continue
            where = self._sysfs.device(f"{PCI_BUS}/{address}")
            function = self._sysfs.pci(where) if where else None
            if function and (function.vendor, function.device) == _TRANSCODER and not function.driver:
                reason = f"no driver is bound to it (run modprobe {AMA})"
                yield Unit(_device(function, {"xilinxName": MA35}, unhealthy(reason)), lacks_driver=True)

    def _serial(self, path: str) -> str:
        for line in self._sysfs.text(f"{path}/device_info").splitlines():
            key, _, value = line.partition("=")
            if key.strip().lower() == "product serial number":
                return value.strip()
        return ""
