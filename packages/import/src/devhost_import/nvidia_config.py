"""The fields of the NVIDIA device plugin's configuration file, version v1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import Bounds, Form, Raw

_Strategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
_UUID = r"(GPU|MIG)-[0-9A-Za-z/-]+|[0-9]{1,4}(:[0-9]{1,4})?"
_Device = Annotated[str, Form(_UUID, "an index, a MIG index or a UUID")] | Annotated[int, Bounds(0, 9999)]


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
    device_list_strategy: _Strategy | tuple[_Strategy, ...] = "envvar"
    device_ID_strategy: Literal["uuid", "index"] = "uuid"
    cdi_annotation_prefix: str = ""
    nvidia_CTK_path: str = ""
    container_driver_root: str = ""
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"

    @property
    def strategies(self) -> tuple[str, ...]:
        given = self.device_list_strategy
        return tuple(dict.fromkeys((given,) if isinstance(given, str) else given)) or ("envvar",)

    @property
    def has_cdi(self) -> bool:
        return any(one.startswith("cdi-") for one in self.strategies)


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
    gfd: dict[str, Raw] | None = None  # of gpu-feature-discovery, the plugin's companion that labels nodes


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
    """One entry of ``sharing.timeSlicing.resources``."""

    name: str = option(example="nvidia.com/gpu")
    replicas: Annotated[int, Bounds(2, MAX_REPLICAS)] = option(example=10)
    rename: str = ""
    devices: Literal["all"] | Annotated[int, Bounds(1, 9999)] | tuple[_Device, ...] = "all"

    def __post_init__(self) -> None:
        _check_name(self.name, "name")
        if self.rename:
            _check_name(self.rename, "rename")

    @property
    def listed(self) -> list[str]:
        return [*map(str, self.devices)] if isinstance(self.devices, tuple) else []


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
