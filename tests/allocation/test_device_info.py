"""Device-info files: what may stand in one, what it is called, and whose it is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.device_info import DeviceInfoDirectory, Document, Written, file_name, flaw
from devhost.backend.errors import AllocationError

NET = "example.com/net"
VF: Document = {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:3b:02.0"}}
OTHER_VF: Document = {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:3b:02.1"}}
NAME = "example.com-net-0000:3b:02.0-device.json"


def vf(**facts: object) -> dict[str, object]:
    return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:3b:02.0", **facts}}


@pytest.fixture
def directory(tmp_path: Path) -> DeviceInfoDirectory:
    return DeviceInfoDirectory(tmp_path / "k8s" / "dp")


def again(directory: DeviceInfoDirectory) -> DeviceInfoDirectory:
    """The same one after a restart."""
    return DeviceInfoDirectory(directory.directory)


def seen(directory: DeviceInfoDirectory) -> list[str]:
    """What a program sees that lists the directory, as shells do."""
    if not directory.directory.exists():
        return []
    return sorted(path.name for path in directory.directory.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize(
    "document",
    [
        VF,
        vf(**{"pf-pci-address": "0000:3b:00.0", "representor-device": "eth3", "rdma-device": "mlx5_2"}),
        {
            "type": "vdpa",
            "version": "1.1.0",
            "vdpa": {"parent-device": "vdpa0", "driver": "vhost", "path": "/x"},
        },
        {"type": "memif", "version": "1.0.0", "memif": {"role": "slave", "path": "/x", "mode": "ip"}},
        {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "client", "path": "/x"}},
    ],
)
def test_every_kind_of_device_that_the_specification_has_passes(document: Document) -> None:
    assert flaw(document) == ""


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("pci", "it is str, not a mapping"),
        ({}, "its type is none of pci, vdpa, vhost-user, memif"),
        ({"type": "usb", "version": "1.1.0"}, "its type is none of pci, vdpa, vhost-user, memif"),
        ({"type": "pci", "version": "1", "pci": {}}, "its version does not read like 1.1.0"),
        ({"type": "pci", "version": 1.1, "pci": {}}, "its version does not read like 1.1.0"),
        ({"type": "pci", "version": "1.1.0"}, "its keys are not type, version and pci"),
        ({**VF, "note": "x"}, "its keys are not type, version and pci"),
        ({"type": "pci", "version": "1.1.0", "pci": {}}, "its 'pci' lacks pci-address"),
        (
            {"type": "vdpa", "version": "1.1.0", "vdpa": {"path": "/x"}},
            "its 'vdpa' lacks parent-device, driver",
        ),
        (vf(note=1), "its 'pci' is not a mapping of texts"),
        (vf(note=""), "its 'pci' is not a mapping of texts"),
    ],
)
def test_an_unreadable_document_is_refused_with_its_reason(document: Any, reason: str) -> None:
    assert flaw(document) == reason


def test_only_the_slashes_of_the_resource_are_replaced() -> None:
    assert file_name(NET, "0000:3b:02.0") == NAME
    assert file_name("a.b/c_d-e", "mlx5_core.sf.2::7") == "a.b-c_d-e-mlx5_core.sf.2::7-device.json"


def test_a_token_cannot_lead_out_of_the_directory() -> None:
    with pytest.raises(AllocationError, match=r"^\.\./x has a slash in its id"):
        file_name(NET, "../x")


def test_a_file_is_whole_and_everybody_may_read_it(directory: DeviceInfoDirectory) -> None:
    assert directory.write(NET, {"0000:3b:02.0": VF}) == []
    path = directory.directory / NAME
    assert json.loads(path.read_text()) == VF
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(directory.directory.stat().st_mode) == 0o755
    assert seen(directory) == [NAME]


def test_a_file_that_is_right_is_not_touched_and_one_that_is_gone_comes_back(
    directory: DeviceInfoDirectory,
) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    path = directory.directory / NAME
    before = path.stat().st_ino
    assert directory.write(NET, {"0000:3b:02.0": VF}) == []
    assert path.stat().st_ino == before
    path.unlink()
    assert directory.write(NET, {"0000:3b:02.0": VF}) == []
    assert json.loads(path.read_text()) == VF


def test_own_files_are_known_after_a_restart(directory: DeviceInfoDirectory) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    later = again(directory)
    (entry,) = later.own().values()
    assert (entry.resource, entry.token) == (NET, "0000:3b:02.0")
    later.remove([NAME])
    assert list(directory.directory.iterdir()) == []  # not even the index stays
    assert again(directory).own() == {}


def test_a_file_of_another_program_is_never_removed(directory: DeviceInfoDirectory) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    foreign = directory.directory / "other.com-net-0000:5e:02.0-device.json"
    foreign.write_text("{}")
    directory.remove([foreign.name])
    assert foreign.read_text() == "{}"
    (directory.directory / NAME).write_text('{"written": "by somebody else since"}')
    later = again(directory)
    later.remove([NAME])
    assert "somebody else" in (directory.directory / NAME).read_text()
    assert later.own() == {}  # forgotten: it is theirs now


def test_another_programs_file_about_an_allocated_device_is_replaced_and_reported(
    directory: DeviceInfoDirectory,
) -> None:
    directory.directory.mkdir(parents=True)
    (directory.directory / NAME).write_text('{"type": "pci"}')
    assert directory.write(NET, {"0000:3b:02.0": VF}) == [NAME]
    assert json.loads((directory.directory / NAME).read_text()) == VF
    directory.remove([NAME])
    assert seen(directory) == []


def test_an_equal_file_of_another_program_stays_its_own(directory: DeviceInfoDirectory) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    other = DeviceInfoDirectory(directory.directory, tag="another kubelet")
    assert other.write(NET, {"0000:3b:02.0": VF}) == []
    assert other.own() == {}
    other.remove([NAME])
    assert seen(directory) == [NAME]


def test_two_hosts_with_different_kubelets_know_their_own_files_apart(directory: DeviceInfoDirectory) -> None:
    other = DeviceInfoDirectory(directory.directory, tag="another kubelet")
    directory.write(NET, {"0000:3b:02.0": VF})
    other.write("example.com/trial", {"0000:3b:02.1": OTHER_VF})
    assert again(directory).own().keys() == {NAME}
    assert DeviceInfoDirectory(directory.directory, tag="another kubelet").own().keys() == {
        "example.com-trial-0000:3b:02.1-device.json"
    }


def test_another_document_for_the_same_token_replaces_the_first(directory: DeviceInfoDirectory) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    assert directory.write(NET, {"0000:3b:02.0": vf(note="x")}) == []
    assert again(directory).own().keys() == {NAME}
    later = again(directory)
    later.remove([NAME])
    assert seen(directory) == []


def test_all_files_of_a_container_are_written_or_none(directory: DeviceInfoDirectory) -> None:
    in_the_way = directory.directory / "example.com-net-b-device.json"
    in_the_way.mkdir(parents=True)
    with pytest.raises(OSError):
        directory.write(NET, {"a": VF, "b": OTHER_VF})
    assert seen(directory) == [in_the_way.name]
    assert again(directory).own() == {}


def test_a_failing_write_leaves_what_was_there_before(directory: DeviceInfoDirectory) -> None:
    directory.write(NET, {"a": VF})
    (directory.directory / "example.com-net-0-device.json").mkdir()
    with pytest.raises(OSError):
        directory.write(NET, {"0": OTHER_VF, "a": vf(note="x")})
    assert json.loads((directory.directory / "example.com-net-a-device.json").read_text()) == VF
    assert again(directory).own().keys() == {"example.com-net-a-device.json"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"files": []}',
        '{"files": {"x": {}}}',
        '{"files": {"x": {"resource": 1, "token": "t", "sha256": ""}}}',
        "\0",
    ],
)
def test_an_index_that_is_not_sound_makes_nothing_ours(directory: DeviceInfoDirectory, text: str) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    (directory.directory / ".devhost_index.json").write_text(text)
    assert again(directory).own() == {}
    assert seen(directory) == [NAME]


def test_an_index_cannot_make_devhost_remove_a_file_outside(directory: DeviceInfoDirectory) -> None:
    directory.directory.mkdir(parents=True)
    victim = directory.directory.parent / "victim-x-device.json"
    victim.write_text("x")
    entry = {"resource": "../victim", "token": "x", "sha256": ""}
    index = {"version": 1, "files": {"../victim-x-device.json": entry}}
    (directory.directory / ".devhost_index.json").write_text(json.dumps(index))
    assert again(directory).own() == {}


def test_what_a_crash_left_unfinished_is_cleared_away(directory: DeviceInfoDirectory) -> None:
    directory.write(NET, {"0000:3b:02.0": VF})
    half = directory.directory / ".devhost_abc.part"
    half.write_text('{"type"')
    os.utime(half, (0, 0))
    again(directory).own()
    assert not half.exists()


def test_a_thousand_files_are_kept_apart(directory: DeviceInfoDirectory) -> None:
    documents = {f"d{n}": vf(note=str(n)) for n in range(1000)}
    directory.write(NET, documents)
    own = again(directory).own()
    assert len(own) == 1000
    assert len({entry.sha256 for entry in own.values()}) == 1000
    assert all(isinstance(entry, Written) for entry in own.values())
    again(directory).remove(own)
    assert seen(directory) == []
