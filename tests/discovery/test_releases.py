"""The record of released drivers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.clock import FakeClock

from devhost.discovery.manager import LONGEST, Releases


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record"


def test_a_release_is_known_to_the_next_process(tmp_path: Path, file: Path, clock: FakeClock) -> None:
    made = Releases(tmp_path, file, clock)
    assert made.reason("gpu") == ""
    made.begin("gpu", 600, ("nvidia",))
    again = Releases(tmp_path, file, clock)
    assert again.reason("gpu") == made.reason("gpu") != ""
    assert again.end("gpu")
    assert not file.exists()
    assert "gpu" not in Releases(tmp_path, file, clock)


def test_the_record_of_an_earlier_boot_is_not_used(tmp_path: Path, file: Path, clock: FakeClock) -> None:
    Releases(tmp_path, file, clock).begin("gpu", 600, ())
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "boot": "another"}))
    assert "gpu" not in Releases(tmp_path, file, clock)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"gpu"',
        "{}",
        '{"released": {"gpu": {}}}',
        '{"released": 1}',
        "\0" * 9,
        pytest.param("[" * 60_000, id="nested"),
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, file: Path, clock: FakeClock, text: str) -> None:
    file.write_text(text)
    assert "gpu" not in Releases(tmp_path, file, clock)
    whole = {"ends": 1.0, "until": 1.0, "modules": {}}
    flaws = ({"ends": "x"}, {"ends": 1e18}, {"until": None}, {"until": "x"}, {"until": 1e300}, {"modules": 7})
    for damage in (*({"gpu": {**whole, **flaw}} for flaw in flaws), {"gpu": 7}):
        Releases(tmp_path, file, clock).begin("fpga", 60, ())
        document = json.loads(file.read_text())
        file.write_text(json.dumps({**document, "released": damage}))
        assert "gpu" not in Releases(tmp_path, file, clock)


def test_a_record_that_cannot_be_written_or_is_removed_is_written_later(
    tmp_path: Path, clock: FakeClock
) -> None:
    file = tmp_path / "directory" / "releases"
    made = Releases(tmp_path, file, clock)
    made.begin("gpu", 600, ())
    assert "gpu" in made
    assert made.unrecorded and made.unrecorded.reason == (
        f"releases are not recorded: cannot write {file}: No such file or directory"
        " (its directory must be writable for devhost)"
    )
    file.parent.mkdir()
    assert made.over({}) == {} and made.unrecorded is None
    assert "gpu" in Releases(tmp_path, file, clock)
    file.unlink()
    assert made.over({}) == {} and "gpu" in Releases(tmp_path, file, clock)
    assert made.end("gpu") and not file.exists()


def test_a_release_that_has_ended_does_not_stay_recorded(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "releases"
    (file / "in the way").mkdir(parents=True)
    made = Releases(tmp_path, file, clock)
    assert not made.end("gpu") and made.unrecorded is None
    made.begin("gpu", 600, ())
    assert made.end("gpu") and made.unrecorded
    (file / "in the way").rmdir()
    file.rmdir()
    assert made.over({}) == {} and made.unrecorded is None


def test_each_backend_has_its_own_end(tmp_path: Path, file: Path, clock: FakeClock) -> None:
    made = Releases(tmp_path, file, clock)
    made.begin("gpu", 600, ("nvidia",))
    made.begin("other", 10 * LONGEST, ("other",))
    modules = {"gpu": ("nvidia",), "other": ("other",)}
    clock.now += 599
    assert made.over(modules) == {}
    clock.now += 1
    assert made.over(modules) == {"gpu": "its time is over"}
    clock.now += LONGEST
    assert made.over(modules)["other"] == "its time is over"


def test_only_a_module_that_was_loaded_since_ends_a_release(
    tmp_path: Path, file: Path, clock: FakeClock
) -> None:
    module = tmp_path / "sys/module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text("570.1\n")
    made = Releases(tmp_path, file, clock)
    made.begin("gpu", 600, ("nvidia", "amdgpu"))
    modules = {"gpu": ("nvidia", "amdgpu")}
    assert made.over(modules) == {}
    away = module.rename(module.with_name("away"))
    assert made.over(modules) == {}
    away.rename(module)
    assert Releases(tmp_path, file, clock).over(modules) == {"gpu": "a driver was loaded"}
