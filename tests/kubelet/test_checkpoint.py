"""The kubelet's checkpoint: the formats of Kubernetes 1.25 to 1.37, and what is refused."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import pytest

from devhost.allocation.given import Gift, Node
from devhost.kubelet.api import CHECKPOINT
from devhost.kubelet.api.api_pb2 import CDIDevice, ContainerAllocateResponse, DeviceSpec
from devhost.kubelet.given import MAX_BYTES, Unusable, read_checkpoint

DIRECT = ContainerAllocateResponse(
    devices=[DeviceSpec(host_path="/dev/ttyUSB0", container_path="/dev/scanner", permissions="rw")]
)
NAMED = ContainerAllocateResponse(cdi_devices=[CDIDevice(name="devhost.example.com/serial=tty-A")])


def entry(answer: ContainerAllocateResponse | None, ids: Any) -> dict[str, Any]:
    data = None if answer is None else base64.b64encode(answer.SerializeToString()).decode()
    return {
        "PodUID": "2ba24b31-5c5f-4a7b-8a0e-5b0a4b6a9d0f",
        "ContainerName": "main",
        "ResourceName": "example.com/serial",
        "DeviceIDs": ids,
        "AllocResp": data,
    }


def content(*entries: Any, **more: Any) -> bytes:
    data = {"PodDeviceEntries": [*entries] or None, "RegisteredDevices": {"example.com/serial": ["tty-A"]}}
    return json.dumps({"Data": data, "Checksum": 1234567, **more}).encode()


@pytest.mark.parametrize(
    ("answer", "ids", "paths", "names"),
    [
        (DIRECT, {"-1": ["tty-A"]}, ("/dev/ttyUSB0",), ()),
        (NAMED, {"0": ["tty-A"]}, (), ("devhost.example.com/serial=tty-A",)),
        (DIRECT, ["tty-A"], ("/dev/ttyUSB0",), ()),
        (None, {"0": ["tty-A"]}, (), ()),
    ],
    ids=["direct", "cdi", "one list of ids", "no answer"],
)
def test_an_entry_is_read_as_kubelets_write_it(tmp_path, answer, ids, paths, names):
    file = tmp_path / CHECKPOINT
    for more in ({}, {"BootID": "5b2c9d7e-0000-4000-8000-000000000000"}):
        file.write_bytes(content(entry(answer, ids), **more))
        gift = Gift(tuple(map(Node, paths)), frozenset(names), "main")
        assert read_checkpoint(file) == {("example.com/serial", "tty-A"): [gift]}


def test_ids_of_all_numa_nodes_belong_to_one_answer(tmp_path):
    file = tmp_path / CHECKPOINT
    file.write_bytes(content(entry(DIRECT, {"0": ["tty-A", "tty-B"], "1": None, "-1": ["tty-C"]})))
    found = read_checkpoint(file)
    assert [token for _, token in found] == ["tty-A", "tty-B", "tty-C"]
    assert len({id(gift) for gifts in found.values() for gift in gifts}) == 1


def test_no_pods_and_no_file_are_no_answers(tmp_path):
    assert read_checkpoint(tmp_path / CHECKPOINT) == {}
    assert read_checkpoint(tmp_path / "missing" / CHECKPOINT) == {}
    (tmp_path / CHECKPOINT).write_bytes(content())
    assert read_checkpoint(tmp_path / CHECKPOINT) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"Data": 7}',
        b'{"Data": {"PodDeviceEntries": {"a": 1}}}',
        content(entry(DIRECT, 7)),
        content(entry(DIRECT, {"0": [7]})),
        content({**entry(DIRECT, {}), "AllocResp": "AAAA"}),
        content({**entry(DIRECT, {}), "ResourceName": None}),
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused_with_a_reason(tmp_path, data):
    file = tmp_path / CHECKPOINT
    file.write_bytes(data)
    with pytest.raises(Unusable, match="is not a kubelet's checkpoint, or damaged"):
        read_checkpoint(file)


def test_a_checkpoint_is_read_up_to_its_limit_and_not_beyond(tmp_path):
    file = tmp_path / CHECKPOINT
    data = content(entry(DIRECT, ["tty-A"]))
    file.write_bytes(data + b" " * (MAX_BYTES - len(data)))
    assert len(read_checkpoint(file)) == 1
    file.write_bytes(data + b" " * (MAX_BYTES - len(data) + 1))
    with pytest.raises(Unusable, match="is larger than 16 MiB"):
        read_checkpoint(file)


def test_a_pipe_or_directory_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unusable, match="is not a regular file"):
        read_checkpoint(tmp_path / "pipe")
    with pytest.raises(Unusable, match="cannot read"):
        read_checkpoint(tmp_path)
