"""What every import of Kubernetes objects makes of files that are odd: one line, with its place."""

from __future__ import annotations

import pytest
from importing import refusal

PEERS = [
    "akri",
    "amd-device-plugin",
    "gke-device-plugin",
    "intel-device-plugins",
    "kubevirt",
    "smarter-device-manager",
]


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<stdin>: it is empty (is it the right file?)"),
        ("# nothing\n---\n---\n", "<stdin>: it is empty (is it the right file?)"),
        ("kind: List\nitems: []", "<stdin>:1:1: the list has no objects (is it the right file?)"),
        ("kind: Service", '<stdin>:1:7: a "Service" contains no configuration (give '),
        ("kind: Pod\n---\nkind: }", "<stdin>:3:7: "),
        ("a\0b", "<stdin>:1:2: this is not text: it has a zero byte"),
        ("a" * (1 << 20) + "b", "<stdin>: it is larger than 1 MiB"),
    ],
)
def test_a_file_without_a_configuration_is_refused_in_one_line(peer: str, text: str, message: str) -> None:
    assert message in refusal(peer, text)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("GpuDevicePlugin", "intel-device-plugins"),
        ("Configuration", "akri"),
        ("DeviceConfig", "amd-device-plugin"),
        ("KubeVirt", "kubevirt"),
    ],
)
def test_the_error_for_an_object_of_another_plugin_names_its_importer(
    peer: str, kind: str, reader: str
) -> None:
    if peer != reader:
        assert f"`devhost import {reader}` reads it" in refusal(peer, f"kind: {kind}")


@pytest.mark.parametrize("peer", PEERS)
def test_a_value_that_is_not_text_is_refused_with_its_place(peer: str) -> None:
    assert "<stdin>:1:1: this is not UTF-8 text" in refusal(peer, b"\xff\xfe")
