"""Verdicts on a running host: in the list, at Allocate, in status and metrics, over restarts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from status_values import rows, status

from devhost.backend.model import unhealthy
from devhost.discovery.verdicts import OLD
from devhost.host.shown.problems import problems
from devhost.host.shown.status import captured
from devhost.telemetry.tables import unready

TOY = "example.com/toy"
FAN = "cordoned by alice: fan replaced on Friday"


class Verdicts:
    def __init__(self, state: Path) -> None:
        self.directory = state / "verdicts"

    def put(self, *devices: str, name: str = "a.json", **values: Any) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        verdict = {"kind": "cordon", "reason": "fan replaced on Friday", "by": "alice", **values}
        part = self.directory / f".{name}"
        part.write_text(json.dumps({"devices": devices, **verdict}))
        return part.rename(self.directory / name)


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    return Verdicts(tmp_path / "state")


def reasons(host: Any) -> dict[str, str]:
    return {token: row["reason"] for token, row in rows(host).items()}


async def test_a_cordoned_device_is_unhealthy_until_its_file_is_gone(rig, kubelet, verdicts, tmp_path):
    rig.write(f"name: {TOY}, backend: toy")
    async with rig.running(allocatable={TOY: 2}, state_dir=tmp_path / "state") as host:
        for _ in range(4):  # a person may do this as often as needed: such a device does not flap
            file = verdicts.put("d0")
            await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
            assert reasons(host) == {"d0": FAN, "d1": ""}
            file.unlink()
            await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})


async def test_no_container_gets_a_cordoned_device_and_a_holder_keeps_it(rig, kubelet, verdicts, tmp_path):
    rig.write(f"name: {TOY}, backend: toy")
    async with rig.running(allocatable={TOY: 2}, state_dir=tmp_path / "state") as host:
        await kubelet.admit("train", "main", TOY, 1)
        verdicts.put("*", name="all.json")
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0})
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("other", "main", TOY, 1)
        await rig.until(lambda: any(row["holder"] for row in rows(host).values()))
        assert set(reasons(host).values()) == {FAN}
        assert not any("toy" in one.subject for one in problems(host.now()).shown if one.kind == "device")


async def test_a_device_that_comes_back_is_never_listed_as_healthy(rig, kubelet, verdicts, tmp_path):
    both = rig.scripts["toy"].devices
    rig.write(f"name: {TOY}, backend: toy, whenEmpty: register")
    verdicts.put("d0")
    async with rig.running(allocatable={TOY: 1}, state_dir=tmp_path / "state") as host:
        healthy = []
        for devices in ([both[1]], both, [], both):
            rig.change("toy", list(devices))
            await rig.until(lambda: len(host.scanners["toy"].devices) == len(devices))  # noqa: B023
            healthy.append(host.services[TOY].inventory.snapshot.healthy)
        assert healthy == [1, 1, 0, 1]


async def test_it_holds_over_a_restart_from_the_first_list_on(rig, kubelet, verdicts, tmp_path):
    rig.write(f"name: {TOY}, backend: toy")
    verdicts.put("d0", "d1")
    for _ in range(2):
        async with rig.running(state_dir=tmp_path / "state") as host:
            await rig.until(lambda: TOY in host.services and host.services[TOY].inventory.snapshot.revision)
            assert reasons(host) == {"d0": FAN, "d1": FAN}
            assert host.services[TOY].inventory.snapshot.revision == 1


async def test_a_cordon_is_no_problem_and_another_programs_verdict_is(rig, kubelet, verdicts, tmp_path):
    rig.write(f"name: {TOY}, backend: toy")
    failing = replace(rig.scripts["toy"].devices[0], health=unhealthy("it is out of the slot"))
    rig.scripts["toy"].devices[0] = failing
    verdicts.put("d0")
    verdicts.put("d1", name="b.json", kind="unhealthy", reason="XID 79", by="dcgm")
    async with rig.running(state_dir=tmp_path / "state") as host:
        await rig.until(lambda: problems(host.now()).counts["device"] == 1)
        (problem,) = [one for one in problems(host.now()).shown if one.kind == "device"]
        assert (problem.subject, problem.reason) == (f"{TOY} d1", "XID 79 (dcgm)")
        assert reasons(host)["d0"] == f"{FAN}; it is out of the slot"
        rows = [(one["kind"], one["by"], one["reason"], one["devices"]) for one in status(host)["verdicts"]]
        assert rows == [
            ("cordon", "alice", "fan replaced on Friday", [{"backend": "toy", "device": "d0"}]),
            ("unhealthy", "dcgm", "XID 79", [{"backend": "toy", "device": "d1"}]),
        ]


async def test_a_bad_file_and_an_old_cordon_are_problems(rig, kubelet, verdicts, tmp_path):
    rig.write(f"name: {TOY}, backend: toy")
    bad = verdicts.put("d7", name="bad.json")
    async with rig.running(state_dir=tmp_path / "state") as host:
        await rig.until(lambda: problems(host.now()).counts["verdict"] == 1)
        (problem,) = [one for one in problems(host.now()).shown if one.kind == "verdict"]
        assert (problem.subject, problem.reason.split(" (")[0]) == (str(bad), "no device is called d7")
        bad.unlink()
        old = verdicts.put("d0", name="old.json")
        since = old.stat().st_mtime - OLD - 60
        os.utime(old, (since, since))
        await rig.until(lambda: [one for one in problems(host.now()).shown if one.subject == str(old)])
        (problem,) = [one for one in problems(host.now()).shown if one.kind == "verdict"]
        assert problem.reason == f"{FAN}, for more than 7 days (end it, or cordon it again)"
        assert problem.since == pytest.approx(since, abs=1)


async def test_a_cordoned_device_is_missing_for_expect_with_who_did_it(rig, kubelet, verdicts, tmp_path):
    rig.write(f"name: {TOY}, backend: toy, expect: 2", "name: example.com/other, backend: other")
    async with rig.running(state_dir=tmp_path / "state") as host:
        await rig.until(lambda: not unready(captured(host)()))
        file = verdicts.put("toy/d0")
        line = f"1 of 2 devices; d0: {FAN}"
        await rig.until(lambda: unready(captured(host)()) == [(TOY, line)])
        assert problems(host.now()).counts["entry"] == 0
        file.unlink()
        await rig.until(lambda: not unready(captured(host)()))
        # without `expect` one healthy device is enough
        rig.write(f"name: {TOY}, backend: toy", "name: example.com/other, backend: other")
        verdicts.put("toy/d0")
        await rig.until(lambda: FAN in reasons(host).values() and not unready(captured(host)()))
