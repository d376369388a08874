"""Creates, binds and removes virtual functions as ``backends.sriov.virtualFunctions`` says.

devhost neither removes nor binds virtual functions that it did not create. What a container has stays as it
is: functions that are to go or to change their driver are withheld first, so that no container gets them,
and are changed only when no container has them then.

Which functions devhost has created is noted in a file in ``/run``, so that it knows them after a restart. A
reboot removes the file as it removes the functions; the file of another boot is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from logging import Logger
from pathlib import Path
from typing import Protocol

from devhost.backend import NotYet, claim
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import prefix_of, read_line

from .options import VirtualFunctions
from .pci_bus import Bus, PhysicalFunction

FILE = "/run/devhost/virtual-functions.json"
BOOT = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Made:
    """Virtual functions of one physical function.

    ``name`` is what the configuration called that one, ``driver`` what they were bound to (empty: the
    kernel's choice). ``mark`` tells them from others in their place, and is empty while they are being made.
    """

    name: str
    count: int
    driver: str = ""
    mark: tuple[int, ...] = ()


class Ownership:
    """What devhost has made, by the address of the physical function."""

    def __init__(self, root: Path) -> None:
        self._prefix = prefix_of(root)
        self._path = Path(self._prefix + FILE)

    def read(self) -> dict[str, Made]:
        """What is noted; nothing where the file is missing, broken, or of another boot."""
        try:
            document = json.loads(self._path.read_bytes())
            if document["boot"] != self._boot():
                return {}
            return {
                address: Made(
                    str(one["name"]), int(one["count"]), str(one["driver"]), tuple(map(int, one["mark"]))
                )
                for address, one in document["made"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def write(self, made: Mapping[str, Made]) -> None:
        """Notes all of it again; of nothing there is no file.

        Raises:
            BackendError: the file cannot be written.
        """
        document = {"boot": self._boot(), "made": {name: asdict(one) for name, one in sorted(made.items())}}
        fresh = self._path.with_suffix(".new")
        try:
            if not made:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            fresh.write_text(json.dumps(document, indent=1) + "\n")
            os.replace(fresh, self._path)  # noqa: PTH105 - at once: a reader sees the old or the new one
        except OSError as error:
            raise BackendError(
                f"cannot write {FILE}: {error.strerror}; devhost makes no virtual functions it would not "
                "know again"
            ) from error

    def _boot(self) -> str:
        return read_line(f"{self._prefix}{BOOT}")


UNKNOWN = "who holds which function is not known yet"


class Offered(Protocol):
    """What pods see of a function."""

    def __call__(self, address: str) -> bool:
        """Whether it is on the list now."""


class Provisioner:
    """Makes, binds and removes virtual functions. Used by one thread, but for :attr:`leaving`.

    Args:
        wanted: the entries of the configuration.
        held: what containers use up; ``None`` while that is not known (:meth:`Context.held`).
        offered: whether a function was on the list at the last scan.
        log: gets every change of hardware.
    """

    def __init__(
        self,
        bus: Bus,
        ownership: Ownership,
        wanted: Sequence[VirtualFunctions],
        held: Callable[[], frozenset[str] | None],
        offered: Offered,
        log: Logger,
    ) -> None:
        self.leaving: frozenset[str] = frozenset()
        """Functions that must not be given to anybody: they are about to change. Replaced whole."""
        self._bus = bus
        self._ownership = ownership
        self._wanted = wanted
        self._held = held
        self._offered = offered
        self._log = log
        self._made: dict[str, Made] = {}
        self._going: set[str] = set()

    def run(self) -> None:
        """Does what can be done now; a physical function in trouble keeps no other waiting.

        Raises:
            NotYet: the rest waits for pods, or for hardware.
            BackendError: something is refused.
        """
        self._made, self._going = self._ownership.read(), set()
        waits: list[str] = []
        faults: list[str] = []
        for physical, entry in self._targets(waits, faults):
            try:
                self._reconcile(physical, entry)
            except NotYet as error:
                waits.append(error.message)
            except BackendError as error:
                faults.append(error.message)
        self.leaving = frozenset(self._going)
        if faults:
            raise BackendError("; ".join(faults + waits))
        if waits:
            raise NotYet("; ".join(waits))

    def _targets(
        self, waits: list[str], faults: list[str]
    ) -> list[tuple[PhysicalFunction, VirtualFunctions | None]]:
        """Each physical function with what is wanted of it; ``None`` if it left the configuration."""
        found: dict[str, tuple[PhysicalFunction, VirtualFunctions | None]] = {}
        named: dict[str, str] = {}
        absent: set[str] = set()
        for entry in self._wanted:
            address = self._bus.address(entry.pf)
            if not address:
                absent.add(entry.pf)
                waits.append(f"there is no {entry.pf}")
            elif address in found:
                faults.append(f"{named[address]} and {entry.pf} are one physical function, {address}")
            else:
                found[address] = PhysicalFunction(self._bus, address, entry.pf), entry
                named[address] = entry.pf
        for address, made in self._made.items():
            # an interface that cannot be found may be in a container
            if address not in found and made.name not in absent:
                found[address] = PhysicalFunction(self._bus, address, made.name), None
        return list(found.values())

    def _reconcile(self, physical: PhysicalFunction, entry: VirtualFunctions | None) -> None:
        made = self._made.get(physical.address)
        count = physical.count
        if made and not _is(physical, made, count):
            made = None
            self._record(physical, None)
        if entry is None:
            if made is None:
                return  # others have taken the place of ours
            entry = VirtualFunctions(pf=made.name, count=0)
        most = physical.most
        if entry.count and not most:
            off = "" if most is None else ": its driver or its firmware has them switched off"
            raise BackendError(f"{physical.label} cannot have virtual functions{off}")
        if entry.count > (most or 0):
            raise BackendError(
                f"{physical.label} can have {most} virtual functions at most, not {entry.count}"
            )
        if count == entry.count:
            self._bind(physical, entry, made)
            return
        if count:
            if made is None:
                raise BackendError(
                    f"{physical.label} has {_functions(count)} that devhost did not make, and so does not "
                    f"change to {entry.count}"
                )
            self._remove(physical, entry, count)
        if entry.count:
            self._make(physical, entry)

    def _remove(self, physical: PhysicalFunction, entry: VirtualFunctions, count: int) -> None:
        virtual = physical.virtual
        self._refuse_held(physical, entry, virtual)
        self._withdraw(virtual, physical.label)
        self._refuse_held(physical, entry, virtual)  # a container may have got one until just now
        physical.make(0, bound=True)
        self._log.info("removed %s of %s", _functions(count), physical.label)
        self.leaving -= frozenset(virtual)
        self._record(physical, None)

    def _refuse_held(
        self, physical: PhysicalFunction, entry: VirtualFunctions, virtual: Sequence[str]
    ) -> None:
        held = self._held_now()
        if used := [address for address in virtual if claim.pci(address) in held]:
            more = f" and {len(used) - 3} more" if len(used) > 3 else ""
            raise NotYet(
                f"{physical.label} keeps its {_functions(len(virtual))} instead of {entry.count} while pods "
                f"have {', '.join(used[:3])}{more}"
            )

    def _make(self, physical: PhysicalFunction, entry: VirtualFunctions) -> None:
        if claim.device("sriov", physical.address) in (self._held() or ()):
            raise NotYet(f"{physical.label} gets no virtual functions while a pod has it")
        self._check(entry.driver)
        self._record(physical, Made(entry.pf, entry.count, entry.driver))
        try:
            physical.make(entry.count, bound=not entry.driver)
        except BackendError:
            if not physical.count:
                self._record(physical, None)
            raise
        self._log.info("made %s of %s", _functions(entry.count), physical.label)
        made = Made(entry.pf, entry.count, entry.driver, physical.mark)
        self._record(physical, made)
        self._bind(physical, entry, made)

    def _bind(self, physical: PhysicalFunction, entry: VirtualFunctions, made: Made | None) -> None:
        """Binds those of ours that are bound to something else; says so of others."""
        wanted = entry.driver
        odd = self._wrongly_bound(physical.virtual, wanted, made.driver if made else "")
        if made is None:
            if odd:
                raise BackendError(
                    f"devhost did not make the virtual functions of {physical.label}, and so does not bind "
                    f"{', '.join(odd[:3])}{' …' if len(odd) > 3 else ''} to {wanted}"
                )
            return
        if odd:
            self._check(wanted)
        # without a driver, so nobody uses them
        self._bind_all([address for address in odd if not self._bus.driver(address)], wanted, physical.label)
        self._rebind(self._wrongly_bound(odd, wanted, made.driver), wanted, physical.label)
        now = Made(entry.pf, made.count, wanted, made.mark or physical.mark)
        if now != made:
            self._record(physical, now)

    def _wrongly_bound(self, virtual: Sequence[str], wanted: str, before: str) -> list[str]:
        """Functions not bound as wanted; where that is the kernel's choice, those still bound as before."""
        if wanted:
            return [address for address in virtual if self._bus.driver(address) != wanted]
        return [address for address in virtual if before and self._bus.driver(address) == before]

    def _rebind(self, bound: Sequence[str], wanted: str, label: str) -> None:
        """Takes functions from the driver they have, as far as no container has them."""
        if not bound:
            return
        held = self._held_now()
        free = [address for address in bound if claim.pci(address) not in held]
        self._withdraw(free, label)
        held = self._held_now()  # a container may have got one until just now
        self._bind_all([address for address in free if claim.pci(address) not in held], wanted, label)
        self.leaving -= frozenset(free)
        if kept := [address for address in bound if claim.pci(address) in held]:
            more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
            driver = self._bus.driver(kept[0])
            raise NotYet(
                f"{kept[0]}{more} of {label} cannot leave {driver} for {wanted or 'another driver'}: "
                "a pod has it"
            )

    def _bind_all(self, addresses: Sequence[str], driver: str, label: str) -> None:
        done = 0
        try:
            for address in addresses:
                self._bus.bind(address, driver)
                done += 1
        finally:
            if done:
                self._log.info("bound %s of %s to %s", _functions(done), label, driver or "their own driver")

    def _withdraw(self, addresses: Sequence[str], label: str) -> None:
        """Returns once no container can be given these functions any longer.

        Raises:
            NotYet: they are on the list still, until the next scan.
        """
        shown = [a for a in addresses if a not in self.leaving or self._offered(a)]
        if shown:
            self._going.update(addresses)
            raise NotYet(f"{_functions(len(shown))} of {label} must leave the list first")

    def _held_now(self) -> frozenset[str]:
        held = self._held()
        if held is None:
            raise NotYet(UNKNOWN)
        return held

    def _check(self, driver: str) -> None:
        if driver and not self._bus.has_driver(driver):
            raise BackendError(f"there is no driver {driver}: load its module, modprobe {driver}")

    def _record(self, physical: PhysicalFunction, made: Made | None) -> None:
        if made is None:
            self._made.pop(physical.address, None)
        else:
            self._made[physical.address] = made
        self._ownership.write(self._made)


def _is(physical: PhysicalFunction, made: Made, count: int) -> bool:
    """Whether these are what devhost made; while it was making them it could not say more than how many."""
    return made.count == count and (not made.mark or made.mark == physical.mark)


def _functions(count: int) -> str:
    return f"{count} virtual function{'s' * (count != 1)}"
