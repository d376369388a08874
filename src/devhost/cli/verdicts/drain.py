"""``devhost drain``: cordons devices, and waits until no container holds them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path

import click

from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.cli import options as shared
from devhost.cli.running_host import document
from devhost.discovery.health import ALL
from devhost.discovery.maintenance.files import is_own
from devhost.runtime.log import printable
from devhost.telemetry.document import HolderStatus, StatusDocument

from . import cordon, place

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
@cordon.options
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
def command(
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
    names = cordon.given(devices, maintenance)
    directory = place.directory(root, state_dir)
    found = cordon.meant(names, config, root)
    now, verdicts = time.time(), place.read(directory, root).verdicts
    known = {one.names[0]: one for one in verdicts if one.holds(now) and is_own(one)}
    new = [one for one in found.devices if one not in known]
    cordon.write(directory, new, by or cordon.user(), reason, None)
    for device in found.devices:
        if (one := known.get(device)) and one.until is not None:  # it must not end before the drain does
            cordon.write(directory, [device], one.by, one.reason, None)
    every = found.parts.union(found.devices)
    asyncio.run(Drain(lambda: document(root, status_socket), every, timeout).run())
    for device in found.devices:
        click.echo(f"{cordon.called(device)}: no container holds {'one' if device == ALL else 'it'}")


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
