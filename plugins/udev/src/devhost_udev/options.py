"""The options of the backend: groups of nodes that are allocated together.

Fields in snake_case are the YAML's keys in camelCase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from devhost.backend import Conditions, OptionError, option, templates
from devhost.backend.frozen import frozen
from devhost.backend.where import Where

from .attributes import ATTRIBUTES, LINKS, NUMBER, OF_GROUPS, OF_NODES

_GLOB = re.compile(r"[*?\[]")
_GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_IN_NODE = frozenset({NUMBER})
_IN_CONTAINER = _IN_NODE | {templates.INDEX}
"""Placeholders besides attributes."""

Selection = Annotated[Where, Conditions("udev", ATTRIBUTES)]


class Pair(StrEnum):
    """How the nodes of several members are combined into devices."""

    HARDWARE = "hardware"
    """Nodes on the same hardware."""
    NUMBER = "number"
    """Nodes with the same number at the end of their names, regardless of hardware."""
    FIRST_NUMBER = "firstNumber"
    """The same with the first number in their names."""
    ORDER = "order"
    """The first with the first, the second with the second, regardless of hardware and names."""


def is_glob(path: str) -> bool:
    """Whether ``path`` is a pattern that can match any number of paths."""
    return _GLOB.search(path) is not None


def _check_container_path(path: str) -> None:
    if path:
        templates.check_path(path, "containerPath", host=False)
        templates.check(path, "containerPath", ATTRIBUTES, _IN_CONTAINER)


@frozen
class Member:
    """A device node of a group, or several, one for each device of the group."""

    path: str = option(
        "",
        "Host path or glob of the node. A directory means all nodes below it. Instead of `where`.",
        example="/dev/ttyUSB*",
    )
    container_path: str = option(
        "",
        "Path in the container; the same path if empty, that directory if it ends in `/`. `{minor}` or "
        "another attribute is that of the node, `{number}` the last number in its name, `{index}` the "
        "number of the device.",
        example="/dev/char/{major}:{minor}",
    )
    permissions: str = option("rw", "Any of `r`, `w` and `m` (mknod).")
    optional: bool = option(False, "Whether the group can be used without it.")
    limit: int = option(
        0, "How many devices of the group one path may be in. 0: any number for a plain path, one for a glob."
    )
    shared: bool = option(False, "Whether other groups may use the same node at the same time.")
    where: Selection = option(
        (), "Selects nodes by their attributes, with the syntax of a resource's `where`. Instead of `path`."
    )
    pair: Pair | None = option(
        None, "How its nodes are combined with the others; if omitted, as the group's."
    )
    at: str = option(
        "",
        "PCI address of nodes that sysfs places on no hardware, from their attributes.",
        example="{sysattr.device/pci_addr}",
    )

    @property
    def varies(self) -> bool:
        """Whether the member selects any number of nodes."""
        return bool(self.where) or is_glob(self.path)

    @property
    def title(self) -> str:
        """What the member selects, for messages."""
        return self.path or f"where {{{'} or {'.join(map(str, self.where))}}}"

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.where):
            which = "has both path and where" if self.path else "needs path or where"
            raise OptionError(f"a member {which}", key="where", hint="write one of the two")
        for name in OF_GROUPS:
            if any(name in block.attributes() for block in self.where):
                message = f"a member is a single node, which has no {name}"
                raise OptionError(message, key="where", hint="remove it")
        templates.check(self.at, "at", OF_NODES, _IN_NODE)
        if self.path:
            templates.check_path(self.path, "path", host=True)
        _check_container_path(self.container_path)
        if not _PERMISSIONS.fullmatch(self.permissions):
            raise OptionError(
                f"{self.permissions!r} is not made of r, w and m", key="permissions", hint="usually rw"
            )
        if self.limit < 0:
            raise OptionError("must not be negative", key="limit", hint="0 is the default")


@frozen
class UsbMember:
    """A whole USB device, allocated as its node below ``/dev/bus/usb``."""

    id_vendor: str = option(meaning="USB vendor id, four hex digits.", example="1a86")
    id_product: str = option(meaning="USB product id, four hex digits.", example="7523")
    serial: str = option("", "Only the device with exactly this serial number.")
    shared: bool = option(
        False, "Whether other groups may use the same device, or a node of it, at the same time."
    )
    optional: bool = option(False, "Whether the group can be used without it.")

    @property
    def title(self) -> str:
        """What the member selects, for messages."""
        return f"USB {self.id_vendor}:{self.id_product}{' ' if self.serial else ''}{self.serial}"

    def __post_init__(self) -> None:
        for key, value in (("idVendor", self.id_vendor), ("idProduct", self.id_product)):
            if not _HEX.fullmatch(value):
                raise OptionError(
                    f"{value!r} is not four hex digits", key=key, hint='as lsusb prints it: "1a86"'
                )


@frozen
class GroupMount:
    """Files or directories of the host that the container gets with the group."""

    path: str = option(meaning="Host path or glob.", example="/usr/lib64/libonload.so")
    container_path: str = option(
        "",
        "Path in the container; the same path if empty, that directory if it ends in `/`. Placeholders are "
        "those of `env`.",
    )
    read_only: bool = option(True, "Whether the mount is read-only.")
    optional: bool = option(False, "Whether the group can be used without it.")

    def __post_init__(self) -> None:
        templates.check_path(self.path, "path", host=True)
        _check_container_path(self.container_path)
        if is_glob(self.path) and self.container_path and not self.container_path.endswith("/"):
            raise OptionError(
                "a glob can match several files, which cannot all be mounted at one path",
                key="containerPath",
                hint="end it with / to mean a directory",
            )


@frozen
class Group:
    """Nodes, mounts and variables that one container gets together, as one device.

    Entries with the same name are alternatives: ``group: <name>`` selects the devices of all of them.
    """

    name: str = option(meaning="The name for `where: {group: …}`.", example="onload")
    members: tuple[Member, ...] = option((), "Device nodes.")
    usb: tuple[UsbMember, ...] = option((), "Whole USB devices.")
    mounts: tuple[GroupMount, ...] = option((), "Files and directories.")
    env: dict[str, str] = option(
        {},
        "Variables; `{devNode}` or another attribute in a name or value is that of the group's first node. "
        "`{number}` is the last number in that node's name. `{index}` is the number of the device among "
        "those of the container, from 0.",
        example={"MODEM": "{devNode}"},
    )
    pair: Pair = option(
        Pair.HARDWARE,
        "How the nodes of several globs, `where` and USB members are combined: those on the same `hardware`, "
        "with the same `number` at the end of their names (`firstNumber`: the first one), or by their "
        "`order` in the list of each.",
    )
    id: str = option(
        "",
        "The attribute of the group's first node that identifies its devices, instead of the node's own id.",
        example="pciBusID",
    )

    def __post_init__(self) -> None:
        if self.id:
            templates.check(f"{{{self.id}}}", "id", OF_NODES, ())
            if self.id == LINKS:
                hint = "name another attribute"
                raise OptionError(f"{LINKS} is a list, and an id is one value", key="id", hint=hint)
        if not _GROUP_NAME.fullmatch(self.name):
            raise OptionError(
                f"{self.name!r} is not a valid name of a group",
                key="name",
                hint="letters, digits, '.', '_' and '-', alphanumeric at both ends, at most 63",
            )
        if not (self.members or self.usb or self.mounts):
            raise OptionError("a group needs members, usb or mounts", key="name")
        for number, path in self._repeated():
            raise OptionError(
                f"the container already has {path} from another member",
                key=f"members[{number}].containerPath",
            )
        templates.check_variables(self.env, "env")
        for name, value in self.env.items():
            templates.check(name, f"env.{name}", ATTRIBUTES, _IN_CONTAINER | templates.RESOURCE)
            templates.check(value, f"env.{name}", ATTRIBUTES, _IN_CONTAINER)

    @property
    def wanted(self) -> frozenset[str]:
        """All attributes that members are selected by, or that are inserted into a text."""
        texts = [text for member in self.members for text in (member.container_path, member.at)]
        texts += [mount.container_path for mount in self.mounts]
        texts += [text for pair in self.env.items() for text in pair]
        conditions = (block.attributes() for member in self.members for block in member.where)
        needed = (templates.attributes(text, _IN_NODE) for text in texts)
        return frozenset(filter(None, (self.id,))).union(*needed, *conditions)

    def _repeated(self) -> Iterator[tuple[int, str]]:
        seen: set[str] = set()
        for number, member in enumerate(self.members):
            if member.varies or templates.fields(member.container_path):
                continue
            path = member.container_path or member.path
            path += member.path.rpartition("/")[2] if path.endswith("/") else ""
            if (place := templates.place(path)) in seen:
                yield number, place
            seen.add(place)


@frozen
class UdevOptions:
    """The keys under ``backends.udev``."""

    groups: tuple[Group, ...] = option((), "Nodes that are allocated together.")
    shared_serials: tuple[str, ...] = option(
        (),
        "Serial numbers and world-wide ids that several devices report; the ids of these devices contain the "
        "place instead.",
        example=("A10B",),
    )

    @property
    def words(self) -> dict[str, list[str]]:
        """The names of groups, which no other device has."""
        return {"group": [group.name for group in self.groups]}

    @property
    def variables(self) -> dict[str, list[str]]:
        """The variables of groups by the groups' names, with ``*`` for a placeholder."""
        found: dict[str, list[str]] = {}
        for group in self.groups:
            found.setdefault(group.name, []).extend(templates.as_glob(name) for name in group.env)
        return found


KUBEVIRT = "kubevirt"
"""The use that needs a whole USB device."""


@frozen
class Use:
    """The keys of this backend in an entry under ``resources``."""

    kubevirt: bool = option(
        False,
        "Whether the devices are whole USB devices for virtual machines of KubeVirt: they get the owner and "
        "the variable that KubeVirt's own plugin gives.",
    )

    @property
    def uses(self) -> frozenset[str]:
        """What the resource needs of a device, as keys of ``Device.unusable_for``."""
        return frozenset((KUBEVIRT,) if self.kubevirt else ())

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that only containers of such a resource get, with ``*`` for its name."""
        return ("USB_RESOURCE_*",) if self.kubevirt else ()
