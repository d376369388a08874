"""What the commands share: their options, the directory of verdicts, and the devices that are meant."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from devhost.backend.errors import UsageError
from devhost.backend.frozen import frozen
from devhost.cli import options as shared
from devhost.cli.explain import unknown
from devhost.cli.scan_once import scan_once
from devhost.config.loader import load_or_everything
from devhost.discovery.health import ALL
from devhost.discovery.maintenance import files
from devhost.discovery.named import Match, Parts, named, whole
from devhost.discovery.unserved import resolved
from devhost.runtime.log import printable

from . import place

_Command = TypeVar("_Command", bound=Callable[..., Any])


def options(command: _Command) -> _Command:
    for one in reversed(
        (
            click.argument("devices", nargs=-1, metavar="DEVICE…"),
            click.option(
                "--maintenance",
                is_flag=True,
                help="All devices of the node, also those that are added later.",
            ),
            shared.config,
            shared.root,
            click.option(
                "--state-dir",
                type=shared.path,
                metavar="DIR",
                help="Directory for the state of devhost, as for devhost run.  [default: /var/lib/devhost]",
            ),
        )
    ):
        command = one(command)
    return command


def given(devices: Sequence[str], maintenance: bool) -> Sequence[str]:
    """The names on the command line. Raises ``UsageError`` if there are none, or devices and the node."""
    if maintenance and devices:
        raise UsageError("--maintenance is about all devices", "omit DEVICE or --maintenance")
    if not (maintenance or devices):
        raise UsageError("no device is named", "name devices, or all of them with --maintenance")
    return [ALL] if maintenance else devices


@frozen
class Meant:
    """The devices that a command names, each as ``BACKEND/ID``, or :data:`ALL`.

    ``parts`` are other devices that are parts of them, and ``wholes`` those of which they are parts.
    """

    devices: Sequence[str]
    parts: frozenset[str] = frozenset()
    wholes: frozenset[str] = frozenset()


def meant(names: Sequence[str], config: Path | None, root: Path) -> Meant:
    """The devices of these names. Raises ``UsageError`` for an unknown name, or one of several devices."""
    if ALL in names:
        return Meant([ALL])
    loaded = load_or_everything(config)
    shared.warn_of(loaded.catalog.refused)
    found = asyncio.run(scan_once(loaded, root, everything=True))
    ends = {name: resolved(root, name) for name in names}
    matches = named(found.scanners, {*names, *ends.values()})
    parts = Parts(found.scanners)
    devices: dict[str, Match] = {}
    for name in names:
        hits = matches.get(name) or matches.get(ends[name], [])
        if not hits:
            raise unknown(found, root, name)
        if not (one := whole(hits)):
            raise several(name, map(_id, hits))
        devices.update((_id(match), match) for match in one)
    wholes = (
        match for match in found.devices() if not devices.keys().isdisjoint(map(_id, parts.of([match])))
    )
    return Meant([*devices], frozenset(map(_id, parts.of(devices.values()))), frozenset(map(_id, wholes)))


def _id(match: Match) -> str:
    return f"{match[0]}/{match[1].id}"


def several(name: str, devices: Iterable[str]) -> UsageError:
    return UsageError(f"{name} is a name of several devices: {', '.join(devices)}", "name one of them")


def user() -> str:
    """Who runs the command: the user before ``sudo``, if known."""
    if name := os.environ.get("SUDO_USER"):
        return name
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def cordon(
    directory: Path, devices: Sequence[str], by: str, reason: str, seconds: float | None
) -> Sequence[files.Verdict]:
    """Writes a verdict on each device. Raises ``UsageError`` or ``EnvironmentFailure``."""
    until = None if seconds is None else time.time() + seconds
    try:
        return [files.write(directory, device, by, reason, until) for device in devices]
    except files.Flawed as error:
        raise UsageError(error.message, error.hint) from None
    except OSError as error:
        raise place.denied("write", directory, error) from None


def called(device: str) -> str:
    """A device, or all of them, for a user."""
    return "all devices of this node" if device == ALL else printable(device)


def shown(verdict: files.Verdict) -> str:
    """The text of a verdict, and how long it holds."""
    if verdict.until is None:
        return verdict.text
    return f"{verdict.text}, until {datetime.fromtimestamp(verdict.until, UTC):%Y-%m-%dT%H:%M:%SZ}"
