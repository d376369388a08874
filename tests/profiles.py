"""The profiles of accelerators, and one configuration with all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

PROFILES = sorted((Path(__file__).parents[1] / "config/examples/accelerators").glob("*.yaml"))


@cache
def everything() -> str:
    """The groups, options and entries of all profiles as YAML, without the version.

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
    return yaml.safe_dump({"backends": options, "resources": list(resources.values())}, sort_keys=False)
