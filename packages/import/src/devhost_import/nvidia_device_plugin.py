"""Converts the YAML of the NVIDIA device plugin, also as the NVIDIA GPU operator makes it.

Settings that the plugin reads but ignores (names by pattern, ``rename``, ``devices``) are omitted with a
remark, because pods request what the plugin serves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from devhost.config.language import LABEL_DIRECTORY

from .nvidia_config import Config, Pattern, Plugin, Shared, full_name
from .nvidia_settings import settings
from .source import Source, text_at
from .writing import Entry, Written, document, given, several

Where = dict[str, Written]

_DIFFERS = [
    "with devhost an Unhealthy GPU becomes Healthy again, with the plugin only after a restart",
    "devhost follows changes of GPUs and MIG instances, the plugin needs a restart",
]

_APPLICATION = [13, 31, 43, 45, 68, 109]
"""Xids that the plugin ignores unless they are enabled (``getDisabledHealthCheckXids`` in
``internal/rm/health.go``)."""

_IGNORED = "the plugin ignores it, so it is omitted; --as-written applies it."
_INSTANCES: Where = {"vendor": "nvidia", "kind": "mig"}
_MIG = "nvidia.com/mig-"
_MPS_ROOT = "/run/nvidia/mps"  # in the plugin's chart
_MPS = (
    "sharing.mps: devhost does not start MPS servers, it uses those of the plugin's mps-control-daemon: keep "
    "it running."
)

# remarks on whole GPUs, by value of migStrategy
_BY_STRATEGY = {
    "none": "The plugin offers a GPU with MIG instances as a whole; devhost does not.",
    "single": "The plugin refuses whole GPUs together with instances, and several profiles; devhost offers "
    "all of them.",
}


def convert(source: Source, *, as_written: bool) -> str:
    found = settings(source)
    config = found.config.as_dataclass(Config, source.note)
    options = _options(config, source) | _health(found.health)
    source.note(*_omitted(config), *([_MPS] if config.sharing.mps else []))
    entries = list(_Entries(config, source.note, as_written=as_written).all())
    labels: dict[str, Written] = {}
    if config.flags.gfd is not None:
        file = config.flags.gfd.get("outputFile")
        directory = str(PurePosixPath(text_at(file) if file else LABEL_DIRECTORY / "gfd").parent)
        labels = given(write=True, directory=directory != str(LABEL_DIRECTORY) and directory)
        source.note("labels: those of gpu-feature-discovery: remove that program, or both write them.")
    return document(source, "the NVIDIA device plugin", _DIFFERS, entries, gpu=options, labels=labels)


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
    if {"envvar", "volume-mounts"} <= {*found}:
        found.remove("envvar")
        note("deviceListStrategy: together with volume-mounts the plugin ignores envvar; it is omitted.")
    if plugin.pass_device_specs and found:
        found.append("device-specs")
    elif plugin.pass_device_specs:
        note("passDeviceSpecs: the plugin ignores it if CDI is the only strategy; it is omitted.")
    if plugin.has_cdi and "cdi-cri" not in plugin.strategies:
        note("cdi-annotations: devhost passes the names in the field for CDI devices, as with cdi-cri.")
    return [*found, "cdi"] if plugin.has_cdi else found


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
    ignored, heeded = (sorted({int(word) for word in one if word.isdecimal()} - {0}) for one in (off, on))
    return given(ignoreXids=ignored, heedXids=heeded)


def _omitted(config: Config) -> list[str]:
    flags, plugin, imex = config.flags, config.flags.plugin, config.imex
    finder, of_gfd = flags.device_discovery_strategy, [key for key in flags.gfd or () if key != "outputFile"]
    every: Sequence[tuple[str, object, str]] = [
        ("imex.required", imex.channel_IDs and imex.required, "a container gets its node's channels."),
        ("mpsRoot", flags.mps_root and not config.sharing.mps, "it matters only with sharing.mps."),
        ("nvidiaCTKPath", plugin.nvidia_CTK_path and not plugin.has_cdi, "it matters only with CDI."),
        ("failOnInitError", not flags.fail_on_init_error, "devhost retries GPUs that cannot be used."),
        (
            f"deviceDiscoveryStrategy {finder}",
            finder not in ("auto", "nvml"),
            "devhost serves PCI GPUs only.",
        ),
        ("containerDriverRoot", plugin.container_driver_root, "devhost finds driverRoot below its --root."),
        ("cdiAnnotationPrefix", plugin.cdi_annotation_prefix, "devhost passes no CDI names as annotations."),
        ("useNodeFeatureAPI", flags.use_node_feature_API is not None, "devhost writes labels as files."),
        (f"flags.gfd.{', '.join(of_gfd)}", of_gfd, "devhost writes labels when they change."),
    ]
    return [f"{key} is omitted: {why}" for key, applies, why in every if applies]


class _Entries:
    """The entries for one configuration. ``note`` is called with remarks for the head of the result."""

    def __init__(self, config: Config, note: Callable[[str], None], *, as_written: bool) -> None:
        mps, slicing = config.sharing.mps, config.sharing.time_slicing or config.sharing.mps
        self._config = config
        self._note = note
        self._as_written = as_written
        self._shares: dict[str, list[Shared]] = {}
        for share in slicing.resources if slicing else ():
            self._shares.setdefault(full_name(share.name), []).append(share)
        self._mps_root = (config.flags.mps_root.rstrip("/") or _MPS_ROOT) if mps else ""
        # with MPS always, regardless of the key (ValidateRequest in the plugin's internal/rm/rm.go)
        self._most = int(bool(mps or (slicing and slicing.fail_requests_greater_than_one)))
        self._suffix = ".shared" if slicing and slicing.rename_by_default else ""
        self._served: set[str] = set()

    def all(self) -> Iterator[Entry]:
        resources, strategy = self._config.resources, self._config.flags.mig_strategy
        if (resources.gpus or resources.mig) and not self._as_written:
            self._note(f"resources: names by pattern: {_IGNORED}")
        is_single = strategy == "single" and not self._mps_root
        where: Where = {"vendor": "nvidia", "kind": ["gpu", "mig"] if is_single else "gpu"}
        if strategy == "single" and self._mps_root:
            self._note("migStrategy single: the plugin shares no MIG instances by MPS: they are not offered.")
        patterns = (resources.gpus if self._as_written else ()) or (Pattern("*", "gpu"),)
        of_mig = resources.mig if self._as_written and strategy == "mixed" else ()
        instances = self._grouped(of_mig, _INSTANCES, "profile")
        for name, blocks in self._grouped(patterns, where, "product").items():
            remarks = [_BY_STRATEGY[strategy]] if is_single or strategy == "none" else []
            yield from self._resource(name, [*blocks, *instances.pop(name, [])], remarks)
        if strategy == "mixed":
            yield from self._instances(instances)
        for name in [one for one in self._shares if one not in self._served]:
            self._note(f"sharing: {name} is not a resource with migStrategy {strategy}: omitted.")

    def _grouped(self, patterns: Sequence[Pattern], where: Where, attribute: str) -> dict[str, list[Where]]:
        """The conditions of each name. The first pattern that matches decides, so ``*`` is the last one."""
        found: dict[str, list[Where]] = {}
        for number, pattern in enumerate(patterns, 1):
            # the plugin has only *, and a pattern can match a part of the text
            glob = re.sub(r"\*+", "*", re.sub(r"([?[])", r"[\1]", f"*{pattern.pattern}*"))
            block = where if glob == "*" else where | {attribute: glob}
            found.setdefault(full_name(pattern.name), []).append(block)
            if glob == "*":
                if number < len(patterns):
                    self._note(f"resources: patterns after {pattern.pattern} never match: omitted.")
                break
        return found

    def _instances(self, named: Mapping[str, list[Where]]) -> Iterator[Entry]:
        """The entries of instances: those with names by pattern that no GPUs have, and the others."""
        for name, blocks in named.items():
            yield from self._resource(name, blocks, [])
        if self._as_written and any(one.pattern == "*" for one in self._config.resources.mig):
            return
        for name in self._shares:
            if name.startswith(_MIG) and name not in self._served:
                profile = name.removeprefix(_MIG).replace("gb.", "gb+")
                yield from self._resource(name, [_INSTANCES | {"profile": profile}], [])
        remark = "As with the plugin, instances with fewer compute slices than GPU slices are not offered."
        where = _INSTANCES | {"not": {"profile": "?c.*"}}
        yield Entry(f"{_MIG}{{profile}}", "gpu", [where], remarks=[remark])

    def _resource(self, name: str, where: list[Where], remarks: list[str]) -> Iterator[Entry]:
        """One resource, and others if some of its devices are shared under other names."""
        self._served.add(name)
        overrides: list[Where] = []
        for share in self._effective(name, remarks):
            renamed = full_name(share.rename) if share.rename else self._suffix and f"{name}{self._suffix}"
            some = self._some(share, where, remarks)
            if renamed or not some:
                yield Entry(renamed or name, "gpu", some or where, self._keys(share.replicas), remarks)
                remarks = []
            elif self._most:
                what = "limits whole GPUs of this resource as well; the plugin limits only shares."
                remarks.append(f"maxPerContainer {what}")
            if not some:
                return
            overrides += [{"where": one, "replicas": share.replicas} for one in some if not renamed]
        yield Entry(name, "gpu", where, self._keys(0, overrides), remarks)

    def _effective(self, name: str, remarks: list[str]) -> list[Shared]:
        """The entries of ``sharing`` for a resource. The plugin ignores ``rename`` and ``devices``, and
        adds up devices by their ids, so the highest number counts (``updateDeviceMapWithReplicas`` in
        ``internal/rm/device_map.go``).
        """
        shares = self._shares.get(name, [])
        if self._as_written or not shares:
            return shares
        if any(share.rename for share in shares):
            remarks.append(f"rename: {_IGNORED}")
        if any(share.devices != "all" for share in shares):
            remarks.append(f"devices, which shares only some: {_IGNORED}")
        if len(shares) > 1:
            what = f"sharing has {len(shares)} entries for this resource"
            remarks.append(f"{what}; for the plugin the highest number counts.")
        return [Shared(name, max(share.replicas for share in shares))]

    def _keys(self, replicas: int, overrides: Sequence[Where] = ()) -> dict[str, Written]:
        if not replicas and not overrides:  # MPS serves only shared devices
            return {}
        share = given(replicas=replicas, maxPerContainer=self._most, overrides=overrides)
        is_packed = self._config.flags.plugin.shared_devices_allocation_policy == "packed"
        prefer = "pack" if is_packed else "spread"
        return given(share=share, mps=given(root=self._mps_root), prefer=prefer)

    def _some(self, share: Shared, where: list[Where], remarks: list[str]) -> list[Where]:
        if isinstance(count := share.devices, int):
            remarks.append(f"devices: {count} means the {count} devices with the lowest numbers.")
            return [block | {"index": f"0-{count - 1}"} for block in where]
        numbers = [one for one in share.listed if one.isdigit()]
        uuids = [one for one in share.listed if one.startswith(("GPU-", "MIG-"))]
        if len(numbers) + len(uuids) < len(share.listed):
            remarks += ["devices: devhost selects MIG instances only by UUID; those by number are omitted."]
        chosen = [given(index=",".join(numbers)), given(uuid=uuids)]
        return [block | one for block in where for one in chosen if one]
