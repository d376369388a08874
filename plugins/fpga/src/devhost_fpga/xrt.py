"""Cards that XRT drives: Alveo, Versal, Amazon's F1 and others with its drivers xocl and xclmgmt.

A card has two PCI functions with one address but for the number of the function. Containers use the user
function's render node; the management function is for whoever owns the machine, and may lie elsewhere: on
the host of a virtual machine, say. Both together are one device, named by the user function's address.
An Alveo U30 has two such pairs (:mod:`devhost_fpga.xrt_u30`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from devhost.backend import Device, unhealthy
from devhost.backend.sysfs import Sysfs, pcie_path

from . import attributes, ids, xrt_function, xrt_health, xrt_ids
from .nodes import node_claims
from .unit import Kind, Unit
from .xrt_function import Function, Identity, Role
from .xrt_health import Condition
from .xrt_u30 import Cards

_LISTING = "/sys/bus/pci/devices"

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]")

COMMON_U30 = "ama_u30"
"""All shells of the U30 have one name in Xilinx's plugin, unless ``U30NameConvention`` says otherwise."""


def name(shell: str, timestamp: str) -> str:
    """The name of a card's resource, without domain, as Xilinx's plugin makes it; empty without a shell.

    What cannot stand in the name of a resource becomes ``_``, as XRT's own driver does with ``:`` and ``.``.
    (``NewFPGADevicePlugin`` in k8s-device-plugin/server.go of FPGA_as_a_Service.)
    """
    if not shell:
        return ""
    if xrt_ids.U30_SHELL in shell:
        return COMMON_U30
    return _ILLEGAL.sub("_", f"{shell}-{timestamp or 0}").strip("_.-")


class Xrt:
    """Finds the cards. Keeps what each said of itself, for while it is being reset it says nothing.

    Args:
        whole_u30: whether both FPGAs of a U30 are one device.
    """

    def __init__(self, sysfs: Sysfs, *, whole_u30: bool = True) -> None:
        self._sysfs = sysfs
        self._u30 = Cards() if whole_u30 else None
        self._known: Mapping[tuple[str, int], Identity] = {}

    def scan(self) -> Iterable[Unit]:
        """The cards that exist now, in the order of their addresses.

        Raises:
            OSError: the bus cannot be listed, so that nobody takes silence for absence.
        """
        listed = self._sysfs.identities(_LISTING)
        functions: dict[str, tuple[Function, int]] = {}
        for address in sorted(listed):
            path = self._sysfs.device(f"{_LISTING}/{address}")
            found = xrt_function.function(self._sysfs, path) if path else None
            if found:
                functions[address] = (found, listed[address])
        known: dict[tuple[str, int], Identity] = {}
        units = list(self._units(functions, known))
        self._known = known
        return self._u30.joined(units) if self._u30 else units

    def _units(
        self, functions: Mapping[str, tuple[Function, int]], known: dict[tuple[str, int], Identity]
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
                yield self._lonely(one)

    def _identity(self, user: Function, manager: Function | None, last: Identity | None) -> Identity:
        now = xrt_function.identity(self._sysfs, user.path)
        if not now.shell:
            return last or now
        serial, was_asked = (last.serial, last.was_asked) if last else ("", False)
        if not serial and manager:
            serial = xrt_function.serial(self._sysfs, manager.path)
        if not serial and not was_asked and self._sysfs.integer(f"{user.path}/ready") != 0:
            # once in its life: xocl asks the other function, which may be another machine's
            serial, was_asked = xrt_function.serial(self._sysfs, user.path), True
        return replace(now, serial=serial, was_asked=was_asked)

    def _card(self, user: Function, manager: Function | None, identity: Identity) -> Unit:
        condition, withheld = self._condition(user, manager)
        render = xrt_function.render(self._sysfs, user.path)
        nodes = (render, *xrt_function.queues(self._sysfs, user.path)) if render else ()
        node = xrt_function.manager(self._sysfs, manager.path) if manager else ""
        management = (node,) if node else ()
        claims = {f"pci:{one.pci.address}" for one in (user, manager) if one}
        claims |= node_claims(self._sysfs, (*nodes, *management))
        facts = {
            "shell": identity.shell,
            "shellTimestamp": identity.timestamp,
            "shellId": identity.shell_id,
            "interfaceId": identity.interface_id,
            "serial": identity.serial,
            "xilinxName": name(identity.shell, identity.timestamp),
        }
        device = _device(user, facts, condition, frozenset(claims), withheld)
        return Unit(
            device,
            nodes,
            management=management,
            watched=condition.watched,
            is_busy=condition.is_passing,
            hardware=tuple(one.path for one in (user, manager) if one),
            lacks_driver=not user.pci.driver,
        )

    def _condition(self, user: Function, manager: Function | None) -> tuple[Condition, str]:
        driver = user.pci.driver
        if not driver:
            return Condition(unhealthy("no driver is bound to its user function: load the module xocl")), ""
        if driver.startswith("vfio"):
            reason = f"{driver} has its user function, for a virtual machine"
            return Condition(unhealthy(reason)), reason
        if driver != xrt_ids.USER_DRIVER and not self._sysfs.exists(f"{user.path}/{xrt_ids.USER_FILE}"):
            reason = f"its user function is bound to {driver} and not to xocl"
            return Condition(unhealthy(reason)), f"{reason}: XRT cannot use it"
        condition = xrt_health.user(self._sysfs, user.path)
        if condition.health.healthy and manager and manager.pci.driver == xrt_ids.MANAGEMENT_DRIVER:
            seen = xrt_health.management(self._sysfs, manager.path)
            condition = replace(seen, watched=condition.watched + seen.watched)
        return condition, ""

    def _controlled(self, one: Function) -> Unit:
        condition = xrt_health.control(self._sysfs, one.path)
        facts = {
            "shell": self._sysfs.text(f"{one.path}/dev_name"),
            "shellId": ids.Reading(self._sysfs.text(f"{one.path}/logic_uuid")).id,
            "serial": self._sysfs.text(f"{one.path}/board_serial"),
        }
        # ami makes its node without a parent, so nothing in sysfs says which card it belongs to
        withheld = (
            "the ami driver makes a node for managing the card only; "
            "what moves its data is another function, with a driver of its own"
        )
        claims = frozenset((f"pci:{one.pci.address}",))
        device = _device(one, facts, condition, claims, withheld)
        return Unit(device, watched=condition.watched, is_busy=condition.is_passing, hardware=(one.path,))

    def _lonely(self, one: Function) -> Unit:
        """A management function whose user function is nowhere: containers could do nothing with it."""
        reason = "only its management function is here: xclmgmt has not shown the user function yet"
        if one.pci.driver != xrt_ids.MANAGEMENT_DRIVER:
            has = f"{one.pci.driver} has it" if one.pci.driver else "no driver is bound to it"
            reason = f"only its management function is here, and {has}"
        facts = {"serial": xrt_function.serial(self._sysfs, one.path)} if one.pci.driver else {}
        condition = Condition(unhealthy(reason))
        device = _device(one, facts, condition, frozenset((f"pci:{one.pci.address}",)), "")
        return Unit(device, hardware=(one.path,))


def _device(
    one: Function, facts: Mapping[str, str], condition: Condition, claims: frozenset[str], withheld: str
) -> Device:
    common = {"vendor": attributes.XILINX, "kind": str(Kind.CARD)}
    whole = one.pci.physical_function
    return Device(
        id=one.pci.address,
        attributes=attributes.present(common | attributes.of_pci(one.pci) | dict(facts)),
        claims=claims,
        part_of=frozenset((f"pci:{whole}",) if whole else ()),
        numa_nodes=() if one.pci.numa_node is None else (one.pci.numa_node,),
        pcie_path=pcie_path(one.path),
        health=condition.health,
        withheld=withheld,
    )
