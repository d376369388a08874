"""The resources of an NVIDIA device plugin configuration, as entries of devhost.yaml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from devhost_import.writing import Entry, Written, given

from .config import Config, Pattern, Shared, full_name

Where = dict[str, Written]

_IGNORED = "the plugin ignores it, so it is omitted; --as-written applies it."
_INSTANCES: Where = {"vendor": "nvidia", "kind": "mig"}
_MIG = "nvidia.com/mig-"
_MPS_ROOT = "/run/nvidia/mps"  # in the plugin's chart

# remarks on whole GPUs, by value of migStrategy
_BY_STRATEGY = {
    "none": "The plugin offers a GPU with MIG instances as a whole; devhost does not.",
    "single": "The plugin refuses whole GPUs together with instances, and several profiles; devhost offers "
    "all of them.",
}


class Entries:
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
        self._renames = bool(slicing and slicing.rename_by_default)
        policy = config.flags.plugin.shared_devices_allocation_policy
        self._prefer = "pack" if policy == "packed" else "spread"
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
            renamed = full_name(share.rename) if share.rename else f"{name}.shared" * self._renames
            some = self._some(share, where, remarks)
            if renamed or not some:
                yield Entry(renamed or name, "gpu", some or where, self._keys(share.replicas), remarks)
                remarks = []
            elif self._most:
                remarks.append(
                    "maxPerContainer limits whole GPUs of this resource as well; the plugin limits only "
                    "shares."
                )
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
        if any(share.count or share.listed for share in shares):
            remarks.append(f"devices, which shares only some: {_IGNORED}")
        if len(shares) > 1:
            what = f"sharing has {len(shares)} entries for this resource"
            remarks.append(f"{what}; for the plugin the highest number counts.")
        replicas = max(share.replicas for share in shares)
        return [Shared(name, replicas)]

    def _keys(self, replicas: int, overrides: Sequence[Where] = ()) -> dict[str, Written]:
        if not replicas and not overrides:  # MPS serves only shared devices
            return {}
        share = given(replicas=replicas, maxPerContainer=self._most, overrides=overrides)
        return given(share=share, mps=given(root=self._mps_root), prefer=self._prefer)

    def _some(self, share: Shared, where: list[Where], remarks: list[str]) -> list[Where]:
        if share.count:
            remarks += [f"devices: {share.count} means the {share.count} devices with the lowest numbers."]
            return [block | {"index": f"0-{share.count - 1}"} for block in where]
        numbers = [one for one in share.listed if one.isdigit()]
        uuids = [one for one in share.listed if one.startswith(("GPU-", "MIG-"))]
        if len(numbers) + len(uuids) < len(share.listed):
            remarks += ["devices: devhost selects MIG instances only by UUID; those by number are omitted."]
        chosen = [given(index=",".join(numbers)), given(uuid=uuids)]
        return [block | one for block in where for one in chosen if one]
