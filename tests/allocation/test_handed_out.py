"""Which nodes of an answer a device does not claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from devhost.allocation.given import UnclaimedNodes
from devhost.allocation.resource_backend import EVERYWHERE, unclaimed
from devhost.backend import Device, DeviceNode, Edits, Mount, claim
from devhost.backend.sysfs import prefix_of

FUSE = claim.node("/dev/fuse")
PLAIN = Device("d")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("dev/fuse", "dev/shm/file", "dev/dir/a", "usr/lib/x.so", "driver/dev/fuse", *EVERYWHERE):
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("c10:229" if path.endswith("fuse") else "")
    (tmp_path / "dev/link").symlink_to("fuse")
    (tmp_path / "dev/nothing").symlink_to("null")
    uevent = tmp_path / "sys/dev/char/10:229/uevent"
    uevent.parent.mkdir(parents=True)
    uevent.write_text("MAJOR=10\nMINOR=229\nDEVNAME=fuse\n")
    return tmp_path


def given(root: Path, *parts: DeviceNode | Mount, device: Device = PLAIN) -> set[str]:
    nodes = tuple(part for part in parts if isinstance(part, DeviceNode))
    mounts = tuple(part for part in parts if isinstance(part, Mount))
    return set(unclaimed(Edits(nodes, mounts), [device], prefix_of(root)))


def test_no_other_name_of_a_node_is_looked_for_that_is_claimed_as_in_the_answer(root: Path) -> None:
    (root / "sys/dev/char/10:229/uevent").unlink()
    (root / "dev/fuse").write_text("")  # no number tells that both are one node
    assert given(root, DeviceNode("/dev/link")) == {FUSE}
    assert not given(
        root, DeviceNode("/dev/link"), device=Device("d", claims=frozenset({claim.node("/dev/link")}))
    )


def test_a_node_counts_by_the_name_that_the_kernel_gives_it(root: Path) -> None:
    for path in ("/dev/fuse", "/dev/link", "/driver/dev/fuse"):
        assert given(root, DeviceNode(path, "/dev/x")) == {FUSE}
        assert given(root, Mount(path, "/dev/x")) == {FUSE}


def test_claimed_parts_and_the_same_number_do_not_count(root: Path) -> None:
    for device in (Device("d", claims=frozenset({FUSE})), Device("d", part_of=frozenset({FUSE}))):
        assert not given(root, DeviceNode("/driver/dev/fuse"), device=device)
    (root / "sys/dev/char/10:229/uevent").unlink()
    assert given(root, DeviceNode("/driver/dev/fuse")) == {claim.node("/driver/dev/fuse")}
    assert not given(root, DeviceNode("/driver/dev/fuse"), device=Device("d", claims=frozenset({FUSE})))


def test_what_is_common_is_nobodys(root: Path) -> None:
    assert not given(root, DeviceNode("/dev/fuse", shared=True))
    assert not given(root, *map(DeviceNode, EVERYWHERE), Mount("/dev/null", "/etc/masked"))
    assert not given(root, DeviceNode("/dev/nothing"))
    assert not given(root, Mount("/dev", "/dev"), Mount("/dev/dir", "/x"), Mount("/dev/shm/file", "/x"))
    assert not given(root, Mount("/usr/lib/x.so", "/x"), Mount("/dev/none", "/x"))


def test_a_node_that_one_answer_does_not_share_is_not_shared(root: Path) -> None:
    for shared in (False, True):
        parts = [Edits((DeviceNode("/dev/fuse", shared=one),)) for one in (shared, not shared)]
        assert unclaimed(Edits.merge(parts), [PLAIN], prefix_of(root)) == {FUSE}


def test_an_optional_node_that_is_missing_is_not_given(root: Path) -> None:
    edits = Edits((DeviceNode("/dev/none", required=False),))
    assert not unclaimed(edits, [Device("d")], prefix_of(root), {"/dev/none"})


def test_devices_of_one_backend_are_parts_of_the_node_and_those_of_a_second_claim_it() -> None:
    nodes, device = UnclaimedNodes(), Device("d")
    for key in (("a", "d"), ("b", "d")):
        nodes.add(key, {FUSE})
    assert nodes.device(("a", "d"), device).part_of == {FUSE}
    assert nodes.device(("b", "d"), device).claims == {FUSE}
    assert nodes.device(("a", "other"), device) is device


def test_unchanged_devices_stay_the_same_objects_and_gone_ones_are_forgotten() -> None:
    nodes, found = UnclaimedNodes(), {"a": {"d": Device("d"), "e": Device("e")}, "b": {"x": Device("x")}}
    assert nodes.completed(found) is found
    nodes.add(("a", "d"), {FUSE})
    first = nodes.completed(found)
    assert first["a"]["d"].part_of == {FUSE}
    assert first["b"] is found["b"] and first["a"]["e"] is found["a"]["e"]
    assert nodes.completed(found)["a"] is first["a"]
    assert nodes.completed({"a": {}, "b": {}}) == {"a": {}, "b": {}}
    assert nodes.completed(found) is found
