"""The options of the backend. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from devhost.backend import OptionError, option

from .giving_options import GivingOptions

HealthCheck = Literal["xid", "ecc", "recovery", "remap", "drain"]
"""What is looked for in an NVIDIA GPU that can be used otherwise."""


@dataclass(frozen=True, slots=True)
class GpuOptions(GivingOptions):
    """The keys under ``backends.gpu``."""

    temperature_limit: int = option(
        0,
        "Degrees Celsius from which on an AMD, Intel or other DRM card is Unhealthy, by any of its sensors; "
        "0 looks at none.",
        example=100,
    )
    uncorrectable_errors: int = option(
        1,
        "How many uncorrectable memory and cache errors since its driver was loaded make an AMD card "
        "Unhealthy; 0 ignores them.",
    )
    health_checks: Literal["all", "none"] | tuple[HealthCheck, ...] = option(
        "all",
        "Which signs make an NVIDIA GPU Unhealthy that can be used otherwise: `all`, `none`, or a list of "
        "`xid` (error numbers), `ecc` (uncorrectable memory errors), `recovery` (the driver recommends a "
        "reset or a reboot), `remap` (memory waits for a reset to be replaced, or cannot be), `drain` "
        "(`nvidia-smi drain`).",
        example=["xid", "ecc"],
    )
    ignore_xids: Literal["all"] | tuple[int, ...] = option(
        (),
        "NVIDIA's error numbers (Xid) that do not make a GPU Unhealthy, besides those that programs cause: "
        "13, 31, 43, 45, 68 and 109; or `all`.",
        example=[63, 74],
    )
    heed_xids: tuple[int, ...] = option(
        (), "Xids that make a GPU Unhealthy though they would be ignored.", example=[31]
    )

    @property
    def checks(self) -> frozenset[str]:
        """The signs that make an NVIDIA GPU Unhealthy."""
        if isinstance(self.health_checks, str):
            return frozenset(get_args(HealthCheck)) if self.health_checks == "all" else frozenset()
        return frozenset(self.health_checks)

    def __post_init__(self) -> None:
        GivingOptions.__post_init__(self)
        if self.heed_xids and "xid" not in self.checks:
            raise OptionError("does nothing without xid in healthChecks", key="heedXids")
        for key, number in (
            ("temperatureLimit", self.temperature_limit),
            ("uncorrectableErrors", self.uncorrectable_errors),
        ):
            if number < 0:
                raise OptionError(f"must be 0 or more, not {number}", key=key)
        for key, xids in (("ignoreXids", self.ignore_xids), ("heedXids", self.heed_xids)):
            for xid in () if xids == "all" else xids:
                if xid < 1:
                    raise OptionError(f"an Xid is 1 or more, not {xid}", key=key)
