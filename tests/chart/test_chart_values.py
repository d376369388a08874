"""Every value of the chart has the effect that values.yaml promises."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import CHART, PROFILES, ROOT, Chart, Object, Rendered, Types

from devhost import __version__
from devhost.runtime.http import parse_listen

PROGRAMMED = {"name": "example.com/fpga", "backend": "fpga", "program": {"bitstream": "/srv/x.gbs"}}

EVERYTHING: dict[str, Any] = {
    "config": {
        "version": 1,
        "dra": {"driver": "devhost.example.com"},
        "resources": [
            {"name": "a.b/c", "backend": "udev", "where": {"subsystem": "tty"}, "serve": "dra"},
            {"name": "a.b/gpu", "backend": "gpu", "where": {"vendor": "nvidia"}},
        ],
    },
    "dra": {"enabled": True},
    "gpuOperator": {"namespace": "gpu-operator"},
    "service": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
    "priorityQuota": True,
    "hostNetwork": False,
}
"""Values with which the chart makes every kind of object but monitors, which exclude each other."""

MONITORS = ("podMonitor", "serviceMonitor")


def daemonset(rendered: Rendered) -> Object:
    return rendered.only("DaemonSet")


def template(rendered: Rendered) -> Object:
    return dict(daemonset(rendered)["spec"]["template"])


def templates(rendered: Rendered) -> list[Object]:
    """Those of all pods."""
    return [one["spec"]["template"] for one in rendered.objects if one["kind"] == "DaemonSet"]


@pytest.mark.parametrize("profile", ["unprivileged", "gpu", "auto"])
def test_without_privileges_it_is_root_without_any_capability(chart: Chart, profile: str) -> None:
    rendered = chart.render({"securityProfile": profile})
    assert rendered.container["securityContext"] == {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert rendered.pod["automountServiceAccountToken"] is False
    assert not rendered.pod.keys() & {"hostPID", "hostIPC", "serviceAccountName"}


def test_an_edit_of_the_configuration_restarts_nothing(chart: Chart) -> None:
    """It arrives in the mounted directory: by no subPath, and without a trace of it in the pods' template."""
    before, after = (chart.render(one, profile="minimal") for one in ({}, {"config": {"resources": []}}))
    assert before.configuration != after.configuration
    assert template(before) == template(after)
    mount = before.mounts["/etc/devhost"]
    assert "subPath" not in mount
    assert mount["configMap"] == {"name": "devhost"}


def test_the_audit_trail_is_installed_as_its_page_shows(chart: Chart, tmp_path: Path) -> None:
    """The trail's directory is one that the container can write to."""
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    argument = re.search(r"--set-file '(configFiles\.\S+)=(examples/\S+)'", page)
    assert argument
    (tmp_path / "devhost.yaml").write_text("version: 1\nbackendPaths: [.]\nresources: []\n")
    rendered = chart.render(
        {},
        "--set-file",
        f"config={tmp_path / 'devhost.yaml'}",
        "--set-file",
        f"{argument[1]}={ROOT / argument[2]}",
    )
    data = rendered.only("ConfigMap")["data"]
    assert data["audit.py"] == (ROOT / argument[2]).read_text(encoding="utf-8")
    assert "backendPaths: [.]" in data["devhost.yaml"]
    state = rendered.mounts["/var/lib/devhost"]
    assert state["hostPath"]["path"] == "/var/lib/devhost"
    assert not state.get("readOnly")


@pytest.mark.parametrize(
    ("address", "argument", "probed"),
    [
        ("", "--listen=:9000", None),
        ("127.0.0.1", "--listen=127.0.0.1:9000", "127.0.0.1"),
        ("127.1.2.3", "--listen=127.1.2.3:9000", "127.1.2.3"),
        ("::1", "--listen=[::1]:9000", "::1"),
        ("0:0:0:0:0:0:0:1", "--listen=[0:0:0:0:0:0:0:1]:9000", "0:0:0:0:0:0:0:1"),
        ("::ffff:127.0.0.1", "--listen=[::ffff:127.0.0.1]:9000", "::ffff:127.0.0.1"),
        ("10.1.2.3", "--listen=10.1.2.3:9000", None),
        ("2001:db8:1:2:3:4:5:6", "--listen=[2001:db8:1:2:3:4:5:6]:9000", None),
        ("$(NODE_IP)", "--listen=[$(HOST_IP)]:9000", None),
    ],
)
def test_it_listens_at_the_configured_address_and_is_probed_there(
    chart: Chart, address: str, argument: str, probed: str | None
) -> None:
    rendered = chart.render({"listen": {"address": address, "port": 9000}, "hostNetwork": True})
    assert argument in rendered.args
    for node in ("192.0.2.1", "2001:db8::1"):
        parse_listen(argument.partition("=")[2].replace("$(HOST_IP)", node))
    assert rendered.container["livenessProbe"]["httpGet"].get("host") == probed
    assert rendered.container["readinessProbe"]["httpGet"].get("host") == probed
    assert rendered.container["ports"][0]["containerPort"] == 9000


@pytest.mark.parametrize("monitor", MONITORS)
def test_every_object_can_be_in_another_namespace(chart: Chart, types: Types, monitor: str) -> None:
    values = {**EVERYTHING, monitor: {"enabled": True}, "namespaceOverride": "hardware"}
    rendered = chart.render(values)
    objects = {one["metadata"]["name"]: one["metadata"].get("namespace") for one in rendered.objects}
    assert objects.pop("devhost-release") == "gpu-operator"
    assert set(objects.values()) == {"hardware", None}
    assert "devhost.hardware" in {one["metadata"]["name"] for one in rendered.objects}
    (subject,) = rendered.only("ClusterRoleBinding")["subjects"]
    assert subject["namespace"] == "hardware"
    assert types.complaints(rendered.text) == []


@pytest.mark.parametrize("monitor", MONITORS)
def test_common_labels_are_on_every_object_and_replace_none_of_the_charts(chart: Chart, monitor: str) -> None:
    common = {"team": "edge", "app.kubernetes.io/name": "mine", "app": "mine"}
    rendered = chart.render({**EVERYTHING, monitor: {"enabled": True}, "commonLabels": common})
    found = [*rendered.objects, *templates(rendered)]
    labels = [one["metadata"]["labels"] for one in found]
    assert {one["team"] for one in labels} == {"edge"}
    assert {one["app.kubernetes.io/name"] for one in labels} == {"devhost", "devhost-release"}


def test_every_pod_pulls_its_image_from_the_registry_of_the_parent_chart_with_its_secrets(
    chart: Chart,
) -> None:
    shared = {"imageRegistry": "registry.local", "imagePullSecrets": ["one"]}
    pods = [one["spec"] for one in templates(chart.render({**EVERYTHING, "global": shared}))]
    assert len(pods) == 2
    for pod in pods:
        assert pod["imagePullSecrets"] == [{"name": "one"}]
        assert pod["containers"][0]["image"] == f"registry.local/devhost:{__version__}"


def test_every_template_of_the_chart_is_in_what_these_tests_make(chart: Chart) -> None:
    every = EVERYTHING | {"nodeCondition": {"enabled": True}, "dra": {"enabled": True, "status": True}}
    texts = [chart.render({**every, monitor: {"enabled": True}}).text for monitor in MONITORS]
    made = set(re.findall("^# Source: devhost/(.*)$", "".join(texts), re.MULTILINE))
    assert made == {f"templates/{file.name}" for file in CHART.glob("templates/*.yaml")}


def test_nodes_of_two_kinds_have_a_release_each(chart: Chart) -> None:
    names = []
    for release in ("devhost-gpu", "edge"):
        rendered = chart.render(release=release)
        one = daemonset(rendered)
        names.append(one["metadata"]["name"])
        assert one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == release
        assert {each["metadata"]["name"] for each in rendered.objects} == {names[-1]}
    assert names == ["devhost-gpu", "edge-devhost"]
    assert daemonset(chart.render({"fullnameOverride": "x"}))["metadata"]["name"] == "x"
    assert daemonset(chart.render({"nameOverride": "y"}, release="edge"))["metadata"]["name"] == "edge-y"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_kubernetes_knows_every_field(chart: Chart, types: Types, profile: str, version: str) -> None:
    everything = {
        "service": {"enabled": True},
        "dashboard": {"enabled": True},
        "priorityQuota": True,
        "capabilities": ["NET_ADMIN"],
        "extraHostPaths": [{"path": "/srv"}],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "nodeSelector": {"a": "b"},
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "x"}],
        "seLinuxOptions": {"type": "spc_t"},
    }
    rendered = chart.render(everything, f"--kube-version={version}", profile=profile)
    assert types.complaints(rendered.text) == []


def test_a_field_that_kubernetes_does_not_know_is_noticed(types: Types) -> None:
    text = yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    )
    (complaint,) = types.complaints(text)
    assert 'unknown field "spec.prots"' in complaint


def notes(chart: Chart, helm: Path, directory: Path, values: dict[str, Any], profile: str) -> str:
    """What Helm tells after an install; without a cluster it does not, so here it is in an object."""
    copy = directory / "devhost"
    shutil.copytree(CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "_told.tpl").write_text(f'{{{{- define "told" -}}}}\n{text}{{{{- end -}}}}\n')
    (copy / "templates" / "told.yaml").write_text('kind: Told\ntext: {{ include "told" . | toJson }}\n')
    return str(Chart(helm, copy).render(values, profile=profile).only("Told")["text"])


@pytest.mark.parametrize(
    ("profile", "values", "told"),
    [
        ("gpu", {"securityProfile": "unprivileged"}, ["uses the backend gpu"]),
        ("gpu", {"securityProfile": "gpu"}, ["`runtimeClassName: nvidia` unless it is the default runtime"]),
        ("gpu", {"securityProfile": "auto", "runtimeClassName": "nvidia"}, ["(runtimeClassName: nvidia)"]),
        ("minimal", {"networkPolicy": {"enabled": True}}, []),
        ("full", {"networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]}},
         ["networkPolicy.enabled has no effect"]),
        ("full", {"securityProfile": "unprivileged"}, ["uses the backend gpu", "uses the backend rdma"]),
        ("full", {}, []),
        ("minimal", {}, []),
        ("minimal", {"config": {"resources": [PROGRAMMED]}}, ["programs FPGAs"]),
    ],
)  # fmt: skip
def test_the_notes_list_what_the_profile_does_not_allow(
    chart: Chart, helm: Path, tmp_path: Path, profile: str, values: dict[str, Any], told: list[str]
) -> None:
    text = notes(chart, helm, tmp_path, values, profile)
    assert text.count("NOTE:") == len(told)
    assert [one for one in told if one not in text] == []
    assert "kubectl -n devhost exec daemonset/devhost -- devhost status" in text


def test_the_notes_name_the_driver_and_how_to_get_its_classes(
    chart: Chart, helm: Path, tmp_path: Path
) -> None:
    values = {"dra": {"enabled": True}, "config": {"dra": {"driver": "devhost.example.com"}}}
    text = notes(chart, helm, tmp_path, values, "minimal")
    assert "the DRA driver devhost.example.com" in text
    assert "exec daemonset/devhost -- devhost dra classes | kubectl apply -f -" in text
    assert "stay\nTerminating" in text
