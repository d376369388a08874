from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from devhost.runtime import log

Lines = Callable[[], list[str]]


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """The lines on stderr; restores logging at the end of the test."""
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    root, ours = logging.getLogger(), logging.getLogger("devhost")
    before = (root.handlers[:], root.level, ours.level)
    yield lambda: capsys.readouterr().err.split("\n")[:-1]
    logging.captureWarnings(False)
    root.handlers[:], root.level, ours.level = before
    root.setLevel(root.level)  # drops the cached "is enabled" answers


def test_a_text_line_has_time_level_logger_message_and_fields(stderr: Lines) -> None:
    log.configure("text")
    log.get("devhost.host.host").info("registered", resource="rdma/hca", devices=4)
    (line,) = stderr()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO devhost\.host\.host registered resource=rdma/hca devices=4", line
    )


def test_a_json_line_is_one_flat_object_with_utc_time(stderr: Lines) -> None:
    log.configure("json")
    log.get("devhost.host.host").warning("lost", resource="rdma/hca", devices=("a", "b"), ratio=float("nan"))
    (line,) = stderr()
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "warning",
        "logger": "devhost.host.host",
        "message": "lost",
        "resource": "rdma/hca",
        "devices": ["a", "b"],
        "ratio": "nan",
    }


def test_a_json_line_is_valid_json_with_any_field_value(stderr: Lines) -> None:
    class Odd(NamedTuple):
        ratio: float
        path: Path

    nan, infinity = float("nan"), float("inf")
    log.configure("json")
    log.get("devhost.x").info(
        "saw",
        nested={"a": {"b": [nan, {"c": infinity}]}, nan: 1, (1, 2): None, None: True, "x\x1b": "\x1b"},
        odd=Odd(nan, Path("/a\u2028b")),
        views=[{"a": -infinity}.keys(), frozenset({nan}), range(2), b"\xff", 1.5, 10**30],
    )
    (line,) = stderr()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["nested"] == {
        "a": {"b": ["nan", {"c": "inf"}]},
        "nan": 1,
        "(1, 2)": None,
        "None": True,
        r"x\x1b": r"\x1b",
    }
    assert found["odd"] == ["nan", r"/a\u2028b"]
    assert found["views"] == [["a"], ["nan"], [0, 1], "b'\\xff'", 1.5, 10**30]


def test_a_recursive_value_is_logged(stderr: Lines) -> None:
    ring: list[object] = [1]
    ring.append({"again": ring})
    deep: object = "end"
    for _ in range(5000):
        deep = [deep]
    log.configure("json")
    log.get("devhost.x").info("saw", ring=ring, deep=deep)
    found = json.loads(stderr()[0])
    assert found["ring"][1]["again"][0] == 1
    assert json.dumps(found["deep"], ensure_ascii=False).strip("[]") == '"\u2026"'


def test_a_field_cannot_replace_a_key_of_the_line(stderr: Lines) -> None:
    log.configure("json")
    log.get("devhost.host.host").info("kept", **{"message": "forged", "level": "none", "self": 1})
    found = json.loads(stderr()[0])
    assert (found["message"], found["level"]) == ("kept", "info")
    assert (found["message_"], found["level_"], found["self"]) == ("forged", "none", 1)


@pytest.mark.parametrize(
    "evil",
    [
        "a\n12:00:00.000 INFO devhost forged",
        "\x1b[2J",
        "\x9b1m",
        "a\u2028b",
        "\udce4",
        "\u061c",
        "\u206f",
        "\x7f",
    ],
    ids=[
        "line end",
        "escape",
        "C1 escape",
        "line separator",
        "not UTF-8",
        "Arabic mark",
        "digit shapes",
        "DEL",
    ],
)
def test_no_value_can_forge_a_line_or_control_a_terminal(stderr: Lines, evil: str) -> None:
    logging.getLogger().handlers.clear()  # pytest's own could not pass on what is not UTF-8
    for format in get_args(log.Format):
        log.configure(format)
        log.get("devhost.x").info(f"saw {evil}", serial=evil)
        logging.getLogger("devhost.x").warning("saw %s", evil, extra={"fields": {evil: evil}})
    lines = stderr()
    assert len(lines) == 4
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f\u061c\u2028\u206f\ud800-\udfff]", line) for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "x"', '"say \\"x\\""'),
        ("a=b", '"a=b"'),
        (0.00123456789, "0.00123457"),
        (["a", "b"], "a,b"),
        (None, "None"),
        ("tab\there", '"tab\\there"'),
    ],
)
def test_an_ambiguous_text_value_is_quoted(stderr: Lines, value: object, shown: str) -> None:
    log.configure("text")
    log.get("devhost.x").info("saw", it=value)
    assert stderr()[0].endswith(f" saw it={shown}")


def _fail() -> None:
    raise ValueError("first\n12:00:00.000 INFO devhost forged")


def test_lines_of_a_traceback_in_text_begin_with_a_bar(stderr: Lines) -> None:
    log.configure("text")
    try:
        _fail()
    except ValueError:
        log.get("devhost.x").exception("failed", device="a")
    first, *others = stderr()
    assert first.endswith("ERROR devhost.x failed device=a")
    assert others and all(line.startswith("  | ") for line in others)


def test_a_traceback_in_json_is_one_field(stderr: Lines) -> None:
    log.configure("json")
    try:
        _fail()
    except ValueError:
        log.get("devhost.x").exception("failed", exception="mine")
    (line,) = stderr()
    found = json.loads(line)
    assert found["exception"].startswith("Traceback") and "ValueError: first" in found["exception"]
    assert found["exception_"] == "mine"


def test_a_message_may_contain_a_percent_sign(stderr: Lines) -> None:
    log.configure("text")
    log.get("devhost.x").info("at 50 % of %s")
    assert stderr()[0].endswith("at 50 % of %s")


def test_configuring_twice_writes_each_line_once(stderr: Lines) -> None:
    log.configure("text")
    log.configure("json")
    log.get("devhost.x").info("once")
    assert [json.loads(line)["message"] for line in stderr()] == ["once"]


def test_libraries_log_from_warning_on_even_at_level_debug(stderr: Lines) -> None:
    log.configure("text", "debug")
    log.get("devhost.x").debug("ours")
    logging.getLogger("asyncio").debug("theirs")
    logging.getLogger("grpc._cython").info("theirs")
    logging.getLogger("grpc._cython").warning("important")
    assert [line.split(" ", 3)[3] for line in stderr()] == ["ours", "important"]


def test_lower_levels_than_the_configured_one_are_not_logged(stderr: Lines) -> None:
    log.configure("text", "error")
    log.get("devhost.x").warning("quiet")
    logging.getLogger("other").warning("quiet")
    assert stderr() == []


def test_python_warnings_go_to_the_log(stderr: Lines) -> None:
    log.configure("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)  # catch_warnings put the plain one back
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    found = json.loads(stderr()[0])
    assert found["logger"] == "py.warnings" and "old thing" in found["message"]
