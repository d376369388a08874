"""Reads from a Kubernetes object how it starts a plugin: image, flags and variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devhost.config.diagnostics import Mark, Place
from devhost.config.document import Fields, Items, Node, Scalar

from .kubernetes import Object, at, text_at

_TEMPLATE = ("spec", "template", "spec")
_POD_SPEC: Mapping[str, Sequence[str]] = {
    "DaemonSet": _TEMPLATE,
    "Deployment": _TEMPLATE,
    "StatefulSet": _TEMPLATE,
    "ReplicaSet": _TEMPLATE,
    "Pod": ("spec",),
}
"""The place of the pod's ``spec`` in objects that run containers."""

_FLAG = re.compile(r"--?[A-Za-z]")
_VERSION = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(?![0-9A-Za-z.-])")


WORKLOADS = ("DaemonSet", "Deployment", "Pod")
"""Kinds that start a plugin."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as given. Without a value, ``value`` is empty and ``bare`` is true."""

    name: str
    value: Scalar
    place: Place
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """The value of a flag or a variable, and its place."""

    value: str
    mark: Mark
    path: str


@dataclass(frozen=True, slots=True)
class Container:
    """One container of an object."""

    node: Node
    place: Place

    @property
    def image(self) -> str:
        return text_at(self.node, "image")

    @property
    def version(self) -> tuple[int, ...]:
        """The version in the image's tag; empty if there is none."""
        tag = self.image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        found = _VERSION.fullmatch(tag)
        return tuple(map(int, found.groups())) if found else ()

    @property
    def program(self) -> str:
        """The name of the program without its directory; empty if the image defines it."""
        command = at(self.node, "command")
        words = command.items if isinstance(command, Items) else ()
        return words[0].text.rpartition("/")[2] if words and isinstance(words[0], Scalar) else ""

    def variable(self, name: str) -> str:
        """The value of a variable in the object; empty if the object does not contain it."""
        return {key: value.text for key, value in self.variables()}.get(name, "")

    def variables(self) -> Iterator[tuple[str, Scalar]]:
        """The variables whose values are in the object, in its order."""
        for _, variable in self._variables():
            yield variable

    def _variables(self) -> Iterator[tuple[int, tuple[str, Scalar]]]:
        listed = at(self.node, "env")
        for n, one in enumerate(listed.items if isinstance(listed, Items) else ()):
            value = at(one, "value")
            if isinstance(value, Scalar):
                yield n, (text_at(one, "name"), value)

    def flags(self, switches: Collection[str] = (), *, shell: bool = False) -> Iterator[Flag]:
        """The flags with two hyphens or one, as ``--name=value`` or ``--name value``.

        Args:
            switches: names of flags that never use the next argument as their value.
            shell: whether an argument may be a shell command line with flags in it.
        """
        words = list(self._words(shell))
        n = 0
        while n < len(words):
            word, place = words[n]
            n += 1
            if not _FLAG.match(word.text):
                continue
            name, sign, text = word.text.lstrip("-").partition("=")
            given, bare = Scalar(word.mark, text, "str"), not sign
            if bare and name not in switches and n < len(words) and not _FLAG.match(words[n][0].text):
                given, place = words[n]
                n, bare = n + 1, False
            yield Flag(name, given, place, bare)

    def arguments(self, switches: Collection[str] = ()) -> dict[str, Argument]:
        """The last value of each flag; ``true`` for one without a value, as in Go."""
        return {
            flag.name: Argument("true" if flag.bare else flag.value.text, flag.value.mark, flag.place.path)
            for flag in self.flags(switches, shell=True)
        }

    def environment(self) -> dict[str, Argument]:
        """The variables whose values are in the object, by name."""
        listed = self.place.key("env")
        return {
            name: Argument(value.text, value.mark, listed.item(n).path)
            for n, (name, value) in self._variables()
        }

    def starts(self, word: str) -> bool:
        """Whether the image, the command or an argument contains this word."""
        return word in self.image or any(word in one.text for one, _ in self._words())

    def _words(self, shell: bool = False) -> Iterator[tuple[Scalar, Place]]:
        for key in ("command", "args"):
            listed = at(self.node, key)
            for n, one in enumerate(listed.items if isinstance(listed, Items) else ()):
                if not isinstance(one, Scalar):
                    continue
                for word in shlex.split(one.text) if shell and " -" in one.text else (one.text,):
                    yield Scalar(one.mark, word, one.kind), self.place.key(key).item(n)


def containers(found: Object) -> Iterator[Container]:
    """The containers of an object, without init containers."""
    path = (*_POD_SPEC.get(found.kind, ()), "containers")
    listed = at(found.node, *path) if found.kind in _POD_SPEC else None
    place = found.place
    for key in path:
        place = place.key(key)
    for n, one in enumerate(listed.items if isinstance(listed, Items) else ()):
        if isinstance(one, Fields):
            yield Container(one, place.item(n))


def program(found: Object, word: str) -> Container | None:
    """The first container that :meth:`~Container.starts` a program; ``None`` without one."""
    return next((one for one in containers(found) if one.starts(word)), None)
