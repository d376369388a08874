"""What every import of Kubernetes objects makes of files that are odd: one line, with its place."""

from __future__ import annotations

import pytest
from devhost_import.command import command
from importing import refusal, run, said

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


@pytest.mark.parametrize("peer", command.commands)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: A\nkind: B",
            '<stdin>:2:1: the key "kind" appears twice, first in line 1 (keep one of the two)',
        ),
        ('{"a": 1,\n "a": 1}', '<stdin>:2:2: the key "a" appears twice, first in line 1'),
        ("kind: !Ref x", '<stdin>:1:7: the tag "!Ref" is not allowed'),
        (
            "a: 1\n{{- if .Values.x }}\nb: 2\n{{- end }}",
            '<stdin>:2:1: it is a template, with "{{- if" (give what',
        ),
        (
            "a: {{ .Values.a }}\nb: {{ .Values.b }}",
            '<stdin>:1:4: it is a template, with "{{ .Values.a" (give what',
        ),
        ("a:\n{% if b %}\n- b\n{% endif %}", '<stdin>:2:1: it is a template, with "{% if" (give what'),
        (
            "# as {{ .Values.a }}\na: '{{ .Values.a }}'\nb: 1\nb: 2",
            '<stdin>:4:1: the key "b" appears twice, first in line 3',
        ),
    ],
)
def test_input_with_two_meanings_or_none_yet_is_refused_in_one_line(
    peer: str, text: str, message: str
) -> None:
    assert refusal(peer, text).startswith(message)


def test_text_in_an_object_with_a_key_twice_is_refused_with_its_place() -> None:
    text = 'kind: ConfigMap\ndata:\n  config.json: |\n    {"resourceList": [],\n    "resourceList": []}\n'
    message = '<stdin>:3: data.config.json:2:1: the key "resourceList" appears twice, first in line 1'
    assert refusal("sriov-network-device-plugin", text).startswith(message)


def test_a_key_that_is_a_number_is_text() -> None:
    text = "config: {default: '1', map: {1: 'flags: {migStrategy: mixed}', 2: 'version: v1'}}"
    assert "For nodes with another one in the label nvidia.com/device-plugin.config (2)" in said(
        run("nvidia-device-plugin", text).stdout
    )
