"""Reads what people have of a device plugin's configuration, and remembers which keys were read.

It is a file, an entry of a ConfigMap, values of a Helm chart, a custom resource, or a workload
(:mod:`.workload`), also in a List. What does not configure the plugin, or what the plugin would refuse, is a
``ConfigError``. A key that no importer reads is named in the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import reduce
from typing import Annotated, Any, NoReturn, Self, TypeVar, get_args, get_origin

from devhost.backend.errors import ConfigError
from devhost.config.diagnostics import MEANT, WHOLE_FILE, Diagnostics, KeyPath, Mark, one_line, shown, suggest
from devhost.config.document import IN_QUOTES, MAX_BYTES, Entry, Fields, Items, Node, Scalar, parse, parse_all
from devhost.config.reader import WRONG, Form, Raw, keys, members, read

PCI_ID = re.compile(r"(0[xX])?[0-9A-Fa-f]{1,4}")  # a vendor or device id in any notation
Id = Annotated[str, Form(PCI_ID.pattern, "a PCI id", 'four hex digits, as in "15b3"')]
Text = Annotated[str, Form("(?s).+", "text that is not empty", "remove it")]
Driver = Annotated[str, Form(r"[^\s/|{}^]+", "the name of a driver", 'as in "mlx5_core"')]
Ignored = list[tuple[Mark, str, str, str]]  # position, path, key and a hint
HELM = "the output of helm get values"
GUIDE = "docs/migration.md"  # the page for plugins and objects that cannot be imported
CHOOSE = "choose one with --key"
UNKNOWN_KEY = "this import does not know it"  # another release of the plugin may read it
UNKNOWN = f"{UNKNOWN_KEY}, and does not convert it: check whether you need it."
TRUE = ("true", "t", "1")  # what Go takes for true, in lower case
_INTEL = ("gpu", "fpga", "qat", "dsa", "iaa", "dlb", "sgx", "npu")
INTEL = {f"{name.title()}DevicePlugin": name for name in _INTEL}  # the plugins by the kind of their objects
_IF_EMPTY = "is it the right file?"

# API groups with the importer, if few read them, and their kinds, some of which other groups have as well
_GROUPS = {
    "": ("", "ConfigMap List Pod"),
    "akri.sh": ("akri", "Configuration"),
    "amd.com": ("amd-device-plugin", "DeviceConfig"),
    "apps": ("", "DaemonSet Deployment ReplicaSet StatefulSet"),
    "argoproj.io": ("", "Application ApplicationSet"),
    "deviceplugin.intel.com": ("intel-device-plugins", " ".join(INTEL)),
    "extensions": ("", "DaemonSet Deployment ReplicaSet"),
    "hco.kubevirt.io": ("kubevirt", "HyperConverged"),
    "helm.cattle.io": ("", "HelmChart HelmChartConfig"),
    "helm.fluxcd.io": ("", "HelmRelease"),
    "helm.toolkit.fluxcd.io": ("", "HelmRelease"),
    "kubevirt.io": ("kubevirt", "KubeVirt"),
    "mellanox.com": ("sriov-network-device-plugin", "NicClusterPolicy NicNodePolicy"),
    "nvidia.com": ("nvidia-device-plugin", "ClusterPolicy"),
}
_IMPORTERS = {kind: name for name, kinds in _GROUPS.values() if name for kind in kinds.split()}
_READ = {kind for _, kinds in _GROUPS.values() for kind in kinds.split()}
_BOOKKEEPING = ("apiVersion", "immutable", "kind", "metadata", "status")  # they configure nothing
OF_PODS = frozenset({  # keys for the pods of a plugin, which many charts and objects have
    "affinity", "annotations", "commonAnnotations", "commonLabels", "containerResources", "daemonsets",
    "dnsPolicy", "fullnameOverride", "global", "hostNetwork", "image", "imagePullPolicy", "imagePullSecrets",
    "initImage", "labels", "logLevel", "nameOverride", "namespace", "namespaceOverride", "nodeSelector",
    "persistence", "podAnnotations", "podLabels", "podSecurityContext", "priorityClassName", "rbac",
    "repository", "resources", "runtimeClassName", "securityContext", "service", "serviceAccount",
    "tolerations", "updateStrategy", "version"})  # fmt: skip
_ELSEWHERE = ("fileParameters", "valueFiles", "valuesFrom", "valuesSecrets")  # values outside the object
_OF_VALUES = {"helm", "parameters", "set", "source", "sources", "values", "valuesContent", "valuesObject"}
_CHART = ("chart", "url", "chart.spec.chart", "chart.name", "chartRef.name")  # where its name may be
_VERSION = ("version", "targetRevision", "ref.tag", "chart.spec.version", "chart.version")
T = TypeVar("T")
V = TypeVar("V", bound="Value")
_HEADER = re.compile(rb"\A(USER-SUPPLIED|COMPUTED) VALUES:[ \t]*(?=\r?\n|\Z)")  # of helm get values
_TEMPLATE = re.compile(rb"(?m)^[^#'\"\n]*?(\{[{%]-?[ \t]*[.$/\w]+)")  # of Helm or Jinja, not in text
_ALL = re.compile(rb"(?sm)\A(NAME: .*?^MANIFEST:\r?\n)(.*?)(?:^NOTES:\r?\n.*)?\Z")  # of helm get all


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the input and its place. ``root`` is the number of its document."""

    source: Source
    root: int
    node: Node
    place: KeyPath

    def __bool__(self) -> bool:
        return not (isinstance(self.node, Scalar) and self.node.kind == "null")

    def at(self, *path: str) -> Value:
        """The value below these keys; a false one with its place if one of them is missing or null."""
        node = node_at(self.node, *path) or Scalar(self.node.mark, "", "null")
        return Value(self.source, self.root, node, reduce(KeyPath.key, path, self.place))

    def has(self, *path: str) -> bool:
        return node_at(self.node, *path) is not None  # also if it is null

    def text(self, *path: str) -> str:
        found = self.at(*path)
        return text_at(found.take()).strip() if isinstance(found.node, Scalar) and found else ""

    def is_true(self, *path: str, otherwise: bool = False) -> bool:
        return (self.text(*path) or str(otherwise)).lower() in TRUE

    def fail(self, message: str, hint: str = "") -> NoReturn:
        """Refuses the input because of something in this value."""
        self.place.diagnostics.fail(self.node.mark, message, hint)

    def refuse(self, message: str, hint: str = "") -> NoReturn:
        """Refuses the input because of this value, whose path is in the message."""
        self.place.report(self.node, message, hint)
        raise self.place.diagnostics.error()

    def is_off(self, who: str, *path: str) -> None:
        """Adds a remark if the key of a chart or an operator that starts the plugin is false."""
        if not self.is_true(*path, otherwise=True):
            self.source.note(f"{'.'.join(path)} is false: the {who} does not start the plugin.")

    def settings(self) -> object:
        """What it sets, without the settings of pods, to compare it with others."""
        return _plain((self.at("spec") or self).without(*OF_PODS, *_BOOKKEEPING).node)

    @property
    def namespace(self) -> str:  # of the object that it is in
        return text_at(self.source.documents[self.root][0], "metadata", "namespace")

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, Fields)

    @property
    def keys(self) -> list[str]:
        return [*_entries(self.node)]

    def members(self) -> list[tuple[str, Value]]:  # of a mapping, without those that are null
        return [(key, value) for key in self.keys if (value := self.at(key))]

    def each(self, *path: str) -> Iterator[Value]:
        found = self.at(*path)
        for _, item, place in _inside(found.node, found.place) if isinstance(found.node, Items) else ():
            yield Value(self.source, self.root, item, place)

    def parts(self, key: str, nodes: Sequence[Node]) -> list[Self]:
        """The members of the list below a key, which were read as ``nodes``."""
        return [replace(self, node=one, place=self.place.key(key).item(n)) for n, one in enumerate(nodes)]

    def take(self) -> Node:
        """The node, which is then read with all that it contains."""
        self.source.read.add((self.root, self.place.path))
        return self.node

    def omit(self, *names: str) -> list[str]:
        """Marks keys as read, and lists those with a value that was not read before."""
        found = [(name, one) for name in names if (one := self.at(name)) and not self.source.is_read(one)]
        return [name for name, one in found if one.take()]

    def others(self, *names: str) -> list[str]:
        """The same for all keys except these."""
        return self.omit(*(key for key in self.keys if key not in names))

    def leave(self, why: str, *names: str) -> None:
        """Names all keys except these, and those that were read, in one remark."""
        if left := [self.place.key(name).path for name in self.others(*names)]:
            self.source.note(f"{some(left)}: {why}")

    def for_pods(self) -> None:
        """Marks the settings of the plugin's pods as read; they are named in the result."""
        self.source.pods |= dict.fromkeys(self.omit(*OF_PODS.intersection(self.keys)))

    def document(self) -> Value:
        """The document in a string, whose diagnostics name the string's place too; else the value itself."""
        node, place = self.node, self.place
        if not isinstance(node, Scalar):
            return self
        if node.kind != "str":  # JSON always is
            self.fail(f"{place.path} must be text, not {node}")
        self.take()
        inner = Diagnostics(f"{place.diagnostics.file}:{node.mark.line}: {place.path}")
        return self.source.document(parsed(node, inner), KeyPath(inner))

    def expected(self, known: Collection[str], marks: Collection[str] = ()) -> Value:
        """The value, which must be a mapping that is empty or has keys of the plugin's file."""
        if not self.is_mapping or (self.keys and not has_key(self.node, marks or known)):
            hint = f"known keys: {', '.join(sorted(known))}; for other plugins see {GUIDE}"
            self.fail(f"it has no key of the configuration of {self.source.peer}", hint)
        return self

    def read_as(self, wanted: Any) -> Any:
        if (found := read(self.take(), wanted, self.place)) is WRONG:
            raise self.place.diagnostics.error()
        return found

    def as_dataclass(
        self, cls: type[T], note: Callable[[str], None], only: Collection[str] = (), **hints: str
    ) -> T:
        """The value as Go reads it into a struct (:func:`pruned`). A refusal names misspelt keys as well.
        ``hints`` are for keys that occur in files although the plugin ignores them."""
        ignored: Ignored = []
        found: T = read(pruned(self.take(), cls, self.place, ignored, only), cls, self.place)
        for mark, path, key, other in ignored:
            hint = hints.get(key, other)
            if found is WRONG and hint.startswith(MEANT):
                self.place.diagnostics.add(mark, path, UNKNOWN_KEY, hint)
            else:
                note(one_line(f"{path}: {UNKNOWN_KEY} ({hint})"))
        if found is WRONG:
            raise self.place.diagnostics.error()
        return found

    def without(self, *names: str) -> Self:
        left = {key: entry for key, entry in _entries(self.node).items() if key not in names}
        return replace(self, node=Fields(self.node.mark, left))

    def put(self, path: Sequence[str], node: Node) -> Self:
        key, *below = path
        entries = _entries(self.node)
        if below:
            inner = entries[key].value if key in entries else Fields(node.mark)
            node = replace(self, node=inner).put(below, node).node
        return replace(self, node=Fields(self.node.mark, entries | {key: Entry(node.mark, node)}))


@dataclass(frozen=True, slots=True, eq=False)
class Object(Value):
    """A Kubernetes object or another document, whose ``kind`` is empty. ``holder`` is the object with values
    of a ``chart``, ``problem`` why these do not show all settings, and what to do."""

    kind: str = ""
    name: str = ""
    chart: str = ""
    holder: str = ""
    version: str = ""
    remarks: tuple[str, ...] = ()
    problem: tuple[str, str] | None = None

    def __str__(self) -> str:
        return self.holder or f"{self.kind} {self.name}".strip() or "a document without kind"


class Source:
    """An input for the importer ``peer``: its objects, what of them was read, diagnostics and remarks.
    ``key`` is the configuration that the user chose."""

    def __init__(self, data: bytes, file_name: str, peer: str, key: str = "") -> None:
        self.peer, self.key, self.diagnostics = peer, key, Diagnostics(file_name)
        self.pods: dict[str, None] = {}
        self.read: set[tuple[int, str]] = set()  # documents, and paths in them, that were read as a whole
        self._notes: list[str] = []
        self.documents: list[tuple[Node, KeyPath, str, Collection[str]]] = []
        if len(data) > MAX_BYTES:
            hint = "name the plugin's objects in the command, or use --from-cluster"
            self.diagnostics.fail(WHOLE_FILE, f"it is larger than {MAX_BYTES >> 20} MiB", hint)
        if release := _ALL.match(data):  # its values are in the manifest
            data = b"\n" * release[1].count(b"\n") + release[2]
        rest = _HEADER.sub(b"", data)
        holder = HELM if rest != data else ""
        rest = b"{}" if holder and rest.strip() in (b"", b"null") else _tabless(rest)
        documents = _sound(parse_all, rest, self.diagnostics)
        flat = [one for node in documents for one in self._flat(node, KeyPath(self.diagnostics), holder)]
        self._named: dict[tuple[str, str], list[Object]] = {}  # by kind, as in Object, and name
        for one in flat:
            self._named.setdefault((one.kind, one.name), []).append(one)
        objects = [each for one in flat for each in _unwrapped(one)]
        mark = next((node.mark for node in documents if isinstance(node, Fields)), WHOLE_FILE)
        message = "it is empty" if mark == WHOLE_FILE else "the list has no objects"
        self.objects = _overridden(objects) if objects else self.diagnostics.fail(mark, message, _IF_EMPTY)

    def _flat(self, node: Node, place: KeyPath, holder: str = "") -> Iterator[Object]:
        if isinstance(node, Scalar) and node.kind == "null":  # after a final "---"
            return
        kind, name, items = _kind(node), text_at(node, "metadata", "name"), node_at(node, "items")
        if kind.endswith("List") and isinstance(items, Items):
            within = _inside(items, place.key("items"))
            inside = [one for _, item, at in within for one in self._flat(item, at)]
            named = [one for one in inside if one.kind]
            if named or not inside:
                yield from named
                return
        elif kind == "List":
            place.diagnostics.fail(node.mark, f"it has no {place.key('items').path}", _IF_EMPTY)
        label = f"{kind} {name}".strip()
        root = self.document(node, place, label, _BOOKKEEPING if label else ()).root
        yield Object(self, root, node, place, kind, name, holder="" if kind else holder)

    def document(self, node: Node, place: KeyPath, name: str = "", skip: Collection[str] = ()) -> Value:
        """A further document; ``name`` is that of an object, of which no importer need read ``skip``."""
        self.documents.append((node, place, name, skip))
        return Value(self, len(self.documents) - 1, node, place)

    def named(self, kind: str, name: str, namespace: str) -> list[Object]:  # there, as far as that is known
        found = self._named.get((kind, name), []) if kind else []
        return [one for one in found if not (namespace and one.namespace) or one.namespace == namespace]

    def is_read(self, value: Value) -> bool:
        return (value.root, value.place.path) in self.read

    def note(self, *remarks: str) -> None:
        self._notes += remarks

    def chosen(self, name: str, every: Value, of_label: str = "") -> Value:
        """One of several configurations, with a remark on the others, which are then read."""
        if left := every.others(name):
            others = f"For nodes with another one{of_label} ({some(left)}), import it with --key."
            self.note(f"This is the configuration {name}. {others}")
        return every.at(name).document()

    def of_kinds(self, *kinds: str, hint: str = "") -> list[Object]:
        """The objects of these kinds, or a refusal with the hint; those without kind are no objects."""
        return [one for one in self.objects if one.kind in kinds] or (self.refuse(hint) if hint else [])

    @property
    def bare(self) -> list[Object]:
        """The documents that are neither Kubernetes objects nor values of a known chart."""
        return [one for one in self.of_kinds("") if not one.holder]

    def refuse(self, hint: str) -> NoReturn:
        ranks = [(one.kind not in _IMPORTERS, not one.holder, not one.kind) for one in self.objects]
        first = self.objects[ranks.index(min(ranks))]  # of a plugin, else with values, else any with a kind
        if first.problem and not first.chart:
            first.fail(*first.problem)
        what = first.kind and f"a {shown(first.kind)} contains no configuration"
        what = what or (first.holder and f"{first} has no values of a chart of this plugin")
        if (reader := _IMPORTERS.get(first.kind, self.peer)) != self.peer:
            hint = f"`devhost import {reader}` reads it"
        first.at("kind").fail(what or "it is not a Kubernetes object", hint)

    def one_of(self, found: Sequence[V], program: str = "", made: Sequence[object] = ()) -> V | None:
        """The only configuration of a plugin, if any; those that set, or ``made``, the same count once."""
        made = made or [one.settings() for one in found]
        if others := [one for one, each in zip(found, made, strict=True) if each != made[0]]:
            what = f"different configurations of {program or self.peer}"
            hint = "for nodes of different kinds see deploy/README.md#nodes-of-different-kinds"
            named = some([*map(str, (found[0], *others))])
            others[0].fail(f"{what}: {named}", f"import each separately; {hint}")
        for one in found[1:]:
            one.take()
        return found[0] if found else None

    def charts(self, *charts: str, recognized: Callable[[Object], object]) -> list[Object]:
        """All values of these charts, or ``recognized`` as such, also those in values of another chart."""
        found: list[Object] = []
        for one in self.of_kinds(""):
            if inside := {name: value for name in charts if (value := one.at(name)) and value.is_mapping}:
                one.leave("values of other charts, which are not converted.", *inside)
                for name, part in inside.items():
                    given = replace(one, node=part.node, place=part.place, chart=name, holder=f"{one} {name}")
                    found.append(given)
            elif one.chart in charts or (not one.chart and one.is_mapping and recognized(one)):
                found.append(one)
        for one in found:
            self.note(*one.remarks)
            if one.problem:
                one.fail(*one.problem)
            if not one.keys:
                one.take()
            if not one.is_mapping:
                one.fail(f"values of a chart must be a mapping, not {one.node}")
        return found

    def values(self, *charts: str, recognized: Callable[[Object], object]) -> Object | None:
        return self.one_of(self.charts(*charts, recognized=recognized))

    def remarks(self) -> list[str]:
        """All remarks for the head of the result, with one on each key that no importer has read."""
        objects, keys, found = list[str](), list[str](), [*self._notes]
        for root, (node, place, name, skip) in enumerate(self.documents):
            paths, is_read = self._unread(root, node, place, skip)
            if name and not is_read:
                objects.append(name)
            else:
                keys += [f"{name}: {path}" if name and len(self.objects) > 1 else path for path in paths]
        if self.pods:
            what = "settings of the plugin's pods; for those of devhost see deploy/README.md."
            found.append(f"{', '.join(sorted(self.pods))}: {what}")
        if objects:
            found.append(f"Not part of the plugin's configuration: {some(objects)}.")
        return list(dict.fromkeys([*found, *(f"{key}: {UNKNOWN}" for key in keys)]))

    def _unread(self, root: int, node: Node, place: KeyPath, skip: Collection[str]) -> tuple[list[str], bool]:
        """The unread values below a value, and whether anything there was read."""
        if (root, place.path) in self.read:
            return [], True
        if isinstance(node, Scalar):
            return ([] if node.kind == "null" else [place.path]), False
        found = [self._unread(root, one, at, ()) for key, one, at in _inside(node, place) if key not in skip]
        unread = [path for paths, _ in found for path in paths]
        is_read = any(each for _, each in found)
        return [place.path] if unread and place.path and not is_read else unread, is_read


def pruned(node: Node, wanted: Any, place: KeyPath, ignored: Ignored, only: Collection[str] = ()) -> Node:
    """The value with only those keys, at any depth, that a plugin written in Go reads into the type
    ``wanted``, in any case; of the value itself ``only`` these, all if empty. The others are in ``ignored``,
    because a misspelt selector selects more than intended. Null is as a missing key."""
    wanted, *_ = get_args(wanted) if get_origin(wanted) is Annotated else (wanted,)
    if wanted == Raw:
        return node
    if isinstance(node, Scalar) and node.kind == "int" and ":" in node.text:  # Go has no numbers of base 60
        return replace(node, kind="str")
    if isinstance(node, Items):
        inner = next((one for one in get_args(wanted) if one is not Ellipsis), None)
        items = (pruned(one, inner, place.item(n), ignored) for n, one in enumerate(node.items))
        return Items(node.mark, tuple(items))
    cls = next((one for one in members(wanted) if is_dataclass(one)), None)
    if not isinstance(node, Fields) or not isinstance(cls, type):
        return node
    names = {key.lower(): (key, one) for key, (_, one) in keys(cls).items() if not only or key in only}
    found = Fields(node.mark)
    for key, (mark, value) in node.entries.items():
        known, at = names.get(key.lower()), place.key(key)
        if isinstance(value, Scalar) and value.kind == "null":
            continue
        if known:
            found.entries[known[0]] = Entry(mark, pruned(value, known[1], at, ignored))
        else:
            ignored.append((mark, at.path, key, suggest(key, [one for one, _ in names.values()], "keys")))
    return found


def typed(node: Node, wanted: Any) -> Node:
    """The text of a flag, a variable or a chart's value as a file's value of this type."""
    wanted, *_ = get_args(wanted) if get_origin(wanted) is Annotated else (wanted,)
    if not isinstance(node, Scalar):
        return node
    node = replace(node, text=node.text.strip())  # as in Go
    items = [get_args(one)[0] for one in members(wanted) if get_origin(one) is tuple]
    if items and (len(members(wanted)) == 1 or "," in node.text):
        parts = (replace(node, text=part.strip(), kind="str") for part in node.text.split(","))
        return Items(node.mark, tuple(typed(part, items[0]) for part in parts))
    if wanted is bool and node.text.lower() in (*TRUE, "false", "f", "0"):
        return replace(node, text="true" if node.text.lower() in TRUE else "false", kind="bool")
    return replace(node, kind="int") if wanted is int and node.text.isdecimal() else node


def pci_id(value: str) -> str:
    """A vendor or device id in the kernel's notation: four lower-case hex digits."""
    return value.lower().removeprefix("0x").rjust(4, "0") if PCI_ID.fullmatch(value) else value


def odd_ids(values: Iterable[str], path: str, right: Callable[[str], str] = pci_id) -> Iterator[str]:
    """Remarks on ids that never match for a plugin that compares exactly, but match in devhost."""
    for one in dict.fromkeys(values):
        if (known := right(one)) != one:
            what = f'never matches for the plugin; devhost takes it as "{known}"'
            yield one_line(f"{path}: {shown(one)} {what}")


def some(names: Sequence[str], most: int = 8) -> str:
    """Names for a message: the first few, and the number of others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def node_at(node: Node, *path: str) -> Node | None:
    found: Node | None = node
    for key in path:
        found = entry.value if (entry := _entries(found).get(key)) else None
    return found


def text_at(node: Node, *path: str) -> str:
    found = node_at(node, *path)
    return found.text if isinstance(found, Scalar) and found.kind != "null" else ""


def has_key(node: Node, keys: Collection[str]) -> bool:
    """Whether a mapping, or one in a list, has one of these keys in any case; ``a.b`` is b below a."""
    if isinstance(node, Items):
        return any(has_key(one, keys) for one in node.items)
    found = {key: _entries(entry.value) for key, entry in _entries(node).items()}
    paths = [*found, *(f"{key}.{inner}" for key, below in found.items() for inner in below)]
    return not {key.lower() for key in keys}.isdisjoint(map(str.lower, paths))


def _entries(node: Node | None) -> dict[str, Entry]:
    return node.entries if isinstance(node, Fields) else {}


def _inside(node: Node, place: KeyPath) -> Iterator[tuple[str, Node, KeyPath]]:
    yield from ((key, entry.value, place.key(key)) for key, entry in _entries(node).items())
    if isinstance(node, Items):
        yield from (("", item, place.item(n)) for n, item in enumerate(node.items))


def _plain(node: Node) -> object:
    if isinstance(node, Fields):
        return {key: _plain(entry.value) for key, entry in node.entries.items()}
    return [_plain(one) for one in node.items] if isinstance(node, Items) else (node.kind, node.text)


def _kind(node: Node) -> str:
    """The kind of an object, with its group as kubectl writes it if that is not the one that is read."""
    is_chart = all(node_at(node, key) for key in ("apiVersion", "name", "version"))  # a Chart.yaml
    kind = text_at(node, "kind") or "Chart" * is_chart
    _, kinds = _GROUPS.get(group := text_at(node, "apiVersion").rpartition("/")[0], ("", ""))
    is_known = kind in kinds.split() or kind not in _READ or node_at(node, "apiVersion") is None
    return kind if is_known else f"{kind}.{group}".strip(".")


def parsed(node: Scalar, diagnostics: Diagnostics) -> Node:
    return _sound(parse, _tabless(node.text.encode(errors="surrogatepass")), diagnostics)


def _sound(read: Callable[..., T], data: bytes, diagnostics: Diagnostics) -> T:
    """What is read. Refuses templates, and keys that occur twice, since plugins differ in the one they use.
    A key that is a number is text, as for Go."""
    try:
        found = read(data, diagnostics, if_empty=_IF_EMPTY)
        diagnostics.found[:] = [one for one in diagnostics.found if not one[3].startswith(IN_QUOTES)]
        if diagnostics.found:
            raise diagnostics.error()
        return found
    except ConfigError:
        if template := _TEMPLATE.search(data):
            diagnostics.found.clear()
            start = template.start(1)
            mark = Mark(data.count(b"\n", 0, start) + 1, start - data.rfind(b"\n", 0, start))
            hint = "give what it makes: the output of helm template, or of kubectl get"
            diagnostics.fail(mark, f"it is a template, with {shown(template[1].decode())}", hint)
        raise


def _tabless(data: bytes) -> bytes:
    """JSON as valid YAML, which indents without tabs; strings in JSON have none (RFC 8259, section 7)."""
    return data.replace(b"\t", b" ") if data.lstrip()[:1] in (b"{", b"[") else data


def _unwrapped(one: Object) -> Iterator[Object]:
    """The values of a chart in an object that installs it; another object itself."""
    spec, parts = one.at("spec"), list[Value]()
    if spec and one.kind in ("HelmRelease", "HelmChart", "HelmChartConfig"):
        parts = [spec]
    elif one.kind in ("Application", "ApplicationSet"):
        spec = spec.at("template", "spec") or spec
        sources = (*spec.each("sources"), spec.at("source"))
        parts = [part for part in sources if part.at("chart") or part.at("helm")]
    yield from (_values(one, spec, part) for part in parts) if parts else (one,)


def _values(one: Object, spec: Value, part: Value) -> Object:
    source, holder = one.source, part.at("helm") or part
    problem, command = "", "give what it made: kubectl get daemonsets,configmaps -n NAMESPACE -o yaml"
    if elsewhere := holder.omit(*_ELSEWHERE):
        problem = f"{one} has values in other places: {', '.join(elsewhere)}"
        if not one.kind.startswith("Application"):  # Argo CD renders charts itself, without a release
            name = text_at(holder.node, "releaseName") or one.name
            command = f"give all of them: helm get values {name} -n NAMESPACE"
    elif spec.at("postRenderers"):
        problem = f"{one} has postRenderers, which can change what the chart makes of its values"
    values = next(filter(None, map(holder.at, ("valuesObject", "values", "valuesContent"))), None)
    found = values.document() if values else Value(source, one.root, Fields(one.node.mark), holder.place)
    found.take()  # its keys are read in the document made below
    given = [(text_at(each.node, "name"), node_at(each.node, "value")) for each in holder.each("parameters")]
    given += [(key, node_at(holder.at("set").node, key)) for key in holder.at("set").keys]
    left = sorted({*(one.at("spec") or one).keys, *spec.keys, *part.keys, *holder.keys} - _OF_VALUES)
    one.take()
    for name, value in given:
        found = found.put(re.split(r"(?<!\\)\.", name), _typed(value)) if value else found
    root = source.document(found.node, found.place, str(one)).root
    kind, name, space = (text_at(part.node, "chartRef", key) for key in ("kind", "name", "namespace"))
    kind = "HelmChart.source.toolkit.fluxcd.io" if kind == "HelmChart" else kind  # not the one of k3s
    places = [*(each.at("spec") for each in source.named(kind, name, space or one.namespace)), part]
    both = ([text_at(at.node, *path.split(".")) for at in places for path in of] for of in (_CHART, _VERSION))
    chart, version = (next(filter(None, one), "").rpartition("/")[2] for one in both)
    remark = f"{one}: only its values are converted{', not ' * bool(left)}{', '.join(left)}."
    why = (problem, f"{command} | devhost import {source.peer} -") if problem else None
    made = Object(source, root, found.node, found.place, name=one.name, holder=str(one), problem=why)
    return replace(made, chart=chart, version=version, remarks=(remark,))


def _typed(node: Node) -> Node:
    """The value of ``--set``, which Helm reads as true, false, null, a number or text."""
    if isinstance(node, Scalar) and node.kind == "str":
        kind = {"true": "bool", "false": "bool", "null": "null"}.get(node.text, "str")
        return replace(node, kind="int" if node.text.isdecimal() else kind)
    return node


def _overridden(objects: list[Object]) -> list[Object]:
    """The objects, with values of a HelmChartConfig in those of the HelmChart with its name."""
    found = dict(enumerate(objects))
    charts = {one.holder: n for n, one in reversed(found.items())}
    for n, one in enumerate(objects):
        name = one.holder.removeprefix("HelmChartConfig")
        if name == one.holder or (at := charts.get(f"HelmChart{name}")) is None:
            continue
        base, _ = found[at], found.pop(n)
        merged = reduce(lambda made, each: made.put((each[0],), each[1].node), one.members(), base)
        base.take()
        one.take()
        root = one.source.document(merged.node, merged.place, base.holder).root
        problem = base.problem or one.problem
        found[at] = replace(merged, root=root, remarks=base.remarks + one.remarks, problem=problem)
    return [*found.values()]
