"""What ``devhost demo`` does: it runs a host and a simulated kubelet in one process and prints what
happens."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path

import click

from devhost.cli.options import table
from devhost.config.loader import load
from devhost.host.daemon import on_signals
from devhost.host.host import Host
from devhost.runtime.sockets import short_place
from devhost_testing.kubelet import KubeletSimulator, UnexpectedAdmissionError
from devhost_testing.kubelet.events import Event, ListReceived
from devhost_testing.kubelet.render import response_lines
from devhost_testing.zram import Busy, Zram, why_not

REGISTER_WITHIN = 20.0
"""Seconds the demo waits for every resource to be registered, also on a busy machine."""

QUIET = 0.25
"""Seconds before each hot-plug, so that the effects of the previous one are over."""

SEE_WITHIN = 3.0
"""Seconds the demo waits for a plugged device to appear."""


def bundled_config() -> Path:
    """``config/devhost.yaml``, of the installed package or of the source tree."""
    packaged = Path(str(files("devhost").joinpath("devhost.yaml")))
    return packaged if packaged.exists() else Path(__file__).parents[5] / "config" / "devhost.yaml"


async def show(config: Path) -> None:
    """Runs the demo. It ends by itself unless stdout is a terminal."""
    with tempfile.TemporaryDirectory(prefix="devhost-demo-", dir=short_place()) as directory:
        async with _running(config, Path(directory) / "device-plugins") as (kubelet, host):
            click.echo(f"A kubelet (simulated, {kubelet.profile}) and devhost with {config}:\n")
            _show_resources(host)
            await _run_pod(kubelet, host)
            await _plug(kubelet)
            if sys.stdout.isatty():
                await _follow(host, kubelet)


@asynccontextmanager
async def _running(config: Path, directory: Path) -> AsyncIterator[tuple[KubeletSimulator, Host]]:
    loaded = load(config)
    async with KubeletSimulator(directory, "1.37") as kubelet:
        changed = asyncio.Event()
        host = Host(config, loaded, lambda: load(config), directory, changed=changed.set)
        on_signals(host)
        serving = asyncio.create_task(host.run())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(REGISTER_WITHIN):
                    while not host.ready()[0]:
                        changed.clear()
                        await changed.wait()
            with suppress(TimeoutError):
                await kubelet.wait_for(lambda: kubelet.capacity() == _sizes(host), REGISTER_WITHIN)
            yield kubelet, host
        finally:
            host.stop()
            await serving


def _sizes(host: Host) -> dict[str, int]:
    return {name: len(service.inventory.snapshot.entries) for name, service in host.services.items()}


def _show_resources(host: Host) -> None:
    rows = []
    for name, service in sorted(host.services.items()):
        entries = service.inventory.snapshot.entries.values()
        found = service.inventory.snapshot.devices()
        nodes = sorted({node for entry in entries for node in entry.numa_nodes})
        shown = ", ".join(list(found)[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        healthy = service.inventory.snapshot.healthy
        rows.append((name, f"{healthy}/{len(entries)}", ",".join(map(str, nodes)), shown))
    click.echo(table(("RESOURCE", "HEALTHY", "NUMA", "DEVICES"), rows))
    served = {service.entry.index for service in host.services.values()}
    absent = [entry.name for entry in host.configuration.settings.resources if entry.index not in served]
    absent += [entry.name for entry in host.configuration.settings.skipped]
    if absent:
        click.echo(f"\nNot on this machine: {', '.join(absent)}")


async def _run_pod(kubelet: KubeletSimulator, host: Host) -> None:
    """Runs a container that requests one device of each of the first three resources that have any."""
    wanted = [name for name, count in sorted(kubelet.allocatable().items()) if count][:3]
    if not wanted:
        click.echo("\nNo device for a pod: run `devhost discover --all` to see the devices of this machine.")
        return
    click.echo("\nA pod with these limits:")
    for name in wanted:
        click.echo(f"  {name}: 1")
    click.echo("gets in its container:")
    for name in wanted:
        try:
            allocation = await kubelet.admit("demo", "main", name, 1)
        except UnexpectedAdmissionError as error:
            click.echo(f"  {name}: refused: {error}")
            continue
        for line in response_lines(allocation.response):
            click.echo(f"  {line}")


async def _plug(kubelet: KubeletSimulator) -> None:
    """Plugs and unplugs a real device, and measures how soon the kubelet has a new list."""
    click.echo("")
    if reason := why_not():
        click.echo(f"Hot-plug not shown: {reason}.")
        return
    try:
        await _plug_zram(kubelet)
    except Busy as error:
        click.echo(f"Hot-plug not shown: {error}.")


async def _plug_zram(kubelet: KubeletSimulator) -> None:
    with Zram(patience=1.0) as zram:
        await asyncio.sleep(QUIET)
        before = _healthy(kubelet)
        began = time.monotonic()
        number = zram.plug()
        added = await _seconds(kubelet, began, lambda: _healthy(kubelet) - before)
        there = _healthy(kubelet)
        await asyncio.sleep(QUIET)
        began = time.monotonic()
        # the kernel sends its event long before this write returns
        unplugging = asyncio.create_task(asyncio.to_thread(zram.unplug, number))
        removed = None if added is None else await _seconds(kubelet, began, lambda: there - _healthy(kubelet))
        await unplugging
        if added is None:
            click.echo(
                f"zram{number} was plugged and unplugged, but no resource of this configuration selects it."
            )
            return
    for what, seconds in (("plugged", added), ("unplugged", removed)):
        when = (
            "received no new list"
            if seconds is None
            else (f"received the new list after {seconds * 1000:.1f} ms")
        )
        click.echo(f"zram{number} {what}: the kubelet {when}")


async def _seconds(kubelet: KubeletSimulator, began: float, changed: Callable[[], object]) -> float | None:
    """Seconds from ``began`` until the list that brought the change; ``None`` if none came."""
    since = kubelet.events.position
    try:
        await kubelet.wait_for(changed, SEE_WITHIN)
    except TimeoutError:
        return None
    lists = kubelet.events.of(ListReceived, since=since)
    return (lists[-1].at if lists else time.monotonic()) - began


def _healthy(kubelet: KubeletSimulator) -> set[tuple[str, str]]:
    return {(name, device) for name in kubelet.capacity() for device in kubelet.healthy(name)}


async def _follow(host: Host, kubelet: KubeletSimulator) -> None:
    """Shows each new list until the user stops the demo."""
    click.echo("\nPlug or unplug a device, or press Ctrl-C.")
    kubelet.events.listen(_print_list)
    await host.stopped()


def _print_list(event: Event) -> None:
    if isinstance(event, ListReceived):
        healthy = sum(1 for device in event.devices if device.health == "Healthy")
        click.echo(f"{event.resource}: {healthy} of {len(event.devices)} devices healthy")
