"""Shared by the tests of the importers: running `devhost import` and reading its result."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from click.testing import CliRunner, Result
from devhost_import.command import command

from devhost.backend.model import Device
from devhost.cli.scan_once import scan_once
from devhost.config import loads
from devhost.config.loader import Loaded
from devhost.discovery import catalog
from devhost.planning.settings import ResourceSettings

HERE = Path(__file__).parent


def run(peer: str, text: str | bytes, *arguments: str) -> Result:
    return CliRunner().invoke(command, [peer, *arguments, "-"], input=text)


@cache
def installed() -> catalog.Catalog:
    """The backends of this environment."""
    return catalog.load()


def loaded(text: str) -> Loaded:
    """The result as a configuration, which must be valid."""
    found = installed()
    return Loaded(loads(text, "converted.yaml", lambda paths, wanted: found), found)


def converted(peer: str, text: str, *arguments: str) -> Mapping[str, ResourceSettings]:
    """The entries of the result by their names."""
    done = run(peer, text, *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return {entry.name: entry for entry in loaded(done.stdout).settings.resources}


def refusal(peer: str, text: str | bytes, *arguments: str) -> str:
    """The one line of the refusal."""
    done = run(peer, text, *arguments)
    assert done.exit_code != 0 and not done.stdout
    message = str(done.exception)
    assert "\n" not in message
    return message


def said(text: str) -> str:
    """A result with each wrapped comment on one line."""
    return re.sub(r"\n *# +", " ", text)


def wheres(entry: ResourceSettings) -> list[str]:
    return [str(block) for block in entry.where]


def called(device: Device) -> str:
    """The nodes of a device if the plugin offers nodes, else its id."""
    members = device.attributes.get("members")
    node = device.attributes.get("devNode")
    return " ".join(members) if isinstance(members, tuple) else str(node or device.id)


def offered(text: str, root: Path) -> dict[str, dict[str, int]]:
    """What `devhost discover` shows with this configuration, without devices that the machine lacks."""
    plan = asyncio.run(scan_once(loaded(text), root)).plan
    every = {
        name: {
            called(offer.device): offer.replicas
            for offer in resource.offers
            if " is missing" not in (offer.device.health.reason or "")
        }
        for name, resource in plan.resources.items()
    }
    return {name: devices for name, devices in every.items() if devices}


def akri(*rules: str, details: str = "", more: str = "", handler: str = "udev") -> str:
    """A configuration of Akri with these udev rules."""
    lines = "".join(f"        - '{rule}'\n" for rule in rules)
    return (
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {name: found}\nspec:\n  discoveryHandler:\n"
        f"    name: {handler}\n    discoveryDetails: |\n      udevRules:\n{lines}{details}{more}"
    )
