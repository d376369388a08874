"""Reads what people have of a device plugin's configuration, and remembers which keys were read.

A configuration is a file, an entry of a ConfigMap, values of a Helm chart (as printed by ``helm get
values``, or in a Flux ``HelmRelease``, an Argo CD ``Application`` or a k3s ``HelmChart``), a custom
resource, or the flags and variables of a workload (:mod:`.workload`). They come alone, as several
documents, or in a List as printed by ``kubectl get``.

An importer reads :class:`Value`, which has its place in the input. A key that no importer reads is named in
the result (:meth:`Source.remarks`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from devhost.backend.errors import ConfigError
from devhost.config.diagnostics import MEANT, WHOLE_FILE, Diagnostics, Mark, Place, shown
from devhost.config.document import Entry, Fields, Items, Node, Scalar, parse, parse_all
from devhost.config.reader import WRONG, read_dataclass

from .gojson import UNKNOWN_KEY, Remark, pruned

GUIDE = "docs/migration.md"
"""The page for plugins and objects that cannot be imported."""

CHOOSE = "choose one with --key"

UNKNOWN = f"{UNKNOWN_KEY}, and does not convert it: check whether you need it."
"""The remark on a key that no importer has read."""

TRUE = ("true", "t", "1")
"""What Go takes for true, in lower case."""

_IF_EMPTY = "is it the right file?"
"""The hint for an empty document."""

_INTEL = (
    "DlbDevicePlugin DsaDevicePlugin FpgaDevicePlugin GpuDevicePlugin IaaDevicePlugin NpuDevicePlugin "
    "QatDevicePlugin SgxDevicePlugin"
)
_GROUPS = {
    "": ("", "ConfigMap List Pod"),
    "akri.sh": ("akri", "Configuration"),
    "amd.com": ("amd-device-plugin", "DeviceConfig"),
    "apps": ("", "DaemonSet Deployment ReplicaSet StatefulSet"),
    "argoproj.io": ("", "Application ApplicationSet"),
    "deviceplugin.intel.com": ("intel-device-plugins", _INTEL),
    "extensions": ("", "DaemonSet Deployment ReplicaSet"),
    "hco.kubevirt.io": ("kubevirt", "HyperConverged"),
    "helm.cattle.io": ("", "HelmChart HelmChartConfig"),
    "helm.fluxcd.io": ("", "HelmRelease"),
    "helm.toolkit.fluxcd.io": ("", "HelmRelease"),
    "kubevirt.io": ("kubevirt", "KubeVirt"),
    "mellanox.com": ("sriov-network-device-plugin", "NicClusterPolicy NicNodePolicy"),
    "nvidia.com": ("nvidia-device-plugin", "ClusterPolicy"),
}
"""API groups with the kinds that importers read, and the importer if few read them. Other groups have some of
the same kinds."""

_IMPORTERS = {kind: name for name, kinds in _GROUPS.values() if name for kind in kinds.split()}
_READ = {kind for _, kinds in _GROUPS.values() for kind in kinds.split()}

_BOOKKEEPING = ("apiVersion", "kind", "metadata", "status")
"""Keys of every Kubernetes object, which configure nothing."""

OF_PODS = frozenset({
    "affinity", "annotations", "commonAnnotations", "commonLabels", "containerResources", "daemonsets",
    "dnsPolicy", "fullnameOverride", "global", "hostNetwork", "image", "imagePullPolicy", "imagePullSecrets",
    "initImage", "labels", "logLevel", "nameOverride", "namespace", "namespaceOverride", "nodeSelector",
    "persistence", "podAnnotations", "podLabels", "podSecurityContext", "priorityClassName", "rbac",
    "repository", "resources", "runtimeClassName", "securityContext", "service", "serviceAccount",
    "tolerations", "updateStrategy", "version",
})  # fmt: skip
"""Keys for the pods of a plugin, which many charts and objects have."""

_SEPARATELY = (
    "import each separately; for nodes of different kinds see deploy/README.md#nodes-of-different-kinds"
)
"""What to do with several configurations of one plugin."""

_HEADER = re.compile(rb"\A(USER-SUPPLIED|COMPUTED) VALUES:[ \t]*(?=\r?\n|\Z)")
"""The first line of ``helm get values``."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the input and its place. ``root`` is the number of its document."""

    source: Source
    root: int
    node: Node
    place: Place

    def at(self, *path: str) -> Value | None:
        """The value below these keys; ``None`` if one of them is missing or null."""
        node, place = self.node, self.place
        for key in path:
            if not isinstance(node, Fields) or key not in node.entries:
                return None
            node, place = node.entries[key].value, place.key(key)
        if isinstance(node, Scalar) and node.kind == "null":
            return None
        return Value(self.source, self.root, node, place)

    def text(self, *path: str) -> str:
        """The text below these keys; empty if there is none."""
        found = self.at(*path)
        if found is None or not isinstance(found.node, Scalar):
            return ""
        found.take()
        return found.node.text

    def is_true(self, *path: str, otherwise: bool = False) -> bool:
        """Whether the value below these keys is true; ``otherwise`` if there is none."""
        text = self.text(*path).lower()
        return text in TRUE if text else otherwise

    def fail(self, message: str, hint: str = "", mark: Mark | None = None) -> NoReturn:
        """Refuses the input because of this value, or of something at ``mark``.

        Raises:
            ConfigError: always.
        """
        self.place.diagnostics.fail(mark or self.node.mark, message, hint)

    def settings(self) -> object:
        """What it sets, without the settings of pods, to compare it with others."""
        return _plain((self.at("spec") or self).without(*OF_PODS, *_BOOKKEEPING).node)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, Fields)

    @property
    def keys(self) -> list[str]:
        """The keys of a mapping."""
        return [*self.node.entries] if isinstance(self.node, Fields) else []

    def members(self) -> list[tuple[str, Value]]:
        """The keys of a mapping with their values, without those that are null."""
        return [(key, value) for key in self.keys if (value := self.at(key)) is not None]

    def each(self, *path: str) -> Iterator[Value]:
        """The members of the list below these keys."""
        found = self.at(*path)
        for n, item in enumerate(found.node.items if found and isinstance(found.node, Items) else ()):
            assert found is not None
            yield Value(self.source, self.root, item, found.place.item(n))

    def take(self) -> Node:
        """The node, which is then read with all that it contains."""
        self.source.mark_read(self.root, self.place.path)
        return self.node

    def omit(self, *names: str) -> list[str]:
        """Marks keys as read, and lists those with a value that was not read before."""
        found = {name: value for name in names if (value := self.at(name)) is not None}
        unread = [name for name, value in found.items() if not self.source.is_read(value)]
        for value in found.values():
            value.take()
        return unread

    def others(self, *names: str) -> list[str]:
        """The same for all keys except these."""
        return self.omit(*(key for key in self.keys if key not in names))

    def leave(self, why: str, *names: str) -> None:
        """Names all keys except these, and those that were read, in one remark."""
        if left := self.others(*names):
            self.source.note(f"{some(left)}: {why}")

    def for_pods(self) -> None:
        """Marks the settings of the plugin's pods as read; they are named in the result."""
        self.source.pods |= dict.fromkeys(self.omit(*OF_PODS.intersection(self.keys)))

    def document(self) -> Value:
        """The document in a string, or the value itself if it is a mapping or a list.

        Diagnostics about a document in a string name the line and path of the string, then those within it.

        Raises:
            ConfigError: it is no text, or the text is not YAML; JSON always is.
        """
        node = self.node
        if not isinstance(node, Scalar):
            return self
        if node.kind != "str":
            self.place.diagnostics.fail(node.mark, f"{self.place.path} must be text, not {node}")
        self.take()
        inner = Diagnostics(f"{self.place.diagnostics.file}:{node.mark.line}: {self.place.path}")
        self.source.collected.append(inner)
        return self.source.document(parse(_bytes(node), inner, if_empty=_IF_EMPTY), Place(inner))

    def expected(self, known: Sequence[str], likely: Callable[[Node], bool]) -> Value:
        """The value itself, which must be a mapping that is empty or has keys of the plugin's configuration.

        Raises:
            ConfigError: it is not.
        """
        if not self.is_mapping or (self.keys and not likely(self.node)):
            hint = f"known keys: {', '.join(known)}; for other plugins see {GUIDE}"
            self.fail(f"it has no key of the configuration of {self.source.peer}", hint)
        return self

    def as_dataclass(
        self,
        cls: type,
        remark: Callable[[Remark], None],
        elsewhere: Mapping[str, str] | None = None,
        only: Collection[str] = (),
        *,
        explain: bool = True,
    ) -> Any:
        """The value as Go reads it into a struct; ``WRONG`` if the reason is among the diagnostics.

        ``remark``, ``elsewhere`` and ``only`` are those of :func:`pruned`. ``explain`` makes misspelt keys
        of a wrong value diagnostics.
        """
        mine: list[Remark] = []
        node = pruned(self.take(), cls, self.place, mine.append, elsewhere, only)
        found = read_dataclass(node, cls, self.place)
        for one in mine:
            if found is WRONG and explain and one.hint.startswith(MEANT):
                self.place.diagnostics.add(one.mark, one.path, one.message, one.hint)
            else:
                remark(one)
        return found

    def without(self, *names: str) -> Value:
        """A copy without these keys."""
        entries = self.node.entries if isinstance(self.node, Fields) else {}
        left = {key: entry for key, entry in entries.items() if key not in names}
        return replace(self, node=Fields(self.node.mark, left))

    def put(self, path: Sequence[str], node: Node) -> Value:
        """A copy in which the value below these keys is another."""
        key, *below = path
        entries = dict(self.node.entries) if isinstance(self.node, Fields) else {}
        if below:
            inner = entries[key].value if key in entries else Fields(node.mark)
            node = replace(self, node=inner).put(below, node).node
        entries[key] = Entry(node.mark, node)
        return replace(self, node=Fields(self.node.mark, entries))


_AnyValue = TypeVar("_AnyValue", bound=Value)


@dataclass(frozen=True, slots=True, eq=False)
class Object(Value):
    """A Kubernetes object or another document, whose ``kind`` is empty.

    ``holder`` is the object that contains values of the chart ``chart``, of this ``version``.
    """

    kind: str = ""
    name: str = ""
    chart: str = ""
    holder: str = ""
    version: str = ""

    def __str__(self) -> str:
        return self.holder or f"{self.kind} {self.name}".strip() or "a document without kind"


class Source:
    """An input: its objects, what of them was read, diagnostics and remarks.

    Args:
        data: YAML or JSON.
        file_name: appears in the diagnostics.
        peer: the importer that reads it.

    Raises:
        ConfigError: it is not YAML, or it is empty.
    """

    def __init__(self, data: bytes, file_name: str, peer: str) -> None:
        self.diagnostics = Diagnostics(file_name)
        self.collected = [self.diagnostics]
        self.pods: dict[str, None] = {}
        self.chosen, self.left = "", list[str]()
        """The entry of the ConfigMap that was read, and the others in it."""
        self.problems: dict[int, tuple[str, str]] = {}
        """Why values do not show all settings, and what to do, by the number of the document."""
        self.holders: dict[int, list[str]] = {}
        """The remarks on the objects that contain values."""
        self.peer = peer
        self._notes: list[str] = []
        self._documents: list[tuple[Node, Place, str]] = []
        self._read: set[tuple[int, str]] = set()
        self.objects = self._objects(data)

    def _objects(self, data: bytes) -> list[Object]:
        rest = _HEADER.sub(b"", data)
        holder = "the values" if rest != data else ""
        rest = b"{}" if holder and rest.strip() in (b"", b"null") else _tabless(rest)
        documents = parse_all(rest, self.diagnostics, if_empty=_IF_EMPTY)
        objects = [one for node in documents for one in self._flat(node, Place(self.diagnostics), holder)]
        if not objects:
            mark = next((node.mark for node in documents if isinstance(node, Fields)), WHOLE_FILE)
            message = "it is empty" if mark == WHOLE_FILE else "the list has no objects"
            self.diagnostics.fail(mark, message, _IF_EMPTY)
        return _overridden(objects)

    def _flat(self, node: Node, place: Place, holder: str = "") -> Iterator[Object]:
        if isinstance(node, Scalar) and node.kind == "null":  # after a final "---"
            return
        kind, name, items = _kind(node), text_at(node, "metadata", "name"), node_at(node, "items")
        if kind.endswith("List") and isinstance(items, Items):
            below = place.key("items")
            inside = [one for n, item in enumerate(items.items) for one in self._flat(item, below.item(n))]
            named = [one for one in inside if one.kind or one.holder]
            if named or not inside:
                yield from named
                return
        elif kind == "List":
            message = f"it has no {place.key('items').path}"
            place.diagnostics.fail(node.mark, message, "is it the right object?")
        root = self.document(node, place, f"{kind} {name}".strip()).root
        yield from _unwrapped(Object(self, root, node, place, kind, name, holder="" if kind else holder))

    def document(self, node: Node, place: Place, name: str = "") -> Value:
        """A further document of the input; ``name`` is that of an object."""
        self._documents.append((node, place, name))
        return Value(self, len(self._documents) - 1, node, place)

    def mark_read(self, root: int, path: str) -> None:
        """Remembers that a value was read with all that it contains."""
        self._read.add((root, path))

    def is_read(self, value: Value) -> bool:
        """Whether a value was read as a whole."""
        return (value.root, value.place.path) in self._read

    def note(self, *remarks: str) -> None:
        """Adds sentences for the head of the result."""
        self._notes += remarks

    def remark(self, remark: Remark) -> None:
        """Adds a remark of a reader."""
        self._notes.append(str(remark))

    def of_kinds(self, *kinds: str, hint: str) -> list[Object]:
        """The objects of these kinds, or a refusal; no kind means that it is not a Kubernetes object."""
        return [one for one in self.objects if one.kind in kinds] or self.refuse(hint)

    @property
    def bare(self) -> list[Object]:
        """The documents that are neither Kubernetes objects nor values of a known chart."""
        return [one for one in self.objects if not one.kind and not one.holder]

    def refuse(self, hint: str) -> NoReturn:
        """Refuses an input without a configuration of the plugin.

        Raises:
            ConfigError: always.
        """
        first = next((one for one in self.objects if one.kind), self.objects[0])
        if not first.chart and first.root in self.problems:
            first.fail(*self.problems[first.root])
        what = (
            f"a {shown(first.kind)} contains no configuration"
            if first.kind
            else "it is not a Kubernetes object"
        )
        if first.holder:
            what = f"{first} has no values of a chart of this plugin"
        if (reader := _IMPORTERS.get(first.kind, self.peer)) != self.peer:
            hint = f"`devhost import {reader}` reads it"
        first.fail(what, hint, (node_at(first.node, "kind") or first.node).mark)

    def one_of(
        self, found: Sequence[_AnyValue], program: str = "", made: Sequence[object] = ()
    ) -> _AnyValue | None:
        """The only one of several configurations of one plugin, if there is any; equal ones count once.

        ``made`` is what each of them leads to, if that is to be compared instead of what each sets.

        Raises:
            ConfigError: they differ.
        """
        made = made or [one.settings() for one in found]
        others = [one for one, each in zip(found, made, strict=True) if each != made[0]]
        if others:
            named = some([str(one) for one in (found[0], *others)])
            others[0].fail(f"different configurations of {program or self.peer}: {named}", _SEPARATELY)
        for one in found[1:]:
            one.take()
        return found[0] if found else None

    def charts(self, *charts: str, recognized: Callable[[Value], bool]) -> list[Object]:
        """All values of these charts, also those that are a part of the values of another chart.

        Args:
            charts: the names of the charts.
            recognized: whether a document is values of one of them.
        """
        found: list[Object] = []
        for one in self.objects:
            inside = {name: value for name in charts if (value := one.at(name)) and value.is_mapping}
            if one.kind:
                continue
            if inside:
                one.leave("values of other charts, which are not converted.", *inside)
                found += [
                    replace(one, node=value.node, place=value.place, chart=name, holder=f"{one} {name}")
                    for name, value in inside.items()
                ]
            elif one.chart in charts or (not one.chart and one.is_mapping and recognized(one)):
                found.append(one)
        for one in found:
            self.note(*self.holders.get(one.root, []))
            if one.root in self.problems:
                one.fail(*self.problems[one.root])
            if not one.keys:
                one.take()
            if not one.is_mapping:
                one.fail(f"values of a chart must be a mapping, not {one.node}")
        return found

    def values(self, *charts: str, recognized: Callable[[Value], bool]) -> Object | None:
        """The same if there can be only one.

        Raises:
            ConfigError: there are several that differ.
        """
        return self.one_of(self.charts(*charts, recognized=recognized))

    def config_map(
        self, *keys: str, likely: Callable[[Node], bool], key: str = "", names: Collection[str] = ()
    ) -> Value | None:
        """The document in an entry of a ConfigMap; ``None`` if there is no ConfigMap.

        Args:
            keys: the plugin's names of the entry, the preferred one first.
            likely: whether a document is a configuration, for entries with other names.
            key: the entry that the user chose.
            names: the names of the ConfigMaps that the plugin uses, if known.

        Raises:
            ConfigError: several ConfigMaps or entries are possible, or the chosen one does not exist.
        """
        every = [one for one in self.objects if one.kind == "ConfigMap"]
        maps = [one for one in every if one.name in names]
        maps = maps or [one for one in every if one.name != "kube-root-ca.crt"]
        if not maps:
            return None
        wanted, likely = ((key,), lambda _: False) if key else (keys, likely)
        found = [(one, entry) for one in maps if (entry := _entry(one, wanted, likely))]
        self.one_of([one for one, _ in found])
        chosen, entry = found[0] if found else (maps[0], "")
        inside = _entries(chosen)
        if not entry and not key and len(inside) == len(maps) == 1:
            entry = inside[0]
        if (value := chosen.at("data", entry)) is None:
            path = chosen.place.key("data").key(entry or key or keys[0]).path
            hint = f"{CHOOSE}, which may be {some(inside)}" if inside else "is it the right object?"
            chosen.fail(f"it has no {path}", hint, (node_at(chosen.node, "data") or chosen.node).mark)
        self.chosen, self.left = entry, [one for one in inside if one != entry]
        if data := chosen.at("data"):
            data.omit(*self.left)
        return value.document()

    def check(self) -> None:
        """Raises what was found wrong.

        Raises:
            ConfigError: there is anything.
        """
        for one in self.collected:
            if one.found:
                raise one.error()

    def remarks(self) -> list[str]:
        """All remarks for the head of the result, with one on each key that no importer has read."""
        found = [*self._notes]
        if self.pods:
            names = ", ".join(sorted(self.pods))
            found.append(
                f"{names}: settings of the plugin's pods; for those of devhost see deploy/README.md."
            )
        objects, keys = self.unread()
        if objects:
            found.append(f"Not part of the plugin's configuration: {some(objects)}.")
        return list(dict.fromkeys([*found, *(f"{key}: {UNKNOWN}" for key in keys)]))

    def unread(self) -> tuple[list[str], list[str]]:
        """The objects of which no importer has read anything, and the paths of other unread values."""
        objects: list[str] = []
        keys: list[str] = []
        for root, (node, place, name) in enumerate(self._documents):
            is_object = name and root not in self.holders
            paths, is_read = self._unread(root, node, place, skip=_BOOKKEEPING if is_object else ())
            if name and not is_read:
                objects.append(name)
            else:
                keys += [f"{name}: {path}" if name and len(self.objects) > 1 else path for path in paths]
        return objects, keys

    def _unread(
        self, root: int, node: Node, place: Place, skip: Collection[str] = ()
    ) -> tuple[list[str], bool]:
        """The unread values below a value, and whether anything there was read."""
        if (root, place.path) in self._read:
            return [], True
        if isinstance(node, Scalar):
            return ([] if node.kind == "null" else [place.path]), False
        found = [self._unread(root, one, at) for key, one, at in _inside(node, place) if key not in skip]
        unread = [path for paths, _ in found for path in paths]
        if any(is_read for _, is_read in found):
            return unread, True
        return ([place.path] if unread and place.path else unread), False


def some(names: Sequence[str]) -> str:
    """Names for a message: the first few, and the number of others."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def node_at(node: Node, *path: str) -> Node | None:
    """The node below these keys, if there is one."""
    for key in path:
        if not isinstance(node, Fields) or key not in node.entries:
            return None
        node = node.entries[key].value
    return node


def text_at(node: Node, *path: str) -> str:
    """The text below these keys; empty if there is none."""
    found = node_at(node, *path)
    return found.text if isinstance(found, Scalar) and found.kind != "null" else ""


def _plain(node: Node) -> object:
    """The values of a node without their places, to compare it with others."""
    if isinstance(node, Fields):
        return {key: _plain(entry.value) for key, entry in node.entries.items()}
    return [_plain(one) for one in node.items] if isinstance(node, Items) else (node.kind, node.text)


def _inside(node: Node, place: Place) -> Iterator[tuple[str, Node, Place]]:
    if isinstance(node, Fields):
        yield from ((key, entry.value, place.key(key)) for key, entry in node.entries.items())
    elif isinstance(node, Items):
        yield from (("", item, place.item(n)) for n, item in enumerate(node.items))


def _kind(node: Node) -> str:
    """The kind of an object, with its group as kubectl writes it if that is not the one that is read."""
    kind, group = text_at(node, "kind"), text_at(node, "apiVersion").rpartition("/")[0]
    is_known = kind not in _READ or "apiVersion" not in getattr(node, "entries", ())
    return (
        kind if is_known or kind in _GROUPS.get(group, ("", ""))[1].split() else f"{kind}.{group}".strip(".")
    )


def _entries(one: Object) -> list[str]:
    data = node_at(one.node, "data")
    return [*data.entries] if isinstance(data, Fields) else []


def _entry(one: Object, keys: Sequence[str], likely: Callable[[Node], bool]) -> str:
    """The entry with one of these names, or the only likely one; empty if there is none."""
    inside = _entries(one)
    hits = [name for name in inside if _is_likely(node_at(one.node, "data", name), likely)]
    return next((name for name in keys if name in inside), hits[0] if len(hits) == 1 else "")


def _is_likely(entry: Node | None, likely: Callable[[Node], bool]) -> bool:
    try:
        return isinstance(entry, Scalar) and likely(parse(_bytes(entry), Diagnostics(""), if_empty=_IF_EMPTY))
    except ConfigError:
        return False


def _bytes(node: Scalar) -> bytes:
    return _tabless(node.text.encode(errors="surrogatepass"))


def _tabless(data: bytes) -> bytes:
    """JSON as valid YAML: tabs, which YAML refuses for indentation, become spaces.

    Strings in JSON cannot contain a literal tab (RFC 8259, section 7), so only whitespace changes.
    """
    return data.replace(b"\t", b" ") if data.lstrip()[:1] in (b"{", b"[") else data


_ELSEWHERE = ("fileParameters", "valueFiles", "valuesFrom", "valuesSecrets")
"""Keys that name values outside the object."""

_RENDERED = (
    "give what it made: kubectl get daemonsets,configmaps -n NAMESPACE -o yaml | devhost import {peer} -"
)
"""What to do if values alone do not show the plugin's settings."""

_OF_VALUES = {"helm", "parameters", "set", "source", "sources", "values", "valuesContent", "valuesObject"}
"""Keys that contain the values of a chart, or lead to them."""

_CHART = (("chart",), ("chart", "spec", "chart"), ("chart", "name"), ("chartRef", "name"))
"""Places of a chart's name."""

_VERSION = (("version",), ("targetRevision",), ("chart", "spec", "version"), ("chart", "version"))
"""Places of a chart's version."""


def _unwrapped(one: Object) -> Iterator[Object]:
    """The values of a chart in an object that installs it; another object itself."""
    spec = one.at("spec")
    if spec is not None and one.kind in ("HelmRelease", "HelmChart", "HelmChartConfig"):
        yield _values(one, spec, spec)
    elif spec is not None and one.kind in ("Application", "ApplicationSet"):
        spec = spec.at("template", "spec") or spec
        for part in [*spec.each("sources"), spec.at("source")]:
            if part is not None and (part.at("chart") or part.at("helm")):
                yield _values(one, spec, part)
    else:
        yield one


def _values(one: Object, spec: Value, part: Value) -> Object:
    """What one part of an object installs."""
    source, holder = one.source, part.at("helm") or part
    hint = _RENDERED.format(peer=source.peer)
    problem = ""
    if elsewhere := holder.omit(*_ELSEWHERE):
        problem = f"{one} has values in other places: {', '.join(elsewhere)}"
        if not one.kind.startswith("Application"):  # Argo CD renders charts itself, without a release
            name = text_at(holder.node, "releaseName") or one.name
            hint = f"give all of them: helm get values {name} -n NAMESPACE | devhost import {source.peer} -"
    elif spec.at("postRenderers"):
        problem = f"{one} has postRenderers, which can change what the chart makes of its values"
    values = next(filter(None, map(holder.at, ("valuesObject", "values", "valuesContent"))), None)
    found = values.document() if values else Value(source, one.root, Fields(one.node.mark), holder.place)
    found.take()  # its keys are read in the document made below
    given = [(text_at(each.node, "name"), node_at(each.node, "value")) for each in holder.each("parameters")]
    if (pairs := holder.at("set")) is not None:
        given += [(key, node_at(pairs.node, key)) for key in pairs.keys]
    keys = dict.fromkeys((*(one.at("spec") or one).keys, *spec.keys, *part.keys, *holder.keys))
    left = sorted(keys.keys() - _OF_VALUES)
    one.take()
    for name, value in given:
        found = found.put(re.split(r"(?<!\\)\.", name), _typed(value)) if value else found
    root = source.document(found.node, found.place, str(one)).root
    chart = next(filter(None, (text_at(part.node, *path) for path in _CHART)), "").rpartition("/")[2]
    version = next(filter(None, (text_at(part.node, *path) for path in _VERSION)), "")
    if problem:
        source.problems[root] = problem, hint
    source.holders[root] = [f"{one}: only its values are converted{', not ' * bool(left)}{', '.join(left)}."]
    return Object(source, root, found.node, found.place, "", one.name, chart, str(one), version)


def _typed(node: Node) -> Node:
    """The value of ``--set``, which Helm reads as true, false, null, a number or text."""
    if isinstance(node, Scalar) and node.kind == "str":
        kind = {"true": "bool", "false": "bool", "null": "null"}.get(node.text, "str")
        return replace(node, kind="int" if node.text.isdecimal() else kind)
    return node


def _overridden(objects: list[Object]) -> list[Object]:
    """The objects, with values of a HelmChartConfig in those of the HelmChart with its name."""
    found: list[Object] = []
    for one in objects:
        chart = one.holder.replace("HelmChartConfig", "HelmChart")
        base = next((n for n, each in enumerate(found) if each.holder == chart != one.holder), None)
        if base is None:
            found.append(one)
        else:
            merged: Value = found[base]
            for key in one.keys:
                merged = merged.put((key,), value.node) if (value := one.at(key)) else merged
            found[base].take()
            one.take()
            root = one.source.document(merged.node, merged.place, found[base].holder).root
            holders = one.source.holders
            holders[root] = holders[found[base].root] + holders[one.root]
            found[base] = replace(found[base], node=merged.node, root=root)
    return found
