"""The tests keep their own rules: each asserts something, and none reaches into devhost."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RIGS = sorted(
    file
    for pattern in (
        "tests/**/*.py",
        "plugins/*/tests/**/*.py",
        "packages/*/tests/**/*.py",
        "examples/*/tests/**/*.py",
    )
    for file in ROOT.glob(pattern)
)
TESTS = [file for file in RIGS if file.name.startswith("test_")]

PRIVATE: dict[str, int] = {}
"""Private attributes of objects of devhost that a file still reads. Only ever remove or lower."""

PATCHED: dict[str, int] = {}
"""Modules and classes of devhost that a file still patches. Only ever remove or lower."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def trees() -> dict[Path, ast.Module]:
    """What every module of tests contains; parsed once, and not where these tests only are collected."""
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in RIGS}


def test_no_test_reads_a_private_attribute() -> None:
    assert _excess(_private, PRIVATE) == {}


def test_no_test_patches_a_module_or_a_class_of_devhost() -> None:
    assert _excess(_patched, PATCHED) == {}


@pytest.mark.parametrize("allowed", [PRIVATE, PATCHED], ids=["private", "patched"])
def test_what_is_still_allowed_exists(allowed: dict[str, int]) -> None:
    assert [path for path in allowed if not (ROOT / path).exists()] == []


def test_no_test_forks_its_own_process() -> None:
    """The child runs gRPC's handlers, and 1 of 100 aborts before it becomes the program; vfork runs none."""
    assert _excess(_forked, {}) == {}


def test_what_a_test_waits_for_has_a_minute() -> None:
    """On a busy machine everything may take long, and only what hangs may fail."""
    assert _excess(_impatient, {}) == {}


def test_no_test_expects_an_equal_number_of_descriptors() -> None:
    """gRPC closes those of earlier tests at any time: ``open_descriptors`` has what to compare instead."""
    assert _excess(_counted, {}) == {}


def test_no_test_waits_for_an_equal_number_of_events() -> None:
    """The next one may come before the test has its turn, and the number is never seen."""
    assert _excess(_passed, {}) == {}


def test_every_test_asserts_something() -> None:
    asserting = _asserting()
    silent = [
        f"{name(file)}:{function.lineno} {function.name}"
        for file in TESTS
        for function in _functions(trees()[file])
        if function.name.startswith("test_") and not _asserts(function) and not _called(function) & asserting
    ]
    assert silent == []


def _excess(find: Callable[[ast.Module], Iterator[str]], allowed: dict[str, int]) -> dict[str, list[str]]:
    """What ``find`` yields in each file, where it is more than allowed."""
    found = {name(file): list(find(tree)) for file, tree in trees().items()}
    return {path: places for path, places in found.items() if len(places) > allowed.get(path, 0)}


def _dotted(node: ast.AST) -> str:
    """``a.b.c`` of such an expression; empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _private(tree: ast.Module) -> Iterator[str]:
    """Reads of ``x._y`` where the file itself neither defines nor assigns ``_y``."""
    own = set()
    private = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                own.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                private.append(node)
    for node in private:
        if node.attr not in own and _dotted(node.value) not in ("self", "cls", "os", "sys", "ssl"):
            yield f"{node.lineno} {ast.unparse(node)}"


def _patched(tree: ast.Module) -> Iterator[str]:
    """Calls of ``monkeypatch.setattr`` on what was imported from devhost, or on a path in it."""
    imported = set(_imported(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), *_]):
                if path.startswith("devhost"):
                    yield f"{node.lineno} {path}"
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, *_]):
                if _dotted(target).partition(".")[0] in imported:
                    yield f"{node.lineno} {_dotted(target)}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="mock"), attr="patch")):
                yield f"{node.lineno} mock.patch"


def _forked(tree: ast.Module) -> Iterator[str]:
    """What makes a child process by ``fork``."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="preexec_fn"):
                yield f"{node.value.lineno} {node.arg}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os" | "pty"), attr="fork" | "forkpty")):
                yield f"{node.lineno} {ast.unparse(node)}"
            case ast.Import(names=[ast.alias(name="multiprocessing")]):
                yield f"{node.lineno} {ast.unparse(node)}"


MINUTE = 60
"""Seconds."""


def _impatient(tree: ast.Module) -> Iterator[str]:
    """Waits of more than a second and less than a minute, except within ``pytest.raises``.

    Shorter ones are to end without what is waited for.
    """
    expected = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.With) and "raises" in ast.unparse(block.items[0].context_expr)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        seconds: list[ast.expr] = []
        match node:
            case ast.Assign(targets=[ast.Name(id="DEADLINE" | "PATIENCE" | "PATIENT" | "WAIT")]):
                seconds = [node.value]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="timeout")):
                seconds = node.args
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="wait_for")):
                seconds = [*node.args[1:], *(one.value for one in node.keywords)]
            case ast.Call(func=ast.Attribute(attr="to_thread"), args=[ast.Attribute(attr="wait"), *rest]):
                seconds = rest
            case ast.Call(func=ast.Attribute(attr="communicate" | "get" | "join" | "run" | "wait")):
                seconds = [one.value for one in node.keywords if one.arg == "timeout"]
                seconds += node.args if node.func.attr in ("join", "wait") else []
            case ast.Call(func=ast.Attribute(attr="until" | "wait_for")):
                seconds = [*node.args[1:], *(one.value for one in node.keywords)]
        for one in seconds:
            match one:
                case ast.Constant(value=int() | float() as number) if 1 < number < MINUTE:
                    if node not in expected and not isinstance(number, bool):
                        yield f"{node.lineno} {ast.unparse(node)}"


def _counted(tree: ast.Module) -> Iterator[str]:
    """Comparisons of the descriptors of this process by ``==``."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[ast.Eq()]) if "'/proc/self/fd'" in ast.unparse(node):
                yield f"{node.lineno} {ast.unparse(node)}"


def _passed(tree: ast.Module) -> Iterator[str]:
    """``len(events.of(…)) ==`` in a condition that is waited for: their number only grows."""
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(attr="until" | "wait_for"), args=[ast.Lambda(body=body), *_]):
                for node in ast.walk(body):
                    match node:
                        case ast.Compare(
                            left=ast.Call(args=[ast.Call(func=ast.Attribute(attr="of"))]), ops=[ast.Eq()]
                        ):
                            yield f"{node.lineno} {ast.unparse(node)}"


def _imported(tree: ast.Module) -> Iterator[str]:
    """The names under which a file has something of devhost or of its packages."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("devhost"):
                yield from (alias.asname or alias.name for alias in names)
            case ast.Import(names=names):
                yield from (
                    (alias.asname or alias.name).partition(".")[0]
                    for alias in names
                    if alias.name.startswith("devhost")
                )


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _asserts(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function))


def _called(function: ast.AST) -> set[str]:
    """The last part of the name of everything that a function calls; ``check`` for ``check=True``."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            names.add(_dotted(node.func).rpartition(".")[2])
            if isinstance(node.func, ast.Attribute):
                names.add(node.func.attr)
            names.update(keyword.arg or "" for keyword in node.keywords if keyword.arg == "check")
    return names


def _asserting() -> set[str]:
    """Names of functions that fail a test: they assert or raise, or call one that does."""
    files = (ROOT / "packages/testing/src").rglob("*.py")
    kit = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    helpers: dict[str, set[str]] = {}
    failing = {"raises", "warns", "fail", "check", "check_schema", "validate"}
    for function in (each for tree in (*trees().values(), *kit) for each in _functions(tree)):
        helpers.setdefault(function.name, set()).update(_called(function))
        if _asserts(function):
            failing.add(function.name)
    while more := {
        helper for helper, called in helpers.items() if helper not in failing and called & failing
    }:
        failing |= more
    return failing
