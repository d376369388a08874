"""Creates, binds and removes virtual functions according to ``backends.sriov.virtualFunctions``.

devhost neither removes nor binds virtual functions that it did not create, and never changes the functions of
a container. Functions to remove or rebind are first withheld, so that no further container gets them, and
then changed only if no container has them.

A file in ``/run`` records the functions that devhost created, for the time after a restart. A reboot removes
the file and the functions; the file of another boot is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from logging import Logger
from pathlib import Path

from devhost.backend import NotYet, claim
from devhost.backend.errors import DAMAGED, BackendError, counted, few
from devhost.backend.files import replace_file
from devhost.backend.frozen import frozen
from devhost.backend.provision import Changes
from devhost.backend.sysfs import prefix_of, read_line

from .options import VirtualFunctions
from .pci_bus import Bus, PhysicalFunction

FILE = "/run/devhost/virtual-functions.json"
BOOT = "/proc/sys/kernel/random/boot_id"


@frozen
class Made:
    """Virtual functions of one physical function.

    ``name`` is the name of the physical function in the configuration, ``driver`` the driver they were bound
    to (empty for the default). ``mark`` identifies them, and is empty while they are being created.
    """

    name: str
    count: int
    driver: str = ""
    mark: tuple[int, ...] = ()


class Ownership:
    """The record of virtual functions that devhost created, by address of the physical function."""

    def __init__(self, root: Path) -> None:
        self._prefix = prefix_of(root)
        self._path = Path(self._prefix + FILE)

    def read(self) -> dict[str, Made]:
        """The record; empty if the file is missing, broken, or of another boot."""
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
        except (OSError, *DAMAGED):
            return {}

    def write(self, made: Mapping[str, Made]) -> None:
        """Replaces the record; removes the file if it is empty."""
        document = {"boot": self._boot(), "made": {name: asdict(one) for name, one in sorted(made.items())}}
        try:
            if not made:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            data = json.dumps(document, indent=1).encode() + b"\n"
            replace_file(self._path, data, f".{self._path.stem}-", 0o600)
        except OSError as error:
            raise BackendError(
                f"cannot write {FILE}: {error.strerror} (devhost changes no virtual functions without it)"
            ) from error

    def _boot(self) -> str:
        return read_line(f"{self._prefix}{BOOT}")


class Provisioner:
    """Creates, binds and removes virtual functions. Used by one thread, except :attr:`leaving`.

    ``held`` is :meth:`Context.held`; ``offered`` returns whether a function, by its address, was offered at
    the last scan.
    """

    def __init__(
        self,
        bus: Bus,
        ownership: Ownership,
        wanted: Sequence[VirtualFunctions],
        held: Callable[[], frozenset[str] | None],
        offered: Callable[[str], bool],
        log: Logger,
    ) -> None:
        self._changes = Changes(held, offered, "functions")
        self._bus = bus
        self._ownership = ownership
        self._wanted = wanted
        self._held = held
        self._log = log
        self._made: dict[str, Made] = {}

    @property
    def leaving(self) -> frozenset[str]:
        """Functions that must not be allocated because they are about to change."""
        return self._changes.leaving

    def run(self) -> None:
        """Makes all changes that are possible now; a failure of one physical function does not block others.

        Raises ``NotYet`` if a change waits for pods or hardware, and ``BackendError`` if a change failed.
        """
        self._made = self._ownership.read()
        waits: list[str] = []
        faults: list[str] = []
        targets = self._targets(waits, faults)
        self._changes.make((partial(self._reconcile, *target) for target in targets), waits, faults)

    def _targets(
        self, waits: list[str], faults: list[str]
    ) -> list[tuple[PhysicalFunction, VirtualFunctions | None]]:
        """Each physical function with its entry; ``None`` if it is no longer in the configuration."""
        found: dict[str, tuple[PhysicalFunction, VirtualFunctions | None]] = {}
        named: dict[str, str] = {}
        absent: set[str] = set()
        for entry in self._wanted:
            address = self._bus.address(entry.pf)
            if not address:
                absent.add(entry.pf)
                waits.append(f"{entry.pf} does not exist")
            elif address in found:
                faults.append(f"{named[address]} and {entry.pf} are the same physical function {address}")
            else:
                found[address] = PhysicalFunction(self._bus, address, entry.pf), entry
                named[address] = entry.pf
        for address, made in self._made.items():
            # a missing interface may be in a container
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
                return  # the functions that devhost created are gone
            entry = VirtualFunctions(pf=made.name, count=0)
        max_count = physical.max_count
        if entry.count and not max_count:
            off = "" if max_count is None else " (disabled by its driver or firmware)"
            raise BackendError(f"{physical.label} cannot have virtual functions{off}")
        if entry.count > (max_count or 0):
            raise BackendError(
                f"{physical.label} can have at most {max_count} virtual functions, not {entry.count}"
            )
        if count == entry.count:
            self._bind(physical, entry, made)
            return
        if count:
            if made is None:
                raise BackendError(
                    f"{physical.label} has {_functions(count)} that devhost did not create; devhost does not "
                    f"change them to {entry.count}"
                )
            self._remove(physical, entry, count)
        if entry.count:
            self._make(physical, entry)

    def _remove(self, physical: PhysicalFunction, entry: VirtualFunctions, count: int) -> None:
        virtual = physical.virtual
        self._refuse_held(physical, entry, virtual)
        self._withdraw(virtual, physical.label)
        self._refuse_held(physical, entry, virtual)  # a container may have just got one
        physical.create(0, bound=True)
        self._log.info("removed %s of %s", _functions(count), physical.label)
        self._changes.changed(virtual)
        self._record(physical, None)

    def _refuse_held(
        self, physical: PhysicalFunction, entry: VirtualFunctions, virtual: Sequence[str]
    ) -> None:
        held, whole = self._changes.held(), claim.device("sriov", physical.address)
        claims = {claim.pci(address): address for address in virtual} | {whole: physical.address}
        used = [address for one, address in claims.items() if one in held]
        if used:
            raise NotYet(
                f"{physical.label} keeps its {_functions(len(virtual))} instead of {entry.count} while pods "
                f"hold {few(used)}",
                held=held.intersection(claims),
            )

    def _make(self, physical: PhysicalFunction, entry: VirtualFunctions) -> None:
        if claim.device("sriov", physical.address) in (self._held() or ()):
            held = [claim.device("sriov", physical.address)]
            raise NotYet(f"{physical.label} gets no virtual functions while a pod holds it", held=held)
        self._check(entry.driver)
        self._record(physical, Made(entry.pf, entry.count, entry.driver))
        try:
            physical.create(entry.count, bound=not entry.driver)
        except BackendError:
            if not physical.count:
                self._record(physical, None)
            raise
        self._log.info("created %s of %s", _functions(entry.count), physical.label)
        made = Made(entry.pf, entry.count, entry.driver, physical.mark)
        self._record(physical, made)
        self._bind(physical, entry, made)

    def _bind(self, physical: PhysicalFunction, entry: VirtualFunctions, made: Made | None) -> None:
        """Rebinds functions that devhost created; reports wrongly bound others."""
        # which functions have another driver; those that devhost did not create are only reported
        wanted = entry.driver
        odd = self._wrongly_bound(physical.virtual, wanted, made.driver if made else "")
        if made is None:
            if odd:
                raise BackendError(
                    f"devhost did not create the virtual functions of {physical.label}, so it does not bind "
                    f"{', '.join(odd[:3])}{' …' if len(odd) > 3 else ''} to {wanted}"
                )
            return
        # whether the wanted driver can be bound, before a function loses the one that it has
        if odd:
            self._check(wanted)
        # functions without a driver are not in use
        self._bind_all([address for address in odd if not self._bus.driver(address)], wanted, physical.label)
        # the others may be: this ends here while a container holds one
        self._rebind(self._wrongly_bound(odd, wanted, made.driver), wanted, physical.label)
        # last, because the record names the driver that functions are rebound from
        now = Made(entry.pf, made.count, wanted, made.mark or physical.mark)
        if now != made:
            self._record(physical, now)

    def _wrongly_bound(self, virtual: Sequence[str], wanted: str, before: str) -> list[str]:
        """Functions without the wanted driver; if that is the default, those with the driver before."""
        if wanted:
            return [address for address in virtual if self._bus.driver(address) != wanted]
        return [address for address in virtual if before and self._bus.driver(address) == before]

    def _rebind(self, bound: Sequence[str], wanted: str, label: str) -> None:
        """Rebinds the functions that no container holds."""
        if not bound:
            return
        held = self._changes.held()
        free = [address for address in bound if claim.pci(address) not in held]
        self._withdraw(free, label)
        held = self._changes.held()  # a container may have just got one
        self._bind_all([address for address in free if claim.pci(address) not in held], wanted, label)
        self._changes.changed(free)
        if kept := [address for address in bound if claim.pci(address) in held]:
            more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
            driver = self._bus.driver(kept[0])
            raise NotYet(
                f"{kept[0]}{more} of {label} stays bound to {driver} while a pod holds it, instead of "
                f"{wanted or 'its default driver'}",
                held=map(claim.pci, kept),
            )

    def _bind_all(self, addresses: Sequence[str], driver: str, label: str) -> None:
        done = 0
        try:
            for address in addresses:
                self._bus.bind(address, driver)
                done += 1
        finally:
            if done:
                self._log.info(
                    "bound %s of %s to %s", _functions(done), label, driver or "their default driver"
                )

    def _withdraw(self, addresses: Sequence[str], label: str) -> None:
        self._changes.withdraw(addresses, f"{_functions(len(addresses))} of {label}")

    def _check(self, driver: str) -> None:
        if driver and not self._bus.has_driver(driver):
            raise BackendError(f"there is no driver {driver} (run modprobe {driver})")

    def _record(self, physical: PhysicalFunction, made: Made | None) -> None:
        if made is None:
            self._made.pop(physical.address, None)
        else:
            self._made[physical.address] = made
        self._ownership.write(self._made)


def _is(physical: PhysicalFunction, made: Made, count: int) -> bool:
    """Whether devhost created these functions; while the mark is unknown, their number decides."""
    return made.count == count and (not made.mark or made.mark == physical.mark)


def _functions(count: int) -> str:
    return counted(count, "virtual function")
