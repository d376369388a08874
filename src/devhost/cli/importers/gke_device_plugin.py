"""Converts the configuration of the GKE GPU device plugin to devhost.yaml.

The input is ``gpu_config.json`` (``GPUConfig`` in ``pkg/gpu/nvidia/manager.go`` of
container-engine-accelerators), a ConfigMap that contains it, or the plugin's DaemonSet with its flags and its
variable ``XID_CONFIG``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from devhost.backend import OptionError
from devhost.config.diagnostics import Diagnostics, shown
from devhost.config.reader import WRONG, Bounds, read_dataclass
from devhost.planning.settings import MAX_REPLICAS

from .gojson import Remark
from .kubernetes import configuration, objects, of_kinds
from .nvidia.config import pruned
from .workload import WORKLOADS, Argument, program
from .writing import Entry, Value, document

CONFIG_KEY = "gpu_config.json"
"""The file's name below ``/etc/nvidia``, which is also the key of a ConfigMap."""

DRIVER = "/home/kubernetes/bin/nvidia"
"""The driver's directory on the node, unless the flag ``-host-path`` names another."""

_ALWAYS = 48
"""The Xid that is always considered: a double-bit memory error."""

_SWITCHES = (
    "logtostderr",
    "alsologtostderr",
    "enable-container-gpu-metrics",
    "enable-health-monitoring",
    "publish-driver-version",
)
_OF_THE_PROCESS = frozenset(
    {"alsologtostderr", "gpu-config", "gpu-metrics-collection-interval", "gpu-metrics-port", "logtostderr"}
    | {"plugin-directory", "v", "stderrthreshold", "host-path"}
)
_HINT = "give gpu_config.json, a ConfigMap that contains it, or the plugin's DaemonSet"


@dataclass(frozen=True, slots=True)
class _Sharing:
    GPU_sharing_strategy: Literal["time-sharing", "mps", ""] = ""
    Max_shared_clients_per_GPU: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0

    def __post_init__(self) -> None:
        if self.GPU_sharing_strategy and not self.Max_shared_clients_per_GPU:
            raise OptionError("MaxSharedClientsPerGPU is required with a strategy", hint="for example 4")
        if self.Max_shared_clients_per_GPU and not self.GPU_sharing_strategy:
            hint = "time-sharing or mps"
            raise OptionError("GPUSharingStrategy is required with a number of clients", hint=hint)


@dataclass(frozen=True, slots=True)
class _Config:
    GPU_partition_size: str = ""
    Max_time_shared_clients_per_GPU: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0
    GPU_sharing_config: _Sharing = _Sharing()
    Health_critical_xid: tuple[int, ...] = ()


@dataclass(slots=True)
class _Result:
    config: _Config = field(default_factory=_Config)
    driver: str = DRIVER
    xids: list[int] = field(default_factory=list)
    is_watched: bool = True
    notes: list[str] = field(default_factory=list)


def convert(data: bytes, file_name: str, key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or Kubernetes objects that contain it or start the plugin.
        file_name: appears in the diagnostics.
        key: which entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    diagnostics = Diagnostics(file_name)
    result = _Result()
    remarks: list[Remark] = []
    is_found = False
    every = objects(data, diagnostics)
    for one in of_kinds(every, ("", "ConfigMap", *WORKLOADS), diagnostics, hint=_HINT):
        if one.kind in WORKLOADS:
            if found := program(one, "nvidia-gpu-device-plugin"):
                is_found = True
                _of_flags(found.arguments(_SWITCHES), result)
                if xids := found.environment().get("XID_CONFIG"):
                    result.xids += _xids(xids, diagnostics)
            continue
        is_found = True
        node, place = configuration(one, key or CONFIG_KEY)
        config = read_dataclass(pruned(node, _Config, place, remarks.append), _Config, place)
        if config is WRONG:
            raise place.diagnostics.error()
        result.config = config
    if not is_found:
        what = "none of its containers runs the GKE GPU device plugin (nvidia-gpu-device-plugin)"
        diagnostics.fail(every[0].node.mark, what, _HINT)
    if diagnostics.found:
        raise diagnostics.error()
    result.notes[:0] = map(str, remarks)
    return _written(result)


def _of_flags(given: Mapping[str, Argument], result: _Result) -> None:
    on = {name for name in _SWITCHES if name in given and given[name].value.lower() in ("true", "t", "1")}
    result.is_watched = "enable-health-monitoring" in on
    for name, argument in given.items():
        if name == "host-path":
            result.driver = argument.value
        elif name == "container-path" and argument.value != "/usr/local/nvidia":
            result.notes.append(f"-container-path {argument.value}: devhost always uses /usr/local/nvidia.")
        elif name in ("host-vulkan-icd-path", "container-vulkan-icd-path"):
            result.notes.append(f"-{name}: devhost always uses vulkan/icd.d in the driver's directory.")
        elif name == "enable-container-gpu-metrics" and name in on:
            result.notes.append("-enable-container-gpu-metrics: devhost has no metrics of GPU usage.")
        elif name == "publish-driver-version" and name in on:
            result.notes.append("-publish-driver-version: devhost does not annotate the node.")
        elif name not in {*_OF_THE_PROCESS, *_SWITCHES, "container-path"}:
            result.notes.append(f"-{name}: the plugin has no such flag, and does not start with it.")


def _xids(given: Argument, diagnostics: Diagnostics) -> Iterator[int]:
    for number in given.value.split(","):
        if number.strip().isdecimal():
            yield int(number)
        else:
            message = f"XID_CONFIG: {shown(number)} is not a number"
            diagnostics.add(given.mark, given.path, message, "as in 74,79")


def _written(result: _Result) -> str:
    config = result.config
    sharing = config.GPU_sharing_config
    strategy, clients = sharing.GPU_sharing_strategy, sharing.Max_shared_clients_per_GPU
    if config.Max_time_shared_clients_per_GPU:
        strategy, clients = "time-sharing", config.Max_time_shared_clients_per_GPU
    where: dict[str, Value] = {"vendor": "nvidia", "kind": "gpu"}
    if config.GPU_partition_size:
        where = {"vendor": "nvidia", "kind": "mig", "profile": config.GPU_partition_size}
    keys: dict[str, Value] = {}
    if strategy == "mps":
        keys["share"] = {"replicas": clients}
        keys["mps"] = {"pipeDirectory": "/tmp/nvidia-mps"}
    elif clients:
        keys["share"] = {"replicas": clients, "maxPerContainer": 1}
    keys["permissions"] = "mrw"
    xids = sorted({_ALWAYS, *config.Health_critical_xid, *result.xids})
    options: dict[str, Value] = {"deviceListStrategy": "device-specs", "driverDirectory": result.driver}
    if result.is_watched:
        options |= {"healthChecks": ["xid"], "ignoreXids": "all", "heedXids": xids}
    else:
        options["healthChecks"] = "none"
    differs = [
        "device ids of the plugin are nvidia0 and nvidia0/vgpu0, those of devhost UUIDs: drain the "
        "node before "
        "the switch",
        "partitions of other sizes are an error for the plugin; devhost does not offer them",
        "the plugin sets the node condition XidCriticalError; devhost does not",
    ]
    entry = Entry("nvidia.com/gpu", "gpu", [where], keys)
    return document(
        "the GKE GPU device plugin", differs, [entry], notes=result.notes, backends={"gpu": options}
    )
