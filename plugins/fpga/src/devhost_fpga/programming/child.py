"""The program that programs an FPGA in a separate process (see :mod:`devhost_fpga.programming.loader`).

It imports nothing from devhost. It reads one JSON object from standard input and writes one line to standard
output: ``{}`` on success, otherwise ``{"step": …, "errno": …}`` with the step that failed: ``file``,
``node``, ``program``, ``flags`` or ``firmware``. Requests:

``do: "dfl"`` or ``"opae"``
    ``node`` (path) and ``number`` (``[major, minor]``) of the management engine; ``port``; ``file`` (an open
    descriptor), its ``size`` in bytes and ``modified`` time in ns; ``head``, the bytes before the image, in
    hexadecimal digits.
``do: "firmware"``
    ``manager`` (directory of the fpga_manager), ``name`` of the file for the kernel's firmware loader,
    ``flags`` to write first, empty to keep them.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DFL_FPGA_FME_PORT_PR = 0xB680
"""``_IO(0xB6, 0x80 + 0)`` (include/uapi/linux/fpga-dfl.h)."""

FPGA_FME_PORT_PR = 0xB580
"""``_IO(0xB5, 0x80 + 0)`` (intel-fpga.h of the out-of-tree driver)."""

DFL_REQUEST = struct.Struct("=IIIIQ")
"""``struct dfl_fpga_fme_port_pr``: argsz, flags (0), port_id, buffer_size, buffer_address."""

OPAE_REQUEST = struct.Struct("=IIIIQQ")
"""``struct fpga_fme_port_pr``: the same, and status, which the driver sets when it answers EIO."""


class StepFailed(Exception):
    """A step failed, and no later step was tried."""

    def __init__(self, step: str, number: int = 0, **details: Any) -> None:
        super().__init__(step, number)
        self.verdict = {"step": step, "errno": number, **details}


def carry_out(request: dict[str, Any], ioctl: Callable[..., int] = fcntl.ioctl) -> dict[str, Any]:
    """Executes a request; returns the verdict, empty on success."""
    try:
        if request["do"] == "firmware":
            _load(request)
        else:
            _program(request, ioctl)
    except StepFailed as refused:
        return refused.verdict
    return {}


def _program(request: dict[str, Any], ioctl: Callable[..., int]) -> None:
    image = _Image(request)
    try:
        node = _opened(request["node"], *request["number"])
        try:
            _reconfigure(node, request, image, ioctl)
        finally:
            os.close(node)
        image.compare()  # the file may have changed while the driver copied it
    finally:
        image.close()


def _reconfigure(node: int, request: dict[str, Any], image: _Image, ioctl: Callable[..., int]) -> None:
    is_opae = request["do"] == "opae"
    layout = OPAE_REQUEST if is_opae else DFL_REQUEST
    fields = [layout.size, 0, request["port"], image.size, image.address]
    argument = bytearray(layout.pack(*fields, *([0] if is_opae else [])))
    try:
        ioctl(node, FPGA_FME_PORT_PR if is_opae else DFL_FPGA_FME_PORT_PR, argument, True)
    except OSError as error:
        status = layout.unpack(argument)[5] if is_opae else 0
        raise StepFailed("program", error.errno or 0, status=status) from error


class _Image:
    """The image in an open file, mapped so that it needs no memory of this container."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._file, self._wanted = request["file"], (request["size"], request["modified"])
        self.compare()
        head = bytes.fromhex(request["head"])
        try:
            # private; writable because ctypes gives only addresses of writable buffers
            self._map = mmap.mmap(
                self._file, request["size"], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
            )
        except OSError as error:
            raise StepFailed("file", error.errno or 0) from error
        if self._map[: len(head)] != head:
            self._map.close()
            raise StepFailed("file")
        self._start = ctypes.c_char.from_buffer(self._map)
        self.size = request["size"] - len(head)
        self.address = ctypes.addressof(self._start) + len(head)

    def compare(self) -> None:
        """Refuses a file that changed since it was checked."""
        status = os.fstat(self._file)
        if (status.st_size, status.st_mtime_ns) != self._wanted:
            raise StepFailed("file")

    def close(self) -> None:
        """Removes the mapping."""
        del self._start  # the mapping cannot be closed while it is referenced
        self._map.close()


def _opened(path: str, major: int, minor: int) -> int:
    """Opens a node exclusively, after checking its number.

    With ``O_EXCL``, the DFL drivers refuse other programs meanwhile; before Linux 5.4 they always do.
    """
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_number(place, major, minor)
            node = os.open(f"/proc/self/fd/{place}", os.O_RDWR | os.O_EXCL | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(place)
        _check_number(node, major, minor)
    except OSError as error:
        raise StepFailed("node", error.errno or 0) from error
    return node


def _check_number(descriptor: int, major: int, minor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(major, minor):
        raise StepFailed("node")


def _load(request: dict[str, Any]) -> None:
    if request["flags"]:
        _write("flags", request)
    _write("firmware", request | {"firmware": request["name"]})


def _write(name: str, request: dict[str, Any]) -> None:
    try:
        file = os.open(f"{request['manager']}/{name}", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(file, f"{request[name]}\n".encode())  # sysfs accepts all of it or nothing
        finally:
            os.close(file)
    except OSError as error:
        raise StepFailed(name, error.errno or 0) from error


if __name__ == "__main__":
    sys.stdout.write(json.dumps(carry_out(json.load(sys.stdin))) + "\n")
