"""Converts gpu_config.json, the flags and XID_CONFIG of the GKE GPU device plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from devhost.backend import OptionError
from devhost.config.diagnostics import shown
from devhost.config.language import MAX_REPLICAS
from devhost.config.reader import Bounds, keys

from .source import Source
from .workload import WORKLOADS, Options, file_of, the_container
from .writing import Entry, Written, document

CONFIG_KEY = "gpu_config.json"  # the file's name below /etc/nvidia, and the key of a ConfigMap
DRIVER = "/home/kubernetes/bin/nvidia"  # on the node, unless the flag -host-path names another directory
_ALWAYS = 48  # the Xid that is always considered: a double-bit memory error
_VULKAN = "devhost always uses vulkan/icd.d in the driver's directory."
_WITHOUT_PLACE = {
    **dict.fromkeys(("host-vulkan-icd-path", "container-vulkan-icd-path"), _VULKAN),
    "enable-container-gpu-metrics": "devhost has no metrics of GPU usage.",
    "publish-driver-version": "devhost does not annotate the node.",
}
_SWITCHES = ("enable-container-gpu-metrics", "enable-health-monitoring", "publish-driver-version")
_OF_THE_PROCESS = (
    "LD_LIBRARY_PATH", "gpu-config", "gpu-metrics-collection-interval", "gpu-metrics-port",
    "plugin-directory")  # fmt: skip
_HINT = "give gpu_config.json, a ConfigMap that contains it, or the plugin's DaemonSet"
_DIFFERS = [
    "device ids of the plugin are nvidia0 and nvidia0/vgpu0, those of devhost UUIDs: drain the node before "
    "the switch",
    "partitions of other sizes are an error for the plugin; devhost does not offer them",
    "the plugin sets the node condition XidCriticalError; devhost does not",
]


@dataclass(frozen=True, slots=True)
class _Sharing:
    GPU_sharing_strategy: Literal["time-sharing", "mps", ""] = ""
    Max_shared_clients_per_GPU: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0

    def __post_init__(self) -> None:
        if (self.GPU_sharing_strategy == "") != (self.Max_shared_clients_per_GPU == 0):
            raise OptionError("set both GPUSharingStrategy and MaxSharedClientsPerGPU, or none of them")


@dataclass(frozen=True, slots=True)
class _Config:
    GPU_partition_size: str = ""
    Max_time_shared_clients_per_GPU: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0
    GPU_sharing_config: _Sharing = _Sharing()
    Health_critical_xid: tuple[int, ...] = ()


def convert(source: Source) -> str:
    every = source.of_kinds("", "ConfigMap", *WORKLOADS, hint=_HINT)
    program = "nvidia-gpu-device-plugin"
    plugin = the_container(source, lambda one: one.starts(program), "the GKE GPU device plugin")
    driver, xids = _of_flags(plugin.options(_SWITCHES)) if plugin else (DRIVER, [])
    config = _Config()
    if found := file_of(source, plugin, "", CONFIG_KEY, marks=keys(_Config)) or source.one_of(source.bare):
        if found.is_mapping:
            found.expected(keys(_Config))
        config = found.as_dataclass(_Config, source.note)
    elif plugin:
        what = "so no partition size and no sharing is converted. If a node has it in /etc/nvidia, add it"
        source.note(f"{CONFIG_KEY} is not in the input, {what} as a further document.")
    else:
        what = f"none of its containers runs the GKE GPU device plugin ({program})"
        source.diagnostics.fail(every[0].node.mark, what, _HINT)
    options: dict[str, Written] = {"deviceListStrategy": "device-specs", "driverDirectory": driver}
    options["healthChecks"] = "none" if xids is None else ["xid"]
    if xids is not None:
        options |= {"ignoreXids": "all", "heedXids": sorted({_ALWAYS, *config.Health_critical_xid, *xids})}
    return document(source, "the GKE GPU device plugin", _DIFFERS, [_entry(config)], gpu=options)


def _of_flags(options: Options) -> tuple[str, list[int] | None]:
    """The driver's directory, and the Xids to consider as well; ``None`` if the plugin considers none."""
    watch, path = options.get("enable-health-monitoring"), options.get("container-path")
    driver, variable = options.get("host-path").text() or DRIVER, options.get("XID_CONFIG")
    if path and path.text() != "/usr/local/nvidia":
        path.source.note(f"-container-path {path.text()}: devhost always uses /usr/local/nvidia.")
    xids = variable.text().split(",") if variable else []
    for number in xids:
        if not number.strip().isdecimal():
            variable.refuse(f"XID_CONFIG: {shown(number)} is not a number", "as in 74,79")
    options.finish(*_OF_THE_PROCESS, **_WITHOUT_PLACE)
    return driver, [*map(int, xids)] if watch.is_true() else None


def _entry(config: _Config) -> Entry:
    size, sharing = config.GPU_partition_size, config.GPU_sharing_config
    clients = config.Max_time_shared_clients_per_GPU or sharing.Max_shared_clients_per_GPU
    shared: dict[str, Written] = {"share": {"replicas": clients, "maxPerContainer": 1}} if clients else {}
    if sharing.GPU_sharing_strategy == "mps" and not config.Max_time_shared_clients_per_GPU:
        shared = {"share": {"replicas": clients}, "mps": {"pipeDirectory": "/tmp/nvidia-mps"}}
    kind = {"kind": "mig", "profile": size} if size else {"kind": "gpu"}
    return Entry("nvidia.com/gpu", "gpu", [{"vendor": "nvidia", **kind}], {**shared, "permissions": "mrw"})
