"""Converts the configuration of the GKE GPU device plugin to devhost.yaml.

The input is ``gpu_config.json`` (``GPUConfig`` in ``pkg/gpu/nvidia/manager.go`` of
container-engine-accelerators), a ConfigMap that contains it, or the plugin's DaemonSet with its flags and its
variable ``XID_CONFIG``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from devhost.backend import OptionError
from devhost.config.diagnostics import shown
from devhost.config.document import Fields, Node
from devhost.config.language import MAX_REPLICAS
from devhost.config.reader import WRONG, Bounds, keys

from .source import Source
from .workload import WORKLOADS, Option, Options, the_container
from .writing import Entry, Written, document

CONFIG_KEY = "gpu_config.json"
"""The file's name below ``/etc/nvidia``, which is also the key of a ConfigMap."""

DRIVER = "/home/kubernetes/bin/nvidia"
"""The driver's directory on the node, unless the flag ``-host-path`` names another."""

_ALWAYS = 48
"""The Xid that is always considered: a double-bit memory error."""

_VULKAN = "devhost always uses vulkan/icd.d in the driver's directory."
_WITHOUT_PLACE = {
    "host-vulkan-icd-path": _VULKAN,
    "container-vulkan-icd-path": _VULKAN,
    "enable-container-gpu-metrics": "devhost has no metrics of GPU usage.",
    "publish-driver-version": "devhost does not annotate the node.",
}
"""Flags without a counterpart."""

_SWITCHES = (
    *("logtostderr", "alsologtostderr", "enable-container-gpu-metrics"),
    *("enable-health-monitoring", "publish-driver-version"),
)
_OF_THE_PROCESS = frozenset(
    {"alsologtostderr", "gpu-config", "gpu-metrics-collection-interval", "gpu-metrics-port", "logtostderr"}
    | {"plugin-directory", "v", "stderrthreshold", "host-path"}
)
_WITHOUT_FILE = (
    f"{CONFIG_KEY} is not in the input, so no partition size and no sharing is converted. If a node has it "
    "in /etc/nvidia, add it as a further document."
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


class _Started(NamedTuple):
    """What the plugin's flags and variables set."""

    driver: str = DRIVER
    is_watched: bool = True
    xids: Sequence[int] = ()


def convert(data: bytes, file_name: str, key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    ``key`` is the entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    source = Source(data, file_name, "gke-device-plugin")
    every = source.of_kinds("", "ConfigMap", *WORKLOADS, hint=_HINT)
    config, started = _Config(), _Started()
    plugin = the_container(
        source, lambda one: one.starts("nvidia-gpu-device-plugin"), "the GKE GPU device plugin"
    )
    if plugin is not None:
        started = _of_flags(plugin.options(_SWITCHES), source)
    bare = source.one_of(source.bare)
    found = source.config_map(CONFIG_KEY, likely=_is_config, key=key) or bare
    if found is not None:
        if found.is_mapping:
            found.expected(sorted(keys(_Config)), _is_config)
        read = found.as_dataclass(_Config, source.remark)
        config = config if read is WRONG else read
    elif plugin is None:
        what = "none of its containers runs the GKE GPU device plugin (nvidia-gpu-device-plugin)"
        source.diagnostics.fail(every[0].node.mark, what, _HINT)
    else:
        source.note(_WITHOUT_FILE)
    source.check()
    return _written(config, started, source)


def _is_config(node: Node) -> bool:
    names = {key.lower() for key in keys(_Config)}
    return isinstance(node, Fields) and any(key.lower() in names for key in node.entries)


def _of_flags(options: Options, source: Source) -> _Started:
    watch, driver, path = map(options.flag, ("enable-health-monitoring", "host-path", "container-path"))
    if path and path.text != "/usr/local/nvidia":
        source.note(f"-container-path {path.text}: devhost always uses /usr/local/nvidia.")
    xids = options.variable("XID_CONFIG")
    options.finish("LD_LIBRARY_PATH", *_OF_THE_PROCESS, named=_WITHOUT_PLACE)
    is_watched = watch is not None and watch.is_true
    return _Started(driver.text if driver else DRIVER, is_watched, list(_xids(xids)) if xids else [])


def _xids(given: Option) -> Iterator[int]:
    for number in given.text.split(","):
        if number.strip().isdecimal():
            yield int(number)
        else:
            message = f"XID_CONFIG: {shown(number)} is not a number"
            given.place.report(given, message, "as in 74,79")


def _written(config: _Config, started: _Started, source: Source) -> str:
    sharing = config.GPU_sharing_config
    strategy, clients = sharing.GPU_sharing_strategy, sharing.Max_shared_clients_per_GPU
    if config.Max_time_shared_clients_per_GPU:
        strategy, clients = "time-sharing", config.Max_time_shared_clients_per_GPU
    where: dict[str, Written] = {"vendor": "nvidia", "kind": "gpu"}
    if config.GPU_partition_size:
        where = {"vendor": "nvidia", "kind": "mig", "profile": config.GPU_partition_size}
    keys: dict[str, Written] = {}
    if strategy == "mps":
        keys["share"] = {"replicas": clients}
        keys["mps"] = {"pipeDirectory": "/tmp/nvidia-mps"}
    elif clients:
        keys["share"] = {"replicas": clients, "maxPerContainer": 1}
    keys["permissions"] = "mrw"
    xids = sorted({_ALWAYS, *config.Health_critical_xid, *started.xids})
    options: dict[str, Written] = {"deviceListStrategy": "device-specs", "driverDirectory": started.driver}
    if started.is_watched:
        options |= {"healthChecks": ["xid"], "ignoreXids": "all", "heedXids": xids}
    else:
        options["healthChecks"] = "none"
    differs = [
        "device ids of the plugin are nvidia0 and nvidia0/vgpu0, those of devhost UUIDs: drain the node "
        "before the switch",
        "partitions of other sizes are an error for the plugin; devhost does not offer them",
        "the plugin sets the node condition XidCriticalError; devhost does not",
    ]
    entry = Entry("nvidia.com/gpu", "gpu", [where], keys)
    return document(source, "the GKE GPU device plugin", differs, [entry], backends={"gpu": options})
