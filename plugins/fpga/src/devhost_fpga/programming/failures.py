"""What went wrong while programming, in words."""

from __future__ import annotations

import errno
import os

from .running import Verdict

_PRIVILEGED = "the container of devhost may not, it must be privileged for this"

_NODE = {
    errno.EBUSY: "another program has its management engine open",
    errno.EPERM: f"opening its management engine is not permitted: {_PRIVILEGED}",
    errno.EACCES: f"opening its management engine is not permitted: {_PRIVILEGED}",
    errno.ENOENT: "its management engine is gone",
    errno.ENODEV: "its management engine is gone",
    errno.ENXIO: "its management engine is gone",
}

_PROGRAM = {
    errno.EBUSY: "the FPGA is busy: somebody else programs it or uses the region",
    errno.EINVAL: "the driver refuses the request: it has no such port, or takes no such image",
    errno.ETIMEDOUT: "the FPGA did not finish in time",
    errno.EIO: "the FPGA reports an error",
    errno.EPERM: f"the driver does not permit it: {_PRIVILEGED}",
    errno.EACCES: f"the driver does not permit it: {_PRIVILEGED}",
    errno.ENOENT: "the device is gone",
    errno.ENODEV: "the device is gone, or its driver cannot program",
    errno.ENXIO: "the device is gone",
    errno.ENOTTY: "the driver does not know the request",
    errno.EFAULT: "the file became shorter while it was read",
    errno.ENOMEM: "the kernel has no memory for the image",
}

_WRITE = _PROGRAM | {
    errno.ENOENT: "the kernel's firmware loader did not find the file, or the device is gone",
    errno.EROFS: "/sys is mounted read-only for devhost",
    errno.EPERM: f"writing to /sys is not permitted: {_PRIVILEGED}",
    errno.EACCES: f"writing to /sys is not permitted: {_PRIVILEGED}",
    errno.EINVAL: "the driver refuses the image",
}

_BITS = (
    "PR operation error",
    "CRC error",
    "incompatible image",
    "IP protocol error",
    "FIFO overflow",
    "",
    "secure load error",
)
"""The bits of ``status`` after EIO (``DEFINE_FPGA_PR_ERR_MSG`` in intel-fpga.h)."""


def why(verdict: Verdict, detail: str = "") -> str:
    """Why programming failed, as the end of a sentence.

    Args:
        detail: what the kernel says of the last error elsewhere.
    """
    match verdict.step:
        case "file":
            return _system(verdict.errno, {}) if verdict.errno else "the file was changed meanwhile"
        case "node":
            return _system(verdict.errno, _NODE) if verdict.errno else "its node is another device's by now"
        case "program":
            return _with(_system(verdict.errno, _PROGRAM), bits(verdict.status) or detail)
        case "flags" | "firmware":
            return _with(_system(verdict.errno, _WRITE), detail)
        case "start":
            return f"the process for it cannot be started: {os.strerror(verdict.errno)}"
        case "time":
            return "it took too long, and the process for it was ended"
    if verdict.text == "signal SIGBUS":
        return _PROGRAM[errno.EFAULT]
    return f"the process for it ended unexpectedly: {verdict.text}"


def bits(status: int) -> str:
    """What the OPAE driver's status says, joined by commas; empty for none."""
    return ", ".join(text for bit, text in enumerate(_BITS) if text and status >> bit & 1)


def _system(number: int, known: dict[int, str]) -> str:
    return known.get(number) or os.strerror(number)


def _with(text: str, detail: str) -> str:
    return f"{text} ({detail})" if detail else text
