"""What a configuration can say to this backend, and in an entry of a resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from devhost.backend import option

from .programming import Program


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
    def why_alone(self) -> str:
        """Why a device of such a resource cannot be shared; empty where it can."""
        if self.program is not None:
            return "it is programmed for one container at a time"
        if self.development:
            return "a container that programs the region changes it under all others"
        if self.management:
            return "a container that manages the card can reset it under all others"
        return ""


PLAIN = FpgaUse()
"""An entry that says nothing of its own."""
