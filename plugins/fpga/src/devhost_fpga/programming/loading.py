"""One image into one slot, through the interface that the kernel has for it."""

from __future__ import annotations

from devhost.backend import AllocationError
from devhost.backend.sysfs import Sysfs
from devhost_fpga.busy import Manager, identity, manager
from devhost_fpga.nodes import numbered
from devhost_fpga.unit import Interface, Slot

from .bitstream import Bitstream, identity_at
from .engines import Engines, Loaded
from .failures import why
from .firmware import name_of
from .program import Program
from .reading import manager_of
from .running import Request, Run, Unkillable

_OPERATING = "operating"


def label(slot: Slot) -> str:
    """How a user knows a slot."""
    return slot.engine.rpartition("/")[2] if slot.interface is Interface.FIRMWARE else f"port {slot.port}"


class Loader:
    """Has images loaded, by a process of its own.

    Args:
        engines: where it is noted what was loaded, and what hangs.
        run: runs that process.
    """

    def __init__(self, sysfs: Sysfs, engines: Engines, run: Run) -> None:
        self._sysfs = sysfs
        self._engines = engines
        self._run = run

    def load(self, device: str, slot: Slot, program: Program, image: Bitstream, patience: float) -> None:
        """Loads an image. Blocks for ``patience`` seconds, and for ending a process after that.

        Args:
            device: the id of the device that the slot belongs to.

        Raises:
            AllocationError: it is not loaded, or nobody knows.
        """
        if slot.interface is Interface.FIRMWARE:
            self._load_named(device, slot, program, image, patience)
        else:
            self._carry_out(slot, self._port_request(slot, image), patience, (image.descriptor,))

    def is_loaded(self, device: str, slot: Slot, program: Program, image: Bitstream) -> bool:
        """Whether devhost itself loaded this file through an fpga_manager, and nothing since: no id tells."""
        is_ours = self._engines.loaded(slot.engine, device) == self._loaded(slot, program, image)
        return is_ours and self._manager(slot).state == _OPERATING

    def _load_named(
        self, device: str, slot: Slot, program: Program, image: Bitstream, patience: float
    ) -> None:
        has_flags = self._sysfs.exists(f"{slot.engine}/flags")
        if program.partial and not has_flags:
            raise AllocationError("its kernel takes whole images only: remove `partial`")
        request = {
            "do": "firmware",
            "manager": self._sysfs.prefix + slot.engine,
            "name": name_of(self._sysfs, image.path),
            "flags": str(int(program.partial)) if has_flags else "",
        }
        self._engines.forget(slot.engine, device if program.partial else "")
        self._carry_out(slot, request, patience)
        found = manager(self._sysfs, slot.engine)
        if found.state != _OPERATING:
            more = f" ({found.status})" if found.status else ""
            raise AllocationError(f"it was programmed, but its state is {found.state or 'unknown'!r}{more}")
        if identity_at(self._sysfs.prefix + image.path) != image.identity:
            raise AllocationError("the file was changed meanwhile")  # the kernel opened it by its name
        self._engines.remember(slot.engine, device, self._loaded(slot, program, image))

    def _port_request(self, slot: Slot, image: Bitstream) -> Request:
        try:
            node, number = numbered(self._sysfs, slot.engine, is_live=True)
        except AllocationError as error:
            raise AllocationError(f"its management engine has no node in /dev: {error.message}") from error
        return {
            "do": str(slot.interface),
            "node": self._sysfs.prefix + node,
            "number": [int(part) for part in number.split(":")],
            "port": slot.port,
            "file": image.descriptor,
            "size": image.size,
            "modified": image.modified,
            "head": image.head.hex(),
        }

    def _carry_out(
        self, slot: Slot, request: Request, patience: float, descriptors: tuple[int, ...] = ()
    ) -> None:
        try:
            verdict = self._run(request, descriptors, patience)
        except Unkillable as unkillable:
            self._engines.hangs(slot.engine, unkillable.is_gone)
            raise AllocationError(
                "it took too long and cannot be stopped; nothing more is programmed until the kernel lets go"
            ) from unkillable
        if verdict.step:
            raise AllocationError(why(verdict, self._manager(slot).status))

    def _manager(self, slot: Slot) -> Manager:
        if slot.interface is Interface.FIRMWARE:
            return manager(self._sysfs, slot.engine)
        return manager_of(self._sysfs, slot.engine)

    def _loaded(self, slot: Slot, program: Program, image: Bitstream) -> Loaded:
        # with its inode, for another manager that takes this name later
        return (*identity(self._sysfs, slot.engine), image.identity, program.partial)
