"""Reads from a Kubernetes object how it starts a plugin: image, flags and variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from devhost.backend.errors import ConfigError
from devhost.config.diagnostics import Diagnostics
from devhost.config.document import Node, Scalar

from .source import CHOOSE, UNKNOWN, Object, Source, Value, has_key, node_at, parsed, some, text_at

WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "Pod")  # kinds that start a plugin
_IN_EACH_NAMESPACE = "kube-root-ca.crt"  # a ConfigMap of Kubernetes
_POD = {**dict.fromkeys(WORKLOADS, ("spec", "template", "spec")), "Pod": ("spec",)}  # where its spec is
_OF_OBJECTS = ("apiVersion", "kind", "metadata", "name", "selector", "status")  # they need no remark
LOGGING = ("alsologtostderr", "log_dir", "logtostderr", "stderrthreshold", "v", "vmodule")  # flags of glog
_FLAG = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|([A-Za-z_]\w*))")  # of Kubernetes, and of a shell
_GIVE = {"ConfigMap": "add that to the input", "Secret": "write it in env, and import again"}
_ORIGINS = {f"{kind[0].lower()}{kind[1:]}{end}": kind for kind in _GIVE for end in ("KeyRef", "Ref")}
_ARCHITECTURE = re.compile("-(amd64|arm64|ppc64le|s390x)(?=:|$)")  # in the name of an image, or its tag
_VERSION = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(?![0-9A-Za-z.-])")


class Options:
    """The flags and variables that start a program, of a mapping with ``command``, ``args`` and ``env``. The
    ``switches`` are flags that never use the next argument as their value; without one, the text is true.
    The values of a flag in ``lists`` that is given several times add up, with commas."""

    def __init__(self, value: Value, switches: Collection[str] = (), lists: Collection[str] = ()) -> None:
        self._value, self._switches = value, switches
        self._variables: dict[str, Value] = {}
        self._used: set[str] = set()
        for name, one in _environment(value):
            given = one.node if isinstance(one.node, Scalar) else node_at(one.node, "value")
            if isinstance(given, Scalar) and name:
                self._variables[name] = replace(one, node=self._expanded(given))
        words = [replace(one, node=self._expanded(one.node)) for one in _words(value)]
        self.flags = [*_flags(words, {*switches, "alsologtostderr", "logtostderr"})]  # all, also equal ones
        self._taken = [*value.each("envFrom"), *value.each("env"), *words]
        self._given = self._variables | dict(self.flags)
        for name in {name for name, _ in self.flags}.intersection(lists):
            texts = [text_at(one.node) for each, one in self.flags if each == name]
            last = self._given[name]
            self._given[name] = replace(last, node=Scalar(last.node.mark, ",".join(texts), "str"))

    def _expanded(self, word: Node) -> Scalar:
        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2] or found[3]
            self._used.add(name)
            return text_at(self._variables[name].node) if name in self._variables else found[0]

        return Scalar(word.mark, _VARIABLE.sub(value, text_at(word)), "str")

    def get(self, *names: str) -> Value:
        """The first of these flags and variables that is given; of a flag given twice, the last one."""
        self._used.update(names)
        return next((self._given[name] for name in names if name in self._given), self._value.at(""))

    def finish(self, *omitted: str, **named: str) -> None:
        """Adds a remark on each flag and variable that was not read, except those of the log and those
        ``omitted``. ``named``: what to do with those without equivalent; switches count if they are on."""
        for one in self._taken:
            one.take()
        for name, one in (*self.flags, *self._variables.items()):
            text = one.text()
            what = (name if name.isupper() else f"-{name}") + (f" {text}" if text != "true" else "")
            is_off = name in named and (not text or (name in self._switches and not one.is_true()))
            if not is_off and name not in self._used.union(omitted, LOGGING):
                one.source.note(f"{what}: {named.get(name, UNKNOWN)}")


@dataclass(frozen=True, slots=True, eq=False)
class Container(Value):
    """A container of an object, ``pod`` with its volumes, and the ``words`` of its command line."""

    holder: Object
    pod: Value
    image: str
    words: list[str]

    def __str__(self) -> str:
        return str(self.holder)

    def settings(self) -> object:
        env = {text_at(each.node, "name"): each.settings() for each in self.each("env")}
        origins, image = [one.settings() for one in self.each("envFrom")], _ARCHITECTURE.sub("", self.image)
        return image, self.words, env, origins, self.config_maps

    @property
    def program(self) -> str:
        """The name of the program without its directory; empty if the image defines it."""
        return self.words[0].rpartition("/")[2] if self.words and self.has("command") else ""

    @property
    def config_maps(self) -> list[str]:
        return [name for one in self.pod.each("volumes") for name, _ in _config_maps(one)]

    @property
    def is_owned(self) -> bool:
        """Whether an object of the input made the one that has this container, as an operator does."""
        references = self.holder.each("metadata", "ownerReferences")
        owners = [(text_at(one.node, "kind"), text_at(one.node, "name")) for one in references]
        return any((one.kind, one.name) in owners for one in self.source.objects)

    def starts(self, word: str, *vendors: str) -> bool:
        """Whether the image, the command or an argument contains this word; if the image of a mirror may
        mean several programs, one of ``vendors`` must be in the image or a name."""
        names = (self.image, text_at(self.node, "name"), self.holder.name)
        is_meant = not vendors or any(vendor in name for vendor in vendors for name in names)
        return is_meant and (word in self.image or any(word in one for one in self.words))

    def entry(self, path: str) -> tuple[str, str]:
        """The names of the ConfigMap and of its entry that are a file of the container; else empty."""
        for directory, inner, volume in self._mounts():
            is_here = path == directory if inner else path.startswith(f"{directory}/")
            file = inner or path.removeprefix(f"{directory}/")
            for name, keys in _config_maps(volume) if is_here else ():
                if file in keys or not keys:  # $(NODE_NAME) is another one on each node
                    return name, "" if "$" in file else keys.get(file, file)
        return "", ""

    def lacks(self, path: str, key: str) -> NoReturn:
        """Refuses the input without the ConfigMap with the plugin's file, by ``path`` or usual ``key``."""
        name, entry = self.entry(path)
        names, space = [name] if name else self.config_maps, self.holder.namespace
        which = " or ".join(f"{space}/{one}".strip("/") for one in names) or "that its pod mounts"
        entry = f", which has the entry {entry or key}" if entry or not name else ""
        command = f": kubectl get configmap {' '.join(names)} -n {space or 'NAMESPACE'} -o yaml"
        hint = f"add the ConfigMap {which}{entry}{command if names else ''}"
        self.fail("its configuration is in a ConfigMap, which is not in this file", hint)

    def mounted(self, path: str) -> str:
        """The directory of the host that the container has at this path; empty if there is none."""
        found = (volume for directory, _, volume in self._mounts() if directory == path)
        return next((text_at(volume.node, "hostPath", "path") for volume in found), "")

    def options(self, switches: Collection[str] = (), lists: Collection[str] = ()) -> Options:
        """Its flags and variables. Everything else of the object is marked as read; what matters is named."""
        pod: Value = self.holder
        left: list[str] = []
        for key in _POD[self.holder.kind]:
            left += pod.others(key)
            pod = pod.at(key)
        left += pod.others("containers", "initContainers")
        left += self.others("command", "args", "env", "envFrom")
        self.source.pods |= dict.fromkeys(one for one in left if one not in _OF_OBJECTS)
        every = [*pod.each("initContainers"), *pod.each("containers")]
        if others := [one for one in every if one.place.path != self.place.path]:
            names = some([text_at(one.take(), "name") for one in others])
            self.source.note(f"{self.holder}: its other containers are not converted: {names}.")
        return Options(self, switches, lists)

    def _mounts(self) -> Iterator[tuple[str, str, Value]]:
        """The directory or file of each mount, the path in its volume, and the volume."""
        volumes = {text_at(one.node, "name"): one for one in self.pod.each("volumes")}
        for one in self.each("volumeMounts"):
            if (volume := volumes.get(text_at(one.node, "name"))) is not None:
                yield text_at(one.node, "mountPath").rstrip("/"), text_at(one.node, "subPath"), volume


def version_of(image: str) -> tuple[int, ...]:
    """The version in the tag of an image, or the tag itself; empty if it is none."""
    found = _VERSION.fullmatch(image.partition("@")[0].rpartition(":")[2])
    return tuple(map(int, found.groups())) if found else ()


def _config_maps(volume: Value) -> Iterator[tuple[str, dict[str, str]]]:
    """The ConfigMaps of a volume, and the entries for its files if it lists them."""
    for one in (volume, *volume.each("projected", "sources")):
        files = one.each("configMap", "items")
        if name := text_at(one.node, "configMap", "name"):
            yield name, {text_at(each.node, "path"): text_at(each.node, "key") for each in files}


def containers(source: Source) -> list[Container]:
    found: list[Container] = []
    for holder in source.of_kinds(*_POD):
        pod = holder.at(*_POD[holder.kind])
        for one in filter(lambda each: each.is_mapping, pod.each("containers")):
            image, words = text_at(one.node, "image"), [text_at(word.node) for word in _words(one)]
            found.append(Container(source, one.root, one.node, one.place, holder, pod, image, words))
    return found


def the_container(source: Source, runs: Callable[[Container], bool], program: str) -> Container | None:
    """The only container that runs a program, if any; several that start it differently are refused."""
    found = [one for one in containers(source) if runs(one)]
    for one in found[1:]:
        one.holder.take()
    return source.one_of(found, program)


def file_of(
    source: Source, plugin: Value | None, path: str, *names: str, marks: Collection[str], default: str = ""
) -> Value | None:
    """The plugin's file in an entry of a ConfigMap; ``None`` if there is none. ``path`` is that of the file
    in the plugin's container. ``names`` are usual ones of the entry, the preferred one first, ``default`` is
    the one without a choice of the user and a file in the container. An entry with another name counts if its
    text has a key of ``marks``, or in a ConfigMap that is mounted."""
    entry, space, mounted = "", "", list[str]()
    if isinstance(plugin, Container):
        name, entry = plugin.entry(path)
        space, mounted = plugin.holder.namespace, [name] if name else plugin.config_maps
    maps = [
        one
        for one in source.of_kinds("ConfigMap")
        if (one.name in mounted if mounted else one.name != _IN_EACH_NAMESPACE)
        if not (mounted and space and one.namespace) or one.namespace == space
    ]
    held = [(one, dict(one.at("data").members())) for one in maps]
    wanted, is_named = source.key or entry or default, plugin is None or mounted != []
    found = [(one, inside, _fits(inside, names, marks, wanted)) for one, inside in held]
    if is_named and not wanted and [len(inside) for _, inside in held] == [1]:
        found = [(one, inside, [*inside]) for one, inside in held]
    fitting = [each for each in found if each[2]]
    if not maps or not (fitting or is_named or source.key or default):
        return None
    source.one_of([one for one, _, _ in fitting])
    chosen, inside, fits = (fitting or found)[0]
    if len(fits) != 1:
        message = f"it has no {chosen.place.key('data').key(wanted or names[0]).path}"
        hint = f"{CHOOSE}, which may be {some(fits or [*inside])}" if inside else "is it the right object?"
        if fits:
            message = f"several entries of {chosen} may be the configuration"
        elif len(maps) > 1:
            which = some([f"{one.namespace}/{one.name}".strip("/") for one in maps])
            message = f"none of {which} has the entry {wanted or names[0]}"
            hint = "give only the ConfigMap of the plugin, and name its entry with --key"
        chosen.at("data").fail(message, hint)
    if entry:
        chosen.at("data").others(fits[0])  # which the plugin does not read
    return source.chosen(fits[0], chosen.at("data"))


def _fits(held: Mapping[str, Value], names: Sequence[str], marks: Collection[str], wanted: str) -> list[str]:
    """The wanted entry; else the one with the first of these names, or those with one of the marks."""
    found = [name for name in ((wanted,) if wanted else names) if name in held][:1]
    for name, value in held.items() if not found and not wanted else ():
        with suppress(ConfigError):
            if isinstance(value.node, Scalar) and has_key(parsed(value.node, Diagnostics("")), marks):
                found.append(name)
    return found


def _flags(words: Sequence[Value], switches: Collection[str]) -> Iterator[tuple[str, Value]]:
    """The flags with two hyphens or one, as ``--name=value`` or ``--name value``."""
    texts = [text_at(word.node) for word in words]
    for n, word in enumerate(words):
        if not _FLAG.match(texts[n]):
            continue
        name, sign, text = texts[n].lstrip("-").partition("=")
        own = replace(word, node=Scalar(word.node.mark, text if sign else "true", "str"))
        is_one = sign or name in switches or not texts[n + 1 :] or _FLAG.match(texts[n + 1])
        yield name, own if is_one else words[n + 1]


def _words(value: Value) -> list[Value]:
    """The words of the command line, and those of a script that a shell runs."""
    found, is_script = list[Value](), False
    for one in (*value.each("command"), *value.each("args")):
        if isinstance(one.node, Scalar):
            parts = [one.node.text]
            if is_script:
                parts = one.node.text.split()
                with suppress(ValueError):  # quotes that are not closed
                    script = shlex.shlex(one.node.text, posix=True, punctuation_chars=";&|<>")
                    script.whitespace_split = True
                    parts = [*script]
            is_script = re.fullmatch("-[eilux]*c", "".join(parts)) is not None  # options of a shell
            nodes = [Scalar(one.node.mark, "" if is_script else part, "str") for part in parts]
            found += [replace(one, node=node) for node in nodes]
    return found


def _environment(value: Value) -> Iterator[tuple[str, Value]]:
    """Names of variables, and what gives their values, in increasing precedence."""
    for one in value.each("envFrom"):
        for key, each in _data(one, "envFrom").members():
            yield f"{text_at(one.node, 'prefix')}{key}", each
    for one in value.each("env"):
        name, origin = text_at(one.node, "name"), one.at("valueFrom")
        yield name, _data(origin, name).at(text_at(origin.node, "configMapKeyRef", "key")) or one
    yield from value.at("env").members()  # a mapping, as in many charts


def _data(origin: Value, variable: str) -> Value:
    """The entries of the ConfigMap from which a variable is; a remark if the input does not have them."""
    for key, kind in _ORIGINS.items():
        if name := text_at(origin.node, key, "name"):
            if kind == "ConfigMap" and (found := origin.source.named(kind, name, origin.namespace)):
                return found[0].at("data")
            origin.source.note(f"{variable}: the value is in the {kind} {name}: {_GIVE[kind]}.")
    return origin.at("data")  # of no ConfigMap
