"""Files of verdicts: what is used, what is a problem, and that neither changes another one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from devhost.discovery.health import ALL
from devhost.discovery.verdicts import (
    FRESH,
    MAX_BYTES,
    MAX_FILES,
    MAX_NAMES,
    SETTLE,
    Flawed,
    Reading,
    VerdictDirectory,
    VerdictKind,
    is_own,
    own_file,
    parsed,
    settled,
    signature_of,
    write,
)

GOOD = {"devices": ["GPU-1"], "kind": "unhealthy", "reason": "XID 79", "by": "dcgm"}


class Place:
    """A directory of verdicts, and what is read in it."""

    def __init__(self, path: Path) -> None:
        self.directory = path / "verdicts"
        self.directory.mkdir()
        self.source = VerdictDirectory(self.directory, path / "root")
        self.now = 1000.0

    def put(self, name: str, content: object = GOOD) -> Path:
        file = self.directory / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    def read(self, later: float = 0.0) -> Reading:
        self.now += later
        return self.source.read(self.now)

    def settled(self) -> Reading:
        """What is read once nothing can be at work on a file."""
        self.read()
        return self.read(SETTLE)

    def names(self, reading: Reading) -> list[str]:
        return [one.file for one in reading.verdicts]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def changed(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in {**GOOD, **values}.items() if value is not ...}


def test_the_text_of_a_verdict_is_what_a_user_reads() -> None:
    text = json.dumps(GOOD).encode()
    assert parsed("a.json", text, 5.0).text == "XID 79 (dcgm)"
    cordon = json.dumps(changed(kind="cordon", reason="fan replaced\non Friday", by="alice")).encode()
    assert parsed("a.json", cordon, 5.0).text == "cordoned by alice: fan replaced on Friday"


@pytest.mark.parametrize(
    ("until", "moment"), [("2026-11-26T10:00:00Z", 1795687200.0), ("2026-11-26T12:00:00+02:00", 1795687200.0)]
)
def test_a_verdict_ends_at_its_time(until: str, moment: float) -> None:
    found = parsed("a.json", json.dumps(changed(until=until)).encode(), 5.0)
    assert found.until == moment
    assert found.holds(moment - 1) and not found.holds(moment)
    assert parsed("a.json", json.dumps(changed(until=None)).encode(), 5.0).holds(1e12)


@pytest.mark.parametrize("since", [1e15, -1e15, 1e30])
def test_a_file_that_was_changed_at_no_time_is_wrong(since: float) -> None:
    with pytest.raises(Flawed, match="which is no time"):
        parsed("a.json", json.dumps(GOOD).encode(), since)


WRONG: dict[str, tuple[object, str]] = {
    "empty": ("", "it is empty (write it to another name, then rename it)"),
    "half": ('{"devices": ["GPU', "it is not JSON: "),
    "deep": ("[" * 10000, "it is not JSON: "),
    "list": ([GOOD], "it is no JSON object (its keys are devices, kind, reason, by, until)"),
    "unknown key": (changed(device="x"), "it has an unknown key, 'device' (did you mean devices?)"),
    "strange key": (changed(zzz=1), "it has an unknown key, 'zzz' (its keys are "),
    "no reason": (changed(reason=...), "it has no reason (it needs devices, kind, reason, by)"),
    "blank reason": (changed(reason=" "), "its reason is no text (write a reason)"),
    "long reason": (changed(reason="x" * 501), "its reason has more than 500 characters (shorten it)"),
    "long by": (changed(by="x" * 65), "its by has more than 64 characters (shorten it)"),
    "kind": (changed(kind="sick"), "its kind is 'sick' (use cordon or unhealthy)"),
    "kind of a list": (changed(kind=[]), "its kind is [] (use cordon or unhealthy)"),
    "no devices": (changed(devices=[]), 'its devices are no list of names (such as ["0000:3b:00.0"])'),
    "a device": (changed(devices="GPU-1"), "its devices are no list of names ("),
    "a number": (changed(devices=[1]), "its devices are no list of names ("),
    "no zone": (
        changed(until="2026-11-26T10:00:00"),
        "its until is '2026-11-26T10:00:00' (write a time with ",
    ),
    "no time": (changed(until="tomorrow"), "its until is 'tomorrow' (write a time with its zone, such as "),
    "after 9999": (changed(until="9999-12-31T23:59:59-10:00"), "its until is '9999-12-31T23:59:59-10:00' ("),
    "rounded up to 10000": (changed(until="9999-12-31T23:59:59.999999Z"), "its until is '9999-12-31T23:59"),
    "before 1": (changed(until="0001-01-01T00:00:00+10:00"), "its until is '0001-01-01T00:00:00+10:00' ("),
    "seconds": (changed(until=17), "its until is 17 (write a time with its zone, such as "),
}


@pytest.mark.parametrize(("content", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_one_problem_with_its_fix_and_changes_no_other(
    place: Place, content: object, reason: str
) -> None:
    place.put("a.json")
    bad = place.put("b.json", content)
    place.put("c.json")
    found = place.settled()
    assert place.names(found) == ["a.json", "c.json"]
    assert list(found.flaws) == [str(bad)]
    assert found.flaws[str(bad)].startswith(reason) and found.flaws[str(bad)].endswith(")")


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


ODD = {
    "writable by its group": (
        lambda path: path.chmod(0o664),
        "is writable by its group, who can change it (run ",
    ),
    "writable by others": (lambda path: path.chmod(0o646), "is writable by others, who can change it (run "),
    "a link": (link, "it is a symbolic link (write the file itself into this directory)"),
    "a pipe": (pipe, "is not a regular file"),
    "a directory": (directory, "it is a directory (remove it)"),
    "too large": (
        lambda path: path.write_text(json.dumps(GOOD) + " " * MAX_BYTES),
        f"it is larger than {MAX_BYTES} bytes (write several files)",
    ),
    "another name": (
        lambda path: path.rename(path.with_suffix(".txt")),
        "its name does not end in .json (rename ",
    ),
}


@pytest.mark.parametrize(("change", "reason"), ODD.values(), ids=ODD)
def test_what_is_no_file_of_root_is_a_problem_and_changes_no_other(
    place: Place, change: Any, reason: str
) -> None:
    place.put("a.json")
    change(place.put("b.json"))
    found = place.settled()
    assert place.names(found) == ["a.json"]
    ((_, said),) = found.flaws.items()
    assert reason in said


@pytest.mark.root
def test_a_file_of_another_user_is_refused(place: Place) -> None:
    os.chown(place.put("a.json"), 65534, 65534)
    found = place.settled()
    assert not found.verdicts
    ((_, said),) = found.flaws.items()
    assert "belongs to uid 65534 and not to root (run `chown root " in said


def test_a_directory_that_others_can_write_to_has_no_verdicts(place: Place) -> None:
    place.put("a.json")
    place.directory.chmod(0o777)
    found = place.settled()
    assert not found.verdicts
    assert list(found.flaws) == [str(place.directory)]
    assert "who can put files into it (run `chmod go-w " in found.flaws[str(place.directory)]


def test_hidden_files_are_unfinished_ones(place: Place) -> None:
    place.put(".a.json.part", "half")
    assert place.settled() == Reading()


def test_a_directory_that_is_gone_has_no_verdicts(place: Place) -> None:
    place.put("a.json").unlink()
    place.directory.rmdir()
    assert place.settled() == Reading()


def test_a_file_that_is_being_written_has_no_effect_and_is_no_problem(place: Place) -> None:
    whole = json.dumps(GOOD)
    file = place.put("a.json", whole[:20])
    found = place.read()
    assert (found.verdicts, found.flaws) == ((), {})
    assert found.again == SETTLE
    file.write_text(whole)
    assert place.names(place.read(SETTLE / 2)) == ["a.json"]
    # written over in place: what it said before counts until it is clear that it stays so
    file.write_text(whole[:20])
    found = place.read(1.0)
    assert place.names(found) == ["a.json"] and found.flaws == {}
    found = place.read(SETTLE)
    assert not found.verdicts and len(found.flaws) == 1
    file.write_text(whole)
    assert place.names(place.read()) == ["a.json"]


def test_a_file_that_keeps_changing_and_is_always_wrong_is_a_problem(place: Place) -> None:
    for number in range(5):
        place.put("a.json", f"{{{number}")
        found = place.read(SETTLE / 4)
    assert len(found.flaws) == 1


def test_an_edit_without_another_size_or_name_is_seen(place: Place) -> None:
    place.put("a.json", changed(reason="XID 79"))
    place.read()
    place.put("a.json", changed(reason="XID 48"))
    assert [one.reason for one in place.read().verdicts] == ["XID 48"]


def test_a_file_that_was_just_changed_is_read_again(place: Place) -> None:
    found = place.put("a.json").lstat()
    assert signature_of(found, found.st_ctime + FRESH - 0.1) is None
    assert signature_of(found, found.st_ctime - 3600) is None  # the clock was set back
    assert signature_of(found, found.st_ctime + FRESH + 0.1) is not None


def test_so_many_files_are_read_and_the_others_are_one_problem(place: Place) -> None:
    for number in range(MAX_FILES):
        place.put(f"f{number:04}.json", changed(devices=[f"d{number}"]))
    found = place.settled()
    assert len(found.verdicts) == MAX_FILES and not found.flaws
    place.put("f9999.json")
    found = place.settled()
    assert len(found.verdicts) == MAX_FILES
    assert found.flaws == {str(place.directory): f"1 of its {MAX_FILES + 1} files are not read (remove some)"}


def test_so_many_files_of_other_programs_hide_no_cordon(place: Place) -> None:
    for number in range(MAX_FILES):
        place.put(
            f"a{number:04}.json", changed(devices=[f"d{number}.{n}" for n in range(MAX_NAMES // MAX_FILES)])
        )
    for name in ("gpu/GPU-1", ALL):
        write(place.directory, name, "alice", "fan", None)
    place.put("cordon-0.json")
    found = place.settled()
    assert [one.names for one in found.verdicts if is_own(one)] == [("gpu/GPU-1",), (ALL,)]
    assert "cordon-0.json" not in place.names(found)
    assert f"3 of its {MAX_FILES + 3} files are not read" in found.flaws[str(place.directory)]


def test_a_file_of_the_largest_size_is_read(place: Place) -> None:
    text = json.dumps(GOOD)
    place.put("a.json", text + " " * (MAX_BYTES - len(text)))
    assert place.names(place.settled()) == ["a.json"]


def test_so_many_names_are_read_and_a_file_with_more_is_a_problem(place: Place) -> None:
    each = 1000
    for number in range(MAX_NAMES // each):
        place.put(f"f{number:02}.json", changed(devices=[f"{n}" for n in range(each)]))
    found = place.settled()
    assert sum(len(one.names) for one in found.verdicts) == MAX_NAMES and not found.flaws
    more = place.put("more.json")
    found = place.settled()
    assert found.flaws == {str(more): f"all files together name more than {MAX_NAMES} devices (remove some)"}
    assert len(found.verdicts) == MAX_NAMES // each


def test_names_lead_where_links_lead(place: Place, tmp_path: Path) -> None:
    dev = tmp_path / "root/dev"
    dev.mkdir(parents=True)
    (dev / "card").symlink_to("nvidia3")
    place.put("a.json", changed(devices=["/dev/card", "3b:00.0", "GPU-1"]))
    assert place.settled().ends == {"/dev/card": "/dev/nvidia3", "3b:00.0": "0000:3b:00.0"}


def test_a_command_writes_one_file_for_a_device_and_replaces_it(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "verdicts"
    old = os.umask(0)
    try:
        for reason, until in (("fan", None), ("fan again", 2e9)):
            write(directory, "gpu/GPU-1", "alice", reason, until)
        write(directory, ALL, "bob", "power", None)
    finally:
        os.umask(old)
    found = settled(directory, tmp_path).verdicts
    assert [(one.names, one.text, one.until, is_own(one)) for one in found] == [
        (("gpu/GPU-1",), "cordoned by alice: fan again", 2e9, True),
        ((ALL,), "cordoned by bob: power", None, True),
    ]
    assert own_file(directory, ALL).name == "cordon-node.json"
    assert [one.names for one in found if one.holds(3e9)] == [(ALL,)]
    with pytest.raises(Flawed, match="its reason is no text"):
        write(directory, "gpu/GPU-1", "alice", "\n", None)


def test_a_file_of_another_program_is_no_own_one(place: Place) -> None:
    place.put("cordon-1.json")
    place.put("dcgm.json", changed(kind="cordon"))
    assert [is_own(one) for one in place.settled().verdicts] == [False, False]
    assert {one.kind for one in place.settled().verdicts} == {*VerdictKind}
