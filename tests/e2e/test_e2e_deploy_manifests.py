"""All manifests of the project are validated and admitted by a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from onenode.cluster import Cluster
from onenode.kubectl import Refused
from onenode.release import NAME, NAMESPACE
from onenode.settings import NODE
from onenode.shipped import CHART, REPOSITORY
from onenode.waiting import until

DEPLOY = REPOSITORY / "deploy"
STRICTLY = ("--dry-run=server", "--validate=strict")
"""The API server does everything except storing it, and refuses unknown keys."""

# DaemonSets and pods are also checked by admission: priority, tolerations, volumes, probes
OVERLAYS = [DEPLOY / "kustomize" / "base", *sorted((DEPLOY / "kustomize" / "overlays").iterdir())]
PROFILES = [CHART / "values.yaml", *sorted((CHART / "profiles").glob("*.yaml"))]
DRIVER = "devhost.example.com"
DRA = {
    "dra": {"enabled": True},
    "config": {"version": 1, "dra": {"driver": DRIVER}, "resources": []},
}
EXAMPLES = sorted((DEPLOY / "examples").glob("*/pod.yaml"))


def named(path: Path) -> str:
    return path.parent.name if path.name == "pod.yaml" else path.stem


@pytest.fixture(scope="module", autouse=True)
def namespace(cluster: Cluster) -> None:
    """A dry run stores nothing, so it does not find a namespace of the same manifest."""
    cluster.kubectl.apply(NAMESPACE)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=named)
def test_the_api_server_accepts_an_overlay_from_kubectl(cluster, overlay):
    assert "daemonset.apps/devhost" in cluster.kubectl.run("apply", f"--kustomize={overlay}", *STRICTLY)


@pytest.mark.parametrize("profile", PROFILES, ids=named)
def test_the_api_server_accepts_the_chart_with_a_profile(cluster, shipment, profile):
    manifests = shipment.render(NAME, yaml.safe_load(profile.read_text()))
    assert "daemonset.apps/devhost" in cluster.kubectl.apply(manifests, f"--namespace={NAME}", *STRICTLY)


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_the_api_server_accepts_an_example(cluster, example):
    assert cluster.kubectl.apply(example.read_text(), *STRICTLY)


def test_the_api_server_refuses_misspelt_fields(cluster):
    """This shows that the tests above detect errors."""
    document = yaml.safe_load((DEPLOY / "kustomize" / "base" / "daemonset.yaml").read_text())
    document["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(Refused, match="hostNetworks"):
        cluster.kubectl.apply(yaml.safe_dump(document), f"--namespace={NAME}", *STRICTLY)


def test_the_api_server_accepts_the_chart_with_dra(cluster, shipment):
    done = cluster.kubectl.apply(shipment.render(NAME, DRA), f"--namespace={NAME}", *STRICTLY)
    assert "validatingadmissionpolicy.admissionregistration.k8s.io" in done
    assert "daemonset.apps/devhost" in done


@pytest.fixture
def tokens(cluster: Cluster, shipment) -> Iterator[dict[str, str]]:
    """Tokens of the chart's service account, of a pod on the node and of no pod."""
    objects = [one for one in yaml.safe_load_all(shipment.render(NAME, DRA)) if one]
    manifests = yaml.safe_dump_all(one for one in objects if one["kind"] not in ("ConfigMap", "DaemonSet"))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": NAME},
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": NAME,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "none", "image": "none", "imagePullPolicy": "Never"}],
        },
    }
    text = f"{manifests}\n---\n{yaml.safe_dump(pod)}"
    cluster.kubectl.apply(text, f"--namespace={NAME}")
    create = ("create", "token", NAME, f"--namespace={NAME}")
    bound = cluster.kubectl.run(*create, "--bound-object-kind=Pod", "--bound-object-name=holder")
    try:
        yield {"bound": bound.strip(), "unbound": cluster.kubectl.run(*create).strip()}
    finally:
        cluster.kubectl.run("delete", "resourceslices", "own", "unbound", "--ignore-not-found")
        cluster.kubectl.delete(text, f"--namespace={NAME}")


def written(cluster: Cluster, token: str, name: str, *, node: str, driver: str = DRIVER) -> None:
    """Creates a slice with this token, and raises ``Refused`` if the API server does not admit it."""
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": f"{node}/x", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }
    cluster.kubectl.create(json.dumps(slice_), f"--token={token}", "--validate=ignore")


@pytest.mark.conformance(108)
def test_devhost_can_write_slices_of_one_node_and_one_driver_only(cluster, tokens):
    until("the policy is in force", lambda: _refused(cluster, tokens["unbound"], node=NODE))
    with pytest.raises(Refused, match="may write only ResourceSlices of that node"):
        written(cluster, tokens["bound"], "foreign-node", node="another")
    with pytest.raises(Refused, match="may write only ResourceSlices of the driver"):
        written(cluster, tokens["bound"], "foreign-driver", node=NODE, driver="gpu.example.com")
    written(cluster, tokens["bound"], "own", node=NODE)
    done = cluster.kubectl.run("delete", "resourceslice", "own", f"--token={tokens['bound']}")
    assert "deleted" in done


def _refused(cluster: Cluster, token: str, *, node: str) -> bool:
    try:
        written(cluster, token, "unbound", node=node)
    except Refused as error:
        return "names no node" in str(error)
    return False
