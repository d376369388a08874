"""``docs/logs.md`` lists exactly the messages that devhost logs, with level and fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from devhost.runtime import log

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "devhost"
PAGE = ROOT / "docs" / "logs.md"

LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}

LOGS = ("log", "_log", "self._log", "logging.log")
"""The names under which modules have their log."""

BY_NAME = {
    "device left": ("info", "resource, device, reason, holder"),
    "more devices left": ("info", "resource, devices"),
    "device appeared": ("info", "resource, device"),
    "more devices appeared": ("info", "resource, devices"),
    "device is unhealthy": ("warning", "resource, device, reason"),
    "more devices are unhealthy": ("warning", "resource, devices"),
    "device is unhealthy for another reason": ("warning", "resource, device, reason"),
    "more devices are unhealthy for another reason": ("warning", "resource, devices"),
    "device is healthy again": ("info", "resource, device"),
    "more devices are healthy again": ("info", "resource, devices"),
    "allocation failed": ("warning", "resource, reason, holder, code"),
    "preparing devices failed": ("warning", "resource, reason, code"),
    "log lines were dropped": ("warning", "lines, reason"),
    "the CDI file of a claim may be missing": ("warning", "claim, uid, reason"),
    "the CDI file of a claim may be outdated": ("warning", "claim, uid, reason"),
    "a claim that may be gone stays prepared": ("warning", "claim, uid, reason"),
}
"""Messages that are not literals in the calls that log them."""

Row = tuple[str, str, str]
"""Message, level and fields, in the format of the page."""


def calls(*, but: str = "") -> Iterator[ast.Call]:
    """Every call in the code that runs on nodes, except for those in one module.

    The tools in ``devhost.backend`` are excluded: they log for a backend, in free text.
    """
    for file, nodes in every_call().items():
        if file != SOURCE / but:
            yield from nodes


LOGGING = re.compile(rf"\.(?:{'|'.join(LEVELS)})\(|\b(?:FailureLog|first)\(")
"""What a module with one of these calls has in its text; only such modules are parsed, once."""


@cache
def every_call() -> dict[Path, list[ast.Call]]:
    """The calls in each module."""
    return {
        file: [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        for file in sorted(SOURCE.rglob("*.py"))
        if not {"testing", "backend"} & set(file.relative_to(SOURCE).parts)
        if LOGGING.search(text := file.read_text(encoding="utf-8"))
    }


def written() -> Iterator[tuple[str, ast.Call]]:
    """Every call that logs a message, with its level. ``FailureLog`` gets its messages from its callers."""
    for node in calls(but="runtime/reconciler.py"):
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and ast.unparse(node.func.value) in LOGS
        ):
            yield LEVELS[node.func.attr], node


def of_failure_logs() -> Iterator[Row]:
    """The messages of each ``FailureLog``: when something fails, and when it works again."""
    for node in calls():
        if isinstance(node.func, ast.Name) and node.func.id == "FailureLog":
            failed, recovered = map(ast.literal_eval, node.args[1:])
            named = {word.arg: word.value for word in node.keywords}
            level = named.pop("level", ast.Constant("warning"))
            named.pop("changed", None)
            yield failed, ast.literal_eval(level), ", ".join([*named, "reason"])
            yield recovered, "info", ", ".join(named)


def of_the_rest() -> Iterator[Row]:
    """The messages of ``log.first``: how many more have changed than are logged one by one."""
    for node in calls():
        if isinstance(node.func, ast.Name) and node.func.id == "first" and len(node.args) > 2:
            _, write, more, *of = node.args
            fields = [of[0].value if of and isinstance(of[0], ast.Constant) else "devices"]
            if isinstance(write, ast.Call):  # partial(log.error, backend=backend)
                fields = [*(word.arg or "" for word in write.keywords), *fields]
                write = write.args[0]
            if isinstance(write, ast.Attribute) and isinstance(more, ast.Constant):
                yield more.value, LEVELS[write.attr], ", ".join(fields)


def _unpacked(value: ast.expr) -> str:
    """The fields that ``**value`` adds."""
    holders = isinstance(value, ast.Call) and ast.unparse(value.func) == "holder_field"
    return "holder" if holders else "backend, reason"


def in_the_code() -> set[Row]:
    found = {(message, *how) for message, how in BY_NAME.items()}
    for level, call in written():
        first = call.args[0]
        if isinstance(first, ast.Constant):
            fields = [word.arg or _unpacked(word.value) for word in call.keywords]
            found.add((first.value, level, ", ".join(fields)))
    return found.union(of_failure_logs(), of_the_rest())


def on_the_page() -> list[Row]:
    rows = re.findall(r"^- `([^`]+)` \((\w+)(?:; ([^)]*))?\)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [(message, level, fields.replace("`", "").strip()) for message, level, fields in rows]


def test_the_page_lists_exactly_the_messages_of_the_code() -> None:
    page, code = on_the_page(), in_the_code()
    assert sorted(code - set(page)) == []
    assert sorted(set(page) - code) == []
    assert len(page) == len(set(page))


def test_every_log_call_uses_a_known_name() -> None:
    """Otherwise its message would be missing on the page. ``error()`` of diagnostics has no arguments."""
    others = [
        ast.unparse(call)
        for call in calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS and call.args
        if ast.unparse(call.func.value) not in LOGS
    ]
    assert others == []


def test_messages_that_are_not_literal_are_listed_by_name() -> None:
    """Otherwise a message could be missing on the page."""
    others = [call.args[0] for _, call in written() if not isinstance(call.args[0], ast.Constant)]
    # of dra.upkeep: a claim for which each pass fails; of kubelet.server: a call of the kubelet that failed
    assert sorted(map(ast.unparse, others)) == ["call.failed", "self._message"]
    source = "".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    assert [message for message in BY_NAME if f'"{message}"' not in source] == []


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_every_level_is_explained(level: log.Level) -> None:
    assert f"- {level}: " in PAGE.read_text(encoding="utf-8")
