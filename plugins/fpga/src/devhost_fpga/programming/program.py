"""What a resource's ``program:`` can say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from devhost.backend import OptionError, option
from devhost_fpga.ids import normal

_UUID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_NEVER = {
    ".xclbin": ("is an XRT container, which XRT loads by itself from within the pod", "remove `program`"),
    ".aocx": (
        "is not supported: OpenCL images all have one AFU id, so nothing tells which one is programmed",
        "let the OpenCL runtime in the container load it, with `development: true`",
    ),
}
"""Files that are told by their names, so that ``devhost check`` says it already."""


@dataclass(frozen=True)
class Program:
    """The keys below ``program`` of a resource.

    After checking, both ids are 32 lower-case hexadecimal digits, or empty.

    Raises:
        OptionError: a value cannot be meant.
    """

    bitstream: Path = option(
        meaning="The file to program, an absolute path on the node; a GBS file, or a raw image.",
        example="/srv/fpga/crypto.gbs",
    )
    interface_id: str = option(
        "",
        "The interface the file was built for; raw images for DFL and OPAE need it, GBS files have it.",
        example="69528db6-eb31-577a-8c36-68f9faa081f6",
    )
    afu_id: str = option(
        "",
        "The AFU id that shows once the file is programmed; needed as `interfaceId` is.",
        example="d8424dc4-a4a3-c413-f89e-433683f9040b",
    )
    partial: bool = option(
        False, "Whether a file for the `firmware` interface holds a part of the FPGA; DFL and OPAE always do."
    )

    def __post_init__(self) -> None:
        if not self.bitstream.is_absolute() or ".." in self.bitstream.parts:
            hint = "the file is on the node: name it from its root, as in /srv/fpga/crypto.gbs"
            raise OptionError("must be an absolute path without ..", key="bitstream", hint=hint)
        if not str(self.bitstream).isprintable():
            raise OptionError("has a character that cannot be printed", key="bitstream")
        if wrong := _NEVER.get(self.bitstream.suffix.lower()):
            raise OptionError(wrong[0], key="bitstream", hint=wrong[1])
        object.__setattr__(self, "interface_id", _identifier(self.interface_id, "interfaceId"))
        object.__setattr__(self, "afu_id", _identifier(self.afu_id, "afuId"))


def parsed(text: str) -> str:
    """An id as 32 lower-case hexadecimal digits, from a UUID or these digits; empty for anything else."""
    digits = normal(text)
    return digits if _UUID.fullmatch(text.strip().lower()) else ""


def _identifier(text: str, key: str) -> str:
    if text and not parsed(text):
        hint = "32 hexadecimal digits, with dashes as in a UUID or without"
        raise OptionError(f"{text!r} is no id", key=key, hint=hint)
    return parsed(text)
