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


def test_the_defaults_are_a_daemonset_and_its_configuration(chart: Chart) -> None:
    rendered = chart.render()
    assert rendered.kinds == ["ConfigMap", "DaemonSet"]
    assert rendered.container["image"] == f"devhost:{__version__}"
    assert rendered.args == ["run", "--root=/host", "--listen=:9400", "--log-format=json"]
    default = yaml.safe_load((ROOT / "config" / "devhost.yaml").read_text())
    assert yaml.safe_load(rendered.configuration) == default


def test_it_runs_wherever_there_is_a_kubelet(chart: Chart) -> None:
    pod = chart.render().pod
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["priorityClassName"] == "system-node-critical"
    assert "nodeSelector" not in pod
    assert pod["affinity"].keys() == {"podAntiAffinity"}


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


def test_privileged_keeps_the_file_system_read_only(chart: Chart) -> None:
    security = chart.render({"securityProfile": "privileged"}).container["securityContext"]
    assert security == {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "privileged": True,
        "allowPrivilegeEscalation": True,
    }


def test_a_capability_can_be_given_alone(chart: Chart) -> None:
    security = chart.render({"capabilities": ["NET_ADMIN"]}).container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert security["privileged"] is False


def test_an_edit_of_the_configuration_restarts_nothing(chart: Chart) -> None:
    """It arrives in the mounted directory: by no subPath, and without a trace of it in the pods' template."""
    before, after = (chart.render(one, profile="minimal") for one in ({}, {"config": {"resources": []}}))
    assert before.configuration != after.configuration
    assert template(before) == template(after)
    mount = before.mounts["/etc/devhost"]
    assert "subPath" not in mount
    assert mount["configMap"] == {"name": "devhost"}


def test_more_files_are_mounted_beside_the_configuration(chart: Chart) -> None:
    data = chart.render({"configFiles": {"meter.py": "import os\n"}}).only("ConfigMap")["data"]
    assert data["meter.py"] == "import os\n"
    assert set(data) == {"devhost.yaml", "meter.py"}


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


def test_an_existing_configmap_is_mounted_and_none_created(chart: Chart) -> None:
    rendered = chart.render({"existingConfigMap": "theirs"})
    assert rendered.kinds == ["DaemonSet"]
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": "theirs"}


def test_one_kubelet_never_has_two_of_them(chart: Chart) -> None:
    strategy = daemonset(chart.render({"maxUnavailable": "20%"}))["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%", "maxSurge": 0}}


def test_probes_give_devhost_the_time_it_takes(chart: Chart) -> None:
    container = chart.render().container
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert container["livenessProbe"]["timeoutSeconds"] > 4
    assert container["ports"] == [{"name": "metrics", "containerPort": 9400}]


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


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"logFormat": "text"}, "--log-format=text"),
        ({"logLevel": "debug"}, "--log-level=debug"),
        ({"podMetrics": True}, "--pod-metrics"),
        ({"useMetrics": True}, "--use-metrics"),
        ({"strictConfig": True}, "--strict-config"),
        ({"listen": {"podNames": True}}, "--show-pods"),
    ],
)
def test_values_become_command_line_options(chart: Chart, values: dict[str, Any], argument: str) -> None:
    assert argument not in chart.render().args
    assert argument in chart.render(values).args


@pytest.mark.parametrize(
    ("version", "field"), [("1.37", "status.hostIPs"), ("1.31", "status.hostIPs"), ("1.30", "status.hostIP")]
)
def test_devhost_knows_the_nodes_addresses_and_name(chart: Chart, version: str, field: str) -> None:
    rendered = chart.render({}, f"--kube-version={version}", profile="minimal")
    assert rendered.container["env"] == [
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": field}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({"repository": "registry.local:5000/hw/devhost"}, f"registry.local:5000/hw/devhost:{__version__}"),
        ({"tag": "0.2.0"}, "devhost:0.2.0"),
        ({"tag": "0.2.0", "digest": f"sha256:{'0' * 64}"}, f"devhost@sha256:{'0' * 64}"),
    ],
)
def test_the_image_can_be_any(chart: Chart, values: dict[str, Any], image: str) -> None:
    assert chart.render({"image": values}).container["image"] == image


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nodeSelector", {"hardware": "gpu"}),
        ("affinity", {"podAntiAffinity": {}}),
        ("tolerations", [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        ("imagePullSecrets", [{"name": "registry"}]),
        ("priorityClassName", "high"),
        ("serviceAccountName", "devhost"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirstWithHostNet"),
    ],
)
def test_what_pods_have_of_the_values(chart: Chart, key: str, value: object) -> None:
    assert chart.render({key: value}).pod[key] == value


def test_what_the_container_has_of_the_values(chart: Chart) -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
    values = {
        "resources": resources,
        "image": {"pullPolicy": "Always"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "seLinuxOptions": {"type": "container_device_plugin_t"},
    }
    container = chart.render(values).container
    assert container["resources"]["limits"] == resources["limits"]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "64Mi"}
    assert container["imagePullPolicy"] == "Always"
    assert container["env"][-1] == {"name": "TZ", "value": "UTC"}
    assert container["securityContext"]["seLinuxOptions"] == values["seLinuxOptions"]


def test_a_security_context_of_the_values_replaces_the_derived_one(chart: Chart) -> None:
    own = {"privileged": True, "seLinuxOptions": {"type": "spc_t"}}
    assert chart.render({"securityContext": own}).container["securityContext"] == own


def test_volumes_of_any_type_are_added(chart: Chart) -> None:
    values = {
        "extraVolumes": [{"name": "backends", "configMap": {"name": "mine"}}],
        "extraVolumeMounts": [{"name": "backends", "mountPath": "/srv/backends", "readOnly": True}],
    }
    mount = chart.render(values).mounts["/srv/backends"]
    assert (mount["configMap"], mount["readOnly"]) == ({"name": "mine"}, True)


def test_pods_can_be_upgraded_one_by_one_by_hand(chart: Chart) -> None:
    assert daemonset(chart.render())["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    strategy = daemonset(chart.render({"updateStrategy": "OnDelete"}))["spec"]["updateStrategy"]
    assert strategy == {"type": "OnDelete"}


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


def test_the_service_account_has_the_annotations_of_the_values(chart: Chart) -> None:
    values = {**EVERYTHING, "serviceAccountAnnotations": {"example.com/role": "devhost"}}
    account = chart.render(values).only("ServiceAccount")
    assert account["metadata"]["annotations"] == {"example.com/role": "devhost"}


def test_labels_and_annotations(chart: Chart) -> None:
    values = {"podLabels": {"a": "1"}, "podAnnotations": {"b": "2"}, "annotations": {"c": "3"}}
    rendered = chart.render(values)
    assert template(rendered)["metadata"]["labels"]["a"] == "1"
    assert template(rendered)["metadata"]["annotations"] == {"b": "2"}
    assert daemonset(rendered)["metadata"]["annotations"] == {"c": "3"}


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


def test_a_quota_admits_the_priority_class_where_a_cluster_wants_one(chart: Chart) -> None:
    quota = chart.render({"priorityQuota": True}).only("ResourceQuota")
    (one,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert one["values"] == ["system-node-critical"]


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
