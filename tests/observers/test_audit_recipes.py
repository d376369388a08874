"""The recipes for collectors: each line is parsed with its own time, and labels have few values."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from trail import EACH, EXAMPLES, Trail, appeared, fell, send

ALLOY = re.sub(r"(?m)^\s*//.*$", "", (EXAMPLES / "loki.alloy").read_text(encoding="utf-8"))
FLUENT_BIT = yaml.safe_load((EXAMPLES / "fluent-bit.yaml").read_text(encoding="utf-8"))

FILE = "/var/lib/devhost/audit/audit.jsonl"
BOUNDED = {"job", "node"}
"""Labels whose number of values does not grow with pods and devices."""

LONGEST = 32 * 1024


@pytest.fixture
def lines(trail: Trail) -> list[str]:
    """A line of each event, at different times, with every character that needs care."""
    observer = trail.load()
    for news in EACH:
        send(observer, news, missed=int(news is EACH[-1]))
    send(observer, fell(1795773601.987, 'a "quoted" \\ text,\n\x01 größer'))
    send(observer, *appeared(None, "fan", at=1795773602.0))
    return trail.file.read_text(encoding="utf-8").splitlines()


def block(name: str, text: str = ALLOY) -> str:
    """The inside of a block of an Alloy file."""
    begin = re.search(rf"(?m)^\s*{re.escape(name)} {{$", text)
    assert begin, name
    depth, end = 1, begin.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[begin.end() : end - 1]


def mapping(argument: str, text: str) -> dict[str, str]:
    """An argument whose value is a map of texts."""
    found = re.search(rf"{argument}\s*= \[?{{(.*?)}}", text)
    assert found, argument
    return dict(re.findall(r'(\w+) = "([^"]*)"', found[1]))


def moment(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(line["time"])


def test_fluent_bit_parses_each_line_with_its_time(lines: list[str]) -> None:
    (parser,) = FLUENT_BIT["parsers"]
    (tail,) = FLUENT_BIT["pipeline"]["inputs"]
    assert (parser["format"], tail["name"], tail["parser"]) == ("json", "tail", parser["name"])
    assert parser["time_keep"] is True
    assert len(lines) == 13
    for line in map(json.loads, lines):
        form = parser["time_format"].replace("%L", "%f")  # %L is the fraction of a second in Fluent Bit
        assert datetime.strptime(line[parser["time_key"]], form) == moment(line)


def test_fluent_bit_reads_the_default_file_with_lines_of_every_length() -> None:
    (tail,) = FLUENT_BIT["pipeline"]["inputs"]
    assert tail["path"] == FILE
    assert int(tail["buffer_max_size"].removesuffix("k")) * 1024 > LONGEST
    assert tail["read_from_head"] is True
    assert tail["db"]


def test_labels_of_fluent_bit_are_bounded_and_in_each_line(lines: list[str]) -> None:
    (tail,) = FLUENT_BIT["pipeline"]["inputs"]
    (loki,) = FLUENT_BIT["pipeline"]["outputs"]
    labels = dict(label.split("=") for label in loki["labels"].split(", "))
    assert (loki["name"], loki["match"], loki["line_format"]) == ("loki", tail["tag"], "json")
    assert set(labels) == BOUNDED
    fields = [value[1:] for value in labels.values() if value.startswith("$")]
    assert fields == ["node"]
    assert all(isinstance(json.loads(line)[field], str) for line in lines for field in fields)


def test_alloy_passes_lines_from_the_default_file_to_loki() -> None:
    source, process = block('loki.source.file "devhost_audit"'), block('loki.process "devhost_audit"')
    assert mapping("targets", source)["__path__"] == FILE
    assert "forward_to = [loki.process.devhost_audit.receiver]" in source
    assert "forward_to = [loki.write.devhost_audit.receiver]" in process
    assert "/loki/api/v1/push" in block("endpoint", block('loki.write "devhost_audit"'))
    assert ALLOY.count("{") == ALLOY.count("}")


def test_alloy_parses_each_line_with_its_time(lines: list[str]) -> None:
    process = block('loki.process "devhost_audit"')
    extracted = mapping("expressions", block("stage.json", process))
    time = dict(re.findall(r'(\w+) = "(\w+)"', block("stage.timestamp", process)))
    assert time["format"] == "RFC3339Nano"
    for line in map(json.loads, lines):
        values = {name: line[field] for name, field in extracted.items()}
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", values[time["source"]])
        assert moment(line).tzinfo == UTC


def test_labels_of_alloy_are_bounded_and_extracted() -> None:
    process = block('loki.process "devhost_audit"')
    labels = mapping("values", block("stage.labels", process))
    fixed = set(mapping("targets", block('loki.source.file "devhost_audit"'))) - {"__path__"}
    assert set(labels) | fixed == BOUNDED
    assert set(labels.values()) <= set(mapping("expressions", block("stage.json", process)))
    assert re.findall(r'"(\w+)"', block("stage.label_drop", process)) == ["filename"]
