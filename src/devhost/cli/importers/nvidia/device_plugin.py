"""Converts configurations of the NVIDIA device plugin and of the NVIDIA GPU operator to devhost.yaml.

Settings that the plugin reads but ignores (names by pattern, ``rename``, ``devices``) are omitted with a
remark, because pods request what the plugin serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from devhost.cli.importers.source import Source
from devhost.cli.importers.writing import Written, document
from devhost.config.language import LABEL_DIRECTORY

from .config import Config
from .entries import Entries
from .settings import Settings, settings

_DIFFERS = [
    "with devhost an Unhealthy GPU becomes Healthy again, with the plugin only after a restart",
    "devhost follows changes of GPUs and MIG instances, the plugin needs a restart",
]


def convert(data: bytes, file_name: str, key: str = "", *, as_written: bool = False) -> str:
    """The text of an equivalent devhost.yaml.

    ``key`` is the configuration to read if there are several; if empty, the chart's default. ``as_written``
    applies settings that the plugin reads but ignores.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    source = Source(data, file_name, "nvidia-device-plugin")
    found = settings(source, key)
    config = found.config.as_dataclass(Config, source.remark)
    source.check()
    options = dict(_options(config, found, source))
    entries = list(Entries(config, source.note, as_written=as_written).all())
    labels: dict[str, Written] = {}
    if config.flags.gfd is not None:
        directory = str(PurePosixPath(config.flags.gfd.output_file or LABEL_DIRECTORY / "gfd").parent)
        labels["write"] = True
        if directory != str(LABEL_DIRECTORY):
            labels["directory"] = directory
        source.note("labels: those of gpu-feature-discovery: remove that program, or both write them.")
    return document(
        source, "the NVIDIA device plugin", _DIFFERS, entries, backends={"gpu": options}, labels=labels
    )


def _options(config: Config, found: Settings, source: Source) -> Iterator[tuple[str, Written]]:
    """The options of the backend, with remarks on what they cannot express."""
    flags, plugin = config.flags, config.flags.plugin
    strategies = _strategies(config, source)
    if flags.nvidia_driver_root not in ("", "/"):
        yield "driverRoot", flags.nvidia_driver_root
    if flags.nvidia_dev_root not in ("", flags.nvidia_driver_root):
        yield "devRoot", flags.nvidia_dev_root
    if strategies != ["envvar"]:
        yield "deviceListStrategy", strategies if len(strategies) > 1 else strategies[0]
    if plugin.device_ID_strategy == "index":
        yield "deviceIDStrategy", "index"
    if "cdi" in strategies and plugin.nvidia_CTK_path:
        path = PurePosixPath(plugin.nvidia_CTK_path)
        if path.name == "nvidia-ctk":
            yield "nvidiaCTKPath", str(path)
        else:
            if path.parent.name == "toolkit":  # NVIDIA's toolkit container installs both there
                yield "nvidiaCTKPath", str(path.with_name("nvidia-ctk"))
            yield "nvidiaCDIHookPath", str(path)
    extras = {
        "gdsEnabled": flags.gds_enabled,
        "mofedEnabled": flags.mofed_enabled,
        "gdrcopyEnabled": flags.gdrcopy_enabled,
    }
    yield from ((name, True) for name, wanted in extras.items() if wanted)
    if config.imex.channel_IDs:
        yield "imexChannelIDs", list(config.imex.channel_IDs)
        if config.imex.required:
            source.note("imex.required is omitted: a container gets the channels that its node has.")
    yield from _health(found.health)
    source.note(*_without_place(config))


def _strategies(config: Config, source: Source) -> list[str]:
    plugin = config.flags.plugin
    found = [one for one in plugin.strategies if not one.startswith("cdi-")]
    for_cdi = [one for one in plugin.strategies if one.startswith("cdi-")]
    if {"envvar", "volume-mounts"} <= set(found):
        found.remove("envvar")
        source.note(
            "deviceListStrategy: together with volume-mounts the plugin ignores envvar; it is omitted."
        )
    if plugin.pass_device_specs and found:
        found.append("device-specs")
    elif plugin.pass_device_specs:
        source.note("passDeviceSpecs: the plugin ignores it if CDI is the only strategy; it is omitted.")
    if for_cdi and "cdi-cri" not in for_cdi:
        source.note(
            "cdi-annotations: devhost passes the names in the field for CDI devices, as with cdi-cri."
        )
    return [*found, "cdi"] if for_cdi else found


_APPLICATION = (13, 31, 43, 45, 68, 109)
"""Xids that the plugin ignores unless they are enabled (``getDisabledHealthCheckXids`` in
``internal/rm/health.go``)."""


def _health(given: Mapping[str, str]) -> Iterator[tuple[str, Written]]:
    """The plugin's variables for health checks.

    ``all`` and ``xids`` mean the same there, and if all are disabled, none can be enabled. It ignores words.
    """
    off, on = (
        [word.strip().lower() for word in given.get(name, "").split(",")]
        for name in ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")
    )
    everything = {"all", "xids"}
    if everything.intersection(on):
        yield "heedXids", list(_APPLICATION)
        return
    if everything.intersection(off):
        yield "healthChecks", "none"
        return
    for name, words in (("ignoreXids", off), ("heedXids", on)):
        if numbers := sorted({int(word) for word in words if word.isdecimal() and int(word) > 0}):
            yield name, numbers


def _without_place(config: Config) -> Iterator[str]:
    flags, plugin = config.flags, config.flags.plugin
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
        strategy = flags.device_discovery_strategy
        yield f"deviceDiscoveryStrategy {strategy}: devhost serves only PCI GPUs."
    if plugin.container_driver_root:
        yield "containerDriverRoot is omitted: devhost resolves driverRoot below its --root."
    if plugin.cdi_annotation_prefix:
        yield "cdiAnnotationPrefix is omitted: devhost does not pass CDI names as annotations."
    if flags.use_node_feature_API is not None:
        yield "useNodeFeatureAPI is omitted: devhost writes labels as files."
    if flags.gfd is not None:
        given = {
            "oneshot": flags.gfd.oneshot,
            "noTimestamp": flags.gfd.no_timestamp,
            "sleepInterval": flags.gfd.sleep_interval,
            "machineTypeFile": flags.gfd.machine_type_file,
        }
        if names := [name for name, value in given.items() if value is not None]:
            yield f"flags.gfd: {', '.join(names)} omitted: devhost writes labels when they change."
