"""Records on disk: whatever their content is, reading them raises nothing but an error for users."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.claims import Scene, result

from devhost.allocation.cdi.files import SpecDirectory
from devhost.allocation.device_info import DeviceInfoDirectory
from devhost.allocation.given import Gift, Node
from devhost.allocation.given_record import GivenRecord
from devhost.backend.errors import DevhostError
from devhost.config.rollout import Good, Recorded, RolloutRecord, Trial
from devhost.dra.node_condition import BootRecord, Handled
from devhost.dra.record import SliceRecord

OTHERS = (None, -1, 1e999, 10**400, True, "x", "\ud800", [], {}, [[]], [None], [5], {"a": None})
"""What each value in a record is replaced by."""

TEXTS = (b"", b"null", b"{}", b"\xff", b"1" * 6000, b"[" * 60_000, b'{"a":' * 60_000)


def contents(whole: object) -> Iterator[bytes]:
    """Contents like this one, each with one other value, and some that are like none."""
    yield from TEXTS
    for place in places(whole, ()):
        for other in OTHERS:
            changed = [copy.deepcopy(whole)]
            inner: Any = changed
            for key in (0, *place)[:-1]:
                inner = inner[key]
            inner[(0, *place)[-1]] = other
            yield json.dumps(changed[0]).encode()


def places(value: object, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*place, key))


def given(place: Path) -> tuple[Path, Callable[[], object]]:
    record = GivenRecord(place, place / "kubelet")
    gift = Gift((Node("/dev/a", "c1:1", ("gpu", "d0")), Node("/dev/b")), frozenset({"a"}), "main")
    record.write({("example.com/gpu", "d0"): gift}, {"uid": gift})
    assert record.file
    return record.file, record.read


def rollout(place: Path) -> tuple[Path, Callable[[], object]]:
    record = RolloutRecord(place, place / "devhost.yaml")
    record.write(Recorded(Good("a", frozenset({("gpu", "example.com/gpu", 1)})), Trial("b", 1.0)))
    assert record.file
    return record.file, record.read


def condition(place: Path) -> tuple[Path, Callable[[], object]]:
    record = BootRecord(place, "n1")
    record.write(Handled(record.boot(), "uid", True))
    assert record.file
    return record.file, record.read


def published(place: Path) -> tuple[Path, Callable[[], object]]:
    file = place / "published.json"
    devices = [["gpu", "d0", "example.com/gpu"]]
    file.write_text(json.dumps({"version": 1, "devices": devices, "units": devices}))
    return file, SliceRecord(file).load


def specification(place: Path) -> tuple[Path, Callable[[], object]]:
    file = place / "example.json"
    edits = {"deviceNodes": [{"path": "/dev/a", "type": "c", "major": 1, "minor": 3}], "env": ["A=b"]}
    file.write_text(json.dumps({"kind": "a/b", "devices": [{"name": "d0", "containerEdits": edits}]}))
    return file, lambda: SpecDirectory(place).read(file.name)


def infos(place: Path) -> tuple[Path, Callable[[], object]]:
    about = {"resource": "example.com/nic", "token": "d0", "sha256": "a"}
    file = place / f".{DeviceInfoDirectory(place).prefix}index.json"
    file.write_text(json.dumps({"files": {"example.com-nic-d0-device.json": about}}))
    return file, lambda: DeviceInfoDirectory(place).own()


@pytest.mark.parametrize("record", [given, rollout, condition, published, specification, infos])
def test_a_record_with_any_content_is_read_or_refused(
    tmp_path: Path, record: Callable[[Path], tuple[Path, Callable[[], object]]]
) -> None:
    file, read = record(tmp_path)
    assert file.exists()
    for content in contents(json.loads(file.read_bytes())):
        file.write_bytes(content)
        with suppress(DevhostError):
            read()


async def test_a_claim_whose_file_has_any_content_is_prepared_again_and_released(tmp_path: Path) -> None:
    scene = await Scene(tmp_path).start()
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    file = scene.files.now()[ref.uid].path
    whole = json.loads(file.read_bytes())
    edits = whole["devices"][0]["containerEdits"]
    edits["deviceNodes"] = [{"path": "/dev/a"}]
    edits["mounts"] = [{"hostPath": "/a", "containerPath": "/a"}]
    for content in contents(whole):
        file.write_bytes(content)
        scene.restart()
        await scene.files.read_all()
        scene.files.nodes(ref.uid)
        scene.files.edits(ref.uid)
        assert [one.device for one in await scene.devices(ref)] == ["a"]
        assert await scene.unprepare(ref) == [""]
    scene.close()
