"""Opens a bitstream once, checks it, and passes on the open file.

The kernel's firmware loader takes a name and searches its own directories below the node's ``/``. devhost
adds no file there and does not change the search path, which would affect every driver on the node.

A GBS file is 16 bytes of magic, the length of the metadata (32 bits, little-endian), the metadata as JSON,
and the raw image. Only the image is programmed (OPAE SDK, libbitstream/bitstream.c).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from devhost.backend import AllocationError, trusted
from devhost.backend.errors import one_line
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import Sysfs
from devhost_fpga.options import Program, parsed

_PARAMETER = "/sys/module/firmware_class/parameters/path"

NAME_LIMIT = 254
"""Bytes; the ``firmware`` file in Xilinx kernels copies the name into ``char[NAME_MAX]`` unchecked."""


def name_of(sysfs: Sysfs, path: str) -> str:
    """The name for which the kernel's firmware loader finds the file at ``path``.

    Raises ``AllocationError`` if the loader does not find it, or finds another file first.
    """
    directories = _directories(sysfs)
    places = [*directories, *(f"/usr{place}" for place in directories if place.startswith("/lib/"))]
    base = next((place for place in places if path.startswith(f"{place}/")), "")
    if not base:
        raise AllocationError("the kernel does not load files from there: move it below /lib/firmware")
    name = path.removeprefix(f"{base}/")
    if len(os.fsencode(name)) > NAME_LIMIT:
        raise AllocationError("its name is too long for the kernel's firmware loader")
    found = next((place for place in directories if sysfs.exists(f"{place}/{name}")), "")
    if not found:
        raise AllocationError(f"the kernel does not find firmware {name} in {', '.join(directories)}")
    if not _is_same(f"{sysfs.prefix}{found}/{name}", sysfs.prefix + path):
        raise AllocationError(f"the kernel would load {found}/{name} instead, which it finds first")
    return name


def _directories(sysfs: Sysfs) -> list[str]:
    """The directories that the kernel searches, in this order, as paths on the node."""
    own = sysfs.text(_PARAMETER).rstrip("/")
    updates, usual = "/lib/firmware/updates", "/lib/firmware"
    release = os.uname().release
    built_in = [f"{updates}/{release}", updates, f"{usual}/{release}", usual]
    return [own, *built_in] if own.startswith("/") else built_in


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 - plain string paths
    except OSError:
        return False


MAX_SIZE = 512 << 20
"""Bytes; images of the largest FPGAs have about 200 MiB, and the kernel keeps a copy while it programs."""

GBS = b"XeonFPGA\xb7GBSv001"

METADATA_LIMIT = 4095
"""Bytes of metadata; the limit of the Intel device plugin (pkg/fpga/bitstream/gbs.go)."""

OPENCL = "18b79ffa2ee54aa096ef4230dafacb5f"
"""The AFU id of every image of the OpenCL board support package (aocx.go of the same plugin)."""

_LENGTH = 4
_HEAD = len(GBS) + _LENGTH


@frozen
class Files:
    """How bitstreams are opened (see :func:`devhost.backend.trusted.opened`) and read.

    ``largest`` is in bytes.
    """

    open: Callable[[str], AbstractContextManager[int]] = trusted.opened
    pread: Callable[[int, int, int], bytes] = os.pread
    largest: int = MAX_SIZE


FILES = Files()

_FOREIGN = (
    (b"\x7fELF", "an OpenCL image (.aocx) or another ELF file, which is not supported"),
    (b"xclbin", "an XRT container (.xclbin), which XRT loads in the pod"),
    (b"\x19\xfd\xea\xb6", "an update image signed for fpgasupdate, which is not supported"),
    (b"\x1f\x8b", "a compressed file (unpack it)"),
)
"""The beginnings of files that are not images, and what they are."""


@frozen
class Bitstream:
    """An open file that passed all checks.

    ``head`` is the part before the image, which itself is not read here. ``identity`` distinguishes this
    content from a later one of the same name. The ids are 32 lower-case hexadecimal digits, or empty.
    """

    path: str
    descriptor: int
    size: int
    head: bytes
    modified: int
    identity: tuple[int, ...]
    interface_id: str
    afu_id: str

    @property
    def is_gbs(self) -> bool:
        """Whether it is a GBS file; otherwise it is a raw image."""
        return bool(self.head)


@contextmanager
def opened(prefix: str, program: Program, *, files: Files = FILES) -> Iterator[Bitstream]:
    """Opens the file of a resource, and closes it at the end.

    ``prefix`` is the directory used as the node's ``/``; empty for ``/`` itself. Raises ``AllocationError``
    if the file cannot be programmed into any device.
    """
    path = str(program.bitstream)
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(files.open(prefix + path))
        except trusted.Untrusted as error:
            raise _untrusted(path, error.below(prefix)) from error
        except IsADirectoryError as error:
            raise _refused(path, "is not a regular file") from error
        except OSError as error:
            absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
            raise _refused(path, "does not exist on the node" if absent else _why(error)) from error
        yield _checked(path, descriptor, prefix, program, files)


def _checked(path: str, descriptor: int, prefix: str, program: Program, files: Files) -> Bitstream:
    status = os.fstat(descriptor)
    if prefix and not os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{prefix}/"):  # noqa: PTH115
        raise _refused(path, f"leads out of {prefix}, the node's /")
    if not status.st_size:
        raise _refused(path, "is empty")
    if status.st_size > files.largest:
        raise _refused(path, f"is too large: {status.st_size} bytes (at most {files.largest})")
    try:
        start = files.pread(descriptor, _HEAD + METADATA_LIMIT, 0)
    except OSError as error:
        raise _refused(path, _why(error)) from error
    head, interface_id, afu_id = _parsed(path, start, status.st_size)
    for key, configured, actual in (
        ("interfaceId", program.interface_id, interface_id),
        ("afuId", program.afu_id, afu_id),
    ):
        if configured and actual and configured != actual:
            raise _refused(path, f"has {key} {actual}, but the resource expects {configured}")
    if (afu_id or program.afu_id) == OPENCL:
        raise _refused(
            path, "is not supported: all OpenCL images have the same AFU id and cannot be distinguished"
        )
    return Bitstream(
        path,
        descriptor,
        status.st_size,
        head,
        status.st_mtime_ns,
        _identity(status),
        interface_id or program.interface_id,
        afu_id or program.afu_id,
    )


def _parsed(path: str, start: bytes, size: int) -> tuple[bytes, str, str]:
    """The part before the image, the interface id and the AFU id; all empty for a raw image."""
    for magic, what in _FOREIGN:
        if start.startswith(magic):
            raise _refused(path, f"is {what}")
    if not start.startswith(GBS):
        if path.lower().endswith(".gbs") or GBS.startswith(start):
            raise _refused(path, "is not a GBS file, or truncated: it does not begin with XeonFPGA·GBSv001")
        return b"", "", ""
    length = int.from_bytes(start[len(GBS) : _HEAD], "little")
    if len(start) >= _HEAD and not 0 < length <= METADATA_LIMIT:
        raise _refused(path, f"is a damaged GBS file: its metadata cannot have {length} bytes")
    end = _HEAD + length
    if size <= end:
        raise _refused(path, "is a truncated GBS file: it ends before its image")
    interface_id, afu_id = _metadata(path, start[_HEAD:end])
    return start[:end], interface_id, afu_id


def _metadata(path: str, data: bytes) -> tuple[str, str]:
    try:
        image: Any = json.loads(data.rstrip(b"\0"))["afu-image"]
        interface_id, clusters = parsed(image["interface-uuid"]), image["accelerator-clusters"]
        afu_ids = [parsed(cluster["accelerator-type-uuid"]) for cluster in clusters]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refused(path, "is a damaged GBS file: its metadata cannot be read") from error
    if len(afu_ids) != 1:
        raise _refused(path, f"is not supported: its metadata names {len(afu_ids)} accelerators, not one")
    if not interface_id or not afu_ids[0]:
        raise _refused(path, "is a damaged GBS file: its metadata lacks the interface id or the AFU id")
    return interface_id, afu_ids[0]


def identity_at(path: str) -> tuple[int, ...]:
    """The identity of the file at this path now; empty if there is none."""
    try:
        return _identity(os.stat(path))  # noqa: PTH116 - a plain string path
    except OSError:
        return ()


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _why(error: OSError) -> str:
    return f"cannot be read: {error.strerror or one_line(error)}"


def _untrusted(path: str, error: trusted.Untrusted) -> AllocationError:
    """Names the untrusted file or directory, which may be a parent or the target of a link."""
    return AllocationError(str(error) if error.path == path else f"{path} is not trusted: {error}")


def _refused(path: str, why: str) -> AllocationError:
    return AllocationError(f"{path} {why}")
