"""What docstrings refer to exists: each module, class, function and attribute that a role names."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [ROOT / "src", *sorted([*ROOT.glob("plugins/*/src"), *ROOT.glob("packages/*/src")])]

ROLE = re.compile(r":(mod|class|func|meth|attr|data|exc):`~?([.\w]+)(?:\(\))?`")


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for source in SOURCES:
        for file in source.rglob("*.py"):
            parts = file.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def known() -> frozenset[str]:
    """Every name that is defined or imported, with each of its qualified forms."""
    found = set()
    for module, file in modules().items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for name in ("", *_names(tree.body)):
            parts = [*module.split("."), *(name.split(".") if name else ())]
            found.update(".".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found)


def _names(body: Iterable[ast.stmt], before: str = "") -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield before + name
                for part in ast.walk(node):
                    match part:
                        case ast.Attribute(value=ast.Name(id="self"), attr=attr, ctx=ast.Store()):
                            yield before + attr
            case ast.ClassDef(name=name, body=inner):
                yield before + name
                yield from _names(inner, f"{before}{name}.")
            case ast.Assign(targets=targets):
                yield from (
                    before + part.id
                    for one in targets
                    for part in ast.walk(one)
                    if isinstance(part, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield before + name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (before + (alias.asname or alias.name) for alias in names)
            case ast.If() | ast.Try() | ast.With():
                yield from _names(node.body, before)


def resolves(role: str, name: str, module: str, file: Path) -> bool:
    """Whether a reference in a module leads somewhere; standard modules and their parts always do."""
    target = name.lstrip(".")
    first = target.partition(".")[0]
    if hasattr(builtins, first) or first in sys.stdlib_module_names:
        return True
    if role == "mod":
        package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
        up = len(name) - len(target)
        full = ".".join([*package[: len(package) - up + 1], target]) if up else target
        return full in modules()
    return target in known() or re.sub(r"^devhost\.backend\.(?=[A-Z])", "", target) in known()


def test_every_reference_in_a_docstring_exists() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{number} :{role}:`{name}`"
        for module, file in sorted(modules().items())
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for role, name in ROLE.findall(line)
        if not resolves(role, name, module, file)
    ]
    assert wrong == []
