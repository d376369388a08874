"""The options that say what a container gets. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from devhost.backend import OptionError, option

Strategy = Literal["envvar", "volume-mounts", "device-specs", "cdi"]
"""How a container gets NVIDIA's GPUs; the names are those of NVIDIA's device plugin."""

FOR_RUNTIME = frozenset({"envvar", "volume-mounts"})
"""Strategies that tell NVIDIA's container runtime what to do."""

MOST_CHANNELS = 2048
"""IMEX channels that a driver makes unless told otherwise (its parameter ``NVreg_ImexChannelCount``)."""


@dataclass(frozen=True, slots=True)
class GivingOptions:
    """The keys under ``backends.gpu`` that say what a container gets."""

    former_keys: ClassVar[Mapping[str, str]] = {
        "mpsPipeDirectory": "say it in the key mps of an entry: mps: {root: /run/nvidia/mps} for NVIDIA's "
        "mps-control-daemon, mps: {pipeDirectory: /tmp/nvidia-mps} for one server",
        "mpsShmDirectory": "say shmDirectory in the key mps of an entry, beside pipeDirectory",
    }

    driver_root: str = option(
        "/",
        "The directory that NVIDIA's driver is installed below on the host.",
        example="/run/nvidia/driver",
    )
    device_list_strategy: Strategy | tuple[Strategy, ...] = option(
        "envvar",
        "How a container gets NVIDIA's GPUs, one way or a list: `envvar` and `volume-mounts` tell NVIDIA's "
        "container runtime, `device-specs` gives device nodes, `cdi` names of NVIDIA's CDI specification.",
        example=["envvar", "device-specs"],
    )
    device_ID_strategy: Literal["uuid", "index"] = option(
        "uuid", "By what NVIDIA's container runtime is told a GPU; numbers may change at a reboot."
    )
    dev_root: str = option(
        "",
        "The directory whose `dev` has NVIDIA's device nodes on the host; without it, `driverRoot` where "
        "that has them, else `/`.",
        example="/run/nvidia/driver",
    )
    driver_directory: str = option(
        "",
        "With `device-specs`: the directory of the host that a container sees as `/usr/local/nvidia`, with "
        "the driver's programs and libraries.",
        example="/opt/nvidia",
    )
    gds_enabled: bool = option(
        False,
        "Whether containers get GPUDirect Storage: NVIDIA's container runtime is asked for it "
        "(`NVIDIA_GDS`), and with `cdi` the name `…/gds=all` is given.",
    )
    mofed_enabled: bool = option(
        False,
        "The same for the devices of NVIDIA's network driver (`NVIDIA_MOFED`, `…/mofed=all`).",
    )
    gdrcopy_enabled: bool = option(False, "The same for GDRCopy (`NVIDIA_GDRCOPY`, `…/gdrcopy=all`).")
    imex_channel_IDs: tuple[int, ...] = option(
        (),
        "Channels for memory shared between nodes (IMEX) that each container with NVIDIA GPUs gets, those of "
        "them that the node has; with `cdi` as `…/imex-channel=<number>`.",
        example=[0],
    )
    nvidia_CTK_path: str = option(
        "/usr/bin/nvidia-ctk",
        "With `cdi`: the program of NVIDIA's container toolkit that writes the specification, on the host.",
    )
    nvidia_CDI_hook_path: str = option(
        "",
        "With `cdi`: the program that the specification names for its hooks, on the host; without it, what "
        "nvidia-ctk finds.",
        example="/usr/bin/nvidia-cdi-hook",
    )
    cdi_directories: tuple[str, ...] = option(
        ("/etc/cdi", "/var/run/cdi"),
        "With `cdi`: where the container runtime looks for specifications; devhost's goes to the last.",
    )
    bypath: Literal["single", "none", "all"] = option(
        "single",
        "Which names in `/dev/dri/by-path` a container with Intel GPUs gets: those of its own, none, or the "
        "whole directory.",
    )

    @property
    def strategies(self) -> frozenset[str]:
        """The ways in which a container gets NVIDIA's GPUs."""
        wanted = self.device_list_strategy
        return frozenset((wanted,) if isinstance(wanted, str) else wanted)

    @property
    def tells_runtime(self) -> bool:
        """Whether NVIDIA's container runtime is told anything."""
        return bool(self.strategies & FOR_RUNTIME)

    def __post_init__(self) -> None:
        self._check_paths()
        self._check_strategies()

    def _check_paths(self) -> None:
        paths = {
            "driverRoot": self.driver_root,
            "devRoot": self.dev_root,
            "driverDirectory": self.driver_directory,
            "nvidiaCTKPath": self.nvidia_CTK_path,
            "nvidiaCDIHookPath": self.nvidia_CDI_hook_path,
            **{f"cdiDirectories[{n}]": path for n, path in enumerate(self.cdi_directories)},
        }
        for key, path in paths.items():
            if not path and key in ("driverRoot", "nvidiaCTKPath"):
                raise OptionError("must be a path", key=key)
            if path and not path.startswith("/"):
                raise OptionError(f'"{path}" is not absolute', key=key)

    def _check_strategies(self) -> None:
        key = "deviceListStrategy"
        strategies = self.strategies
        if not strategies:
            raise OptionError("must have a member", key=key, hint="for example envvar")
        if strategies >= FOR_RUNTIME:
            raise OptionError("envvar and volume-mounts set the same variable: leave one out", key=key)
        needs = {
            "gdsEnabled": (self.gds_enabled, FOR_RUNTIME | {"cdi"}),
            "mofedEnabled": (self.mofed_enabled, FOR_RUNTIME | {"cdi"}),
            "gdrcopyEnabled": (self.gdrcopy_enabled, FOR_RUNTIME | {"cdi"}),
            "driverDirectory": (self.driver_directory, frozenset({"device-specs"})),
        }
        for name, (value, one_of) in needs.items():
            if value and not strategies & one_of:
                raise OptionError(f"does nothing without {key} {' or '.join(sorted(one_of))}", key=name)
        if any(not 0 <= number < MOST_CHANNELS for number in self.imex_channel_IDs):
            raise OptionError(f"must be from 0 to {MOST_CHANNELS - 1}", key="imexChannelIDs")
        if "cdi" in strategies and not self.cdi_directories:
            raise OptionError("must have a member", key="cdiDirectories", hint="for example /var/run/cdi")
