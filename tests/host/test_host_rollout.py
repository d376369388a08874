"""``--patience``: a new file that leaves entries without devices makes the node not ready."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from devhost.config.rollout import MAX_BYTES, Rollout, RolloutRecord
from devhost.host.host import Host
from devhost.host.shown.problems import problems

TOY, OTHER = "example.com/toy", "example.com/other"
BOTH = (f"name: {TOY}, backend: toy", f"name: {OTHER}, backend: other")
NEITHER = (f"name: {TOY}, backend: toy, where: {{model: none}}", BOTH[1])
"""A valid edit with which the toys match nothing."""
LONG = 3600.0


@pytest.fixture
def patient(rig: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs a host that waits, with the same state directory each time."""

    @asynccontextmanager
    async def run(patience: float = LONG) -> AsyncIterator[Host]:
        async with rig.running(state_dir=tmp_path / "state", patience=patience) as host:
            await rig.until(lambda: host.planned)
            yield host

    return run


def record(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "state").glob("rollout-*.json")
    return found


def good(tmp_path: Path) -> list[str]:
    """The names of the entries that had devices, in the record; empty while none can be used."""
    with suppress(ValueError, OSError):
        content = json.loads(record(tmp_path).read_text())
        return [name for _, name, _ in content["good"]["entries"]]
    return []


async def recorded(rig: Any, tmp_path: Path, *names: str) -> None:
    await rig.until(lambda: good(tmp_path) == [*names])


async def test_a_pod_with_a_new_file_waits_for_an_entry_that_had_devices(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient() as host:
        await rig.until(lambda: host.ready() == (True, ""))
        await recorded(rig, tmp_path, OTHER, TOY)
    rig.write(*NEITHER)
    for _ in range(2):  # a restart does not end it
        async with patient() as host:
            await rig.until(lambda: host.rollout.reason)
            ready, why = host.ready()
            assert not ready
            assert why.startswith(f"no devices since the new file: {TOY} (until 2")
            assert "`devhost accept`" in why
            (problem,) = [one for one in problems(host.now()).shown if one.kind == "config"]
            assert problem.reason in why
            await recorded(rig, tmp_path, OTHER, TOY)
    rig.write(*BOTH)  # as it was
    async with patient() as host:
        await rig.until(lambda: host.ready() == (True, ""))


async def test_an_entry_that_gets_devices_ends_it(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient():
        await recorded(rig, tmp_path, OTHER, TOY)
    devices, rig.scripts["toy"].devices = rig.scripts["toy"].devices, []
    rig.config.write_text(rig.config.read_text() + "# another file with the same entries\n")
    async with patient() as host:
        await rig.until(lambda: host.rollout.reason)
        rig.change("toy", devices)
        await rig.until(lambda: host.ready() == (True, ""))
        assert not [one for one in problems(host.now()).shown if one.kind == "config"]


async def test_it_ends_when_the_patience_is_over(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient():
        await recorded(rig, tmp_path, OTHER, TOY)
    rig.write(*NEITHER)
    async with patient(LONG) as host:
        await rig.until(lambda: host.rollout.reason)
    async with patient(0.5) as host:
        await recorded(rig, tmp_path, OTHER)
        await rig.until(lambda: host.ready() == (True, ""))


async def test_an_administrator_ends_it_for_this_file_only(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient():
        await recorded(rig, tmp_path, OTHER, TOY)
    rig.write(*NEITHER)
    async with patient() as host:
        await rig.until(lambda: host.rollout.reason)
        assert host.rollout.accept() == [TOY]
        await rig.until(lambda: host.ready() == (True, ""))
        assert not host.rollout.accept()
        await recorded(rig, tmp_path, OTHER)
    rig.write(NEITHER[0], f"name: {OTHER}, backend: other, where: {{model: none}}")
    async with patient() as host:
        await rig.until(lambda: host.rollout.reason)
        assert f"since the new file: {OTHER} (until" in host.ready()[1]


async def test_an_edit_in_place_counts_as_a_new_pod_does(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient() as host:
        await recorded(rig, tmp_path, OTHER, TOY)
        rig.write(*NEITHER)
        await rig.until(lambda: host.rollout.reason)
        rig.write(*BOTH)
        await rig.until(lambda: host.ready() == (True, ""))


async def test_entries_that_are_removed_or_had_no_devices_are_not_waited_for(rig, kubelet, patient, tmp_path):
    rig.scripts["other"].devices = []
    rig.write(*BOTH)
    async with patient():
        await recorded(rig, tmp_path, TOY)
    rig.write(f"name: {OTHER}, backend: other, optional: true")
    async with patient() as host:
        await rig.until(lambda: host.ready() == (True, ""))
        await rig.until(lambda: good(tmp_path) == [])


async def test_a_device_that_left_before_the_edit_is_not_the_files_fault(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient() as host:
        await recorded(rig, tmp_path, OTHER, TOY)
        rig.change("toy", [])
        await rig.until(lambda: good(tmp_path) == [OTHER])
    rig.write(*NEITHER)
    async with patient() as host:
        await rig.until(lambda: host.ready() == (True, ""))


async def test_without_patience_nothing_is_recorded_and_nothing_waits(rig, kubelet, tmp_path):
    async with rig.running(*BOTH, state_dir=tmp_path / "state") as host:
        await rig.until(lambda: host.ready() == (True, ""))
        assert host.rollout is None
        rig.write(*NEITHER)
        await rig.until(lambda: host.configuration.generation == 2)
        await rig.until(lambda: host.ready() == (True, ""))
    assert not [*(tmp_path / "state").glob("rollout-*")]


@pytest.mark.parametrize("what", ["damaged", "large", "writable", "link", "other version"])
async def test_a_record_that_cannot_be_used_makes_nothing_wait(rig, kubelet, patient, tmp_path, what, caplog):
    rig.write(*BOTH)
    async with patient():
        await recorded(rig, tmp_path, OTHER, TOY)
    file = record(tmp_path)
    content = file.read_bytes()
    if what == "damaged":
        file.write_text('{"version": 1, "good": ')
    elif what == "large":
        os.truncate(file, MAX_BYTES + 1)
    elif what == "writable":
        file.chmod(0o666)
    elif what == "link":
        file.unlink()
        file.mkdir()
    else:
        file.write_text(json.dumps(json.loads(content) | {"version": 2}))
    rig.write(*NEITHER)
    async with patient() as host:
        await rig.until(lambda: host.ready() == (True, ""))
        assert "the rollout is not recorded" in caplog.text
        unrecorded = [one.subject for one in problems(host.now()).shown if one.kind == "record"]
        assert unrecorded == ([str(file)] if what == "link" else [])
        if what != "link":
            await recorded(rig, tmp_path, OTHER)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_clock_that_is_set_back_does_not_lengthen_it(rig, kubelet, patient, tmp_path):
    rig.write(*BOTH)
    async with patient():
        await recorded(rig, tmp_path, OTHER, TOY)
    rig.write(*NEITHER)
    async with patient() as host:
        await rig.until(lambda: host.rollout.reason)
        await rig.until(lambda: json.loads(record(tmp_path).read_text())["trial"])
    file = record(tmp_path)
    content = json.loads(file.read_text())
    content["trial"]["since"] += 10 * LONG
    file.write_text(json.dumps(content))
    async with patient(1.0) as host:
        await recorded(rig, tmp_path, OTHER)
        await rig.until(lambda: host.ready() == (True, ""))


def test_each_path_of_a_configuration_has_its_own_record(tmp_path: Path) -> None:
    files = {RolloutRecord(tmp_path, tmp_path / name).file for name in ("a.yaml", "b.yaml")}
    assert len(files) == 2
    assert RolloutRecord(None, tmp_path / "a.yaml").file is None
    assert Rollout(RolloutRecord(None, tmp_path / "a.yaml"), LONG, lambda: None).reason == ""
