"""Chips with an FPGA beside the processor that use XRT's driver zocl: Zynq, Kria, Versal.

zocl drives a platform device that the device tree, or an overlay of a Kria application, calls
``zyxclmm_drm``. Containers load their image and kernels through its render node
(src/runtime_src/core/edge/drm/zocl of XRT), so all programmable logic is one device. The kernel's manager and
regions of the same logic are not listed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from devhost.backend import HEALTHY, Health, claim, unhealthy

from . import attributes, manager_state, model, pci_ids, xrt_cards
from .allocation import node_claims
from .managers import Member, Tree
from .model import DeviceKind, FpgaSysfs, Interface, Slot, Unit, legal

_DEVICES, _DRIVERS = "/sys/bus/platform/devices", "/sys/bus/platform/drivers"

_OWN = re.compile(r"zynq|versal", re.I)
"""Names of managers on the same chip; those on SPI or PCI program another chip."""


class Embedded:
    """Finds the devices of zocl."""

    def __init__(self, sysfs: FpgaSysfs) -> None:
        self._sysfs = sysfs
        self._last: Mapping[manager_state.Identity, Health] = {}

    def scan(self) -> Iterable[Unit]:
        places = self._places()
        tree = Tree(self._sysfs) if places else None
        now: dict[manager_state.Identity, Health] = {}
        units = []
        for place in places:
            manager = self._manager(tree) if tree else None
            unit = self._unit(place, manager, now)
            if tree and manager:
                regions = (region.path for region in tree.regions_of(manager))
                unit = replace(unit, hardware=(place, manager.path, *regions))
            units.append(unit)
        self._last = now
        return units

    def _places(self) -> list[str]:
        names = {name for name in self._sysfs.listed(_DEVICES) if pci_ids.ZOCL_NODE in name}
        for driver in self._sysfs.listed(_DRIVERS):
            if driver.startswith(pci_ids.ZOCL):
                bound = self._sysfs.names(f"{_DRIVERS}/{driver}")
                names |= {name for name in bound if self._sysfs.exists(f"{_DEVICES}/{name}/drm")}
        return [path for name in sorted(names) if (path := self._sysfs.device(f"{_DEVICES}/{name}"))]

    def _manager(self, tree: Tree) -> Member | None:
        for one in tree.managers:
            if _OWN.search(self._sysfs.text(f"{one.path}/name")) and one.path.startswith(
                "/sys/devices/platform/"
            ):
                return one
        return None

    def _unit(self, place: str, manager: Member | None, now: dict[manager_state.Identity, Health]) -> Unit:
        sysfs, name = self._sysfs, legal(place.rpartition("/")[2])
        render, driver = xrt_cards.render(sysfs, place), sysfs.target(f"{place}/driver")
        state = manager_state.manager(sysfs, manager.path) if manager else manager_state.Manager()
        identity = manager_state.identity(sysfs, place)
        verdict = manager_state.judge(state, can_program=True, last=self._last.get(identity, HEALTHY))
        health = HEALTHY
        if not driver:
            health = unhealthy("no driver is bound to it (run modprobe zocl)")
        elif not render:
            health = unhealthy("zocl created no render node for it")
        elif state.state == "power off" or verdict.is_busy:
            # a failed image does not make it unhealthy: the next container loads its own
            health = verdict.health
        now[identity] = health
        facts = {
            "vendor": attributes.XILINX,
            "kind": str(DeviceKind.CARD),
            "driver": driver,
            "manager": sysfs.text(f"{manager.path}/name") if manager else "",
            "managerState": state.state,
            "regionState": verdict.region_state if manager else "",
        }
        claims = {claim.fpga(name), *node_claims(sysfs, [render] if render else [])}
        device = attributes.device(model.place(sysfs, place), facts, frozenset(claims), health, name=name)
        slots: tuple[Slot, ...] = ()
        if manager and sysfs.exists(f"{manager.path}/firmware"):
            slots = (Slot(Interface.FIRMWARE, manager.path),)
        nodes = (render,) if render else ()
        return Unit(
            device,
            nodes,
            slots=slots,
            watched=state.files,
            is_busy=verdict.is_busy,
            hardware=(place,),
            lacks_driver=not driver,
        )
