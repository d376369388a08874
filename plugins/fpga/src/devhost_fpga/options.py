"""The options of the backend and of its resources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from devhost.backend import OptionError, option
from devhost.backend.frozen import frozen
from devhost_fpga.model import normal

_UUID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_NEVER = {
    ".xclbin": ("is an XRT container, which XRT loads in the pod", "remove `program`"),
    ".aocx": (
        "is not supported: all OpenCL images have one AFU id, so the programmed one cannot be identified",
        "let the OpenCL runtime in the container load it, with `development: true`",
    ),
}
"""Unsupported files, known by suffix so that ``devhost check`` reports them."""


DEVELOPMENT, MANAGEMENT, NODES = "development", "management", "nodes"
"""What a resource may need of a device (``Device.unusable_for``); :attr:`Program.use` is another."""


@frozen
class Program:
    """The keys below ``program`` of a resource.

    After checking, both ids are 32 lower-case hexadecimal digits, or empty.

    Raises:
        OptionError: a value is invalid.
    """

    bitstream: Path = option(
        meaning="File to program: the absolute path on the node of a GBS file or a raw image.",
        example="/srv/fpga/crypto.gbs",
    )
    interface_id: str = option(
        "",
        "Interface id of the file; required for raw images on DFL and OPAE, GBS files contain it.",
        example="69528db6-eb31-577a-8c36-68f9faa081f6",
    )
    afu_id: str = option(
        "",
        "AFU id of the file; required when `interfaceId` is.",
        example="d8424dc4-a4a3-c413-f89e-433683f9040b",
    )
    partial: bool = option(
        False, "The file is a partial image for the `firmware` interface; DFL and OPAE images always are."
    )

    def __post_init__(self) -> None:
        if not self.bitstream.is_absolute() or ".." in self.bitstream.parts:
            hint = "use the path on the node, for example /srv/fpga/crypto.gbs"
            raise OptionError("must be an absolute path without ..", key="bitstream", hint=hint)
        if not str(self.bitstream).isprintable():
            raise OptionError("contains an unprintable character", key="bitstream")
        if wrong := _NEVER.get(self.bitstream.suffix.lower()):
            raise OptionError(wrong[0], key="bitstream", hint=wrong[1])
        object.__setattr__(self, "interface_id", _identifier(self.interface_id, "interfaceId"))
        object.__setattr__(self, "afu_id", _identifier(self.afu_id, "afuId"))

    @property
    def use(self) -> str:
        """The name of programming this file, among what a device can be unusable for."""
        return f"program:{self.bitstream}:{self.interface_id}:{self.afu_id}:{self.partial}"


def parsed(text: str) -> str:
    """An id as 32 lower-case hexadecimal digits, from a UUID or these digits; empty for anything else."""
    digits = normal(text)
    return digits if _UUID.fullmatch(text.strip().lower()) else ""


def _identifier(text: str, key: str) -> str:
    if text and not parsed(text):
        hint = "use a UUID, or 32 hexadecimal digits"
        raise OptionError(f"{text!r} is not an id", key=key, hint=hint)
    return parsed(text)


@frozen
class FpgaOptions:
    """Options of the backend: the keys below ``backends.fpga``."""

    u30_unit: Literal["card", "fpga"] = option(
        "card",
        "The devices of an Alveo U30: the card with both FPGAs, or each FPGA.",
    )


@frozen
class FpgaUse:
    """The keys of an entry under ``resources`` that belong to this backend."""

    development: bool = option(
        False,
        "Also give the container the node of the management engine, so that it can program the region.",
    )
    management: bool = option(
        False, "Also give the container the management node (XRT), which can reset and flash the card."
    )
    program: Program | None = option(
        None, "Bitstream to program into the region before each container starts."
    )

    @property
    def prepares(self) -> bool:
        """Whether regions must be programmed before each container start."""
        return self.program is not None

    @property
    def uses(self) -> frozenset[str]:
        """What such a resource needs of a device, as keys of ``Device.unusable_for``."""
        found = {DEVELOPMENT: self.development, MANAGEMENT: self.management, NODES: self.program is None}
        named = {self.program.use} if self.program else set()
        return frozenset(use for use, wanted in found.items() if wanted) | named

    @property
    def why_alone(self) -> str | None:
        """Why a device of such a resource cannot be shared; ``None`` if it can."""
        if self.program is not None:
            return "only one container at a time can use a programmed region"
        if self.development:
            return "a container that programs the region changes it for all others"
        if self.management:
            return "a container that manages the card can reset it for all others"
        return None


PLAIN = FpgaUse()
"""An entry without keys of this backend."""
