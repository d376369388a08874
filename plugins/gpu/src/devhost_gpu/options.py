"""The keys under ``backends.gpu`` and those of an entry. Fields in snake_case are the YAML's keys in
camelCase.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal, Self, get_args

from devhost.backend import Conditions, OptionError, option
from devhost.backend.frozen import frozen
from devhost.backend.where import Where, covers, may_hold

from .attributes import GPU, OF_WHOLE
from .discovery import AMD, NVIDIA

Strategy = Literal["envvar", "volume-mounts", "device-specs", "cdi"]
"""How a container gets NVIDIA GPUs; the names are from NVIDIA's device plugin."""

HealthCheck = Literal[
    "xid", "ecc", "recovery", "remap", "drain", "fabric", "confidential", "license", "compute"
]
"""Faults that make an NVIDIA GPU Unhealthy although NVML answers."""

FOR_RUNTIME = frozenset({"envvar", "volume-mounts"})
"""Strategies that work through NVIDIA's container runtime."""

MOST_CHANNELS = 2048
"""The number of IMEX channels that a driver creates by default (its parameter ``NVreg_ImexChannelCount``)."""


ComputeMode = Literal["SPX", "DPX", "TPX", "QPX", "CPX"]
"""AMD's compute partition modes (Documentation/gpu/amdgpu, "Compute Partitioning")."""

MemoryMode = Literal["NPS1", "NPS2", "NPS4", "NPS8"]
"""AMD's memory partition modes."""

MOST_MEMORY: Mapping[str, int] = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""The number of partitions in a compute mode, which are never fewer than those of the memory."""

SLICES = 7
"""The compute slices of an NVIDIA GPU, and so the most MIG instances (MIG user guide, "Partitioning")."""

MOST_LAYOUTS = 100

_PROFILE = re.compile(r"([1-9])g\.[1-9]\d{0,3}gb([+-][a-z]+(\.[a-z]+)*)?")


@frozen
class Layout:
    """One entry of ``backends.gpu.partitions``."""

    where: Annotated[Where, Conditions("gpu", OF_WHOLE)] = option(
        (),
        "The GPUs to partition, by the attributes of whole GPUs; by default all of the vendor.",
        example={"product": "*H100*"},
    )
    mig: tuple[str, ...] | None = option(
        None,
        "NVIDIA: the profiles of all MIG instances of such a GPU; an empty list removes them.",
        example=["3g.40gb", "2g.20gb", "1g.10gb"],
    )
    compute: ComputeMode | None = option(None, "AMD: the compute partition mode.", example="CPX")
    memory: MemoryMode | None = option(None, "AMD: the memory partition mode.", example="NPS4")

    @property
    def vendor(self) -> str:
        """The vendor of the GPUs."""
        return AMD if self.mig is None else NVIDIA

    def __post_init__(self) -> None:
        if self.mig is None and not (self.compute or self.memory):
            raise OptionError(
                "must have mig, compute or memory", hint="mig: [3g.40gb, 3g.40gb], or compute: CPX"
            )
        if self.mig is not None and (self.compute or self.memory):
            key = "compute" if self.compute else "memory"
            raise OptionError("is for AMD GPUs, and mig for those of NVIDIA: write two entries", key=key)
        if not may_hold(self.where, {"vendor": self.vendor}):
            key, name = ("compute or memory", "AMD") if self.mig is None else ("mig", "NVIDIA")
            raise OptionError(f"selects no {name} GPU, and {key} is for those", key="where")
        most = MOST_MEMORY.get(self.compute or "")
        if most and self.memory and int(self.memory[3:]) > most:
            raise OptionError(f"is impossible with compute: {self.compute}", key="memory")
        self._check_profiles()

    def _check_profiles(self) -> None:
        slices = 0
        for number, name in enumerate(self.mig or ()):
            key = f"mig[{number}]"
            if not (found := _PROFILE.fullmatch(name)):
                hint = "nvidia-smi mig -lgip lists those of a GPU"
                if "c." in name:
                    hint = "each instance gets all of its compute slices: remove what is before the dot"
                raise OptionError(
                    f'"{name}" is not the name of a MIG profile, as 1g.10gb is', key=key, hint=hint
                )
            slices += int(found[1])
            if slices > SLICES:
                raise OptionError(f"does not fit: a GPU has {SLICES} compute slices", key=key)


@frozen
class GpuOptions:
    """The keys under ``backends.gpu``."""

    former_keys: ClassVar[Mapping[str, str]] = {
        "mpsPipeDirectory": "write it in the key mps of an entry: mps: {root: /run/nvidia/mps} for NVIDIA's "
        "mps-control-daemon, mps: {pipeDirectory: /tmp/nvidia-mps} for one server",
        "mpsShmDirectory": "write shmDirectory in the key mps of an entry, next to pipeDirectory",
        "passDeviceSpecs": "add device-specs to deviceListStrategy",
        "migStrategy": "entries select GPUs and MIG instances by kind: where: {kind: mig}",
        "failOnInitError": "devhost reports a backend that fails, and tries again: remove it",
        "sharing": "each entry has a key share: share: {replicas: 10}",
        "sharedDevNum": "each entry has a key share: share: {replicas: 10}",
    }

    driver_root: str = option(
        "/",
        "The directory on the host below which NVIDIA's driver is installed, or the one with its libraries.",
        example="/run/nvidia/driver",
    )
    device_list_strategy: Strategy | tuple[Strategy, ...] = option(
        "envvar",
        "How a container gets NVIDIA GPUs, one strategy or a list: `envvar` and `volume-mounts` configure "
        "NVIDIA's container runtime, `device-specs` adds device nodes, `cdi` adds names of a CDI "
        "specification.",
        example=["envvar", "device-specs"],
    )
    device_ID_strategy: Literal["uuid", "index"] = option(
        "uuid", "How GPUs are named for NVIDIA's container runtime; numbers may change at a reboot."
    )
    dev_root: str = option(
        "",
        "The directory on the host whose `dev` has the NVIDIA device nodes; by default `driverRoot` if it "
        "has them, else `/`.",
        example="/run/nvidia/driver",
    )
    driver_directory: str = option(
        "",
        "With `device-specs`: the directory on the host with the driver's programs and libraries, which a "
        "container sees as `/usr/local/nvidia`.",
        example="/opt/nvidia",
    )
    gds_enabled: bool = option(
        False,
        "Whether containers get GPUDirect Storage: from NVIDIA's container runtime (`NVIDIA_GDS`), and with "
        "`cdi` by the name `…/gds=all`.",
    )
    mofed_enabled: bool = option(
        False,
        "The same for devices with NVIDIA's network driver (`NVIDIA_MOFED`, `…/mofed=all`).",
    )
    gdrcopy_enabled: bool = option(False, "The same for GDRCopy (`NVIDIA_GDRCOPY`, `…/gdrcopy=all`).")
    imex_channel_IDs: tuple[int, ...] = option(
        (),
        "The channels for memory shared between nodes (IMEX) that each container with NVIDIA GPUs gets, if "
        "the node has them; with `cdi` as `…/imex-channel=<number>`.",
        example=[0],
    )
    nvidia_CTK_path: str = option(
        "/usr/bin/nvidia-ctk",
        "With `cdi`: the path on the host of nvidia-ctk, which writes the specification.",
    )
    nvidia_CDI_hook_path: str = option(
        "",
        "With `cdi`: the path on the host of the program for the specification's hooks; by default the one "
        "that nvidia-ctk finds.",
        example="/usr/bin/nvidia-cdi-hook",
    )
    cdi_directories: tuple[str, ...] = option(
        ("/etc/cdi", "/var/run/cdi"),
        "With `cdi`: the directories in which the container runtime looks for specifications; devhost writes "
        "to the last one.",
    )
    mig: Literal["static", "dynamic"] = option(
        "static",
        "Whose MIG instances are offered: `static`, those that an administrator has created; `dynamic`, also "
        "those that fit beside them, which devhost creates for a claim and then destroys.",
        example="dynamic",
    )
    bypath: Literal["single", "none", "all"] = option(
        "single",
        "Which names in `/dev/dri/by-path` a container with Intel GPUs gets: those of its GPUs, none, or the "
        "whole directory.",
    )

    occupied: Literal["ignore", "refuse"] = option(
        "ignore",
        "With `refuse`, an NVIDIA or AMD GPU is Unhealthy while a process uses it that has no pod, or whose "
        "pod does not hold it. devhost needs the process ids of the node (`hostPID`).",
        example="refuse",
    )

    temperature_limit: int = option(
        0,
        "The temperature in degrees Celsius, of any sensor, from which an AMD, Intel or other DRM card is "
        "Unhealthy; 0 disables the check.",
        example=100,
    )
    uncorrectable_errors: int = option(
        1,
        "The number of uncorrectable memory and cache errors, since the driver was loaded, that makes an AMD "
        "card Unhealthy; 0 disables the check.",
    )
    health_checks: Literal["all", "none"] | tuple[HealthCheck, ...] = option(
        "all",
        "Which faults make an NVIDIA GPU Unhealthy although NVML answers: `all`, `none`, or a list. "
        "`xid`: error numbers. `ecc`: uncorrectable memory errors. `recovery`: the driver recommends a reset "
        "or a reboot. `remap`: memory needs a reset to be replaced, or cannot be replaced. `drain`: "
        "`nvidia-smi drain`. `fabric`: the fabric manager has not set up its NVLinks. `confidential`: "
        "confidential computing is not ready. `license`: a vGPU has no license. `compute`: the compute mode "
        "is Prohibited.",
        example=["xid", "ecc"],
    )
    ignore_xids: Literal["all"] | tuple[int, ...] = option(
        (),
        "NVIDIA's error numbers (Xid) that do not make a GPU Unhealthy, in addition to those that programs "
        "cause (13, 31, 43, 45, 68 and 109); or `all`.",
        example=[63, 74],
    )
    heed_xids: tuple[int, ...] = option(
        (), "Xids that make a GPU Unhealthy although they would be ignored.", example=[31]
    )
    partitions: tuple[Layout, ...] = option(
        (),
        "How GPUs are partitioned; the first entry that selects a GPU counts. By default devhost partitions "
        "no GPU.",
    )

    @property
    def provisions(self) -> bool:
        """Whether devhost changes hardware."""
        return bool(self.partitions) or self.mig == "dynamic"

    @property
    def strategies(self) -> frozenset[str]:
        """The strategies by which a container gets NVIDIA GPUs."""
        wanted = self.device_list_strategy
        return frozenset((wanted,) if isinstance(wanted, str) else wanted)

    @property
    def uses_runtime(self) -> bool:
        """Whether any strategy works through NVIDIA's container runtime."""
        return bool(self.strategies & FOR_RUNTIME)

    @property
    def checks(self) -> frozenset[str]:
        """The faults that make an NVIDIA GPU Unhealthy."""
        if isinstance(self.health_checks, str):
            return frozenset(get_args(HealthCheck)) if self.health_checks == "all" else frozenset()
        return frozenset(self.health_checks)

    @property
    def counted(self) -> Mapping[str, str]:
        """The attributes of the devices that exist only once a claim has them; empty if there are none."""
        return {"vendor": "nvidia", "kind": "mig"} if self.mig == "dynamic" else {}

    @property
    def notes(self) -> Collection[str]:
        """What `devhost check` should mention."""
        if self.occupied == "ignore":
            return ()
        return ("occupied: refuse needs the process ids of the node: hostPID: true in a pod",)

    def __post_init__(self) -> None:
        self._check_paths()
        self._check_strategies()
        self._check_health()
        self._check_partitions()

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
            raise OptionError("envvar and volume-mounts set the same variable: remove one of them", key=key)
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
        if "cdi" in strategies and self.mig == "dynamic":
            hint = "use envvar, volume-mounts or device-specs"
            raise OptionError(
                "dynamic cannot be together with cdi, whose specification names no instance before it exists",
                key="mig",
                hint=hint,
            )
        if "cdi" in strategies and not self.cdi_directories:
            raise OptionError("must have a member", key="cdiDirectories", hint="for example /var/run/cdi")

    def _check_health(self) -> None:
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

    def _check_partitions(self) -> None:
        if len(self.partitions) > MOST_LAYOUTS:
            raise OptionError(f"must have at most {MOST_LAYOUTS} members", key="partitions")
        for number, layout in enumerate(self.partitions):
            if layout.mig is not None and self.mig == "dynamic":
                raise OptionError(
                    "cannot be together with mig: dynamic, which creates the instances that claims need",
                    key=f"partitions[{number}].mig",
                    hint="remove one of them",
                )
            for before, earlier in enumerate(self.partitions[:number]):
                if earlier.vendor == layout.vendor and covers(earlier.where, layout.where):
                    raise OptionError(
                        f"has no effect: partitions[{before}] selects all of its GPUs",
                        key=f"partitions[{number}]",
                        hint="write the entry for fewer GPUs first",
                    )


@frozen
class Mps:
    """The location of the MPS server of a resource: either ``root`` or ``pipe_directory`` is given."""

    root: str = option(
        "",
        "The root directory of the NVIDIA mps-control-daemon on the host, which runs a server for each "
        "resource and sets its limits.",
        example="/run/nvidia/mps",
    )
    pipe_directory: str = option(
        "",
        "The directory on the host with the pipes of one server for the node, as on GKE; devhost then sets "
        "the limits of threads and memory of each container.",
        example="/tmp/nvidia-mps",
    )
    shm_directory: str = option(
        "",
        "With `pipeDirectory`: the directory on the host that a container sees as `/dev/shm`, if the server "
        "does not use the container's.",
        example="/run/nvidia/shm",
    )

    def __post_init__(self) -> None:
        if bool(self.root) == bool(self.pipe_directory):
            raise OptionError(
                "must have either root or pipeDirectory",
                hint="root: /run/nvidia/mps for NVIDIA's mps-control-daemon, pipeDirectory: /tmp/nvidia-mps "
                "for one server",
            )
        if self.shm_directory and self.root:
            raise OptionError("belongs to pipeDirectory: root has its own", key="shmDirectory")
        paths = {
            "root": self.root,
            "pipeDirectory": self.pipe_directory,
            "shmDirectory": self.shm_directory,
        }
        for key, path in paths.items():
            if path and not path.startswith("/"):
                raise OptionError(f'"{path}" is not absolute', key=key)


@frozen
class Hami:
    """The library of HAMi, which limits what programs in a container use of NVIDIA GPUs."""

    directory: str = option(
        meaning="The directory on the host with `libvgpu.so`, and with an `ld.so.preload` that names "
        "`/usr/local/vgpu/libvgpu.so`.",
        example="/usr/local/vgpu",
    )
    lock_directory: str = option(
        "/tmp/vgpulock", "The directory on the host in which containers take turns when they start."
    )

    def __post_init__(self) -> None:
        for key, path in (("directory", self.directory), ("lockDirectory", self.lock_directory)):
            if not path.startswith("/"):
                raise OptionError(f'"{path}" is not absolute', key=key)


TIME_SLICE = "timeSlice"
"""The use that needs NVIDIA's program for time slices."""

TimeSlice = Literal["default", "short", "medium", "long"]
"""How long a program has an NVIDIA GPU before the next one's turn, in the order of nvidia-smi's numbers."""

FIRMWARE = "firmware"
"""The use that needs the firmware interface of an Intel card."""

HAMI_USE = "hami:"
"""What the name of a use begins with that needs HAMi's library; its directory follows."""


@frozen
class GpuResourceOptions:
    """The keys of an entry under ``resources``."""

    firmware: bool = option(
        False,
        "Whether a container with Intel GPUs also gets the nodes of their firmware interface, `/dev/mei<n>`: "
        "for monitoring agents.",
    )
    mps: Mps | None = option(
        None,
        "The MPS server through which containers share whole NVIDIA GPUs.",
        example={"root": "/run/nvidia/mps"},
    )
    hami: Hami | None = option(
        None,
        "The library of HAMi, which limits memory and cores of containers that share NVIDIA GPUs.",
        example={"directory": "/usr/local/vgpu"},
    )
    time_slice: TimeSlice | None = option(
        None,
        "How long one program has an NVIDIA GPU before the next one's turn; set before containers start. If "
        "absent, GPUs keep what they have.",
        example="long",
    )
    resource: str = field(default="", init=False, metadata={"meaning": "The name of the entry."})

    def __post_init__(self) -> None:
        if self.time_slice and self.mps:
            raise OptionError(
                "has no effect with mps, whose server runs all programs together",
                key="timeSlice",
                hint="remove one of them",
            )

    def named(self, resource: str) -> Self:
        """The same with the name of the entry: NVIDIA's daemon names directories after resources.

        Raises:
            OptionError: the name is a template, and MPS is configured.
        """
        if self.mps and "{" in resource:
            raise OptionError(
                f"needs an entry with a plain name, but {resource} is a template",
                key="mps",
                hint="write an entry for each name",
            )
        made = replace(self)
        object.__setattr__(made, "resource", resource)
        return made

    @property
    def uses(self) -> Collection[str]:
        """The uses that a card can be unusable for (``Device.unusable_for``)."""
        firmware = [FIRMWARE] if self.firmware else []
        time_slice = [TIME_SLICE] if self.time_slice else []
        return [*firmware, *time_slice, *self.limiters]

    @property
    def only_for(self) -> Mapping[str, Mapping[str, str]]:
        """The devices that keys are for."""
        return {"timeSlice": {"vendor": NVIDIA, "kind": GPU}} if self.time_slice else {}

    @property
    def prepares(self) -> bool:
        """Whether GPUs must be set up before each container starts."""
        return self.time_slice is not None

    @property
    def limiters(self) -> Collection[str]:
        """Those of them that limit containers."""
        wanted = ((self.mps_use, self.mps), (self.hami_use, self.hami))
        return [use for use, limiter in wanted if limiter]

    @property
    def limits(self) -> Mapping[str, Collection[str]]:
        """By what containers can be limited to amounts of memory and cores."""
        return {key: ("memory", "cores") for key in ("mps", "hami") if getattr(self, key)}

    @property
    def mps_use(self) -> str:
        """The name of the MPS server of this resource there."""
        return f"mps:{self.resource}"

    @property
    def hami_use(self) -> str:
        """The name of HAMi's library there."""
        return f"{HAMI_USE}{self.hami.directory}" if self.hami else ""


NO_OPTIONS = GpuResourceOptions()
"""The options of an entry without any of the keys."""


def mps_entries(entries: Collection[object]) -> list[GpuResourceOptions]:
    return [entry for entry in entries if isinstance(entry, GpuResourceOptions) and entry.mps]


def sharing(entries: Collection[object]) -> list[GpuResourceOptions]:
    """The entries that need anything of the host by which containers share NVIDIA GPUs."""
    own = (entry for entry in entries if isinstance(entry, GpuResourceOptions))
    return [entry for entry in own if entry.limiters or entry.time_slice]
