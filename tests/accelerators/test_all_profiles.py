"""All profiles of accelerators in one file, on a node that has none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from devhost_testing.node import Node
from devhost_testing.trees import Tree

from devhost.host.shown.status import status

PROFILES = sorted((Path(__file__).parents[2] / "config/examples/accelerators").glob("*.yaml"))


def everything() -> dict[str, Any]:
    """One configuration with the groups, options and entries of all profiles.

    Two profiles with one resource are for different nodes: the later one's is called after its file.
    """
    options: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    for file in PROFILES:
        profile = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert profile.keys() <= {"version", "backends", "resources"}
        for backend, own in profile.get("backends", {}).items():
            for key, value in own.items():
                shared = options.setdefault(backend, {})
                shared[key] = [*shared.get(key, []), *value] if isinstance(value, list) else value
        for entry in profile["resources"]:
            name = entry["name"]
            name = f"{name}-{file.stem}" if name in resources else name
            assert name not in resources
            resources[name] = entry | {"name": name, "optional": True}
    return {"version": 1, "backends": options, "resources": list(resources.values())}


def test_all_profiles_fit_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text(yaml.safe_dump(everything(), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "devhost", "check", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_node_without_accelerators_offers_nothing_and_has_no_problem(tmp_path: Path) -> None:
    everywhere = everything()
    del everywhere["version"]
    async with Node(tmp_path) as node:
        Tree(node.root).device("virtual/misc/fuse", "misc", "fuse", "10:229")
        node.configure(yaml.safe_dump(everywhere, sort_keys=False))
        async with node.served():
            await node.until(lambda: node.devices("udev"))
            assert node.kubelet.allocatable() == {}
            assert status(node.host)["problems"] == []


def test_a_profile_states_its_source_its_differences_and_its_migration() -> None:
    for file in PROFILES:
        header = file.read_text(encoding="utf-8").partition("version: 1")[0]
        assert all(f"\n# {part}" in header for part in ("Source: ", "Differences", "Migration: ")), file.name
