"""Two installations of devhost never meet on a node, and one never stands in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rendering import DEPLOY, Chart, Rendered, built

NAMESPACE = "kubernetes.io/metadata.name"


def takes(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels (Kubernetes, "Labels and Selectors")."""
    holds = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
    }
    assert selector.keys() == {"matchExpressions"}
    return all(
        holds[one["operator"]](one["key"], one.get("values", [])) for one in selector["matchExpressions"]
    )


def avoids(pod: Rendered, other: Rendered, namespace: str = "devhost", elsewhere: str = "devhost") -> bool:
    """Whether the pod in ``namespace`` gets no node on which the other runs, in ``elsewhere``."""
    labels = other.only("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    terms = pod.pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert {term["topologyKey"] for term in terms} == {"kubernetes.io/hostname"}
    return any(
        takes(term["labelSelector"], labels)
        and (
            takes(term["namespaceSelector"], {NAMESPACE: elsewhere})
            if "namespaceSelector" in term
            else namespace == elsewhere
        )
        for term in terms
    )


@pytest.fixture
def overlay(kustomize: Path) -> Rendered:
    return built(kustomize, DEPLOY / "kustomize" / "overlays" / "minimal")


def test_releases_avoid_each_other_and_not_their_own_pods(chart: Chart) -> None:
    gpu, edge = chart.render(release="devhost-gpu"), chart.render(release="edge")
    renamed = chart.render({"nameOverride": "y"}, release="renamed")
    namespace = gpu.only("DaemonSet")["metadata"]["namespace"]
    for one, other in ((gpu, edge), (edge, gpu), (renamed, edge)):
        assert avoids(one, other, namespace, namespace)
        assert avoids(one, other, namespace, "elsewhere")
    for one in (gpu, edge, renamed):
        assert not avoids(one, one, namespace, namespace)
        assert avoids(one, one, namespace, "elsewhere"), "a release of the same name in another namespace"


def test_an_overlay_avoids_releases_and_other_namespaces_and_not_its_own_pods(
    chart: Chart, overlay: Rendered
) -> None:
    release = chart.render(release="edge")
    namespace = release.only("DaemonSet")["metadata"]["namespace"]
    assert avoids(overlay, release)
    assert avoids(release, overlay, namespace, namespace)
    assert avoids(release, overlay, namespace, "elsewhere")
    assert avoids(overlay, overlay, elsewhere="elsewhere")
    assert not avoids(overlay, overlay)
