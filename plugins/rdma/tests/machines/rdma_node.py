"""A machine through a user's configuration."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result
from kit.command import DEVHOST, completed

from devhost.cli import discover


class Node:
    """A machine, a configuration for it, and the commands on both."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self._config = directory / "devhost.yaml"

    def run(self, command: click.Command, *arguments: str) -> Result:
        """Runs a command to its end, in this process."""
        return CliRunner().invoke(
            command, [*arguments, *self._options], catch_exceptions=False, standalone_mode=False
        )

    def program(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, as a program."""
        return completed(*DEVHOST, command, *arguments, *self._options)

    @property
    def _options(self) -> list[str]:
        return ["--config", str(self._config), "--root", str(self.root)]

    def write(self, *resources: str) -> None:
        """Writes a configuration with these resources, each in YAML's flow style."""
        lines = "".join(f"- {{{resource}}}\n" for resource in resources)
        self._config.write_text(f"version: 1\nresources:\n{lines}")

    def discover(self, *resources: str) -> dict[str, Any]:
        """The whole answer to ``devhost discover`` with these resources."""
        self.write(*resources)
        done = self.run(discover.command, "--output", "json")
        assert done.stderr == ""
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def offers(self, *resources: str) -> dict[str, list[str]]:
        """The ids of the devices of each resource."""
        return {
            resource["name"]: [device["id"] for device in resource["devices"]]
            for resource in self.discover(*resources)["resources"]
        }
