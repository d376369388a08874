"""What a backend answers to Allocate: whether a runtime can use it, what a resource makes of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from devhost.backend.errors import AllocationError, BackendError
from devhost.backend.model import DeviceNode, Edits, Mount
from devhost.planning.naming import variable, variable_problem

MAX_NODES = 1024
"""Device nodes one container may get; each becomes a cgroup rule the runtime must load."""

_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")
_NO_TEXT = re.compile("[\\0\\ud800-\\udfff]")  # what neither protobuf nor a runtime takes
_CDI_NAME = re.compile(r"[^/=\s]+/[^/=\s]+=[^/=\s]+")  # qualified device name of the CDI specification

_ORDINARY = frozenset("rw")


def permitted(edits: Edits, permissions: str) -> Edits:
    """The same edits with these permissions for device nodes; unchanged where they are empty.

    A node for which the backend asks for less than ``rw`` is never widened: it keeps what both allow.

    Raises:
        AllocationError: a node is left with nothing by which it could be opened.
    """
    if not permissions:
        return edits
    nodes = []
    for node in edits.nodes:
        allowed = permissions
        if not _ORDINARY.issubset(node.permissions):
            allowed = "".join(letter for letter in node.permissions if letter in permissions)
            if _ORDINARY.isdisjoint(allowed):
                why = f"it is given with {node.permissions!r} only, and the resource allows {permissions!r}"
                raise AllocationError(f"no permissions are left for {node.path}: {why}")
        nodes.append(replace(node, permissions=allowed))
    return replace(edits, nodes=tuple(nodes))


def named(edits: Edits, resource: str) -> Edits:
    """The same edits with the resource's name in those variables that ask for it."""
    if not any("{" in name for name in edits.env):
        return edits
    env: dict[str, str] = {}
    for name, value in edits.env.items():
        env.setdefault(variable(name, resource), value)
    return replace(edits, env=env)


def check_edits(edits: Edits, backend: str) -> None:
    """Refuses what a runtime would choke on, with the backend named.

    Raises:
        BackendError: always the backend's fault, never the user's.
    """
    wrong = f"backend {backend} answered"
    if flaw := _mistyped(edits):
        raise BackendError(f"{wrong} {flaw}")
    if len(edits.nodes) > MAX_NODES:
        raise BackendError(f"{wrong} {len(edits.nodes)} device nodes, more than {MAX_NODES}")
    for node in edits.nodes:
        if not node.path.startswith("/") or not (node.container_path or "/").startswith("/"):
            raise BackendError(f"{wrong} a device node whose path is not absolute: {quoted(node.path)}")
        if not _PERMISSIONS.fullmatch(node.permissions):
            raise BackendError(
                f"{wrong} permissions {quoted(node.permissions)}; it takes each of r, w and m once"
            )
    for mount in edits.mounts:
        if not mount.host_path.startswith("/") or not mount.container_path.startswith("/"):
            raise BackendError(f"{wrong} a mount whose path is not absolute: {quoted(mount.host_path)}")
    for name, value in edits.env.items():
        if flaw := variable_problem(name):
            raise BackendError(f"{wrong} {flaw} {quoted(name)}")
        if "\0" in value:
            raise BackendError(f"{wrong} a variable {quoted(name)} whose value holds a NUL character")
    for name in edits.cdi_devices:
        if not _CDI_NAME.fullmatch(name):
            raise BackendError(f"{wrong} {quoted(name)} for a CDI name; it reads vendor/class=device")
    texts = [text for node in edits.nodes for text in (node.path, node.container_path)]
    texts += [text for mount in edits.mounts for text in (mount.host_path, mount.container_path)]
    texts += [text for pair in (*edits.env.items(), *edits.annotations.items()) for text in pair]
    for text in texts:
        if _NO_TEXT.search(text):
            raise BackendError(f"{wrong} {quoted(text)}, which has a NUL or half a character in it")


def _mistyped(edits: Any) -> str:
    """What is of another type than :class:`Edits` declares; empty when nothing is."""
    for field, kind in (("nodes", DeviceNode), ("mounts", Mount), ("cdi_devices", str)):
        value = getattr(edits, field)
        if not isinstance(value, tuple) or not all(isinstance(member, kind) for member in value):
            return f"{field} that are not a tuple of {kind.__name__}"
    for field in ("env", "annotations"):
        value = getattr(edits, field)
        if not isinstance(value, Mapping) or not all(
            isinstance(text, str) for pair in value.items() for text in pair
        ):
            return f"{field} that is not a mapping of str to str"
    texts = [text for node in edits.nodes for text in (node.path, node.container_path, node.permissions)]
    texts += [text for mount in edits.mounts for text in (mount.host_path, mount.container_path)]
    if not all(isinstance(text, str) for text in texts):
        return "a path or permissions that are not a str"
    return ""


def quoted(text: str) -> str:
    """Text from outside devhost, short enough and plain enough for one line."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
