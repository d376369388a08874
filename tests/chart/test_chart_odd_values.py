"""Values that nobody meant to write: an object that Kubernetes takes, or one line that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from rendering import Chart, Types, refusal

EVERYTHING = {
    "service": {"enabled": True},
    "dashboard": {"enabled": True},
    "priorityQuota": True,
}


def resource(**keys: Any) -> dict[str, Any]:
    return {"name": "example.com/x", "backend": "udev", "where": {"subsystem": "tty"}, **keys}


def configured(*resources: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"config": {"version": 1, "resources": list(resources), **keys}}


def programmed(directory: str) -> dict[str, Any]:
    return {"name": "example.com/f", "backend": "fpga", "program": {"bitstream": f"{directory}/x.gbs"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing yet\n", "config: the key version is missing"),
        ("version: 1\n", "config: the key resources is missing"),
        ("- 1\n", "config must be a map with version and resources"),
        ("hello\n", "config must be a map with version and resources"),
        ("version: 1\nresources:\n", "config.resources must be a list, not nothing"),
        ("version: 1\nresources: {a: b}\n", "config.resources must be a list, not a map"),
        ("version: one\nresources: []\n", "config.version must be a number, not text"),
        ("version: 1\nresources: [fuse]\n", "config.resources[0] must be a map, not text"),
        ("version: 1\nresources: [{name: a.b/c}]\n", "config.resources[0]: the key backend is missing"),
        (
            "version: 1\nresources: [{name: a.b/c, backend: fpga, program: x.gbs}]\n",
            "config.resources[0].program must be a map, not text",
        ),
        ("version: 1\nresources: []\nbackends: [gpu]\n", "config.backends must be a map, not a list"),
        ("version: 1\nresources: []\nbackends: {gpu: }\n", "config.backends.gpu must be a map, not nothing"),
        (
            "version: 1\nresources: []\nbackends: {gpu: {driverRoot: 1}}\n",
            "config.backends.gpu.driverRoot must be text, not a number",
        ),
        (
            "version: 1\nresources: []\nbackends: {udev: {groups: [{members: [tty]}]}}\n",
            "config.backends.udev.groups[0].members[0] must be a map, not text",
        ),
        (
            "version: 1\nresources: []\nbackends: {udev: {groups: [{members: [{optional: true}]}]}}\n",
            "config.backends.udev.groups[0].members[0]: the key path is missing",
        ),
        (
            "version: 1\nresources: [{name: a.b/c, backend: fpga, program: {id: x}}]\n",
            "config.resources[0].program: the key bitstream is missing",
        ),
        ("version: 1\nresources: []\nlabels:\n", "config.labels must be a map, not nothing"),
        ("version: 1\nresources: []\ncdi: {directory: }\n", "config.cdi.directory must be text, not nothing"),
    ],
)
def test_a_text_of_the_wrong_outline_is_refused_in_one_line(chart: Chart, text: str, message: str) -> None:
    said = refusal(chart, {"config": text})
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        ({"udev": {"groups": {"a": {}}}}, "config.backends.udev.groups must be a list, not a map"),
        ({"udev": {"groups": [{"mounts": [{}]}]}}, "udev.groups[0].mounts[0]: the key path is missing"),
        ({"gpu": {"cdiDirectories": [1]}}, "gpu.cdiDirectories[0] must be text, not a number"),
    ],
)
def test_options_are_looked_at_in_a_map_as_in_a_text(
    chart: Chart, backends: dict[str, Any], message: str
) -> None:
    values = configured(resource(), backends=backends)
    for given in (values, {"config": yaml.safe_dump(values["config"])}):
        said = refusal(chart, given)
        assert message in said
        assert len(said.splitlines()) == 1


RELATIVE = {
    "cdi.directory": configured(cdi={"directory": "etc/cdi"}),
    "labels.directory": configured(labels={"directory": "", "write": True}),
    "deviceInfo.directory": configured(deviceInfo={"directory": "./info"}),
    "resources[0].program.bitstream": configured(
        {"name": "a.b/c", "backend": "fpga", "program": {"bitstream": "x.gbs"}}
    ),
    "backends.gpu.driverRoot": configured(backends={"gpu": {"driverRoot": ""}}),
    "backends.gpu.devRoot": configured(backends={"gpu": {"devRoot": "run/nv"}}),
    "resources[0].mps.root": configured(
        {"name": "a.b/c", "backend": "gpu", "mps": {"root": "run/nvidia/mps"}}
    ),
    "backends.gpu.cdiDirectories[1]": configured(backends={"gpu": {"cdiDirectories": ["/etc/cdi", "run"]}}),
    "backends.udev.groups[0].members[0].path": configured(
        backends={"udev": {"groups": [{"members": [{"path": "dev/ttyS0"}]}]}}
    ),
}


@pytest.mark.parametrize("place", RELATIVE)
def test_a_path_that_is_not_absolute_is_refused_with_its_place(chart: Chart, place: str) -> None:
    said = refusal(chart, {"config": yaml.safe_dump(RELATIVE[place]["config"])})
    assert f"config.{place} must be an absolute path" in said
    assert len(said.splitlines()) == 1
    refusal(chart, RELATIVE[place])


@pytest.mark.parametrize("name", ["123", "true", "null"])
def test_a_name_that_yaml_takes_for_something_else_stays_a_name(
    chart: Chart, types: Types, name: str
) -> None:
    values = EVERYTHING | {key: name for key in ("serviceAccountName", "priorityClassName")}
    values["service"] = {"enabled": name.isalpha()}  # no Service may be called 123
    for more in ({"fullnameOverride": name, "nameOverride": name}, {"existingConfigMap": name}):
        assert types.complaints(chart.render(values | more, release=name).text) == []


def test_every_object_has_a_unique_name_of_any_length(chart: Chart) -> None:
    for rendered in (
        chart.render(EVERYTHING | {"fullnameOverride": "a" * 63}),
        chart.render(EVERYTHING, release="r" * 53),
        chart.render(EVERYTHING, release="first.second"),
    ):
        named = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
        assert len(set(named)) == len(named)
        assert [name for _, name in named if len(name) > 63 or "." in name] == []


@pytest.mark.parametrize("path", ["/a #b", "/a, b", "/a: b", "/{a}", '/a"b'])
def test_a_path_may_have_any_character_that_kubernetes_takes(chart: Chart, types: Types, path: str) -> None:
    rendered = chart.render(configured(resource(inject="cdi"), cdi={"directory": path}))
    if ":" not in path:
        assert rendered.mounts[path]["hostPath"]["path"] == path
    assert types.complaints(rendered.text) == []


def test_directories_whose_names_are_alike_are_mounted_both(chart: Chart) -> None:
    alike = ["/srv/a_b", "/srv/a-b", "/srv/a b", "/srv/Ä", "/srv/" + "a" * 60, "/srv/" + "a" * 60 + "b"]
    rendered = chart.render(configured(*(programmed(one) for one in alike)))
    assert {f"/host{one}" for one in alike} <= rendered.mounts.keys()
    names = [one["name"] for one in rendered.pod["volumes"]]
    assert len(set(names)) == len(names)
    assert [one for one in names if len(one) > 63 or not one.replace("-", "").isascii() or " " in one] == []


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"extraHostPaths": [{"path": "/dev"}]}, "/host/dev of the container is used twice, by dev and"),
        ({"extraHostPaths": [{"path": "/a"}, {"path": "/a/"}]}, "by extraHostPaths[0] and by"),
        (
            {"extraHostPaths": [{"path": "/a", "mountPath": "/etc/devhost"}]},
            "/etc/devhost of the container is used twice, by the configuration and by extraHostPaths[0]",
        ),
        (
            configured(
                resource(inject="cdi"),
                cdi={"directory": "/etc/x"},
                labels={"directory": "/etc/x", "write": True},
            ),
            "/etc/x of the container is used twice, by cdi and by node-labels",
        ),
        ({"kubelet": {"root": "/data/../kubelet"}}, "Kubernetes refuses paths with .."),
        ({"extraHostPaths": [{"path": "/a", "mountPath": "/b/../c"}]}, "/b/../c: Kubernetes refuses paths"),
    ],
)  # fmt: skip
def test_what_kubernetes_would_refuse_of_mounts_is_refused_with_its_place(
    chart: Chart, values: dict[str, Any], wanted: str
) -> None:
    assert wanted in refusal(chart, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name is set by the chart"),
        ({"extraEnv": [{"name": "NODE_IP", "value": "::"}]}, "extraEnv: NODE_IP is set by the chart"),
        ({"existingConfigMap": "mine", "configFiles": {"a.py": ""}}, "put them into mine"),
        ({"listen": {"address": "$(NODE_IP)"}, "hostNetwork": False}, "set hostNetwork to true"),
        ({"configFiles": {"..data": ""}}, "additional properties '..data' not allowed"),
        ({"resources": {"limits": {"memory": "lots"}}}, "'lots' does not match pattern"),
        ({"listen": {"port": None}}, "at '/listen': missing property 'port'"),
        ({"kubelet": {"root": None}}, "at '/kubelet': missing property 'root'"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_meant_are_refused(chart: Chart, values: dict[str, Any], message: str) -> None:
    assert message in refusal(chart, values)


def test_labels_of_a_monitor_count_more_than_the_charts(chart: Chart) -> None:
    labels = {"app.kubernetes.io/name": "mine"}
    text = chart.render({"podMonitor": {"enabled": True, "labels": labels}}).text
    monitor = text[text.index("kind: PodMonitor") :]
    assert monitor.partition("spec:")[0].count("app.kubernetes.io/name:") == 1
    assert "app.kubernetes.io/name: mine" in monitor
