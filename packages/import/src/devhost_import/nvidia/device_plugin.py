"""Converts configurations of the NVIDIA device plugin and of the NVIDIA GPU operator to devhost.yaml.

Settings that the plugin reads but ignores (names by pattern, ``rename``, ``devices``) are omitted with a
remark, because pods request what the plugin serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from devhost.config.language import LABEL_DIRECTORY
from devhost.config.reader import keys
from devhost_import.source import Source
from devhost_import.writing import Written, document, given, several

from .config import Config, FeatureDiscovery, Plugin
from .entries import Entries
from .settings import settings

_DIFFERS = [
    "with devhost an Unhealthy GPU becomes Healthy again, with the plugin only after a restart",
    "devhost follows changes of GPUs and MIG instances, the plugin needs a restart",
]

_APPLICATION = [13, 31, 43, 45, 68, 109]
"""Xids that the plugin ignores unless they are enabled (``getDisabledHealthCheckXids`` in
``internal/rm/health.go``)."""


def convert(source: Source, *, as_written: bool) -> str:
    found = settings(source)
    config = found.config.as_dataclass(Config, source.note) or Config()  # else it is refused at the end
    options = _options(config, source) | _health(found.health)
    source.note(*_without_place(config))
    entries = list(Entries(config, source.note, as_written=as_written).all())
    labels: dict[str, Written] = {}
    if config.flags.gfd is not None:
        directory = str(PurePosixPath(config.flags.gfd.output_file or LABEL_DIRECTORY / "gfd").parent)
        labels = given(write=True, directory=directory != str(LABEL_DIRECTORY) and directory)
        source.note("labels: those of gpu-feature-discovery: remove that program, or both write them.")
    backends = {"gpu": options}
    return document(source, "the NVIDIA device plugin", _DIFFERS, entries, backends=backends, labels=labels)


def _options(config: Config, source: Source) -> dict[str, Written]:
    flags, plugin = config.flags, config.flags.plugin
    strategies = _strategies(plugin, source.note)
    program = plugin.nvidia_CTK_path if "cdi" in strategies else ""
    path = PurePosixPath(program)
    is_ctk = path.name == "nvidia-ctk"
    has_ctk = is_ctk or path.parent.name == "toolkit"  # NVIDIA's toolkit container installs both there
    return given(
        driverRoot=flags.nvidia_driver_root != "/" and flags.nvidia_driver_root,
        devRoot=flags.nvidia_dev_root != flags.nvidia_driver_root and flags.nvidia_dev_root,
        deviceListStrategy=strategies != ["envvar"] and several(strategies),
        deviceIDStrategy=plugin.device_ID_strategy == "index" and "index",
        nvidiaCTKPath=has_ctk and str(path.with_name("nvidia-ctk")),
        nvidiaCDIHookPath=program != "" and not is_ctk and str(path),
        gdsEnabled=flags.gds_enabled,
        mofedEnabled=flags.mofed_enabled,
        gdrcopyEnabled=flags.gdrcopy_enabled,
        imexChannelIDs=config.imex.channel_IDs,
    )


def _strategies(plugin: Plugin, note: Callable[[str], None]) -> list[str]:
    found = [one for one in plugin.strategies if not one.startswith("cdi-")]
    for_cdi = [one for one in plugin.strategies if one.startswith("cdi-")]
    if {"envvar", "volume-mounts"} <= {*found}:
        found.remove("envvar")
        note("deviceListStrategy: together with volume-mounts the plugin ignores envvar; it is omitted.")
    if plugin.pass_device_specs and found:
        found.append("device-specs")
    elif plugin.pass_device_specs:
        note("passDeviceSpecs: the plugin ignores it if CDI is the only strategy; it is omitted.")
    if for_cdi and "cdi-cri" not in for_cdi:
        note("cdi-annotations: devhost passes the names in the field for CDI devices, as with cdi-cri.")
    return [*found, "cdi"] if for_cdi else found


def _health(variables: Mapping[str, str]) -> dict[str, Written]:
    """``all`` and ``xids`` mean the same; if all are disabled, none can be enabled. It ignores words."""
    off, on = (
        {word.strip().lower() for word in variables.get(name, "").split(",")}
        for name in ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")
    )
    if on & {"all", "xids"}:
        return {"heedXids": _APPLICATION}
    if off & {"all", "xids"}:
        return {"healthChecks": "none"}
    numbers = {
        name: sorted({int(word) for word in words if word.isdecimal()} - {0})
        for name, words in (("ignoreXids", off), ("heedXids", on))
    }
    return given(**numbers)


def _without_place(config: Config) -> Iterator[str]:
    flags, plugin = config.flags, config.flags.plugin
    if config.imex.channel_IDs and config.imex.required:
        yield "imex.required is omitted: a container gets the channels that its node has."
    if config.sharing.mps:
        yield (
            "sharing.mps: devhost does not start MPS servers, it uses those of the plugin's "
            "mps-control-daemon: keep it running."
        )
    elif flags.mps_root:
        yield "mpsRoot is omitted: it matters only with sharing.mps."
    if plugin.nvidia_CTK_path and not any(one.startswith("cdi-") for one in plugin.strategies):
        yield "nvidiaCTKPath is omitted: it matters only with CDI."
    if not flags.fail_on_init_error:
        yield "failOnInitError is omitted: devhost retries GPUs that cannot be used."
    if flags.device_discovery_strategy not in ("auto", "nvml"):
        yield f"deviceDiscoveryStrategy {flags.device_discovery_strategy}: devhost serves only PCI GPUs."
    if plugin.container_driver_root:
        yield "containerDriverRoot is omitted: devhost resolves driverRoot below its --root."
    if plugin.cdi_annotation_prefix:
        yield "cdiAnnotationPrefix is omitted: devhost does not pass CDI names as annotations."
    if flags.use_node_feature_API is not None:
        yield "useNodeFeatureAPI is omitted: devhost writes labels as files."
    of_gfd = [key for key, (one, _) in keys(FeatureDiscovery).items() if getattr(flags.gfd, one.name, None)]
    if names := [key for key in of_gfd if key != "outputFile"]:
        yield f"flags.gfd: {', '.join(names)} omitted: devhost writes labels when they change."
