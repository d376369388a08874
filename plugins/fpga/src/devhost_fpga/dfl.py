"""FPGAs of the DFL and OPAE drivers: one unit for each port, and one for each management engine.

Attributes: Documentation/ABI/testing/sysfs-platform-dfl-fme, sysfs-platform-dfl-port,
sysfs-class-fpga-region.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial

from devhost.backend import HEALTHY, AttributeValue, Health, claim, unhealthy
from devhost.backend.frozen import frozen

from . import dfl_health
from .allocation import node_claims
from .attributes import BUSY, FAILED, INTEL, READY, RECONFIGURING, device
from .dfl_cards import Card, Cards, Engine, Layout, Port
from .dfl_health import Finding
from .manager_state import (
    BUSY_REASON,
    MAX_BUSY,
    NEVER_READ,
    REBIND,
    Identity,
    LastValues,
    Manager,
    identity,
    manager_of,
)
from .model import (
    LOST,
    ONES,
    DeviceKind,
    FpgaSysfs,
    Interface,
    ParentDevice,
    Slot,
    Unit,
    af_name,
    normal,
    region_name,
)

AFU, INTERFACE = "afu", "interface"
"""Keys of the ids in :class:`LastValues`."""

_ONES = "f" * 16
"""The end of a register that reads as ones."""

_HIGHEST = 3
"""The highest number of a port: ``PORT_CAP_PORT_NUM`` has two bits (drivers/fpga/dfl.h)."""


@frozen
class _Part:
    """A port or an engine as it is now, with its ids."""

    name: str
    is_busy: bool = False
    fault: str = ""
    is_stuck: bool = False
    warning: str = ""
    number: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    watched: tuple[str, ...] = ()


class EngineFamily:
    """The units of one driver. Remembers ids while a region is being programmed, or has lost its link."""

    def __init__(self, sysfs: FpgaSysfs, layout: Layout, clock: Callable[[], float] = time.monotonic) -> None:
        self._sysfs = sysfs
        self._layout = layout
        self._clock = clock
        self._cards = Cards(sysfs, layout)
        self._last: Mapping[Identity, LastValues] = {}
        self._locked: Mapping[str, Finding] = {}

    def scan(self) -> list[Unit]:
        known: dict[Identity, LastValues] = {}
        units = [unit for card in self._cards.read() for unit in self._units(card, known)]
        self._last = known
        return units

    def probe(self, units: Sequence[Unit]) -> Mapping[str, Health]:
        """The health by registers that are read under a lock, which programming holds until it is done.

        Meanwhile, the last verdict stays.
        """
        before, findings = self._locked, dict[str, Finding]()
        busy = {slot.engine for unit in units if unit.is_busy for slot in unit.slots}
        verdicts: dict[str, Health] = {}
        for unit in units:
            for engine in dict.fromkeys(slot.engine for slot in unit.slots if slot.engine):
                if engine not in findings:
                    if engine in busy or manager_of(self._sysfs, engine).is_busy:
                        findings[engine] = before.get(engine, Finding())
                    else:
                        registers = dfl_health.ENGINE_LOCKED
                        findings[engine] = dfl_health.registers_report(
                            self._sysfs, engine, registers, dfl_health.FIRST
                        )
                if findings[engine].fault:
                    verdicts[unit.device.id] = unhealthy(findings[engine].fault)
        self._locked = findings
        return verdicts

    def _units(self, card: Card, known: dict[Identity, LastValues]) -> Iterator[Unit]:
        engine = self._engine(card.engine, known) if card.engine else None
        parts: list[_Part] = []
        for port in card.ports:
            stuck = self._stuck(card, port)
            parts.append(self._port(port, stuck, known, {part.name for part in parts}))
        hardware = tuple(dict.fromkeys(one.place.path for one in (card.engine, *card.ports) if one))
        for port, part in zip(card.ports, parts, strict=True):
            yield self._af(card, engine, port, part, hardware)
        if card.engine and engine:
            yield self._region(card, card.engine, engine, parts, hardware)

    def _engine(self, engine: Engine, known: dict[Identity, LastValues]) -> _Part:
        key = identity(self._sysfs, engine.path)
        dead = self._sysfs.is_dead(engine.place.path)
        before = self._last.get(key, NEVER_READ).texts
        texts = dict(before)
        flaw = ""
        if not dead:
            texts |= {name: text for name, text in engine.texts.items() if text and _ONES not in text}
            readings = [one for one in engine.interfaces if not one.is_absent]
            ids = list(dict.fromkeys(one.id for one in readings))
            if len(ids) == 1 and ids[0]:
                texts[INTERFACE] = ids[0]
            elif len(ids) > 1 and all(ids):
                flaw = f"its regions have different interface ids: {', '.join(ids)}"
            elif readings and not any(one.is_busy for one in readings):
                flaw = next(one.flaw("its interface id") for one in readings if not one.id)
            elif readings and INTERFACE not in before:
                flaw = BUSY_REASON
        known[key] = LastValues(texts=texts)
        registers = dfl_health.registers_report(self._sysfs, engine.path, dfl_health.ENGINE)
        alarms = tuple(dfl_health.alarms(self._sysfs, engine.path))
        sensors = dfl_health.alarms_report(self._sysfs, alarms)
        return _Part(
            name=f"{engine.place.name}-fme",
            is_busy=engine.manager.is_busy,
            fault=LOST if dead else flaw or registers.fault or sensors.fault,
            warning=registers.warning or sensors.warning,
            texts=texts,
            watched=(*dfl_health.files(engine.path, dfl_health.ENGINE), *alarms, *engine.manager.files),
        )

    def _port(self, port: Port, stuck: str, known: dict[Identity, LastValues], taken: set[str]) -> _Part:
        key = identity(self._sysfs, port.path)
        before = self._last.get(key, NEVER_READ)
        dead = self._sysfs.is_dead(port.place.path)
        # if a function lost its link, every register reads as ones, so the number of a port as the highest
        lost = dead or (normal(port.afu.text) == ONES and port.number == _HIGHEST)
        number = before.number if before.number is not None or lost else port.number
        afu = "" if dead else port.afu.id
        texts = {AFU: afu} if afu else before.texts
        known[key] = LastValues(number, texts, self._since(key) if port.afu.is_busy else None)
        name = f"{port.place.name}-port{number}"
        if number is None or name in taken:
            name = f"{port.place.name}-{port.kernel_name}"
        power = dfl_health.port_power(self._sysfs, port.path)
        registers = dfl_health.registers_report(
            self._sysfs, port.path, (*dfl_health.PORT, *dfl_health.PORT_EVENTS), dfl_health.PORT_DETAILS
        )
        return _Part(
            name=name,
            is_busy=not dead and port.afu.is_busy and not stuck,
            fault=LOST if dead else stuck or power.fault or registers.fault,
            is_stuck=bool(stuck),
            warning=power.warning or registers.warning,
            number=number,
            texts=dict(texts),
            watched=(
                f"{port.path}/afu_id",
                f"{port.path}/power_state",
                *dfl_health.files(port.path, (*dfl_health.PORT, *dfl_health.PORT_EVENTS)),
            ),
        )

    def _stuck(self, card: Card, port: Port) -> str:
        """Why a port that answers EBUSY will never recover; empty if it may recover or is not busy."""
        if not port.afu.is_busy:
            return ""
        manager = card.engine.manager if card.engine else Manager()
        lasts = self._clock() - self._since(identity(self._sysfs, port.path))
        if lasts > MAX_BUSY and not manager.is_busy:
            return manager.stuck or f"its driver has held it in reset for more than {MAX_BUSY:g} s: {REBIND}"
        return manager.stuck

    def _since(self, key: Identity) -> float:
        since = self._last.get(key, NEVER_READ).since
        return self._clock() if since is None else since

    def _af(
        self, card: Card, engine: _Part | None, port: Port, part: _Part, hardware: tuple[str, ...]
    ) -> Unit:
        interface = engine.texts.get(INTERFACE, "") if engine else ""
        afu = part.texts.get(AFU, "")
        failure = card.engine.manager.failure if card.engine and len(card.ports) == 1 else ""
        failure = failure or (part.fault if part.is_stuck else "")
        is_busy = part.is_busy or bool(engine and engine.is_busy and len(card.ports) == 1)
        fault = (
            part.fault or (engine.fault if engine else "") or self._afu_fault(port, afu, is_busy) or failure
        )
        attributes = self._attributes(card, engine, port.place, _state(card, is_busy, failure)) | {
            "kind": DeviceKind.AF.value,
            "interfaceId": interface,
            "afuId": afu,
            "intelName": af_name(interface, afu),
        }
        return Unit(
            device=device(
                port.place, attributes, self._claims(card, port, part), _health(fault), name=part.name
            ),
            nodes=(port.path,),
            slots=self._slots(card, [port], [part], interface),
            watched=(*part.watched, *(engine.watched if engine else ())),
            is_busy=is_busy,
            hardware=hardware,
            warning=part.warning or (engine.warning if engine else ""),
        )

    def _region(
        self, card: Card, engine: Engine, own: _Part, parts: Sequence[_Part], hardware: tuple[str, ...]
    ) -> Unit:
        interface = own.texts.get(INTERFACE, "")
        failure = engine.manager.failure or next((part.fault for part in parts if part.is_stuck), "")
        is_busy = own.is_busy or any(part.is_busy for part in parts)
        fault = (
            own.fault or next((f"{part.name}: {part.fault}" for part in parts if part.fault), "") or failure
        )
        if not fault and not parts:
            fault = "it has no visible port: virtual functions have them, or their module is not loaded"
        attributes = self._attributes(card, own, engine.place, _state(card, is_busy, failure)) | {
            "kind": DeviceKind.REGION.value,
            "interfaceId": interface,
            "intelName": region_name(interface),
            "ports": len(parts),
        }
        claims = [self._claims(card, port, part) for port, part in zip(card.ports, parts, strict=True)]
        claims.append(frozenset({claim.fpga(engine.place.name), *node_claims(self._sysfs, [engine.path])}))
        return Unit(
            device=device(
                engine.place, attributes, frozenset().union(*claims), _health(fault), name=own.name
            ),
            nodes=tuple(port.path for port in card.ports),
            development=(engine.path,),
            slots=self._slots(card, card.ports, parts, interface),
            watched=tuple(file for part in (*parts, own) for file in part.watched),
            is_busy=is_busy,
            hardware=hardware,
            warning=own.warning or next((part.warning for part in parts if part.warning), ""),
        )

    def _afu_fault(self, port: Port, afu: str, is_busy: bool) -> str:
        """Why the accelerator function in a port cannot be used; empty if it can."""
        if is_busy:
            return "" if afu else BUSY_REASON
        if port.is_bare:
            return f"its driver shows no attributes (is module {self._layout.module} loaded?)"
        if port.afu.is_absent:  # such as on Agilex, whose functions are beside the port
            return "its driver shows no AFU id: this port has no accelerator function"
        return port.afu.flaw("its AFU id")

    def _attributes(
        self, card: Card, engine: _Part | None, place: ParentDevice, state: str
    ) -> dict[str, AttributeValue | None]:
        return {
            "driver": self._sysfs.target(f"{place.path}/driver"),
            "vendor": INTEL,
            "bitstreamId": normal(engine.texts.get("bitstream_id", "")) if engine else "",
            "managerState": card.engine.manager.state if card.engine else "",
            "regionState": state,
        }

    def _claims(self, card: Card, port: Port, part: _Part) -> frozenset[str]:
        """Claims of a port: its place in the card, and its node, which another backend could list."""
        whole = card.engine.place.name if card.engine else port.place.whole or port.place.name
        last = port.kernel_name if part.number is None else f"port{part.number}"
        return frozenset({claim.fpga(f"{whole}/{last}"), *node_claims(self._sysfs, [port.path])})

    def _slots(
        self, card: Card, ports: Sequence[Port], parts: Sequence[_Part], interface: str
    ) -> tuple[Slot, ...]:
        """What can be programmed; nothing if the number of a port is unknown, to program no wrong port."""
        engine = card.engine.path if card.engine else ""
        numbers = [part.number for part in parts if part.number is not None]
        if len(numbers) < len(ports):
            return ()
        return tuple(
            Slot(self._layout.interface, engine, number, port.path, interface)
            for port, number in zip(ports, numbers, strict=True)
        )


def _health(fault: str) -> Health:
    return unhealthy(fault) if fault else HEALTHY


def _state(card: Card, is_busy: bool, failure: str) -> str:
    if card.engine and card.engine.manager.is_busy:
        return RECONFIGURING
    if is_busy:
        return BUSY
    return FAILED if failure else READY


DFL_CLASS = "/sys/class/fpga_region"
"""Has a container for each card. Regions of other drivers are there too, without engines and ports."""

DFL_LAYOUT = Layout(
    interface=Interface.DFL,
    listing=DFL_CLASS,
    container=re.compile(r"region[0-9]+"),
    engine=re.compile(r"dfl-fme\.[0-9]+"),
    port=re.compile(r"dfl-port\.[0-9]+"),
    region=re.compile(r"dfl-fme-region\.[0-9]+"),
    module="dfl_afu",
)


Dfl = partial(EngineFamily, layout=DFL_LAYOUT)
"""Cards of ``dfl-pci``, or of another driver that enumerates Device Feature Lists."""


OPAE_CLASS = "/sys/class/fpga"
"""Has a container for each card."""

OPAE_LAYOUT = Layout(
    interface=Interface.OPAE,
    listing=OPAE_CLASS,
    container=re.compile(r"intel-fpga-dev\.[0-9]+"),
    engine=re.compile(r"intel-fpga-fme\.[0-9]+"),
    port=re.compile(r"intel-fpga-port\.[0-9]+"),
    region=re.compile(r"(?!)"),
    module="intel_fpga_afu",
)


Opae = partial(EngineFamily, layout=OPAE_LAYOUT)
"""Cards of ``intel-fpga-pci``."""
