"""The key ``give`` of an entry: what its containers get besides what the backend gives."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from devhost.backend import OptionError, option, templates
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_STRING, NOTHING, PERMISSIONS, AttributeValue, freeze
from devhost.planning.naming import SUBDOMAIN

MOST = 64
"""Members of each list and mapping."""

LONGEST = 4096
"""Characters of each text; also the longest path in Linux (``PATH_MAX``)."""

MOST_BYTES = 4
"""Bytes of a character in UTF-8, at most."""

ID: Final = "id"
COUNT: Final = "count"
PLACEHOLDERS: Final = frozenset({templates.INDEX, COUNT, ID})
"""The placeholders besides attributes."""

CDI_NAME = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)
"""A qualified device name, as container runtimes read it.

Source: cncf-tags/container-device-interface, pkg/parser/parser.go,
27b6bc1c45a42003ae44da95b940b5d47932595f.
"""

_ANNOTATION = re.compile(rf"((?=[^/]{{1,253}}/){SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_GLOB = re.compile(r"[*?\[]")
_LINES = str.maketrans("", "", "\n\t")


class When(StrEnum):
    """Which containers get a variable."""

    ALWAYS = "always"
    """All of them."""
    PARTIAL = "partial"
    """Those that do not have all devices of the resource."""


@frozen
class GiveNode:
    """A device node that any number of containers use at the same time."""

    path: str = option(meaning="Host path of the node.", example="/dev/kfd")
    container_path: str = option(
        "", "Path in the container, which may have placeholders; the same path if empty."
    )
    permissions: str = option("rw", "Any of `r`, `w` and `m` (mknod), but not `m` alone.")
    optional: bool = option(False, "Whether a host without it gives nothing; otherwise the pod is refused.")

    def __post_init__(self) -> None:
        _check_paths(self.path, self.container_path)
        if not re.fullmatch(PERMISSIONS, self.permissions):
            message = f"must be r, w or rw, with or without m, not {self.permissions!r}"
            raise OptionError(message, key="permissions", hint="usually rw")


@frozen
class GiveMount:
    """A file or directory of the host."""

    path: str = option(meaning="Host path of the file or directory.", example="/tmp/tpu_logs")
    container_path: str = option(
        "", "Path in the container, which may have placeholders; the same path if empty."
    )
    read_only: bool = option(True, "Whether the mount is read-only.")
    optional: bool = option(False, "Whether a host without it gives nothing; otherwise the pod is refused.")

    def __post_init__(self) -> None:
        _check_paths(self.path, self.container_path)


@frozen
class GiveVariable:
    """A variable, and which containers get it."""

    value: str = option(
        meaning="The value, which may have placeholders.", example="{sysattr.device/module_id}"
    )
    when: When = option(
        When.ALWAYS,
        "`always`, or `partial`: only if the container does not have all devices of the resource.",
    )


@frozen
class Give:
    """What a container gets besides what the backend gives for its devices.

    All texts but host paths may have placeholders: attributes of the backend, `{index}`, `{count}`, `{id}`.
    """

    nodes: tuple[GiveNode, ...] = option(
        (), "Device nodes that any number of containers use at the same time.", example=[{"path": "/dev/kfd"}]
    )
    mounts: tuple[GiveMount, ...] = option(
        (), "Files and directories of the host.", example=[{"path": "/tmp/tpu_logs"}]
    )
    env: Mapping[str, str | GiveVariable] = option(
        NOTHING,
        "Variables. Different values of several devices are joined with commas, unless the name has "
        "`{index}`.",
        example={"QAT{index}": "{pciBusID}"},
    )
    annotations: Mapping[str, str] = option(
        NOTHING, "Annotations for the container runtime.", example={"example.com/cards": "{count}"}
    )
    cdi_devices: tuple[str, ...] = option(
        (), "CDI devices that another program describes.", example=["vendor.com/net=all"]
    )

    def __post_init__(self) -> None:
        freeze(self, ("env", "annotations"))
        self._check_sizes()
        templates.check_variables(self.env, "env")
        for name in self.annotations:
            if not _ANNOTATION.fullmatch(name):
                message = f"{name!r} is not the name of an annotation"
                raise OptionError(message, key="annotations", hint="for example example.com/cards")
        for n, name in enumerate(self.cdi_devices):
            if not CDI_NAME.fullmatch(templates.as_glob(name, "a")):
                message = f"{name!r} is not the name of a CDI device"
                raise OptionError(message, key=f"cdiDevices[{n}]", hint="for example vendor.com/net=all")
        places: set[str] = set()
        for key, one in self._things():
            path = templates.place(one.container_path or one.path)
            if path in places:
                raise OptionError(f"give has {path} in the container twice", key=key, hint="remove one")
            places.add(path)

    def _check_sizes(self) -> None:
        lists: dict[str, Sequence[object]] = {"nodes": self.nodes, "mounts": self.mounts}
        lists |= {"env": [*self.env], "annotations": [*self.annotations], "cdiDevices": self.cdi_devices}
        for key, members in lists.items():
            if len(members) > MOST:
                raise OptionError(f"must have at most {MOST} members, not {len(members)}", key=key)
        for key, text, _ in self.texts():
            if len(text) > LONGEST:
                raise OptionError(f"must have at most {LONGEST} characters, not {len(text)}", key=key)
            if not text.translate(_LINES).isprintable():
                raise OptionError("must not have a character that does not print", key=key)
            if "{" in (rest := templates.as_glob(text)) or "}" in rest:
                raise OptionError(f"{text!r} has a brace without its counterpart", key=key, hint="write {id}")

    def __bool__(self) -> bool:
        return bool(self.nodes or self.mounts or self.env or self.annotations or self.cdi_devices)

    def _things(self) -> Iterator[tuple[str, GiveNode | GiveMount]]:
        yield from ((f"nodes[{n}]", node) for n, node in enumerate(self.nodes))
        yield from ((f"mounts[{n}]", mount) for n, mount in enumerate(self.mounts))

    def texts(self) -> Iterator[tuple[str, str, Collection[str]]]:
        """The texts that may have placeholders: the place below ``give``, the text, and those besides
        attributes.
        """
        for key, one in self._things():
            yield f"{key}.containerPath", one.container_path, PLACEHOLDERS
        for name, variable in self.env.items():
            yield f"env.{name}", name, PLACEHOLDERS | templates.RESOURCE
            yield f"env.{name}", _value(variable), PLACEHOLDERS
        for name, value in self.annotations.items():
            yield f"annotations.{name}", value, PLACEHOLDERS
        for n, name in enumerate(self.cdi_devices):
            yield f"cdiDevices[{n}]", name, PLACEHOLDERS

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that its texts need."""
        needed = (templates.attributes(text, PLACEHOLDERS) for _, text, _ in self.texts())
        return frozenset[str]().union(*needed)

    @property
    def depends_on_device(self) -> bool:
        """Whether a device may report something of which no path or name can be made, or two equal names."""
        paths = [one.container_path for _, one in self._things() if not one.optional]
        names = [name.replace(f"{{{templates.INDEX}}}", "") for name in self.env] if len(self.env) > 1 else ()
        return any("{" in text for text in (*paths, *self.cdi_devices, *names))

    @property
    def harmless(self) -> int:
        """The length of attributes with which no variable may be longer than Linux takes."""
        times = max((_value(one).count("{") for one in self.env.values()), default=0)
        return (MAX_STRING - LONGEST) // (MOST_BYTES * max(times, 1))

    @property
    def depends_on_count(self) -> bool:
        """Whether it matters how many devices the resource has."""
        return self.variables(partial=True) != self.variables(partial=False)

    def variables(self, *, partial: bool) -> Mapping[str, str]:
        """The variables of a container; ``partial`` is whether it does not have all devices."""
        return {name: _value(one) for name, one in self.env.items() if partial or not _only_partial(one)}


NO_GIVE: Final = Give()
"""That of an entry without ``give``."""


def length(value: AttributeValue) -> int:
    """The characters of a text, or of texts that are joined; 0 for anything else, which is short."""
    if isinstance(value, tuple):
        return len(value) + sum(map(len, value))
    return len(value) if isinstance(value, str) else 0


def _value(variable: str | GiveVariable) -> str:
    return variable if isinstance(variable, str) else variable.value


def _only_partial(variable: str | GiveVariable) -> bool:
    return isinstance(variable, GiveVariable) and variable.when is When.PARTIAL


def _check_paths(host: str, container: str) -> None:
    templates.check_path(host, "path", host=True)
    if len(host) > LONGEST:
        raise OptionError(f"must have at most {LONGEST} characters, not {len(host)}", key="path")
    if _GLOB.search(host):
        raise OptionError("a path cannot be a glob", key="path", hint="write one path for each file")
    if container:
        templates.check_path(container, "containerPath", host=False)
    if container.endswith("/"):
        raise OptionError(f"{container!r} ends in /", key="containerPath", hint="remove the last /")
