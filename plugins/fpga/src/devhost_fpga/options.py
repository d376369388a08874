"""What a configuration can say to this backend, and in an entry of a resource."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from devhost.backend import OptionError, option
from devhost_fpga.model import normal

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


@dataclass(frozen=True)
class FpgaOptions:
    """Options of the backend: the keys below ``backends.fpga``."""

    u30_unit: Literal["card", "fpga"] = option(
        "card",
        "What one device of an Alveo U30 is: the card with both of its FPGAs, or each FPGA.",
    )


@dataclass(frozen=True)
class FpgaUse:
    """What an entry of a resource can say beyond the language's own keys."""

    development: bool = option(
        False,
        "Give the node of the management engine too, so that the container can program the region itself.",
    )
    management: bool = option(
        False, "Give the management function's node too (XRT), which can reset and flash the whole card."
    )
    program: Program | None = option(
        None, "Bitstream that is programmed into the region before each container starts."
    )

    @property
    def prepares(self) -> bool:
        """Whether something must happen before each container start."""
        return self.program is not None

    @property
    def why_alone(self) -> str | None:
        """Why a device of such a resource cannot be shared; ``None`` where it can."""
        if self.program is not None:
            return "it is programmed for one container at a time"
        if self.development:
            return "a container that programs the region changes it under all others"
        if self.management:
            return "a container that manages the card can reset it under all others"
        return None


PLAIN = FpgaUse()
"""An entry that says nothing of its own."""
