"""``devhost explain``: what every entry of the configuration says of one device, and why."""

from __future__ import annotations

import asyncio
import difflib
import json
from pathlib import Path

import click

from devhost.config.selection import declared
from devhost.errors import DevhostError, UsageError
from devhost.health import in_resource
from devhost.loading import Loaded, load_or_everything
from devhost.model import HEALTHY, Device
from devhost.plan import Verdict, explain
from devhost.survey import Survey, survey
from devhost.sysfs import natural
from devhost.where import show

from . import _options
from ._held import held_here
from .discover import as_json, standing


@click.command("explain")
@click.argument("device")
@_options.config
@_options.root
@_options.output
def command(device: str, config: Path | None, root: Path, output: str) -> None:
    """Tells why DEVICE is offered or not: its attributes, and what each resource says of it.

    DEVICE is an id as `devhost discover` shows it, or the value of any attribute that names it, such
    as a device node (/dev/fuse), a PCI address (in upper or lower case) or a serial number.

    What containers hold counts where a devhost runs on this node and may be asked: it goes to nobody else.
    Where it does not count, the last line says so.
    """
    _options.check_root(root)
    found, uncounted = asyncio.run(_look(load_or_everything(config), root))
    matches = _matches(found, device)
    if output == "json":
        click.echo(json.dumps([_document(found, name, match) for name, match in matches], indent=2))
    else:
        for number, (name, match) in enumerate(matches):
            if number:
                click.echo("")
            _print(found, name, match)
    if uncounted and found.settings.resources:
        click.echo(f"What containers hold is not counted: {uncounted}.", err=output == "json")


async def _look(loaded: Loaded, root: Path) -> tuple[Survey, str]:
    """What there is, and why what containers hold does not count in it; empty where it does."""
    heard, uncounted = None, ""
    if root == Path("/"):
        try:
            heard = await held_here()
        except DevhostError as error:
            uncounted = error.message
    else:
        uncounted = "with --root nobody is asked"
    return await survey(loaded, root, everything=True, heard=heard), uncounted


def _matches(found: Survey, text: str) -> list[tuple[str, Device]]:
    """The devices meant, by id or else by an attribute's value or a node they use up.

    Where nothing is called exactly that, case does not matter in an id, as long as one device alone is
    meant, and in the attributes in which it does not matter to ``where``.

    Raises:
        UsageError: there is none.
    """
    devices = found.devices()
    exact = [item for item in devices if text in (item[1].id, f"{item[0]}/{item[1].id}")]
    if exact:
        return exact
    named = [item for item in devices if _is_named(text, item[1])]
    if named:
        return named
    folded = text.lower()
    alike = [item for item in devices if folded in (item[1].id.lower(), f"{item[0]}/{item[1].id}".lower())]
    if len(alike) == 1:
        return alike
    if named := [(name, device) for name, device in devices if _has_hex(found, name, device, folded)]:
        return named
    for name, discovery in found.discoveries.items():
        for flawed in discovery.condition.refused:
            if flawed.device.lower() == folded:
                raise UsageError(f"{flawed.device} of backend {name} cannot be used: {flawed.reason}")
    failed = [d.condition.reason for d in found.discoveries.values() if d.condition.reason]
    twins = [device.id for _, device in alike[:3]]
    close = twins or difflib.get_close_matches(text, [device.id for _, device in devices], n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`devhost discover --all` lists all devices"
    raise UsageError(f"no backend knows a device {text!r}", "; ".join([*failed, hint]))


def _is_named(text: str, device: Device) -> bool:
    values = device.attributes.values()
    return f"node:{text}" in device.claims or any(_names(text, value) for value in values)


def _has_hex(found: Survey, backend: str, device: Device, folded: str) -> bool:
    """Whether an attribute whose case means nothing has this value, which is in lower case."""
    known = found.discoveries[backend].source.kind.attributes
    for key, value in device.attributes.items():
        attribute = declared(known, key)
        if attribute is not None and attribute.hex:
            texts = value if isinstance(value, tuple) else (str(value),)
            if folded in map(str.lower, texts):
                return True
    return False


def _names(text: str, value: object) -> bool:
    return text in value if isinstance(value, tuple) else text == value


def _print(found: Survey, backend: str, device: Device) -> None:
    click.echo(f"{device.id} of backend {backend}: {standing(device)}")
    for key, value in sorted(device.attributes.items()):
        click.echo(f"  {key}: {show(value)}")
    for title, claims in (("uses up", device.claims), ("part of", device.part_of)):
        if claims:
            click.echo(f"  {title}: {', '.join(sorted(claims, key=natural))}")
    verdicts = explain(found.plan, found.settings, backend, device)
    if not verdicts:
        click.echo("No resource is configured.")
    for verdict in verdicts:
        mark = "yes" if verdict.taken else "no"
        click.echo(f"{verdict.resource} (resources[{verdict.entry.index}]): {mark}, {_why(verdict, device)}")


def _why(verdict: Verdict, device: Device) -> str:
    """The reason of a verdict, and why the device is Unhealthy in that resource alone."""
    health = in_resource(device, HEALTHY, verdict.entry.uses)
    if not verdict.taken or health.healthy:
        return verdict.reason
    return f"{verdict.reason}, and is Unhealthy there: {health.reason}"


def _document(found: Survey, backend: str, device: Device) -> dict[str, object]:
    return {
        **as_json(backend, device),
        "verdicts": [
            {
                "entry": f"resources[{verdict.entry.index}]",
                "resource": verdict.resource,
                "taken": verdict.taken,
                "reason": _why(verdict, device),
            }
            for verdict in explain(found.plan, found.settings, backend, device)
        ],
    }
