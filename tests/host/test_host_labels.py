"""Node labels in a whole host: made from devices and plan, kept during failures, removed when unwanted."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from scraped_series import value
from status_values import status

from devhost.backend import Device, incident, option
from devhost.runtime.reconciler import Retry
from devhost.telemetry.metrics import Metrics

LINE = "name: example.com/x, backend: toy"


@dataclass(frozen=True)
class Options:
    mode: str = option("plain")


def labels(self, devices, offered):
    """Labels of the scripted backend: the number of devices, and of replicas in each resource."""
    found = {"example.com/toy.count": len(devices)}
    for resources in offered.values():
        for name, replicas in resources.items():
            found[f"{name}.replicas"] = replicas
    return found


@pytest.fixture(autouse=True)
def hurried(rig):
    rig.timing = replace(rig.timing, labels_settle=0.02, labels_pending=0.1)


@pytest.fixture
def features(rig, tmp_path):
    """Enables labels; returns the lines of a backend's file, without comments."""
    directory = tmp_path / "features.d"
    rig.classes["toy"].labels = labels
    rig.features = directory
    rig.labels = f"labels: {{write: true, directory: {directory}}}\n"
    write = rig.write

    def with_labels(*resources):
        write(*resources)
        rig.config.write_text(rig.config.read_text() + rig.labels)

    rig.write = with_labels

    def lines(backend="toy"):
        for file in directory.glob(f"devhost*_{backend}"):
            with suppress(FileNotFoundError):  # it has just been removed
                return [line for line in file.read_text().splitlines() if not line.startswith("#")]
        return None

    return lines


async def refresh(rig):
    """One more pass, which may fail."""
    with suppress(Retry):
        await rig.host.node_labels.refresh()


def standing(rig, backend="toy"):
    return next(one for one in status(rig.host)["backends"] if one["name"] == backend)["labels"]


async def test_labels_follow_the_devices_and_how_they_are_shared(rig, features):
    async with rig.running(f"{LINE}, share: {{replicas: 3}}"):
        expected = ["example.com/toy.count=2", "example.com/x.replicas=3"]
        await rig.until(lambda: features() == expected)
        await rig.until(lambda: standing(rig) and standing(rig)["count"] == 2)
        rig.change("toy", [Device("d0")])
        await rig.until(lambda: features()[0] == "example.com/toy.count=1")
    assert features() is not None  # the hardware is still there


async def test_nothing_is_written_unless_it_is_wanted(rig, features):
    rig.labels = f"labels: {{directory: {rig.features}}}\n"
    async with rig.running(LINE):
        await rig.until(lambda: rig.host.services)
        assert await rig.host.node_labels.refresh() == rig.timing.labels_resync
        assert not rig.features.exists()
        assert standing(rig) is None


async def test_disabling_or_moving_labels_removes_files_without_a_restart(rig, features, tmp_path):
    async with rig.running(LINE) as host:
        await rig.until(features)
        (rig.features / "gfd").write_text("nvidia.com/gpu.count=1\n")
        elsewhere = tmp_path / "elsewhere"
        rig.labels = f"labels: {{write: true, directory: {elsewhere}}}\n"
        rig.write(LINE)
        host.reload()
        await rig.until(lambda: list(elsewhere.glob("devhost*_toy")) and features() is None)
        rig.labels = f"labels: {{directory: {elsewhere}}}\n"
        rig.write(LINE)
        host.reload()
        await rig.until(lambda: not list(elsewhere.iterdir()))
        assert [path.name for path in rig.features.iterdir()] == ["gfd"]


async def test_unwanted_files_of_an_earlier_run_are_removed(rig, features):
    async with rig.running(LINE):
        await rig.until(features)
    rig.labels = f"labels: {{write: false, directory: {rig.features}}}\n"
    async with rig.running(LINE):
        await rig.until(lambda: features() is None)


async def test_a_backend_that_leaves_the_configuration_takes_its_labels_with_it(rig, features):
    rig.classes["other"].labels = lambda self, devices, offered: {"example.com/other": "yes"}
    async with rig.running(LINE, "name: example.com/y, backend: other") as host:
        await rig.until(lambda: features() and features("other"))
        rig.write(LINE)
        host.reload()
        await rig.until(lambda: features("other") is None)
        assert features()


async def test_a_backend_that_cannot_scan_after_a_restart_keeps_its_labels(rig, features):
    async with rig.running(LINE):
        await rig.until(features)
    before = features()

    def fail():
        raise OSError("the driver is busy")

    rig.scripts["toy"].on_discover = fail
    async with rig.running():
        await rig.until(lambda: rig.scripts["toy"].looks > 2)
        assert await rig.host.node_labels.refresh() == rig.timing.labels_pending
        assert features() == before


async def test_a_failing_backend_keeps_its_file_and_affects_no_other(rig, features):
    rig.classes["other"].labels = lambda self, devices, offered: {"example.com/other": "yes"}
    async with rig.running(LINE, "name: example.com/y, backend: other"):
        await rig.until(lambda: features() and features("other"))
        before = features()

        def fail(self, devices, offered):
            raise RuntimeError("no labels today")

        rig.classes["toy"].labels = fail
        rig.change("toy", [Device("d0")])
        await rig.until(lambda: "no labels today" in standing(rig)["reason"])
        assert features() == before
        assert rig.host.scanners["toy"].condition.reason == ""  # its devices are healthy
        rig.classes["toy"].labels = labels
        rig.host.node_labels.wake()
        await rig.until(lambda: features()[0] == "example.com/toy.count=1")
        await rig.until(lambda: standing(rig)["reason"] == "")


async def test_an_invalid_label_is_omitted_and_reported(rig, features, caplog):
    rig.classes["toy"].labels = lambda self, devices, offered: {"a b": 1, "example.com/fine": "x y"}
    async with rig.running(LINE):
        await rig.until(lambda: features() == ["example.com/fine=x-y"])
        await rig.until(lambda: standing(rig) and "'a b'" in standing(rig)["reason"])
    assert caplog.messages.count("labels are missing") == 1


async def test_a_path_that_is_no_directory_is_logged_once_and_affects_nothing_else(
    rig, features, kubelet, caplog
):
    rig.features.write_text("a file is in the way")
    async with rig.running(LINE, allocatable={"example.com/x": 2}):
        await rig.until(lambda: standing(rig) and "features.d" in standing(rig)["reason"])
        for _ in range(3):
            await refresh(rig)
    assert caplog.messages.count("labels are missing") == 1


async def test_a_write_failure_is_logged_once_with_cause_and_fix(rig, features, monkeypatch, caplog):
    full = True

    def refuse(descriptor):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    caplog.set_level("INFO", "devhost.host.node_labels")
    async with rig.running(LINE):
        await rig.until(lambda: rig.host.services and standing(rig) and standing(rig)["reason"])
        for _ in range(3):
            await refresh(rig)
        reason = standing(rig)["reason"]
        assert re.fullmatch(
            rf"cannot write {rig.features}/devhost\S*_toy: No space left on device "
            r"\(labels\.directory must be a directory that devhost may write to; .*\)",
            reason,
        )
        full = False
        rig.host.node_labels.wake()
        await rig.until(lambda: standing(rig)["reason"] == "")
    assert caplog.messages.count("labels are missing") == 1
    assert caplog.messages.count("labels written") == 1


async def test_changing_reasons_for_missing_labels_do_not_fill_the_log(rig, features, caplog):
    asked = []

    def fail(self, devices, offered):
        asked.append(len(devices))
        raise RuntimeError(f"error {len(asked)}")

    rig.classes["toy"].labels = fail
    async with rig.running(LINE):
        await rig.until(lambda: rig.host.services and standing(rig) and standing(rig)["reason"])
        for _ in range(3 * incident.MOST):
            await refresh(rig)
        # the present one is always shown
        await rig.until(lambda: standing(rig)["reason"].endswith(f"error {len(asked)}"))
    assert caplog.messages.count("labels are missing") == incident.MOST


def wrong(host):
    return [(one["kind"], one["subject"]) for one in status(host)["problems"]]


async def test_a_removal_failure_is_a_problem_logged_once_and_retried(rig, features, monkeypatch, caplog):
    async with rig.running(LINE) as host:
        await rig.until(features)
        unlink = Path.unlink

        def refuse(self, missing_ok=False):
            raise OSError(errno.EROFS, "Read-only file system", str(self))

        monkeypatch.setattr(Path, "unlink", refuse)
        rig.labels = f"labels: {{write: false, directory: {rig.features}}}\n"
        rig.write(LINE)
        host.reload()
        await rig.until(lambda: [r for r in caplog.records if "cannot remove a file" in r.message])
        await refresh(rig)
        assert ("labels", "labels.directory") in wrong(host)
        monkeypatch.setattr(Path, "unlink", unlink)
        host.node_labels.wake()
        await rig.until(lambda: features() is None and ("labels", "labels.directory") not in wrong(host))
    logged = [record for record in caplog.records if "cannot remove a file" in record.message]
    (reason,) = {record.fields["reason"] for record in logged}
    assert reason.startswith(f"cannot remove files from {rig.features}: Read-only file system (labels.dir")
    assert len(logged) == 1


async def test_a_removed_file_is_written_again(rig, features):
    rig.timing = replace(rig.timing, labels_resync=0.2)
    async with rig.running(LINE):
        await rig.until(features)
        next(rig.features.glob("devhost*_toy")).unlink()
        await rig.until(features)


async def test_a_removed_file_is_written_again_at_once_on_request(rig, features):
    rig.timing = replace(rig.timing, labels_resync=3600.0)
    async with rig.running(LINE) as host:
        await rig.until(features)
        next(rig.features.glob("devhost*_toy")).unlink()
        host.reload()
        await rig.until(features)


async def test_other_options_of_a_backend_make_other_labels(rig, features):
    rig.timing = replace(rig.timing, labels_resync=3600.0)
    toy = rig.classes["toy"]
    toy.Options, toy.labels = Options, lambda self, devices, offered: {"example.com/mode": self.options.mode}
    async with rig.running(LINE):
        await rig.until(lambda: features() == ["example.com/mode=plain"])
        rig.labels += "backends: {toy: {mode: other}}\n"
        rig.write(LINE)
        await rig.until(lambda: features() == ["example.com/mode=other"])


async def test_unchanged_devices_are_not_labelled_again(rig, features):
    asked = []

    def counting(self, devices, offered):
        asked.append(len(devices))
        return labels(self, devices, offered)

    rig.classes["toy"].labels = counting
    async with rig.running(LINE):
        await rig.until(features)
        for _ in range(3):
            await rig.host.node_labels.refresh()
        assert asked == [2]


async def test_metrics_count_what_was_written_and_what_failed(rig, features, tmp_path):
    metrics = Metrics()

    def counted(name):
        return value(metrics, f"devhost_{name}", backend="toy")

    async with rig.running(LINE, metrics=metrics):
        await rig.until(lambda: counted("label_files_total") == 1)
        assert counted("labels") == 2
        rig.change("toy", [])
        await rig.until(lambda: counted("labels") == 1)
        assert counted("label_failures_total") == 0
        (tmp_path / "file").write_text("in the way")
        rig.labels = f"labels: {{write: true, directory: {tmp_path / 'file' / 'below'}}}\n"
        rig.write(LINE)
        await rig.until(lambda: counted("label_failures_total"))
        rig.labels = ""
        rig.write(LINE)
        await rig.until(lambda: counted("labels") is None)
        assert counted("label_files_total") is None
