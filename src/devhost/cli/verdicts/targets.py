"""What the commands share: their options, the directory of verdicts, and the devices that are meant."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from devhost.backend import trusted
from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.cli import options as shared
from devhost.cli.explain import unknown
from devhost.cli.scan_once import scan_once
from devhost.config.last_good import OVERRIDE, STATE_DIRECTORY
from devhost.config.loader import load_or_everything
from devhost.config.root_directory import check_root
from devhost.config.state import state_directory, tree_of
from devhost.discovery.health import ALL
from devhost.discovery.maintenance import files
from devhost.discovery.maintenance.follower import DIRECTORY
from devhost.discovery.maintenance.judge import is_one
from devhost.discovery.named import named
from devhost.discovery.unserved import resolved
from devhost.runtime.log import printable

_Command = TypeVar("_Command", bound=Callable[..., Any])


def options(command: _Command) -> _Command:
    """The arguments and options of each of these commands."""
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


def directory(root: Path, state_dir: Path | None, of_root: Path = STATE_DIRECTORY) -> Path:
    """The directory of verdicts.

    Raises:
        EnvironmentFailure: there is none; or others can write to it, so that devhost refuses it; or it is
            one that the devhost of root does not read.
    """
    check_root(root)
    state = state_dir or state_directory(root)
    if state is None:
        raise EnvironmentFailure("this user has no home directory", "name a directory with --state-dir")
    of_user = not (state_dir or os.environ.get(OVERRIDE) or tree_of(root))
    if os.geteuid() and of_user and of_root.exists():
        raise EnvironmentFailure(
            f"the state of the devhost of root is in {of_root}",
            f"run the command as root, or for a devhost of this user add --state-dir {state}",
        )
    place = state / DIRECTORY
    try:
        trusted.names(place)
    except trusted.Untrusted as error:
        if Path(error.path).lstat().st_uid in (0, os.geteuid()):
            raise
        raise EnvironmentFailure(error.message, "run the command as the user of devhost") from None
    except OSError:
        pass  # it does not exist, or the command fails with the reason
    return place


def meant(names: Sequence[str], config: Path | None, root: Path) -> list[str]:
    """Each device as ``BACKEND/ID``. Raises ``UsageError`` for an unknown name, or one of several devices."""
    if ALL in names:
        return [ALL]
    loaded = load_or_everything(config)
    shared.warn_of(loaded.catalog.refused)
    found = asyncio.run(scan_once(loaded, root, everything=True))
    ends = {name: resolved(root, name) for name in names}
    matches = named(found.scanners, {*names, *ends.values()})
    devices: dict[str, None] = {}
    for name in names:
        hits = matches.get(name) or matches.get(ends[name], [])
        if not hits:
            raise unknown(found, root, name)
        if not is_one(hits):
            raise several(name, [f"{backend}/{device.id}" for backend, device in hits])
        devices.update((f"{backend}/{device.id}", None) for backend, device in hits)
    return [*devices]


def several(name: str, devices: Sequence[str]) -> UsageError:
    """The error for a name of several devices."""
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
    place: Path, devices: Sequence[str], by: str, reason: str, seconds: float | None
) -> Sequence[files.Verdict]:
    """Writes a verdict on each device. Raises ``UsageError`` or ``EnvironmentFailure``."""
    until = None if seconds is None else time.time() + seconds
    try:
        return [files.write(place, device, by, reason, until) for device in devices]
    except files.Flawed as error:
        raise UsageError(error.message, error.hint) from None
    except OSError as error:
        raise denied("write", place, error) from None


def in_force(place: Path, root: Path, *, ended: bool = False) -> Sequence[files.Verdict]:
    """The verdicts that count now, or also those that have ended. Raises ``EnvironmentFailure``."""
    try:
        return files.in_directory(place, root, float("-inf") if ended else time.time())
    except OSError as error:
        raise denied("read", place, error) from None


def denied(what: str, place: Path, error: OSError) -> EnvironmentFailure:
    hint = "run the command as root, or as the user of devhost" if os.geteuid() else ""
    return EnvironmentFailure(f"cannot {what} {place}: {error.strerror or error}", hint)


def called(device: str) -> str:
    """A device, or all of them, for a user."""
    return "all devices of this node" if device == ALL else printable(device)


def shown(verdict: files.Verdict) -> str:
    """The text of a verdict, and how long it holds."""
    if verdict.until is None:
        return verdict.text
    return f"{verdict.text}, until {datetime.fromtimestamp(verdict.until, UTC):%Y-%m-%dT%H:%M:%SZ}"
