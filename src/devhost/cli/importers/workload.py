"""Reads from a Kubernetes object how it starts a plugin: image, flags and variables."""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

from devhost.config.diagnostics import Mark, Place
from devhost.config.document import Fields, Items, Node, Scalar
from devhost.config.reader import members

from .source import TRUE, UNKNOWN, Object, Source, Value, node_at, some, text_at

WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "Pod")
"""Kinds that start a plugin."""

_POD = {**dict.fromkeys(WORKLOADS, ("spec", "template", "spec")), "Pod": ("spec",)}
"""The place of the pod's ``spec`` in objects that run containers."""

_STARTING = ("command", "args", "env", "envFrom")
"""Keys of a container that configure its program."""

_OF_OBJECTS = ("apiVersion", "kind", "metadata", "name", "selector", "status")
"""Keys of a workload that need no remark."""

_FLAG = re.compile(r"--?[A-Za-z]")
_VERSION = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(?![0-9A-Za-z.-])")


@dataclass(frozen=True, slots=True)
class Option:
    """A flag or a variable as given, and the value to mark as read. ``bare`` is a flag without a value."""

    name: str
    given: Scalar
    value: Value
    bare: bool = False

    @property
    def text(self) -> str:
        """The text; ``true`` for a flag without a value, as in Go."""
        return "true" if self.bare else self.given.text.strip()

    @property
    def is_true(self) -> bool:
        return self.text.lower() in TRUE

    @property
    def mark(self) -> Mark:
        return self.given.mark

    @property
    def place(self) -> Place:
        return self.value.place

    def __str__(self) -> str:
        return self.name if self.name.isupper() else f"-{self.name}"


class Options:
    """The flags and variables that start a program.

    Args:
        value: a mapping with ``command``, ``args`` and ``env``: a container, or a part of an object.
        switches: names of flags that never use the next argument as their value.
    """

    def __init__(self, value: Value, switches: Collection[str] = ()) -> None:
        self._words: list[Value] = []
        self.flags = list(_flags(value, switches, self._words.append))
        """All flags, also those that are given several times."""
        self.variables: dict[str, Option] = {}
        for name, given, one in _variables(value):
            if isinstance(given, Scalar):
                self.variables[name] = Option(name, given, one)
            elif node_at(one.node, "valueFrom", "fieldRef") is not None:  # such as NODE_NAME
                self._words.append(one)
        self._switches = switches
        self._used: set[str] = set()

    def flag(self, *names: str) -> Option | None:
        """The last flag with one of these names."""
        self._used.update(names)
        return next((one for one in reversed(self.flags) if one.name in names), None)

    def variable(self, *names: str) -> Option | None:
        """The first of these variables that is set."""
        self._used.update(names)
        return next((self.variables[name] for name in names if name in self.variables), None)

    def finish(self, *omitted: str, named: Mapping[str, str] = MappingProxyType({})) -> None:
        """Adds a remark on each flag and variable that was not read.

        Args:
            omitted: names of those that control the process, or that need no equivalent.
            named: what to do with those that devhost does not have; switches count only if they are on.
        """
        for word in self._words:
            word.take()
        for one in (*self.flags, *self.variables.values()):
            one.value.take()
            what = f"{one}" if one.text == "true" else f"{one} {one.text}"
            if one.name in self._used.union(omitted):
                continue
            if one.name not in named:
                one.value.source.note(f"{what}: {UNKNOWN}")
            elif one.text and (one.is_true or one.name not in self._switches):
                one.value.source.note(f"{what}: {named[one.name]}")


def typed(node: Node, wanted: Any) -> Node:
    """The text of a flag, a variable or a chart's value as a file's value of this type."""
    if typing.get_origin(wanted) is Annotated:
        wanted = typing.get_args(wanted)[0]
    if not isinstance(node, Scalar):
        return node
    items = [typing.get_args(one)[0] for one in members(wanted) if typing.get_origin(one) is tuple]
    if items and (len(members(wanted)) == 1 or "," in node.text):
        parts = (replace(node, text=part.strip(), kind="str") for part in node.text.split(","))
        return Items(node.mark, tuple(typed(part, items[0]) for part in parts))
    if wanted is bool and node.text.lower() in (*TRUE, "false", "f", "0"):
        return replace(node, text="true" if node.text.lower() in TRUE else "false", kind="bool")
    return replace(node, kind="int") if wanted is int and node.text.isdecimal() else node


@dataclass(frozen=True, slots=True, eq=False)
class Container(Value):
    """A container of an object."""

    holder: Object

    def __str__(self) -> str:
        return str(self.holder)

    def settings(self) -> object:
        """What starts it, to compare it with others."""
        words = tuple(word.text for word, _ in _words(self))
        env = {text_at(each.node, "name"): text_at(each.node, "value") for each in self.each("env")}
        return self.image, words, env, self.config_maps

    @property
    def image(self) -> str:
        return text_at(self.node, "image")

    @property
    def version(self) -> tuple[int, ...]:
        """The version in the image's tag; empty if there is none."""
        return tag_of(self.image)

    @property
    def program(self) -> str:
        """The name of the program without its directory; empty if the image defines it."""
        words = _words(self) if node_at(self.node, "command") else []
        return words[0][0].text.rpartition("/")[2] if words else ""

    @property
    def config_maps(self) -> list[str]:
        """The names of the ConfigMaps that its pod mounts."""
        return [name for one in self._pod.each("volumes") for name, _ in _config_maps(one)]

    def entry(self, path: str) -> tuple[str, str]:
        """The names of the ConfigMap and of its entry that are a file of the container; else empty."""
        volumes = {text_at(one.node, "name"): one for one in self._pod.each("volumes")}
        for one in self.each("volumeMounts"):
            directory, inner = text_at(one.node, "mountPath").rstrip("/"), text_at(one.node, "subPath")
            volume = volumes.get(text_at(one.node, "name"))
            if volume is None or not (path == directory if inner else path.startswith(f"{directory}/")):
                continue
            for name, keys in _config_maps(volume):
                file = inner or path.removeprefix(f"{directory}/")
                if file in keys or not keys:
                    return name, keys.get(file, file)
        return "", ""

    @property
    def is_owned(self) -> bool:
        """Whether an object of the input made the one that has this container, as an operator does."""
        references = self.holder.each("metadata", "ownerReferences")
        owners = [(text_at(one.node, "kind"), text_at(one.node, "name")) for one in references]
        return any((one.kind, one.name) in owners for one in self.source.objects)

    @property
    def _pod(self) -> Value:
        return self.holder.at(*_POD[self.holder.kind]) or self.holder

    def starts(self, word: str, *vendors: str) -> bool:
        """Whether the image, the command or an argument contains this word; if the image of a mirror may
        mean several programs, one of ``vendors`` must be in the image or a name."""
        names = (self.image, text_at(self.node, "name"), self.holder.name)
        if vendors and not any(vendor in name for vendor in vendors for name in names):
            return False
        return word in self.image or any(word in one.text for one, _ in _words(self))

    def mounted(self, path: str) -> str:
        """The directory of the host that the container has at this path; empty if there is none."""
        volumes = {text_at(one.node, "name"): one for one in self._pod.each("volumes")}
        for one in self.each("volumeMounts"):
            volume = volumes.get(text_at(one.node, "name"))
            if volume and text_at(one.node, "mountPath").rstrip("/") == path:
                return text_at(volume.node, "hostPath", "path")
        return ""

    def options(self, switches: Collection[str] = ()) -> Options:
        """Its flags and variables. Everything else of the object is marked as read; what matters is named."""
        pod: Value = self.holder
        left: list[str] = []
        for key in _POD[self.holder.kind]:
            left += pod.others(key)
            pod = pod.at(key) or pod
        left += pod.others("containers", "initContainers")
        every = [*pod.each("initContainers"), *pod.each("containers")]
        others = [one for one in every if one.place.path != self.place.path]
        for one in others:
            one.take()
        left += self.others(*_STARTING)
        self.source.pods |= dict.fromkeys(one for one in left if one not in _OF_OBJECTS)
        if others:
            names = some([text_at(one.node, "name") for one in others])
            self.source.note(f"{self.holder}: its other containers are not converted: {names}.")
        return Options(self, switches)


def tag_of(image: str) -> tuple[int, ...]:
    """The version in an image's tag; empty if there is none."""
    return version_of(image.partition("@")[0].rpartition("/")[2].partition(":")[2])


def version_of(tag: str) -> tuple[int, ...]:
    """The version in the tag of an image; empty if it is none."""
    found = _VERSION.fullmatch(tag)
    return tuple(map(int, found.groups())) if found else ()


def _config_maps(volume: Value) -> Iterator[tuple[str, dict[str, str]]]:
    """The ConfigMaps of a volume, and the entries for its files if it lists them."""
    for one in (volume, *volume.each("projected", "sources")):
        if (found := one.at("configMap")) is not None and (name := text_at(found.node, "name")):
            yield (
                name,
                {text_at(each.node, "path"): text_at(each.node, "key") for each in found.each("items")},
            )


def containers(source: Source) -> list[Container]:
    """The containers of all objects that run any, without init containers."""
    return [
        Container(source, value.root, value.node, value.place, one)
        for one in source.objects
        if one.kind in _POD
        for pod in (one.at(*_POD[one.kind]),)
        if pod is not None
        for value in pod.each("containers")
        if isinstance(value.node, Fields)
    ]


def the_container(source: Source, runs: Callable[[Container], bool], program: str) -> Container | None:
    """The only container that runs a program; ``None`` if none does.

    Raises:
        ConfigError: several do, in different ways.
    """
    return source.one_of([one for one in containers(source) if runs(one)], program)


def _variables(value: Value) -> Iterator[tuple[str, Node | None, Value]]:
    """The name, the value and the place of each variable: of a list, or of a mapping as in many charts."""
    for one in value.each("env"):
        yield text_at(one.node, "name"), node_at(one.node, "value"), one
    env = value.at("env")
    for name in env.keys if env else ():
        if env and (inner := env.at(name)):
            yield name, inner.node if isinstance(inner.node, Scalar) else node_at(inner.node, "value"), inner


def _flags(value: Value, switches: Collection[str], other: Callable[[Value], object]) -> Iterator[Option]:
    """The flags with two hyphens or one, as ``--name=value`` or ``--name value``; ``other`` gets words."""
    words = _words(value)
    n = 0
    while n < len(words):
        word, at = words[n]
        other(at)
        n += 1
        if not _FLAG.match(word.text):
            continue
        name, sign, text = word.text.lstrip("-").partition("=")
        given, bare = Scalar(word.mark, text, "str"), not sign
        if bare and name not in switches and n < len(words) and not _FLAG.match(words[n][0].text):
            given, at = words[n]
            other(at)
            n, bare = n + 1, False
        yield Option(name, given, at, bare)


def _words(value: Value) -> list[tuple[Scalar, Value]]:
    """The words of the command line, and those of a script that a shell runs."""
    found: list[tuple[Scalar, Value]] = []
    is_script = False
    for one in (*value.each("command"), *value.each("args")):
        if isinstance(one.node, Scalar):
            parts = _split(one.node.text) if is_script else [one.node.text]
            is_script = parts == ["-c"]
            found += [(replace(one.node, text="" if is_script else part), one) for part in parts]
    return found


def _split(script: str) -> list[str]:
    try:
        return shlex.split(script)
    except ValueError:  # quotes that are not closed
        return script.split()
