"""The record of published devices survives restarts, and damage to it is safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from devhost.backend.errors import EnvironmentFailure
from devhost.dra.record import SliceRecord

DEVICES = {("gpu", "a"): "example.com/gpu", ("nic", "b"): "example.com/nic"}


async def test_what_was_written_is_read_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "driver" / "published.json"
    await SliceRecord(path).write(DEVICES)
    assert SliceRecord(path).load() == DEVICES


async def test_members_are_read_with_their_units_and_others_without(tmp_path: Path) -> None:
    path, units = tmp_path / "published.json", {("gpu", "a"): "board0"}
    await SliceRecord(path).write(DEVICES, units)
    record = SliceRecord(path)
    assert (record.load(), record.units) == (DEVICES, units)
    await record.write(DEVICES)
    assert b"units" not in path.read_bytes()


def test_a_missing_record_names_nothing(tmp_path: Path) -> None:
    assert SliceRecord(tmp_path / "published.json").load() == {}


async def test_an_unchanged_record_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    record = SliceRecord(path)
    await record.write(DEVICES)
    before = path.stat().st_ino
    await record.write(dict(DEVICES))
    assert path.stat().st_ino == before
    await record.write({})
    assert path.stat().st_ino != before


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":1,"devices":[["gpu"]]}', '{"version":9,"devices":[]}']
)
def test_a_damaged_record_is_moved_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "published.json"
    path.write_text(text)
    assert SliceRecord(path).load() == {}
    assert not path.exists()
    assert (tmp_path / "published.json.damaged").read_text() == text


async def test_a_record_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "driver").write_text("not a directory")
    with pytest.raises(EnvironmentFailure, match=r"cannot write .*published\.json: Not a directory"):
        await SliceRecord(tmp_path / "driver" / "published.json").write(DEVICES)
