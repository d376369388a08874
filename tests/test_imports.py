"""Imports run downward only, and every library is used in one place."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

ROOMS = {
    "cli": "commands: arguments in, an answer and an exit code out",
    "host": "the process: composition, reload, one service per resource, problems and status",
    "kubelet": "the device plugin API v1beta1: registration, the servers, podresources",
    "dra": "Dynamic Resource Allocation: ResourceSlices, claims, and the API client",
    "allocation": "answering Allocate: token checks, injection (direct or CDI), who holds which device",
    "config": "`devhost.yaml` to settings, with line and column for every error",
    "discovery": "running backends: catalog, scans, probes, health, validation, kernel events",
    "planning": "pure decisions: plan, claims, names, tokens, preference among devices",
    "telemetry": "metrics, the status document and page, and the sockets over which they are asked",
    "runtime": "loops, threads, tasks, log, sockets, HTTP, systemd, watchdog: no knowledge of devices",
    "backend": "the public API: everything that a backend or an observer may import",
}
"""The packages of ``src/devhost`` from the top to the bottom: a package imports only from those below it.
``docs/architecture.md`` prints the same table."""

WIDEST = 21
"""Modules that a package may have side by side."""

TOP_LEVEL = {
    "": "__version__ is for everybody",
    "__main__": "it is the program itself",
    "compiled": "a program, run by Python itself",
    "missing": "any package may be the one that cannot be imported",
    "testing": "the former name of another package",
}
"""Modules that belong to no package."""

LIBRARIES = {
    "asyncinotify": ("runtime.watch",),
    "click": ("cli",),
    "google": ("cli.memory", "dra", "kubelet", "runtime.rpc"),
    "grpc": ("cli.memory", "dra", "kubelet", "runtime.rpc"),
    "h11": ("dra.kube", "runtime.http", "telemetry.ask"),
    "markupsafe": ("telemetry.page",),
    "pluggy": ("backend.observe", "discovery.catalog"),
    "pyudev": ("discovery.uevents",),
    "yaml": ("config.document", "dra.credentials"),
}
"""Every library outside the standard one, and the modules or packages that may know it."""

PURE = (
    "planning",
    "backend.model",
    "backend.errors",
    "backend.where",
    "backend.backoff",
    "allocation.allocations",
    "allocation.claims",
    "allocation.given",
    "allocation.leases",
    "allocation.request_grouping",
    "discovery.health",
    "host.shown.recent_removals",
)
"""Packages and modules that decide and touch nothing. They import only each other and the values of
``backend``; ``allocation.request_grouping`` writes to the log besides."""

IO = {"asyncio", "os", "pathlib", "shutil", "socket", "subprocess", "threading", "time", "urllib", "tempfile"}
"""Standard modules with which a module would not be pure. Two are allowed a type: see ``PURE_TYPES``."""

PURE_TYPES = {("planning.settings", "pathlib")}
"""``Settings.backend_paths`` holds paths; nothing there opens one."""

PUBLIC = "backend"
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


@cache
def imports(source: Path, package: str, module: str) -> list[Import]:
    return list(_imports(source, package, module))


def _imports(source: Path, package: str, module: str) -> Iterator[Import]:
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


def room(module: str) -> str:
    """The package of devhost that a module belongs to; empty for ``devhost`` itself."""
    return module.partition(".")[2].partition(".")[0]


def place(module: str, found: Import) -> str:
    return f"{module.replace('.', '/')}:{found.line} imports {found.name}"


DEVHOST = sorted(modules(SOURCE, "devhost"))
PLUGINS = sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))


def test_every_package_is_in_the_table() -> None:
    assert {room(module) for module in DEVHOST} - set(TOP_LEVEL) == set(ROOMS)


def test_imports_run_downward_only() -> None:
    order = list(ROOMS)
    wrong = []
    for module in DEVHOST:
        own = room(module)
        if own in TOP_LEVEL:
            continue
        for found in imports(SOURCE, "devhost", module):
            if found.name.partition(".")[0] != "devhost":
                continue
            if room(found.name) in (own, *TOP_LEVEL, "__version__"):
                continue
            if order.index(room(found.name)) <= order.index(own):
                wrong.append(place(module, found))
    assert wrong == []


def test_modules_of_one_package_import_each_other_without_a_circle() -> None:
    graph = {
        module: {
            found.name for found in imports(SOURCE, "devhost", module) if room(found.name) == room(module)
        }
        for module in DEVHOST
        if room(module) not in TOP_LEVEL
    }
    # a package's __init__ re-exports its modules; what matters is whether the modules need each other
    for module in [module for module in graph if modules(SOURCE, "devhost")[module].name == "__init__.py"]:
        del graph[module]
    TopologicalSorter(
        {name: {other for other in needs if other in graph} for name, needs in graph.items()}
    ).prepare()


def test_no_package_is_wider_than_a_reader_can_take_in() -> None:
    packages = {file.parent for file in modules(SOURCE, "devhost").values()}
    crowded = {str(package): len(list(package.glob("*.py"))) for package in packages}
    assert {package: count for package, count in crowded.items() if count > WIDEST + 1} == {}


def test_a_package_states_its_purpose_and_its_imports() -> None:
    for name in ROOMS:
        document = ast.get_docstring(ast.parse((SOURCE / "devhost" / name / "__init__.py").read_text()))
        assert document is not None and len(document.splitlines()) > 2, name
        assert "May import:" in document and "Import from here:" in document, name


def test_a_library_is_imported_only_where_the_table_allows() -> None:
    wrong = []
    for module in DEVHOST:
        path = module.partition(".")[2]
        for found in imports(SOURCE, "devhost", module):
            library = found.name.partition(".")[0]
            if library == "devhost" or library in sys.stdlib_module_names:
                continue
            allowed = LIBRARIES.get(library, ())
            if not any(path == one or path.startswith(f"{one}.") for one in allowed):
                wrong.append(place(module, found))
    assert wrong == []


def pure(name: str) -> bool:
    path = name.partition(".")[2]
    return any(path == place or path.startswith(f"{place}.") for place in PURE)


def test_what_decides_touches_nothing() -> None:
    wrong = []
    for module in filter(pure, DEVHOST):
        for found in imports(SOURCE, "devhost", module):
            top = found.name.partition(".")[0]
            if top == "devhost":
                lower = {"backend", "runtime", *({"telemetry"} if room(module) != "planning" else ())}
                good = pure(found.name) or room(found.name) in lower
            else:
                good = top not in IO or (module.partition(".")[2], top) in PURE_TYPES
            if not good:
                wrong.append(place(module, found))
    assert wrong == []


def test_what_speaks_with_the_kubelet_does_not_know_how_devices_are_found() -> None:
    found = [
        one for module in DEVHOST if room(module) == "kubelet" for one in imports(SOURCE, "devhost", module)
    ]
    assert [one.name for one in found if room(one.name) == "discovery"] == []


def test_a_plugin_imports_the_public_api_and_no_other_plugin() -> None:
    wrong = []
    for source in (plugin / "src" for plugin in PLUGINS):
        package = f"devhost_{source.parent.name}"
        for module in modules(source, package):
            for found in imports(source, package, module):
                top, _, rest = found.name.partition(".")
                public = top == "devhost" and rest.partition(".")[0] == PUBLIC
                foreign = top != package and (top == "devhost" or top.startswith("devhost_"))
                if foreign and not public:
                    wrong.append(place(module, found))
    assert wrong == []


def test_the_architecture_page_prints_this_table() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+)/` \| ([^|]+) \|$", text, re.MULTILINE)
    assert dict(rows) == ROOMS and [name for name, _ in rows] == list(ROOMS)
