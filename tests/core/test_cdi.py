"""CDI specifications: what edits become, under which names, and how the files come and go."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost import cdi
from devhost.errors import AllocationError, EnvironmentFailure
from devhost.kubelet import wire
from devhost.model import DeviceNode, Edits, Mount

STRINGS = {"type": "array", "items": {"type": "string"}}
UINT32 = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
PATH = {"type": "string", "pattern": "^/"}


def closed(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


EDITS = {
    **closed(
        "",
        env={"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
        deviceNodes={
            "type": "array",
            "items": closed(
                "path",
                path=PATH,
                hostPath=PATH,
                type={"enum": ["b", "c", "u", "p"]},
                major={"type": "integer", "minimum": 0},
                minor={"type": "integer", "minimum": 0},
                fileMode=UINT32,
                permissions={"type": "string", "pattern": "^[rwm]*$"},
                uid=UINT32,
                gid=UINT32,
            ),
        },
        mounts={
            "type": "array",
            "items": closed(
                "hostPath containerPath",
                hostPath=PATH,
                containerPath=PATH,
                options=STRINGS,
                type={"type": "string"},
            ),
        },
    ),
    "minProperties": 1,
}
SCHEMA = closed(
    "cdiVersion kind devices",
    cdiVersion={"enum": ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]},
    kind={"type": "string"},
    devices={
        "type": "array",
        "minItems": 1,
        "items": closed("name containerEdits", name={"type": "string"}, containerEdits=EDITS),
    },
)
"""The rules of the official JSON schema for the parts devhost writes, tightened by the reference loader's."""

WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def check(document: dict[str, Any]) -> dict[str, Any]:
    """Refuses what a loader would: wrong shape, wrong names, one name twice, too low or high a version."""
    jsonschema.validate(document, SCHEMA)
    vendor, class_ = document["kind"].split("/")
    assert WORD.fullmatch(vendor) and len(vendor) <= 253
    assert WORD.fullmatch(class_) and len(class_) <= 63
    names = [device["name"] for device in document["devices"]]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)
    nodes = [n for d in document["devices"] for n in d["containerEdits"].get("deviceNodes", ())]
    mounts = [m for d in document["devices"] for m in d["containerEdits"].get("mounts", ())]
    least = "0.3.0"
    if any("type" in mount for mount in mounts):
        least = "0.4.0"
    if any("hostPath" in node for node in nodes) or not all(name[0].isalpha() for name in names):
        least = "0.5.0"
    if "." in class_:
        least = "0.6.0"
    assert document["cdiVersion"] == least
    return document


def look(path: str) -> cdi.HostNode:
    return cdi.HostNode(path, 0o660, 0, 44)


def render(edits: Edits) -> cdi.ContainerEdits:
    return cdi.container_edits(edits, look)


FULL = Edits(
    nodes=(DeviceNode("/dev/fuse", permissions="rwm"), DeviceNode("/dev/host0", "/dev/card", "r")),
    mounts=(Mount("/opt/lib", "/usr/lib/card"), Mount("/var/spool", "/spool", read_only=False)),
    env={"CARD": "0", "EMPTY": "", "ODD": "a=b\nc"},
    annotations={"example.com/card": "0"},
)


def test_every_part_of_the_edits_that_cdi_can_carry_is_rendered():
    assert render(FULL) == {
        "env": ["CARD=0", "EMPTY=", "ODD=a=b\nc"],
        "deviceNodes": [
            {"path": "/dev/fuse", "permissions": "rwm", "fileMode": 0o660, "uid": 0, "gid": 44},
            {
                "path": "/dev/card",
                "hostPath": "/dev/host0",
                "permissions": "r",
                "fileMode": 0o660,
                "uid": 0,
                "gid": 44,
            },
        ],
        "mounts": [
            {
                "hostPath": "/opt/lib",
                "containerPath": "/usr/lib/card",
                "options": ["rbind", "rprivate", "ro"],
            },
            {"hostPath": "/var/spool", "containerPath": "/spool", "options": ["rbind", "rprivate", "rw"]},
        ],
    }


def test_optional_parts_the_host_lacks_are_left_out_of_both_renderings():
    left_out = {"/dev/host0", "/opt/lib"}
    found = cdi.container_edits(FULL, look, left_out)
    direct = wire.allocation(FULL, left_out)
    assert [node["path"] for node in found["deviceNodes"]] == [d.container_path for d in direct.devices]
    assert [m["containerPath"] for m in found["mounts"]] == [m.container_path for m in direct.mounts]


paths = st.from_regex(r"/[a-z0-9]{1,6}(/[a-z0-9]{1,6}){0,2}", fullmatch=True)
permissions = st.sampled_from(["r", "w", "m", "rw", "rm", "wm", "rwm"])
any_edits = st.builds(
    Edits,
    nodes=st.lists(st.builds(DeviceNode, paths, st.just("") | paths, permissions)).map(tuple),
    mounts=st.lists(st.builds(Mount, paths, paths, st.booleans())).map(tuple),
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.text(max_size=8)),
)


@given(any_edits)
def test_direct_and_cdi_give_a_container_the_same(edits):
    edits = Edits.merge([edits])
    direct, found = wire.allocation(edits), render(edits)
    as_cdi = cdi.applied([found])
    as_direct: dict[tuple[str, str], Any] = {("env", k): v for k, v in direct.envs.items()}
    for spec in direct.devices:
        as_direct["node", spec.container_path] = (spec.host_path, spec.permissions)
    for mount in direct.mounts:
        as_direct["mount", mount.container_path] = (mount.host_path, mount.read_only)
    assert as_direct == {
        key: value
        if key[0] == "env"
        else (value.get("hostPath", value["path"]), value["permissions"])
        if key[0] == "node"
        else (value["hostPath"], "ro" in value["options"])
        for key, value in as_cdi.items()
    }


@given(
    any_edits, st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@+/=#-]{0,20}", fullmatch=True), unique=True)
)
@pytest.mark.conformance(52)
def test_every_document_obeys_the_rules_of_the_specification(edits, ids):
    rendered = render(Edits.merge([edits]))
    if rendered and ids:
        devices = {cdi.device_name(device): rendered for device in ids}
        document = cdi.document(cdi.kind("example.com/card"), devices)
        check(document)
        assert json.loads(cdi.dumps(document)) == document


@pytest.mark.parametrize(
    ("resource", "device", "edits", "version"),
    [
        ("example.com/card", "a0", Edits(nodes=(DeviceNode("/dev/x"),), mounts=FULL.mounts), "0.3.0"),
        ("example.com/card", "0000:3b:00.0", Edits(nodes=(DeviceNode("/dev/x"),)), "0.5.0"),
        ("example.com/card", "a0", Edits(nodes=(DeviceNode("/dev/x", "/dev/y"),)), "0.5.0"),
        ("example.com/mig-1g.5gb", "a0", Edits(env={"A": "b"}), "0.6.0"),
    ],
)
def test_the_version_is_the_lowest_that_has_what_is_used(resource, device, edits, version):
    document = cdi.document(cdi.kind(resource), {cdi.device_name(device): render(edits)})
    assert check(document)["cdiVersion"] == version


def test_the_example_in_the_documentation_is_one_devhost_would_write():
    page = Path(__file__).parents[2] / "docs" / "cdi.md"
    (example,) = re.findall(r"(?ms)^```json\n(.*?)^```$", page.read_text(encoding="utf-8"))
    assert cdi.dumps(check(json.loads(example))) == example


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("example.com/card", "example.com/card"),
        ("rdma/hca", "rdma/hca"),
        ("example.com/mig-1g.5gb", "example.com/mig-1g.5gb"),
    ],
)
def test_a_resource_name_that_cdi_takes_is_the_kind(resource, kind):
    assert cdi.kind(resource) == kind


def test_a_resource_name_that_cdi_refuses_becomes_a_legal_kind_of_its_own():
    names = [
        "3com.com/card",
        "x3com.com/card",
        "3com.com/40g",
        "a.b/40g",
        "a.b/x40g",
        f"{'0' * 244}/{'1' * 63}",
    ]
    kinds = [cdi.kind(name) for name in names]
    assert len(set(kinds)) == len(names)
    for kind in kinds:
        check(cdi.document(kind, {"d": {"env": ["A=b"]}}))


def test_two_devices_never_share_a_name():
    ids = ["a/b", "a-b", "a+b", "a@b", "a#b", "a=b", "a.", "a", "a-", "0000:3b:00.0", "+", "-", "x::1234abcd"]
    names = [cdi.device_name(device) for device in ids]
    assert len(set(names)) == len(ids)
    assert all(NAME.fullmatch(name) for name in names)
    assert cdi.device_name("0000:3b:00.0") == "0000:3b:00.0"


def test_a_set_of_devices_has_one_name_whatever_their_order():
    assert cdi.set_name(["a", "b"]) == cdi.set_name(["b", "a"]) != cdi.set_name(["a", "b", "c"])
    assert cdi.is_set(cdi.set_name(["a", "b"])) and NAME.fullmatch(cdi.set_name(["a"]))
    assert not cdi.is_set(cdi.device_name("set/0"))


def test_a_node_is_looked_at_through_links_and_keeps_its_mode_and_owner(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    status = Path("/dev/null").stat()
    found = cdi.host_node(str(link))
    mode = stat.S_IMODE(status.st_mode)
    assert found == cdi.HostNode(os.path.realpath("/dev/null"), mode, status.st_uid, status.st_gid)


def test_below_another_root_a_node_has_its_path_as_the_host_sees_it(monkeypatch, tmp_path):
    (tmp_path / "dev" / "by-id").mkdir(parents=True)
    (tmp_path / "dev" / "card0").touch()
    (tmp_path / "dev" / "by-id" / "relative").symlink_to("../card0")
    (tmp_path / "dev" / "by-id" / "absolute").symlink_to("/dev/by-id/relative")
    monkeypatch.setattr(stat, "S_ISCHR", lambda mode: True)  # only root can make a device node
    for path in ("/dev/card0", "/dev/by-id/relative", "/dev/by-id/absolute"):
        assert cdi.host_node(path, tmp_path).path == "/dev/card0"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file", "is not a device node, and a CDI specification carries no other files"),
        ("", "is not a device node, and a CDI specification carries no other files"),
        ("absent", "for its CDI specification: No such file or directory"),
    ],
)
def test_what_is_no_device_node_is_refused_with_its_name(tmp_path, path, reason):
    (tmp_path / "file").touch()
    with pytest.raises(AllocationError, match=reason) as error:
        cdi.host_node(str(tmp_path / path))
    assert str(tmp_path / path) in str(error.value)


# files


@pytest.fixture
def directory(tmp_path):
    found = cdi.SpecDirectory(tmp_path / "run" / "cdi")
    yield found
    found.close()


@pytest.mark.conformance(52)
async def test_a_file_is_written_whole_and_readable_for_all_and_its_directory_made(directory):
    path = directory.path("example.com/card")
    before = os.umask(0o077)
    try:
        await directory.write(path, '{"a": 1}')
    finally:
        os.umask(before)
    assert path.name == "devhost_example.com_card.json"
    assert path.read_text() == '{"a": 1}'
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert os.listdir(path.parent) == [path.name]


async def test_a_file_that_is_right_is_not_written_again(directory):
    path = directory.path("example.com/card")
    await directory.write(path, "one")
    inode = path.stat().st_ino
    await directory.write(path, "one")
    again = cdi.SpecDirectory(directory.directory)
    await again.write(path, "one")
    again.close()
    assert path.stat().st_ino == inode
    await directory.write(path, "two")
    assert path.stat().st_ino != inode


async def test_a_file_that_somebody_changed_or_removed_is_made_right(directory):
    path = directory.path("example.com/card")
    await directory.write(path, "one")
    path.write_text("mine!")
    await directory.write(path, "one")
    assert path.read_text() == "one"
    path.unlink()
    await directory.write(path, "one")
    assert path.read_text() == "one"


async def test_a_write_that_fails_leaves_the_old_file_and_no_rest(directory, monkeypatch):
    path = directory.path("example.com/card")
    await directory.write(path, "one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        EnvironmentFailure, match=r"cannot write .*_card\.json: No space left on device \(cdi"
    ):
        await directory.write(path, "two")
    assert path.read_text() == "one"
    assert os.listdir(path.parent) == [path.name]


async def test_a_directory_that_cannot_be_one_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    directory = cdi.SpecDirectory(tmp_path / "file")
    with pytest.raises(
        EnvironmentFailure, match=r"cannot write .*: (Not a directory|File exists) \(cdi\.dir"
    ):
        await directory.write(directory.path("example.com/card"), "one")
    directory.close()


async def test_a_directory_that_hangs_is_given_up_after_the_deadline(directory, monkeypatch):
    import threading

    over = threading.Event()
    monkeypatch.setattr(cdi, "FILE_DEADLINE", 0.1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: over.wait())
    with pytest.raises(EnvironmentFailure, match=r"cannot write .*: cdi: no answer within 0\.1 s"):
        await directory.write(directory.path("example.com/card"), "one")
    over.set()


async def test_a_sweep_takes_own_stale_files_and_nobody_elses(directory):
    stay = [
        "devhost_example.com_card.json",  # configured
        "devhost_example.com_mig-1g.5gb.json",  # could come from a template
        "devhost_example.com_kept.json",  # still in use
        "devhost-0123abcd_example.com_old.json",  # another host's
        "nvidia.com_gpu.json",
        "vendor_devhost_example.com_old.json",
        "devhost_example.com_old.yaml",
        ".devhost_fresh.part",
    ]
    go = ["devhost_example.com_old.json", "devhost_other.com_card.json", ".devhost_stale.part"]
    directory.directory.mkdir(parents=True)
    for name in stay + go:
        (directory.directory / name).touch()
    os.utime(directory.directory / ".devhost_stale.part", (0, 0))
    templates = ["example.com/card", "example.com/mig-{profile}"]
    removed = await directory.sweep(templates, ["example.com/kept"])
    assert sorted(path.name for path in removed) == sorted(go)
    assert sorted(os.listdir(directory.directory)) == sorted(stay)


async def test_a_sweep_of_a_directory_that_is_not_there_does_nothing(directory):
    assert await directory.sweep([], []) == []
    assert not directory.directory.exists()


async def test_hosts_of_different_kubelets_do_not_sweep_each_other(tmp_path):
    own, trial = cdi.SpecDirectory(tmp_path), cdi.SpecDirectory(tmp_path, "/tmp/kubelet")
    await own.write(own.path("a.b/c"), "own")
    await trial.write(trial.path("a.b/c"), "trial")
    assert await own.sweep([], []) == [own.path("a.b/c")]
    assert await trial.sweep([], []) == [trial.path("a.b/c")]
    own.close()
    trial.close()


async def test_every_resource_name_makes_a_file_name_of_its_own_within_the_limit(directory):
    names = [f"{'a' * 244}/{'b' * 63}", f"{'a' * 243}c/{'b' * 63}", "a.b/c_d", "a.b/c.d", "a/b"]
    paths = {directory.path(name) for name in names}
    assert len(paths) == len(names)
    for path in paths:
        await directory.write(path, "{}")


@pytest.mark.parametrize(
    "content", ["", "null", "[]", "{}", '{"devices": [1]}', '{"devices": [{"name": "a"}]}', "\0"]
)
async def test_an_earlier_file_that_is_not_sound_counts_as_none(directory, content):
    path = directory.path("a.b/c")
    await directory.write(path, content)
    assert await directory.read(path) == {}
    assert await directory.read(Path("/nonexistent/file.json")) == {}
