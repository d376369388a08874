"""``devhost cordon``, ``uncordon`` and ``drain``: take devices out of service, and put them back."""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError
from devhost.backend.frozen import frozen
from devhost.config.loader import load_or_everything
from devhost.discovery import verdicts as files
from devhost.discovery.health import ALL
from devhost.discovery.named import Match, Parts, named, whole
from devhost.discovery.unserved import resolved
from devhost.runtime.log import printable, utc
from devhost.telemetry.document import HolderStatus, StatusDocument

from . import options as shared
from .explain import unknown
from .running_host import denied, document, read_verdicts, verdict_directory
from .scan_once import scan_once

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


@click.command(
    "cordon",
    help="""
    Takes DEVICE out of service: no pod gets it until `devhost uncordon`.

    DEVICE is a name as for `devhost explain`. Pods that have the device keep it (see `devhost drain`). The
    cordon also holds after a restart and a reboot, and when the device is plugged in again.

    Writes a file, so devhost need not run. Another cordon of the same device replaces the earlier one. In the
    pod of devhost add `--root /host`.

    Exits with 2 if a name is unknown or is that of several devices; then nothing changes.
    """,
)
@options
@click.option(
    "--reason", required=True, metavar="TEXT", help="Why. Everyone who looks at the device sees it."
)
@click.option("--for", "seconds", callback=shared.seconds, metavar="TIME", help="Ends after 90s, 30m or 2h.")
@click.option("--by", metavar="NAME", help="Who does it.  [default: your login]")
def cordon(
    devices: tuple[str, ...],
    maintenance: bool,
    config: Path | None,
    root: Path,
    state_dir: Path | None,
    reason: str,
    seconds: float | None,
    by: str | None,
) -> None:
    if seconds == 0:
        raise UsageError("the cordon would have no effect", "give --for a longer time")
    names = given(devices, maintenance)
    directory = verdict_directory(root, state_dir)
    found = meant(names, config, root).devices
    for verdict in write(directory, found, by or user(), reason, seconds):
        click.echo(f"{called(verdict.names[0])}: {shown(verdict)}")


@click.command(
    "uncordon",
    help="""
    Puts DEVICE back into service after `devhost cordon`, or all of the node with `--maintenance`.

    The device need not exist. Only files of `devhost cordon` are removed, also damaged ones.

    Exits with 1 if something else keeps the device out of service, such as the file of another program.
    """,
)
@options
def uncordon(
    devices: tuple[str, ...], maintenance: bool, config: Path | None, root: Path, state_dir: Path | None
) -> None:
    names = given(devices, maintenance)
    directory = verdict_directory(root, state_dir)
    read, now = read_verdicts(directory, root), time.time()
    # one that has ended, too: a clock that is set back would revive it
    own = {one.names[0] for one in read.verdicts if files.is_own(one)}

    def damage(name: str) -> str:
        return read.flaws.get(str(files.own_file(directory, name)), "")

    found = _meant_or_cordoned(names, own.union(filter(damage, names)), config, root)
    removed = set()
    for name in found.devices:
        if name not in own and not damage(name):
            click.echo(f"{called(name)}: was not cordoned")
            continue
        file = files.own_file(directory, name)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise denied("change", directory, error) from None
        removed.add(file.name)
        damaged = f"a cordon without effect was removed: {damage(name)}"
        click.echo(f"{called(name)}: {'no longer cordoned' if name in own else damaged}")
    left = [one for one in read.verdicts if one.holds(now) and one.file not in removed]
    _check([*found.devices, *sorted(found.wholes)], left, directory)


def _meant_or_cordoned(
    names: Sequence[str], cordoned: Collection[str], config: Path | None, root: Path
) -> Meant:
    """The devices of these names; one that is cordoned need not exist."""
    known: dict[str, None] = {}
    others = []
    for name in names:
        exact = [one for one in sorted(cordoned) if name in (one, one.partition("/")[2])]
        if len(exact) > 1:
            raise several(name, exact)
        known.update(dict.fromkeys(exact))
        if not exact:
            others.append(name)
    found = meant(others, config, root) if others else Meant([])
    return replace(found, devices=[*dict.fromkeys((*known, *found.devices))])


def _check(devices: Sequence[str], left: Sequence[files.Verdict], directory: Path) -> None:
    """Raises ``DevhostError`` if another file keeps one of the devices out of service."""
    for device in devices:
        for one in left:
            if ALL in one.names and device != ALL and files.is_own(one):
                hint = "to end that: devhost uncordon --maintenance"
                raise DevhostError(f"all devices of this node are {one.text}", hint)
            if {device, device.partition("/")[2], ALL} & {*one.names}:
                hint = f"devhost did not write {directory / one.file}: who did should remove it"
                if files.is_own(one):
                    hint = f"to end that: devhost uncordon {called(device)}"
                raise DevhostError(f"{called(device)} is still out of service: {one.text}", hint)


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
    matches = named(found.backends, {*names, *ends.values()})
    parts = Parts(found.backends)
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


def write(
    directory: Path, devices: Sequence[str], by: str, reason: str, seconds: float | None
) -> Sequence[files.Verdict]:
    """Writes a verdict on each device. Raises ``UsageError`` or ``EnvironmentFailure``."""
    until = None if seconds is None else time.time() + seconds
    try:
        return [files.write(directory, device, by, reason, until) for device in devices]
    except files.Flawed as error:
        raise UsageError(error.message, error.hint) from None
    except OSError as error:
        raise denied("write", directory, error) from None


def called(device: str) -> str:
    """A device, or all of them, for a user."""
    return "all devices of this node" if device == ALL else printable(device)


def shown(verdict: files.Verdict) -> str:
    """The text of a verdict, and how long it holds."""
    if verdict.until is None:
        return verdict.text
    return f"{verdict.text}, until {utc(verdict.until)}"


POLL = (1.5, 2.5)
"""Seconds between two looks, at random: nodes that are drained together do not look together."""

UNAPPLIED = 15.0
"""Seconds in which a running devhost must have read the file."""


@click.command(
    "drain",
    help="""
    Cordons DEVICE, and waits until no container holds it. Prints a `kubectl delete pod` line for each pod
    that does, and evicts nothing itself.

    DEVICE and the options are as for `devhost cordon`. A device that is cordoned already keeps its reason,
    and from then on its cordon has no end.

    Exits with 0 when no container holds a device, and with 1 at the timeout. Exits with 2 if a name is
    unknown or that of several devices, and with 3 if no devhost runs on this node. Except with 2, the devices
    are cordoned.
    """,
)
@options
@shared.status_socket
@click.option("--reason", default="drained", show_default=True, metavar="TEXT", help="Why.")
@click.option("--by", metavar="NAME", help="Who does it.  [default: your login]")
@click.option(
    "--timeout",
    callback=shared.seconds,
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Gives up after 90s, 30m or 2h.",
)
def drain(
    devices: tuple[str, ...],
    maintenance: bool,
    config: Path | None,
    root: Path,
    state_dir: Path | None,
    status_socket: Path | None,
    reason: str,
    by: str | None,
    timeout: float,
) -> None:
    names = given(devices, maintenance)
    directory = verdict_directory(root, state_dir)
    found = meant(names, config, root)
    now, verdicts = time.time(), read_verdicts(directory, root).verdicts
    known = {one.names[0]: one for one in verdicts if one.holds(now) and files.is_own(one)}
    new = [one for one in found.devices if one not in known]
    write(directory, new, by or user(), reason, None)
    for device in found.devices:
        if (one := known.get(device)) and one.until is not None:  # it must not end before the drain does
            write(directory, [device], one.by, one.reason, None)
    every = found.parts.union(found.devices)
    asyncio.run(Drain(lambda: document(root, status_socket), every, timeout).run())
    for device in found.devices:
        click.echo(f"{called(device)}: no container holds {'one' if device == ALL else 'it'}")


class Drain:
    """Waits until no container holds the devices, each ``BACKEND/ID`` or :data:`ALL`.

    ``ask`` returns the status of the running devhost. ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[StatusDocument]],
        devices: Collection[str],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        say: Callable[[str], None] = click.echo,
    ) -> None:
        self._ask = ask
        self._devices = frozenset(devices)
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._say = say
        self._said: set[str] = set()

    async def run(self) -> None:
        """Returns when nothing is held.

        Raises ``DevhostError`` if the time is over, no devhost runs, or it does not apply the cordon.
        """
        began = applied_at = self._clock()
        found = await self._ask()
        while True:
            applied = self._is_applied(found)
            left = [*holding(found, self._devices)] if applied else ["# devhost has not read the file yet"]
            if not left:
                return
            for line in left if applied else ():
                self._note(line)
            now = self._clock()
            applied_at = now if applied else applied_at
            if now - applied_at > UNAPPLIED:
                raise EnvironmentFailure(
                    "the running devhost does not apply the cordon",
                    "does it have another --state-dir? `devhost status` shows verdicts and problems",
                )
            if now - began >= self._timeout:
                rest = left[0].removeprefix("# ")
                raise DevhostError(f"the time is over, and not everything is released: {rest}")
            pause = random.uniform(*POLL)
            await self._sleep(max(0.0, min(pause, began + self._timeout - now)))
            try:
                found = await self._ask()
            except DevhostError as error:  # it may be restarting, and then read the files first
                applied_at = self._clock()
                if self._clock() - began >= self._timeout:
                    raise
                self._note(f"# {error}")

    def _note(self, line: str) -> None:
        """Prints a line once."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _is_applied(self, found: StatusDocument) -> bool:
        """Whether devhost has read the files, so that no further container gets a device."""
        applied = {
            ALL if one.device == ALL else f"{one.backend}/{one.device}"
            for verdict in found.verdicts
            for one in verdict.devices
        }
        return ALL in applied or self._devices <= applied


def holding(found: StatusDocument, devices: Collection[str]) -> Iterator[str]:
    """A line for each pod that holds one of the devices, and for each holder whose pod is not known."""
    return iter(dict.fromkeys(_holding(found, devices)))


def _holding(found: StatusDocument, devices: Collection[str]) -> Iterator[str]:
    pods = found.kubelet.pod_resources
    if not pods.known:
        yield printable(f"# which container holds what is not known: {pods.reason}")
    backends = {one.name: one.backend for one in found.resources}
    for resource in found.resources:
        together = [one.device for one in resource.together]
        for row in resource.devices:
            if row.allocated:
                has = row.given or together or [row.device]
                if _is_meant(devices, resource.backend, has):
                    yield _line(row.holder, resource.name, row.id)
    for held in found.held:
        # the backend of a resource that is not served is not known
        if _is_meant(devices, backends.get(held.resource, ""), held.devices or [held.id]):
            yield _line(held.holder, held.resource, held.id)
    for claim in found.dra.claims if found.dra else ():
        if any(_is_meant(devices, one.backend, [one.device]) for one in claim.devices):
            for container in claim.containers:
                yield _line(container, claim.name, "")
            if not claim.containers:
                yield printable(f"# held by ResourceClaim {claim.namespace}/{claim.name}")


def _is_meant(devices: Collection[str], backend: str, ids: Collection[str]) -> bool:
    if ALL in devices:
        return True
    if not backend:
        return any(device.partition("/")[2] in ids for device in devices)
    return any(f"{backend}/{one}" in devices for one in ids)


def _line(holder: HolderStatus | None, resource: str, device: str) -> str:
    if holder is None or not holder.pod:
        return printable(f"# held by an unknown pod: {resource} {device}")
    return printable(f"kubectl delete pod -n {holder.namespace} {holder.pod}")
