"""The copy of the accepted configuration: when it is written, and who learns that the file was refused."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest
from kit.files import limited

from devhost.backend.observe import ConfigurationRead, hookimpl
from devhost.config.last_good import Accepted, LastGood
from devhost.config.loader import Copied
from devhost.host.shown.problems import problems

TOY, OTHER = "example.com/toy", "example.com/other"
TOY_LINE, OTHER_LINE = f"name: {TOY}, backend: toy", f"name: {OTHER}, backend: other"


@pytest.fixture
def kept(rig, tmp_path) -> LastGood:
    """The copy of the rig's file."""
    load = rig.load
    rig.load = lambda: replace(load(), accepted=Accepted(rig.config.read_bytes(), 0o644))
    return LastGood(rig.config, tmp_path / "state")


async def test_devices_are_offered_after_the_copy_is_written(rig, kubelet, kept, caplog):
    def copied() -> bool:
        found = kept.read()
        slow = "the configuration is not copied" in caplog.text  # the disk took longer than devhost waits
        return slow or (found is not None and found.data == rig.config.read_bytes())

    async with rig.running(TOY_LINE, allocatable={TOY: 2}, last_good=kept):
        assert copied()
        rig.write(TOY_LINE, OTHER_LINE)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        assert copied()


async def test_an_edit_of_a_comment_reaches_the_copy(rig, kubelet, kept):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}, last_good=kept):
        rig.config.write_bytes(rig.config.read_bytes() + b"# nothing else is different\n")
        await rig.until(lambda: kept.read().data == rig.config.read_bytes())


async def test_a_refused_edit_does_not_reach_the_copy(rig, kubelet, kept):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}, last_good=kept) as host:
        good = rig.config.read_bytes()
        rig.config.write_text("version: 1\nresources: 7\n")
        await rig.until(lambda: host.configuration.last_reload.complaints)
        assert kept.read().data == good


async def test_a_copy_of_an_earlier_configuration_is_a_problem_until_it_is_replaced(
    rig, kubelet, kept, caplog
):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}, last_good=kept) as host:
        rig.write(TOY_LINE, OTHER_LINE)
        new = rig.config.with_suffix(".new")
        new.write_bytes(rig.config.read_bytes() + b"#" * 100_000)
        with limited(resource.RLIMIT_FSIZE, 50_000):  # like a full disk
            new.replace(rig.config)
            await rig.until(lambda: problems(host.now()).counts.get("config"))
        (problem,) = problems(host.now()).shown
        assert problem.subject == str(rig.config)
        assert problem.reason.startswith(f"{kept.file} is the copy of an earlier configuration: cannot keep")
        assert [record.fields["reason"] for record in caplog.records] == [problem.reason]
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, OTHER: 1})
        await rig.until(lambda: host.ready() == (True, ""))
        host.reload()
        await rig.until(lambda: not problems(host.now()).shown)
        assert kept.read().data == rig.config.read_bytes()


async def test_observers_are_notified_at_the_start_that_the_file_was_refused(rig, kubelet):
    class Recorder:
        def __init__(self) -> None:
            self.news: list[ConfigurationRead] = []

        @hookimpl
        def devhost_configuration_read(self, news: tuple[ConfigurationRead, ...]) -> None:
            self.news += news

    recorder, load = Recorder(), rig.load
    rig.observe(recorder)
    copied = Copied(Path("/var/lib/devhost/config-0.yaml"), "2026-11-20T12:00:00Z", ("it is wrong",))
    rig.load = lambda: replace(load(), copied=copied)
    async with rig.running(TOY_LINE):
        await rig.until(lambda: recorder.news)
        (news,) = recorder.news
        assert (news.file, news.complaints) == (str(rig.config), ("it is wrong",))
