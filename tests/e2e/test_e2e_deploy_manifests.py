"""All manifests of the project are validated and admitted by a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from onenode.cluster import Cluster
from onenode.kubectl import Refused
from onenode.release import NAME, NAMESPACE
from onenode.shipped import CHART, REPOSITORY

DEPLOY = REPOSITORY / "deploy"
STRICTLY = ("--dry-run=server", "--validate=strict")
"""The API server does everything except storing it, and refuses unknown keys."""

# DaemonSets and pods are also checked by admission: priority, tolerations, volumes, probes
OVERLAYS = [DEPLOY / "kustomize" / "base", *sorted((DEPLOY / "kustomize" / "overlays").iterdir())]
PROFILES = [CHART / "values.yaml", *sorted((CHART / "profiles").glob("*.yaml"))]
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
