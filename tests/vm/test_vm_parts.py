"""The parts of the virtual machine: how they are built and kept. Runs on the host, without a machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.command import completed
from lab.burst import Sample, falls_late, length, longest_pause
from lab.kernel import serious
from lab.lists import check
from machine import __main__ as machine_main
from machine import boot, command, hardware
from machine.boot import Crashed, Failed
from machine.image import Image
from machine.packages import requirements
from machine.store import ROOM, CannotMake, Part, Store, Unavailable

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    return Store(tmp_path, said.append)


def fill(directory, log):
    (directory / "versions").write_text("tool\t1.2\n")


def test_a_part_is_built_once_and_its_versions_are_printed(store, said):
    first = store.part("one", fill, "recipe")
    assert store.part("one", fill, "recipe") == first
    assert first.versions == {"tool": "1.2"}
    assert [line for line in said if line.startswith("making")] == ["making one"]
    assert said[-1] == "downloaded for it: tool 1.2"


def test_a_changed_recipe_rebuilds_a_part_and_those_made_of_it(store, said):
    def both(recipe):
        below = store.part("below", fill, recipe)
        return store.part("above", fill, "always the same", below)

    assert both("a").fingerprint != both("b").fingerprint
    both("b")
    assert [line for line in said if line.startswith("making")] == ["making below", "making above"] * 2


def test_a_recipe_is_identified_by_its_content(store, tmp_path):
    recipe = tmp_path / "recipe"
    recipe.write_text("one")
    before = store.part("part", fill, recipe).fingerprint
    recipe.touch()
    assert store.part("part", fill, recipe).fingerprint == before
    recipe.write_text("two")
    assert store.part("part", fill, recipe).fingerprint != before


def test_an_interrupted_part_is_made_again_and_the_old_one_not_used(store):
    def interrupted(directory, log):
        (directory / "half").touch()
        raise CannotMake("no network")

    with pytest.raises(CannotMake, match="no network"):
        store.part("part", interrupted, "recipe")
    made = store.part("part", fill, "recipe")
    assert not (made.path / "half").exists()


def test_too_small_a_disk_is_an_error_before_anything_is_built(store, said, monkeypatch):
    monkeypatch.setattr("machine.store.ROOM", 1 << 60)
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME"):
        store.part("part", fill, "recipe")
    assert said == []
    assert ROOM >= 1 << 30


def test_the_guest_gets_what_the_project_asks_for_and_not_the_project():
    wanted = list(requirements(PROJECT))
    assert any(one.startswith("grpcio>=") for one in wanted)
    assert any(one.startswith("pytest-asyncio>=") for one in wanted)
    assert not [one for one in wanted if one.startswith(("devhost", "hypothesis", "pytest-xdist"))]


def test_a_broken_project_file_is_one_clear_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(CannotMake, match=r"pyproject\.toml"):
        list(requirements(tmp_path))


def test_the_machine_never_uses_kvm(tmp_path):
    arguments = list(hardware.arguments(Image(Part(tmp_path, "")), PROJECT, tmp_path))
    assert arguments[arguments.index("-accel") + 1] == "tcg,thread=multi"
    assert "-enable-kvm" not in arguments


def test_the_guest_cannot_write_to_the_working_tree(tmp_path):
    arguments = list(hardware.arguments(Image(Part(tmp_path, "")), PROJECT, tmp_path))
    (share,) = [one for one in arguments if f"path={PROJECT}," in one]
    assert share.endswith("readonly=on")


def test_a_report_of_the_kernel_fails_a_test_unless_its_cause_is_known():
    known = ["[ cut here ]", "WARNING: CPU: 0 at drm_mm_takedown+0x31", "Call Trace:", "[ end trace 0 ]"]
    other = ["[ cut here ]", "WARNING: CPU: 1 at pci_remove+0x1", "Call Trace:", "[ end trace 0 ]"]
    assert serious([*known, "usb 1-1: new device", "BUG: bad page", *other, *known]) == [
        "BUG: bad page",
        "WARNING: CPU: 1 at pci_remove+0x1",
        "Call Trace:",
    ]


def sample(began, bound, link="up", ended=None):
    return Sample(began, began + 0.01 if ended is None else ended, dict.fromkeys(bound, "igbvf"), link)


ONE = [sample(0, ""), sample(1, "a"), sample(1.2, "ab"), sample(1.3, "ab")]


@pytest.mark.parametrize(
    ("samples", "pause", "whole", "falls"),
    [
        (ONE[:1], 0.0, 0.0, False),
        (ONE, 1.21, 1.21, False),  # the first change may have been just after the first sample
        ([sample(0.9, ""), *ONE[1:]], 0.31, 0.31, False),
        ([sample(0.9, ""), *ONE[1:], sample(4, "ab", "down"), sample(5, "ab")], 0.31, 4.11, True),
        ([sample(0.9, ""), sample(1, "a", "down"), sample(2, "a")], 0.11, 1.11, False),
        ([sample(0, ""), sample(0.1, "a", ended=3.0)], 3.0, 3.0, False),
    ],
)
def test_the_result_of_a_burst_is_the_worst_case_between_two_observations(samples, pause, whole, falls):
    assert longest_pause(samples) == pytest.approx(pause)
    assert length(samples) == pytest.approx(whole)
    assert falls_late(samples) is falls


A, AB, ABC = {"a"}, {"a", "b"}, {"a", "b", "c"}


@pytest.mark.parametrize(
    ("lists", "before", "after"),
    [
        ([(AB, AB)], set(), AB),
        ([(A, A), (AB, A), (AB, set()), (AB, AB)], set(), AB),
        ([(AB, set()), (set(), set())], AB, set()),
        ([(AB, A), (A, A)], AB, A),
        ([(set(), set())], AB, set()),
    ],
)
def test_lists_of_a_slow_machine_are_right(lists, before, after):
    check(lists, before, after)


@pytest.mark.parametrize(
    ("lists", "before", "after"),
    [
        ([], set(), AB),
        ([(A, A)], set(), AB),  # not all of them
        ([(AB, A)], set(), AB),  # not all well
        ([(ABC, AB), (AB, AB)], set(), AB),  # somebody who never was there
        ([(AB, AB), (A, A), (AB, AB)], set(), AB),  # came and went
        ([({"b"}, {"b"}), (AB, AB)], A, AB),  # one that stays is missing
        ([(set(), set()), (A, A), (set(), set())], AB, set()),  # one that had gone came back
        ([(A, AB), (AB, AB)], set(), AB),  # well, and not listed
    ],
)
def test_lists_that_no_slow_machine_excuses_are_wrong(lists, before, after):
    with pytest.raises(AssertionError):
        check(lists, before, after)


def test_a_problem_of_the_computer_or_network_is_not_a_fault_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "ENCLOSED", ())
    for text, error in (
        ("E: Failed to fetch http://mirror/a.deb  Connection timed out", Unavailable),
        ("mknod: /dev/null: Operation not permitted", Unavailable),
        ("E: Unable to locate package nosuch", CannotMake),
    ):
        with pytest.raises(CannotMake, match="ended with 1") as caught:
            command.run("sh", "-c", f"echo '{text}'; exit 1", log=tmp_path / error.__name__, limit=60)
        assert type(caught.value) is error
    with pytest.raises(Unavailable, match="took longer than 0 s"):
        command.run("sleep", "60", log=tmp_path / "slow", limit=0.05)


class Moody:
    """A substitute for a machine whose QEMU crashes this many times; then its tests end with 0."""

    console = Path("console")

    def __init__(self, crashes, ended, error=Crashed, status=0):
        self.crashes, self.ended, self.error, self.status = crashes, ended, error, status
        self.told = []

    def tests(self, _arguments, ended=""):
        self.told.append(ended)
        self.ended.write_text(f"{ended}passed test_{len(self.told)}\n")
        if len(self.told) <= self.crashes:
            raise self.error("QEMU: -6")
        return self.status

    def last_words(self):
        return ""


def test_a_machine_whose_qemu_crashed_goes_on_with_the_other_tests_a_limited_number_of_times(
    tmp_path, capsys
):
    once, ever = Moody(1, tmp_path / "once"), Moody(1000, tmp_path / "ever")
    assert machine_main.test(once, []) == 0
    assert once.told == ["", "passed test_1\n"]
    assert "once more" in capsys.readouterr().out
    assert machine_main.test(ever, []) == 1
    assert len(ever.told) == machine_main.BOOTS


def test_a_machine_that_fails_by_itself_has_failed(tmp_path):
    broken = Moody(1, tmp_path / "ended", Failed)
    assert machine_main.test(broken, []) == 1
    assert len(broken.told) == 1


@pytest.mark.parametrize(
    ("status", "ended", "result"),
    [
        (0, "passed test_one\n", 0),
        (0, "passed test_one\nfailed test_two\n", 1),
        (5, "passed test_one\n", 0),  # the crash came after the last test
        (5, "", 5),
        (1, "passed test_one\n", 1),
    ],
)
def test_a_test_that_failed_before_a_crash_has_failed(status, ended, result):
    assert machine_main.overall(status, ended) == result


SCENE = """
from pathlib import Path
import pytest
from lab.record import Record

def pytest_configure(config):
    config.pluginmanager.register(Record(Path("ended")))

@pytest.fixture
def broken():
    yield
    raise OSError("the teardown")
"""
TESTS = """
def test_good(): ...
def test_bad(): assert 0, "the reason"
def test_torn_down(broken): ...
def test_last(): ...
"""


def test_what_has_ended_does_not_run_again_and_a_failure_is_printed_before_the_next_test(tmp_path):
    (tmp_path / "conftest.py").write_text(SCENE)
    (tmp_path / "test_scene.py").write_text(TESTS)
    (tmp_path / "ended").write_text("passed test_scene.py::test_last\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "-v",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "tests/vm")}

    def run():
        return completed(*command, cwd=tmp_path, env=environment)

    first = run()
    ending = first.stdout.partition("= FAILURES =")[0]
    assert ending.index("the reason") < ending.index("::test_torn_down") < ending.index("the teardown")
    assert (tmp_path / "ended").read_text().splitlines()[1:] == [
        "passed test_scene.py::test_good",
        "failed test_scene.py::test_bad",
        "failed test_scene.py::test_torn_down",
    ]
    assert run().returncode == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        (Crashed, "kill -ABRT $$"),
        (Failed, "exit 1"),
        (Crashed, "exit 0"),
        (Failed, "echo 'Kernel panic - not syncing' >console; exit 0"),
    ],
)
def test_a_failure_of_qemu_is_distinguished_from_one_of_the_kernel(tmp_path, monkeypatch, kind, ending):
    monkeypatch.setattr(boot, "BOUND", ("sh", "-c", ending))
    machine = boot.Machine(SimpleNamespace(command=[]), Image(Part(tmp_path, "")), tmp_path, tmp_path / "run")
    with pytest.raises(Failed) as failure:
        machine.tests([])
    assert type(failure.value) is kind
