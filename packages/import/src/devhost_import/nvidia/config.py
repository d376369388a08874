"""The fields of the NVIDIA device plugin's configuration file, version v1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.document import Fields, Items, Scalar
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import Bounds, Raw

_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+|[0-9]{1,4}(:[0-9]{1,4})?")

Strategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


def full_name(name: str) -> str:
    """A resource's name with the plugin's domain, which its file may omit."""
    return name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"


def _check_name(name: str, key: str) -> None:
    if problem := naming.problem(full_name(name)):
        raise OptionError(f"{shown(full_name(name))} {problem}", key=key)


@dataclass(frozen=True, slots=True)
class Plugin:
    """``flags.plugin``."""

    pass_device_specs: bool = False
    device_list_strategy: Strategy | tuple[Strategy, ...] = "envvar"
    device_ID_strategy: Literal["uuid", "index"] = "uuid"
    cdi_annotation_prefix: str = ""
    nvidia_CTK_path: str = ""
    container_driver_root: str = ""
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"

    @property
    def strategies(self) -> tuple[str, ...]:
        given = self.device_list_strategy
        return tuple(dict.fromkeys((given,) if isinstance(given, str) else given)) or ("envvar",)


@dataclass(frozen=True, slots=True)
class FeatureDiscovery:
    """``flags.gfd``, for gpu-feature-discovery, the plugin's companion that labels nodes."""

    output_file: str = ""
    oneshot: Raw = option(None)
    no_timestamp: Raw = option(None)
    sleep_interval: Raw = option(None)
    machine_type_file: Raw = option(None)


@dataclass(frozen=True, slots=True)
class Flags:
    """``flags``."""

    mig_strategy: Literal["none", "single", "mixed"] = "none"
    fail_on_init_error: bool = True
    nvidia_driver_root: str = ""
    nvidia_dev_root: str = ""
    gds_enabled: bool = False
    mofed_enabled: bool = False
    gdrcopy_enabled: bool = False
    mps_root: str = ""
    device_discovery_strategy: str = "auto"
    use_node_feature_API: Raw = option(None)
    plugin: Plugin = Plugin()
    gfd: FeatureDiscovery | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of ``resources.gpus`` or ``resources.mig``."""

    pattern: str = option(example='"*"')
    name: str = option(example="gpu")

    def __post_init__(self) -> None:
        _check_name(self.name, "name")


@dataclass(frozen=True, slots=True)
class _Resources:
    gpus: tuple[Pattern, ...] = ()
    mig: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class Shared:
    """One entry of ``sharing.timeSlicing.resources``; ``devices`` are ``all``, a number, or a list."""

    name: str = option(example="nvidia.com/gpu")
    replicas: Annotated[int, Bounds(2, MAX_REPLICAS)] = option(example=10)
    rename: str = ""
    devices: Raw = option(None)

    def __post_init__(self) -> None:
        _check_name(self.name, "name")
        if self.rename:
            _check_name(self.rename, "rename")
        node = self.devices
        is_wrong = isinstance(node, Scalar) and node.text != "all" and (node.kind != "int" or not self.count)
        if is_wrong or isinstance(node, Fields):
            hint = "all is the default" if is_wrong else ""
            raise OptionError(f"must be all, a number or a list, not {node}", key="devices", hint=hint)
        for n, one in enumerate(self.listed):
            if not _DEVICE.fullmatch(one):
                raise OptionError("is not an index, a MIG index or a UUID", key=f"devices[{n}]")

    @property
    def count(self) -> int:
        text = self.devices.text if isinstance(self.devices, Scalar) else ""
        return int(text) if re.fullmatch("[0-9]{1,4}", text) else 0

    @property
    def listed(self) -> list[str]:
        items = self.devices.items if isinstance(self.devices, Items) else ()
        return [one.text if isinstance(one, Scalar) else "" for one in items]


@dataclass(frozen=True, slots=True)
class _Slicing:
    resources: Annotated[tuple[Shared, ...], Bounds(1, 1000)] = option()
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False


@dataclass(frozen=True, slots=True)
class _Sharing:
    time_slicing: _Slicing | None = None
    mps: _Slicing | None = None

    def __post_init__(self) -> None:
        if self.time_slicing and self.mps:
            what = "a GPU can be shared by timeSlicing or mps, not both"
            raise OptionError(what, key="mps", hint="remove one")


@dataclass(frozen=True, slots=True)
class Imex:
    """``imex``."""

    channel_IDs: tuple[Annotated[int, Bounds(0, 0)], ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file."""

    version: Literal["v1", ""] = "v1"
    flags: Flags = Flags()
    resources: _Resources = _Resources()
    sharing: _Sharing = _Sharing()
    imex: Imex = Imex()

    def __post_init__(self) -> None:
        if self.sharing.mps and self.flags.mig_strategy == "mixed":
            message = "with migStrategy mixed the plugin does not start"
            raise OptionError(message, key="sharing.mps", hint="use timeSlicing, or migStrategy none")
