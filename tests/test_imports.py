"""Imports run downward only, and every library is used in one place."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

LAYERS = (
    ("cli",),
    ("daemon",),
    ("report", "testing"),
    ("host", "problems"),
    ("stranded",),
    ("service", "roster"),
    ("kubelet", "delivery", "recording"),
    ("injection", "provisioning"),
    ("survey", "supply", "news", "importers"),
    ("vicinity", "shortages"),
    ("inventory", "admissions", "loading", "ledger", "clearing", "labelling", "entries"),
    ("discovery", "observers", "plan", "affinity", "config", "reload", "specfiles"),
    (
        "settings",
        "edits",
        "source",
        "probing",
        "catalog",
        "events",
        "soundness",
        "cdi",
        "announcing",
        "watchdog",
        "notify",
        "lastgood",
    ),
    ("backend",),
    (
        "naming",
        "observe",
        "health",
        "worker",
        "linkage",
        "deviceinfo",
        "changes",
        "departures",
        "tasks",
        "account",
        "hands",
        "inotify",
    ),
    ("where", "telemetry", "holding", "tokens", "netlink", "labels", "disks", "descriptors", "trusted"),
    ("model", "errors", "pace", "sysfs", "files", "signals", "entrypoints", "kubelet.api"),
)
"""The modules and packages of ``src/devhost`` from the top to the bottom. What stands in one line may not
import each other, only what stands in a lower line. ``docs/architecture.md`` prints the same table."""

TOP_LEVEL = {"": "__version__ is for everybody", "__main__": "it is the program itself"}
"""Modules that belong to no layer."""

LIBRARIES = {
    "asyncinotify": ("events",),
    "click": ("cli",),
    "google": ("kubelet", "testing"),
    "grpc": ("kubelet", "testing"),
    "pluggy": ("observe", "catalog"),
    "pyudev": ("events",),
    "yaml": ("config.document", "testing"),
}
"""Every library outside the standard one, and the modules or packages that may know it."""

PURE = {
    "model": set(),
    "errors": set(),
    "pace": set(),
    "departures": set(),
    "holding": {"model"},
    "tokens": {"model"},
    "hands": {"holding", "model"},
    "account": {"holding", "model", "tokens"},
    "ledger": {"account", "holding", "model", "plan", "settings", "tokens"},
    "where": {"model"},
    "naming": {"model", "where"},
    "edits": {"errors", "model", "naming"},
    "settings": {"health", "model", "naming", "where"},
    "plan": {"hands", "holding", "model", "naming", "settings", "tokens", "where"},
    "affinity": {"affinity", "model", "settings"},
    "affinity.topology": {"model"},
    "affinity.preferences": {"affinity", "settings"},
    "affinity.apportion": {"affinity"},
    "affinity.joining": {"affinity"},
    "admissions": {"affinity", "telemetry"},
    "health": {"model"},
}
"""Modules that decide and touch nothing: all they may import of devhost."""

IO = {"asyncio", "os", "pathlib", "shutil", "socket", "subprocess", "threading", "time", "urllib", "tempfile"}
"""Standard modules with which a module would not be pure. Two are allowed a type: see ``PURE_TYPES``."""

PURE_TYPES = {("settings", "pathlib")}
"""``Settings.backend_paths`` holds paths; nothing there opens one."""

PUBLIC = {
    "backend",
    "disks",
    "errors",
    "inotify",
    "model",
    "netlink",
    "observe",
    "sysfs",
    "trusted",
    "where",
    "testing",
}
"""What a plugin package may import of devhost. The rest may change in any release."""


@dataclass(frozen=True)
class Import:
    """``name`` is the full name of what is imported, as far as it is a module."""

    name: str
    line: int


@cache
def modules(source: Path, package: str) -> dict[str, Path]:
    """Every module below a package by its dotted name."""
    found = {}
    for file in sorted((source / package).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(source: Path, package: str, module: str) -> Iterator[Import]:
    """What a module imports: at its top, in functions, and for type checking only."""
    known = modules(source, package)
    file = known[module]
    here = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known or base == "devhost" else base, node.lineno)


def unit(module: str) -> str:
    """The line of the table a module of devhost stands in."""
    path = module.partition(".")[2]
    names = [name for layer in LAYERS for name in layer]
    fitting = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(fitting, key=len, default=path)


def height(name: str) -> int:
    """The number of a unit's layer, counted from the top."""
    return next((number for number, layer in enumerate(LAYERS) if name in layer), -1)


def place(module: str, found: Import) -> str:
    return f"{module.replace('.', '/')}:{found.line} imports {found.name}"


DEVHOST = sorted(modules(SOURCE, "devhost"))
PLUGINS = sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))


def test_every_module_stands_in_the_table() -> None:
    units = {unit(module) for module in DEVHOST} - set(TOP_LEVEL)
    table = {name for layer in LAYERS for name in layer}
    assert units == table


@pytest.mark.parametrize("module", DEVHOST)
def test_imports_run_downward_only(module: str) -> None:
    own = unit(module)
    if own in TOP_LEVEL:
        return
    wrong = []
    for found in imports(SOURCE, "devhost", module):
        if found.name.partition(".")[0] != "devhost" or unit(found.name) in (own, "", "__version__"):
            continue
        if height(unit(found.name)) <= height(own):
            wrong.append(place(module, found))
    assert wrong == []


@pytest.mark.parametrize("module", DEVHOST)
def test_a_library_is_known_only_where_the_table_says(module: str) -> None:
    path = module.partition(".")[2]
    wrong = []
    for found in imports(SOURCE, "devhost", module):
        library = found.name.partition(".")[0]
        if library == "devhost" or library in sys.stdlib_module_names:
            continue
        allowed = LIBRARIES.get(library, ())
        if not any(path == place or path.startswith(f"{place}.") for place in allowed):
            wrong.append(place(module, found))
    assert wrong == []


@pytest.mark.parametrize("name", sorted(PURE))
def test_what_decides_touches_nothing(name: str) -> None:
    module = f"devhost.{name}"
    wrong = []
    for found in imports(SOURCE, "devhost", module):
        top = found.name.partition(".")[0]
        if top == "devhost":
            good = unit(found.name) in PURE[name]
        else:
            good = top not in IO or (name, top) in PURE_TYPES
        if not good:
            wrong.append(place(module, found))
    assert wrong == []


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_the_public_api_and_no_other_plugin(plugin: Path) -> None:
    package = f"devhost_{plugin.name}"
    wrong = []
    for module in modules(plugin / "src", package):
        for found in imports(plugin / "src", package, module):
            top, _, rest = found.name.partition(".")
            public = top == "devhost" and rest.partition(".")[0] in PUBLIC
            foreign = top != package and (top == "devhost" or top.startswith("devhost_"))
            if foreign and not public:
                wrong.append(place(module, found))
    assert wrong == []


def test_the_architecture_page_prints_this_table() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([a-z.]+)` \|", text, re.MULTILINE)
    printed: dict[int, list[str]] = {}
    for number, name in rows:
        printed.setdefault(int(number), []).append(name)
    assert tuple(tuple(names) for _, names in sorted(printed.items())) == LAYERS


def test_the_architecture_page_names_the_public_modules() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sentence = re.search(r"A plugin package may import ([^.]*(?:\.[a-z`][^.]*)*)\.", text)
    assert sentence is not None
    assert set(re.findall(r"`devhost\.([a-z]+)`", sentence[1])) == PUBLIC
