"""docs/audit.md: its question gets its answer, and its tables are those of the code."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest
from kit.command import completed
from trail import (
    EACH,
    EXAMPLES,
    FRIDAY,
    GPU,
    OTHER,
    PAGE,
    TRAINING,
    Trail,
    allocated,
    held,
    prepared,
    released,
    send,
    unprepared,
)

from devhost.backend.model import Holder

TEXT = PAGE.read_text(encoding="utf-8")
COMMAND, ANSWER = re.search(r"```sh\n(cat .*)\n```\n\n```text\n(.*)\n```", TEXT).groups()  # type: ignore[union-attr]
EARLIER = Holder("ml", "train-before", "main")
SINCE = FRIDAY - 2 * 3600 + 12 * 60 + 44.31


def table(head: str) -> Iterator[list[str]]:
    """The rows of the page's table that begins with this cell."""
    rows = TEXT.partition(f"\n| {head} |")[2].split("\n\n")[0].splitlines()[2:]
    return ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)


def ask(trail: Trail, at: str = "2026-11-27T10:00:00Z") -> str:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed (apt install jq)")
    command = COMMAND.replace("2026-11-27T10:00:00Z", at)
    done = completed("bash", "-euo", "pipefail", "-c", command, cwd=trail.file.parent, check=True)
    return done.stdout.strip()


def test_the_question_of_the_page_gets_its_answer(trail: Trail) -> None:
    observer = trail.load()
    send(observer, held(SINCE - 3600, EARLIER))
    send(observer, held(SINCE - 3600, Holder("ml", "other", "main"), device=OTHER))
    send(observer, released(SINCE - 60, EARLIER))
    send(observer, allocated(SINCE - 1))
    send(observer, held(SINCE))
    send(observer, released(FRIDAY + 60))
    send(observer, held(FRIDAY + 120, EARLIER))
    assert ask(trail) == ANSWER
    assert ask(trail, "2026-11-27T10:01:30Z") == ""
    assert ask(trail, "2026-11-27T10:02:30Z").startswith("ml/train-before/main since ")


def test_a_claim_with_its_pods_is_in_the_answer(trail: Trail) -> None:
    observer = trail.load()
    send(observer, prepared(at=SINCE))
    send(observer, prepared("train-0", at=SINCE))
    assert ask(trail) == "ResourceClaim ml/train-0-gpu of train-0 since 2026-11-27T08:12:44.310Z"
    send(observer, unprepared("train-0", at=FRIDAY + 60))
    assert ask(trail, "2026-11-27T10:01:30Z") == ""


def test_the_answer_needs_rotated_files_too(trail: Trail) -> None:
    observer = trail.load(bytes=32768, files=20)
    send(observer, held(SINCE))
    for number in range(2500):
        send(observer, held(SINCE + 1, Holder("ml", f"p{number}", "main"), device=OTHER))
    assert len(trail.files()) > 11
    assert ask(trail) == ANSWER


def test_what_was_released_while_devhost_was_away_is_not_in_the_answer(trail: Trail) -> None:
    send(trail.load(), held(SINCE - 3600, EARLIER))
    send(trail.load(), held(SINCE, TRAINING))
    assert ask(trail) == ANSWER


def test_the_table_of_lines_has_every_event_with_its_fields(trail: Trail) -> None:
    observer = trail.load()
    for news in EACH:
        send(observer, news, missed=int(news is EACH[-1]))
    described = {event.strip("`"): re.findall(r"`(\w+)`", fields) for event, fields, _ in table("event")}
    common = ["time", "node", "event"]
    assert {line["event"]: list(line) for line in trail.lines()} == {
        event: common + fields for event, fields in described.items()
    }


def test_the_example_is_a_line(trail: Trail) -> None:
    send(trail.load(), held())
    example = re.search(r"```json\n(.*)\n```", TEXT)
    assert example
    assert trail.file.read_text().splitlines()[-1] == example[1]
    assert json.loads(example[1])["device"] == GPU


def test_the_table_of_options_has_the_defaults() -> None:
    source = (EXAMPLES / "audit.py").read_text(encoding="utf-8")
    rows = {name.strip("`"): default.strip("`") for name, default, _ in table("variable")}
    assert list(rows) == sorted(set(re.findall(r'"(DEVHOST_AUDIT_[A-Z]+)"', source)), key=list(rows).index)
    assert f'os.environ.get("DEVHOST_AUDIT_FILE") or "{rows["DEVHOST_AUDIT_FILE"]}"' in source
    assert f'whole_number("DEVHOST_AUDIT_FILES", {rows["DEVHOST_AUDIT_FILES"]})' in source
    assert 'whole_number("DEVHOST_AUDIT_BYTES", 10 * 1024 * 1024)' in source
    assert int(rows["DEVHOST_AUDIT_BYTES"]) == 10 * 1024 * 1024
