"""The resources of an NVIDIA device plugin configuration, as entries of devhost.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .config import DOMAIN, GPU, Config, Pattern, Shared, full_name

IGNORED = "the plugin ignores it, so it is omitted; --as-written applies it."
"""The remark for keys that the plugin reads but ignores."""

Value = str | int | bool | Sequence[str] | Sequence[int]
Where = dict[str, Value]

_MIG = f"{DOMAIN}/mig-"

_MPS_ROOT = "/run/nvidia/mps"
"""The directory for the files of MPS in the plugin's chart."""

_BY_STRATEGY = {
    "none": "The plugin offers a GPU with MIG instances as a whole; devhost does not.",
    "single": (
        "The plugin refuses whole GPUs together with instances, and several profiles; devhost offers all "
        "of them."
    ),
}
"""Remarks on whole GPUs, by value of ``migStrategy``."""


@dataclass(slots=True)
class Entry:
    """One entry under ``resources`` of the result. ``no`` excludes devices, ``overrides`` are other replicas.

    ``most`` is the maximum that a container may request; ``None`` for any number.
    """

    name: str
    where: list[Where]
    replicas: int = 1
    prefer: str = ""
    most: int | None = None
    overrides: list[tuple[Where, int]] = field(default_factory=list)
    no: Where = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    mps_root: str = ""


class Entries:
    """The entries for one configuration.

    Args:
        as_written: apply settings that the plugin reads but ignores.
    """

    def __init__(self, config: Config, *, as_written: bool) -> None:
        slicing = config.sharing.time_slicing or config.sharing.mps
        policy = config.flags.plugin.shared_devices_allocation_policy
        self._config = config
        self._as_written = as_written
        self._shares: dict[str, Shared] = {}
        for share in slicing.resources if slicing else ():
            self._shares.setdefault(full_name(share.name), share)
        self._mps_root = ""
        if config.sharing.mps:
            self._mps_root = config.flags.mps_root.rstrip("/") or _MPS_ROOT
        self._renames = bool(slicing and slicing.rename_by_default)
        self._prefer = "pack" if policy == "packed" else "spread"
        self._served: set[str] = set()

    def all(self, notes: list[str]) -> Iterator[Entry]:
        """The entries in order. Adds to ``notes`` what they cannot express."""
        given, strategy = self._config.resources, self._config.flags.mig_strategy
        if (given.gpus or given.mig) and not self._as_written:
            notes.append(f"resources: names by pattern: {IGNORED}")
        where: Where = {"vendor": "nvidia", "kind": ["gpu", "mig"] if strategy == "single" else "gpu"}
        patterns = (given.gpus if self._as_written else ()) or (Pattern("*", GPU),)
        for name, blocks in _grouped(patterns, where, "product", notes):
            remarks = [_BY_STRATEGY[strategy]] if strategy in _BY_STRATEGY else []
            for entry in self._resource(name, blocks, remarks):
                if entry.replicas > 1 or entry.overrides:  # MPS serves only shared devices
                    entry.mps_root = self._mps_root
                yield entry
        if strategy == "mixed":
            yield from self._instances(notes)
        notes += [
            f"sharing: {name} is not a resource with migStrategy {strategy}: omitted."
            for name in self._shares
            if name not in self._served
        ]

    def _instances(self, notes: list[str]) -> Iterator[Entry]:
        base: Where = {"vendor": "nvidia", "kind": "mig"}
        patterns = self._config.resources.mig if self._as_written else ()
        for name, blocks in _grouped(patterns, base, "profile", notes):
            yield from self._resource(name, blocks, [])
            if base in blocks:
                return
        for name in self._shares:
            if name.startswith(_MIG) and name not in self._served:
                profile = name.removeprefix(_MIG).replace("gb.", "gb+")
                yield from self._resource(name, [base | {"profile": profile}], [])
        remark = "As with the plugin, instances with fewer compute slices than GPU slices are not offered."
        yield Entry(f"{_MIG}{{profile}}", [base], no={"profile": "?c.*"}, remarks=[remark])

    def _resource(self, name: str, where: list[Where], remarks: list[str]) -> Iterator[Entry]:
        """One resource, or two if only some of its devices are shared under another name."""
        self._served.add(name)
        share = self._shares.get(name)
        if share is None:
            yield Entry(name, where, remarks=remarks)
            return
        if share.rename and not self._as_written:
            remarks.append(f"rename: {IGNORED}")
        renamed = f"{name}.shared" if self._renames else ""
        if share.rename and self._as_written:
            renamed = full_name(share.rename)
        some = self._some(share, where, remarks)
        most = 1 if self._config.refuses_several else None
        if not some:
            yield Entry(renamed or name, where, share.replicas, self._prefer, most, remarks=remarks)
        elif renamed:
            yield Entry(renamed, some, share.replicas, self._prefer, most, remarks=remarks)
            yield Entry(name, where)
        else:
            overrides = [(block, share.replicas) for block in some]
            if most:
                remarks.append(
                    "maxPerContainer limits whole GPUs of this resource as well; the plugin limits "
                    "only shares."
                )
            yield Entry(name, where, 1, self._prefer, most, overrides, remarks=remarks)

    def _some(self, share: Shared, where: list[Where], remarks: list[str]) -> list[Where]:
        """The devices that are shared; empty for all."""
        if not share.count and not share.listed:
            return []
        if not self._as_written:
            remarks.append(f"devices, which shares only some: {IGNORED}")
            return []
        if share.count:
            remarks.append(f"devices: {share.count} means the {share.count} devices with the lowest numbers.")
            return [block | {"index": f"0-{share.count - 1}"} for block in where]
        numbers = [one for one in share.listed if one.isdigit()]
        uuids = [one for one in share.listed if one.startswith(("GPU-", "MIG-"))]
        if len(numbers) + len(uuids) < len(share.listed):
            remarks.append(
                "devices: devhost selects MIG instances only by UUID; those by number are omitted."
            )
        chosen: list[Where] = [{"index": ",".join(numbers)}] if numbers else []
        chosen += [{"uuid": uuids}] if uuids else []
        return [block | one for block in where for one in chosen]


def _grouped(
    patterns: Sequence[Pattern], where: Where, attribute: str, notes: list[str]
) -> list[tuple[str, list[Where]]]:
    """The conditions of each name.

    The first pattern that matches decides, so those after ``*`` have no effect.
    """
    found: dict[str, list[Where]] = {}
    for number, pattern in enumerate(patterns, 1):
        block = where | _glob(attribute, pattern.pattern)
        found.setdefault(full_name(pattern.name), []).append(block)
        if block == where:
            if number < len(patterns):
                notes.append(f"resources: patterns after {pattern.pattern} never match: omitted.")
            break
    return list(found.items())


def _glob(attribute: str, pattern: str) -> Where:
    """A condition for a pattern of the plugin, which has only ``*`` and can match a part of the text."""
    signs = ("[" + sign + "]" if sign in "?[" else sign for sign in f"*{pattern}*")
    glob = "".join(signs)
    while "**" in glob:
        glob = glob.replace("**", "*")
    return {} if glob == "*" else {attribute: glob}
